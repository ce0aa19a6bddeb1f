# SPDX-License-Identifier: Apache-2.0
"""Decodes of NumPy arrays against float64: layouts, types, options, merges, writes."""

import numpy as np
import pytest
from support import TOLERANCE, Scene, close

import pagoda


def test_decode_and_log_sum_exp():
    scene = Scene()
    cache = scene.cache()
    plan = pagoda.plan(cache, num_q_heads=scene.heads)
    out, lse = plan.decode(scene.q, cache, return_lse=True)
    right_out, right_lse = scene.right()
    close(out, right_out, TOLERANCE["fp32"])
    close(lse, right_lse, TOLERANCE["fp32"])
    assert out.dtype == np.float32 and lse.dtype == np.float32
    assert (cache.batch, cache.num_kv_heads, cache.head_dim, cache.page_size) == (3, 2, 64, 8)
    assert (cache.device, cache.order, cache.kv_type) == ("cpu", "NHD", "fp32")
    assert plan.backend == "generic" and "head_dim 64" in plan.describe() and plan.device == "cpu"


def test_outputs_are_written_in_place():
    scene = Scene(dim=32, dim_v=16)
    cache = scene.cache()
    plan = pagoda.plan(cache, num_q_heads=scene.heads)
    around = np.full((scene.heads, 5, 20), 7, np.float32)
    out = around.transpose(1, 0, 2)[1:4, :, 2:18]  # any strides
    lse = np.empty((3, scene.heads))
    result = plan.decode(scene.q, cache, out, lse)
    assert result[0] is out and result[1] is lse
    close(out, scene.right()[0], TOLERANCE["fp32"])
    close(lse, scene.right()[1], TOLERANCE["fp32"])
    assert (around[:, [0, 4]] == 7).all() and (around[:, :, :2] == 7).all() and (around[:, :, 18:] == 7).all()


def test_inputs_are_not_copied():
    scene = Scene(lengths=(10,))
    cache = scene.cache()
    plan = pagoda.plan(cache, num_q_heads=scene.heads)
    plan.decode(scene.q, cache)
    scene.v *= 2
    scene.seq_lens[0] = 7
    scene.q[:] = -scene.q
    close(plan.decode(scene.q, cache), scene.right()[0], TOLERANCE["fp32"])


def test_read_only_inputs():
    scene = Scene()
    for array in (scene.k, scene.v, scene.block_table, scene.seq_lens, scene.q):
        array.flags.writeable = False
    cache = scene.cache()
    close(pagoda.plan(cache, num_q_heads=8).decode(scene.q, cache), scene.right()[0], TOLERANCE["fp32"])


def test_orders_and_strides():
    scene = Scene()
    right = scene.right()[0]
    hnd = [np.ascontiguousarray(array.transpose(0, 2, 1, 3)) for array in (scene.k, scene.v)]
    cache = pagoda.PagedCache(*hnd, scene.block_table, scene.seq_lens, order="HND")
    close(pagoda.plan(cache, num_q_heads=8).decode(scene.q, cache), right, TOLERANCE["fp32"])
    # Keys and values in one array, as FlashInfer has them.
    both = np.stack([scene.k, scene.v], axis=1)
    cache = pagoda.PagedCache(both[:, 0], both[:, 1], scene.block_table, scene.seq_lens)
    close(pagoda.plan(cache, num_q_heads=8).decode(scene.q, cache), right, TOLERANCE["fp32"])


def test_page_lists():
    scene = Scene()
    counts = -(-scene.seq_lens // scene.page_size)
    pages = np.concatenate([row[:count] for row, count in zip(scene.block_table, counts)])
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    cache = pagoda.PagedCache(scene.k, scene.v, pages, scene.seq_lens, page_indptr=indptr, max_seq_len=31)
    close(pagoda.plan(cache, num_q_heads=8).decode(scene.q, cache), scene.right()[0], TOLERANCE["fp32"])


def test_contiguous_and_sequence_ids():
    scene = Scene(lengths=(20, 31, 9))
    k, v = (array[scene.block_table].reshape(3, -1, *array.shape[2:]) for array in (scene.k, scene.v))
    ids = np.array([2, 0], np.int32)
    cache = pagoda.ContiguousCache(k, v, scene.seq_lens, sequence_ids=ids)
    assert cache.batch == 2
    out = pagoda.plan(cache, num_q_heads=8).decode(scene.q[ids], cache)
    close(out, scene.right()[0][ids], TOLERANCE["fp32"])


@pytest.mark.parametrize("name", ["fp64", "fp32", "fp16", "bf16"])
def test_types(name, need):
    need(name)
    if name == "bf16":
        dtype = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed").bfloat16
    else:
        dtype = {"fp64": np.float64, "fp32": np.float32, "fp16": np.float16}[name]
    scene = Scene()
    scene.k, scene.v, scene.q = (array.astype(dtype) for array in (scene.k, scene.v, scene.q))
    cache = scene.cache()
    assert cache.kv_type == name
    out = pagoda.plan(cache, num_q_heads=8).decode(scene.q, cache)
    assert out.dtype == dtype
    close(out, scene.right()[0], TOLERANCE[name])


def test_int4_bytes(need):
    need("int4")
    scene = Scene()
    rng = np.random.default_rng(5)
    numbers = [rng.integers(-8, 8, array.shape) for array in (scene.k, scene.v)]
    packed = [((a[..., 0::2] & 15) | ((a[..., 1::2] & 15) << 4)).astype(np.uint8) for a in numbers]
    scales = [rng.uniform(0.05, 0.2, scene.k.shape[:3]).astype(np.float32) for _ in range(2)]
    cache = pagoda.PagedCache(
        *packed, scene.block_table, scene.seq_lens, kv_type="int4", k_scale=scales[0], v_scale=scales[1]
    )
    assert (cache.kv_type, cache.head_dim) == ("int4", 64)
    right, _ = scene.right(k=numbers[0] * scales[0][..., None], v=numbers[1] * scales[1][..., None])
    close(pagoda.plan(cache, num_q_heads=8).decode(scene.q, cache), right, 2e-3)
    one = pagoda.PagedCache(*packed, scene.block_table, scene.seq_lens, kv_type="int4", k_scale=0.125, v_scale=0.5)
    right, _ = scene.right(k=numbers[0] * 0.125, v=numbers[1] * 0.5)
    close(pagoda.plan(one, num_q_heads=8).decode(scene.q, one), right, 2e-3)


def test_options():
    scene = Scene(query_len=3, lengths=(20, 31, 3))
    cache = scene.cache()
    sinks = np.linspace(-1, 2, 8, dtype=np.float32)
    plan = pagoda.plan(cache, num_q_heads=8, max_query_len=3, window_left=6, sinks=sinks)
    close(plan.decode(scene.q, cache), scene.right(window_left=6, sinks=sinks)[0], TOLERANCE["fp32"])
    sinks += 1  # is read by each decode
    close(plan.decode(scene.q, cache), scene.right(window_left=6, sinks=sinks)[0], TOLERANCE["fp32"])


def test_exactness():
    scene = Scene(query_len=3, lengths=(20, 31, 3))
    cache = scene.cache()
    for exactness in ("fast", "batch_invariant", "reproducible"):
        plan = pagoda.plan(cache, num_q_heads=8, max_query_len=3, exactness=exactness)
        assert ("splits of" in plan.describe()) == (exactness != "fast")
        close(plan.decode(scene.q, cache), scene.right()[0], TOLERANCE["fp32"])
    with pytest.raises(ValueError, match='exactness is "exact"; allowed: "fast", "batch_invariant" or "reproducible"'):
        pagoda.plan(cache, num_q_heads=8, exactness="exact")


def test_workspace_of_the_caller():
    scene = Scene()
    cache = scene.cache()
    size = pagoda.workspace_bytes(cache, num_q_heads=8)
    memory = np.zeros(size + 16, np.uint8)
    aligned = memory[-memory.ctypes.data % 16 :][:size]
    plan = pagoda.plan(cache, num_q_heads=8, workspace=aligned)
    assert plan.workspace_bytes == size
    close(plan.decode(scene.q, cache), scene.right()[0], TOLERANCE["fp32"])


def test_merge():
    scene = Scene(lengths=(30, 30))
    right_out, right_lse = scene.right()
    whole = [array[scene.block_table].reshape(2, -1, *array.shape[2:]) for array in (scene.k, scene.v)]
    outs, lses = [], []
    for first, last in ((0, 11), (11, 30)):
        part = [np.ascontiguousarray(array[:, first:last]) for array in whole]
        cache = pagoda.ContiguousCache(*part, np.full(2, last - first, np.int32))
        out, lse = pagoda.plan(cache, num_q_heads=8).decode(scene.q, cache, return_lse=True)
        outs.append(out), lses.append(lse)
    for out, lse in (pagoda.merge(np.stack(outs), np.stack(lses)), pagoda.merge_pair(outs[0], lses[0], outs[1], lses[1])):
        close(out, right_out, TOLERANCE["fp32"])
        close(lse, right_lse, TOLERANCE["fp32"])


def test_write_and_check():
    scene = Scene(lengths=(10,), page_size=4)
    cache = scene.cache()
    page = int(scene.block_table[0, 2])
    k, v = (np.full((2, 2, 64), x, np.float32) for x in (3, 4))
    before = scene.k.copy()
    pagoda.write_kv(cache, np.array([page * 4 + 1, -1], np.int64), k, v)
    assert (scene.k[page, 1] == 3).all() and (scene.v[page, 1] == 4).all()
    assert (np.delete(scene.k.reshape(-1), range((page * 4 + 1) * 128, (page * 4 + 2) * 128)) ==
            np.delete(before.reshape(-1), range((page * 4 + 1) * 128, (page * 4 + 2) * 128))).all()
    pagoda.check(cache)
    scene.block_table[0, 1] = 77
    with pytest.raises(ValueError, match="77; allowed"):
        pagoda.check(cache)


def test_ragged_prompts():
    """Prompts of different lengths beside a decode: the rows of one sequence follow those of the one before."""
    scene = Scene(lengths=(20, 31, 9))
    counts = [5, 1, 9]
    offsets = np.array([0, 5, 6, 15], np.int32)
    rng = np.random.default_rng(5)
    q = rng.standard_normal((15, scene.heads, scene.dim)).astype(np.float32)
    cache = scene.cache()
    plan = pagoda.plan(cache, num_q_heads=8, max_query_len=9, max_query_tokens=15, cu_seqlens_q=offsets)
    pagoda.check(cache, plan, q)
    out, lse = plan.decode(q, cache, return_lse=True)
    for b, count in enumerate(counts):
        one = Scene(lengths=(20, 31, 9))
        one.block_table, one.seq_lens, one.query_len = scene.block_table[b : b + 1], scene.seq_lens[b : b + 1], count
        rows = slice(offsets[b], offsets[b + 1])
        right_out, right_lse = one.right(q=q[rows])
        close(out[rows], right_out, TOLERANCE["fp32"])
        close(lse[rows], right_lse, TOLERANCE["fp32"])
    offsets[1] = 15  # 15 query tokens of sequence 0
    with pytest.raises(ValueError, match="cu_seqlens_q"):
        pagoda.check(cache, plan, q)


def test_rows_with_scales(need):
    """fp8_ds_mla: 512 numbers of e4m3, a float for 128 of them each, 64 numbers of bf16, in 656 bytes."""
    need("fp8_ds_mla")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(3)
    pages, size, heads, lengths = 6, 16, 4, np.array([37, 20], np.int32)
    scales = rng.uniform(0.01, 0.1, (pages, size, 4)).astype(np.float32)
    latent = (16 * rng.standard_normal((pages, size, 512))).astype(ml_dtypes.float8_e4m3fn)
    rope = rng.standard_normal((pages, size, 64)).astype(ml_dtypes.bfloat16)
    rows = np.concatenate([latent.view(np.uint8), scales.view(np.uint8), rope.view(np.uint8)], axis=2)[:, :, None, :]
    table = rng.permutation(pages).astype(np.int32).reshape(2, 3)
    q = rng.standard_normal((2, heads, 576)).astype(np.float32)
    cache = pagoda.PagedCache(rows, rows, table, lengths, kv_type="fp8_ds_mla")
    assert (cache.kv_type, cache.head_dim, cache.head_dim_v, cache.num_kv_heads) == ("fp8_ds_mla", 576, 512, 1)
    out = pagoda.plan(cache, num_q_heads=heads).decode(q, cache)
    assert out.shape == (2, heads, 512)
    values = latent.astype(np.float64) * scales.astype(np.float64).repeat(128, axis=2)
    keys = np.concatenate([values, rope.astype(np.float64)], axis=2)
    for b in range(2):
        k, v = (a[table[b]].reshape(3 * size, -1)[: lengths[b]] for a in (keys, values))
        scores = q[b].astype(np.float64) @ k.T / 24
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        close(out[b], weights / weights.sum(axis=1, keepdims=True) @ v, TOLERANCE["fp32"])
    with pytest.raises(ValueError, match="k has scales and elements of fp8_ds_mla"):
        pagoda.plan(
            pagoda.PagedCache(rows, rows, table, lengths, kv_type="fp8_ds_mla", k_scale=1.0, v_scale=1.0), num_q_heads=heads
        )
    with pytest.raises(ValueError, match="axis 3 of k has extent 512; allowed: 656"):
        part = np.ascontiguousarray(rows[..., :512])
        pagoda.plan(pagoda.PagedCache(part, part, table, lengths, kv_type="fp8_ds_mla"), num_q_heads=heads)
