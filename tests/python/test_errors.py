# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments: ValueError with the argument, its value and what is allowed."""

import numpy as np
import pytest
from support import Scene

import pagoda


@pytest.fixture
def scene():
    return Scene()


@pytest.fixture
def plan(scene):
    return pagoda.plan(scene.cache(), num_q_heads=8)


def refused(words):
    return pytest.raises(ValueError, match=words.replace("(", r"\(").replace(")", r"\)"))


def test_words_of_the_library(scene, plan):
    cache = scene.cache()
    with refused("pagoda::plan: num_q_heads is 7; allowed: a positive multiple of num_kv_heads = 2"):
        pagoda.plan(cache, num_q_heads=7)
    with refused("pagoda::decode: q has (heads, head_dim) = (7, 64); allowed: (8, 64)"):
        plan.decode(scene.q[:, :7], cache)
    with refused("q.stride.1. is -64; allowed: 0 or more"):
        plan.decode(scene.q[:, ::-1], cache)
    with refused("backend is"):
        pagoda.plan(cache, num_q_heads=8, backend="fast")


def test_caches(scene):
    k, v, table, lens = scene.k, scene.v, scene.block_table, scene.seq_lens
    with refused("pagoda.PagedCache: block_table holds int64; allowed: int32"):
        pagoda.PagedCache(k, v, table.astype(np.int64), lens)
    with refused("pagoda.PagedCache: seq_lens has 2 axes; allowed: 1"):
        pagoda.PagedCache(k, v, table, lens[None])
    with refused("pagoda.PagedCache: seq_lens has stride 2; allowed: adjacent entries"):
        pagoda.PagedCache(k, v, table, np.repeat(lens, 2)[::2])
    with refused("pagoda.PagedCache: block_table has 2 rows or entries; allowed: 3"):
        pagoda.PagedCache(k, v, table[:2], lens)
    with refused('pagoda.PagedCache: order is "NDH"; allowed: "NHD" or "HND"'):
        pagoda.PagedCache(k, v, table, lens, order="NDH")
    with refused("pagoda.PagedCache: k has 3 axes; allowed: 4"):
        pagoda.PagedCache(k[0], v, table, lens)
    with refused("pagoda.PagedCache: k holds uint8; allowed: float64, float32"):
        pagoda.PagedCache(k.view(np.uint8), v, table, lens)
    with refused('pagoda.PagedCache: kv_type is "int3"; allowed: fp64, fp32, fp16, bf16, fp8_e4m3'):
        pagoda.PagedCache(k.view(np.uint8), v.view(np.uint8), table, lens, kv_type="int3")
    with refused("pagoda.PagedCache: k holds float32; allowed: int4, or unsigned integers of 8 bits with its values"):
        pagoda.PagedCache(k, v, table, lens, kv_type="int4")
    with refused("pagoda.PagedCache: max_seq_len is 0; allowed: with page_indptr"):
        pagoda.PagedCache(k, v, table.reshape(-1), lens, page_indptr=np.arange(4, dtype=np.int32))
    with refused("pagoda.PagedCache: k_block_scale is given, and the cache holds fp32; allowed: for mxfp4 and nvfp4"):
        pagoda.PagedCache(k, v, table, lens, k_block_scale=k)
    with refused("pagoda.PagedCache: k repeats one element (all strides are 0)"):
        pagoda.PagedCache(np.broadcast_to(np.float32(1), k.shape), v, table, lens)
    with refused("pagoda.PagedCache: v is an object of type list; allowed: an array with __dlpack__"):
        pagoda.PagedCache(k, [1], table, lens)
    with refused("pagoda.PagedCache: k is an object of type NoneType; allowed: an array with __dlpack__"):
        pagoda.PagedCache(None, v, table, lens)


def test_queries(scene, plan):
    cache, q = scene.cache(), scene.q
    with refused("pagoda.Plan.decode: q has 2 axes; allowed: 3 (query token, q head, head_dim)"):
        plan.decode(q[0], cache)
    with refused("pagoda.Plan.decode: q holds int32; allowed: float64, float32, float16 or bfloat16"):
        plan.decode(q.astype(np.int32), cache)
    with refused("pagoda.Plan.decode: q is an object of type NoneType; allowed: an array with __dlpack__"):
        plan.decode(None, cache)


def test_outputs(scene, plan):
    cache, out = scene.cache(), np.empty_like(scene.q)
    out.flags.writeable = False
    with refused("pagoda.Plan.decode: out is read-only; allowed: memory that can be written"):
        plan.decode(scene.q, cache, out)
    with refused("lse holds fp16; allowed: PAGODA_FP32 or PAGODA_FP64"):
        plan.decode(scene.q, cache, lse=np.empty((3, 8), np.float16))


class Elsewhere:
    """An array that says it is on another device."""

    def __init__(self, array, device):
        self.shape, self.dtype, self.array, self.device = array.shape, array.dtype, array, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **_):
        import ctypes

        capsule = self.array.__dlpack__()
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        kind = (ctypes.c_int32 * 2).from_address(get(capsule, b"dltensor") + 8)
        kind[0], kind[1] = self.device
        return capsule


def test_devices(scene, plan):
    cache = scene.cache()
    there = Elsewhere(scene.q, (2, 1))
    with refused("pagoda.Plan.decode: q is on cuda:1; allowed: cpu, the plan's device"):
        plan.decode(there, cache, np.empty_like(scene.q))
    with refused("pagoda.PagedCache: v is on cuda:0; allowed: cpu, the device of k"):
        pagoda.PagedCache(scene.k, Elsewhere(scene.v, (2, 0)), scene.block_table, scene.seq_lens)
    metal = scene.cache(lambda array: Elsewhere(array, (8, 0)))
    with refused("pagoda.plan: the arrays are on DLPack device 8:0; allowed: cpu"):
        pagoda.plan(metal, num_q_heads=8)


def test_options(scene):
    cache = scene.cache()
    with refused("pagoda.plan: window_left is -2; allowed: -1 (all tokens) or more"):
        pagoda.plan(cache, num_q_heads=8, window_left=-2)
    with refused("pagoda.plan: sinks has 3 entries; allowed: 8, one for each query head"):
        pagoda.plan(cache, num_q_heads=8, sinks=np.zeros(3, np.float32))
    with refused("pagoda.plan: sinks holds float64; allowed: float32"):
        pagoda.plan(cache, num_q_heads=8, sinks=np.zeros(8))
    with pytest.raises(TypeError, match="pagoda.plan: num_q_heads is '8'; allowed: an int of 32 bits"):
        pagoda.plan(cache, num_q_heads="8")
    with pytest.raises(TypeError, match="pagoda.workspace_bytes: there is no option heads"):
        pagoda.workspace_bytes(cache, heads=8)
    with refused("pagoda.check: q is given alone; allowed: both or none"):
        pagoda.check(cache, q=scene.q)
