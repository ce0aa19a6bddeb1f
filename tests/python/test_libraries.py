# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries, and the operator of PyTorch."""

import numpy as np
import pytest
from support import TOLERANCE, Scene, close

import pagoda


def test_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    scene = Scene()
    cache = scene.cache(torch.from_numpy)
    plan = pagoda.plan(cache, num_q_heads=8)
    q = torch.from_numpy(scene.q)
    out, lse = plan.decode(q, cache, return_lse=True)
    assert isinstance(out, torch.Tensor) and lse.dtype == torch.float32
    close(out, scene.right()[0], TOLERANCE["fp32"])
    given = torch.empty(3, 8, 64)
    assert plan.decode(q, cache, given) is given
    close(given, scene.right()[0], TOLERANCE["fp32"])
    with pytest.raises(ValueError, match="pagoda.Plan.decode: q requires a gradient.*allowed: q.detach()"):
        plan.decode(q.clone().requires_grad_(), cache)
    # Expanded tensors: the same key for all heads.
    k = torch.from_numpy(scene.k)[:, :, :1].expand(-1, -1, 2, -1)
    shared = pagoda.PagedCache(k, *(torch.from_numpy(a) for a in (scene.v, scene.block_table, scene.seq_lens)))
    close(pagoda.plan(shared, num_q_heads=8).decode(q, shared), scene.right(k=k.numpy())[0], TOLERANCE["fp32"])


@pytest.mark.parametrize("name", ["bf16", "fp8_e4m3"])
def test_types_of_torch(name, need):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    need(name)
    scene = Scene()
    dtype = {"bf16": torch.bfloat16, "fp8_e4m3": torch.float8_e4m3fn}[name]
    k, v = (torch.from_numpy(array).to(dtype) for array in (scene.k, scene.v))
    cache = pagoda.PagedCache(k, v, torch.from_numpy(scene.block_table), torch.from_numpy(scene.seq_lens))
    assert cache.kv_type == name
    out = pagoda.plan(cache, num_q_heads=8).decode(torch.from_numpy(scene.q), cache)
    close(out, scene.right(k=k.float().numpy(), v=v.float().numpy())[0], 2e-2)


def test_pool_in_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    pool = pagoda.PagedPool(dtype=torch.float32, num_kv_heads=1, head_dim=8, max_seq_len=8, max_sequences=1, page_size=4)
    pool.admit(torch.ones(3, 1, 8), torch.full((3, 1, 8), 2.0))
    keys = torch.from_dlpack(pool.k)
    assert keys.shape == (2, 4, 1, 8) and keys[pool.block_table(0)[0], :3].eq(1).all()


def test_operator_of_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import pagoda.torch

    scene = Scene()
    tensors = [torch.from_numpy(a) for a in (scene.q, scene.k, scene.v, scene.block_table, scene.seq_lens)]
    out, lse = torch.ops.pagoda.decode(*tensors, window_left=5)
    close(out, scene.right(window_left=5)[0], TOLERANCE["fp32"])
    close(lse, scene.right(window_left=5)[1], TOLERANCE["fp32"])
    sinks = torch.linspace(-1, 1, 8)
    for shift in (0, 3):  # the second call uses the plan of the first one
        made = torch.ops.pagoda.decode(*tensors, sinks=sinks + shift)[0]
        close(made, scene.right(sinks=(sinks + shift).numpy())[0], TOLERANCE["fp32"])
    torch.library.opcheck(pagoda.torch.decode, tuple(tensors))
    pagoda.torch.clear_plans()


def test_options_of_the_operator():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import pagoda.torch

    scene = Scene(lengths=(20, 31, 9), query_len=3)
    tensors = [torch.from_numpy(a) for a in (scene.q, scene.k, scene.v, scene.block_table, scene.seq_lens)]
    options = dict(window_left=4, num_initial_tokens=2, max_query_len=3, backend="generic", exactness="batch_invariant")
    right = pagoda.plan(scene.cache(), num_q_heads=8, **options).decode(scene.q, scene.cache())
    assert (torch.ops.pagoda.decode(*tensors, **options)[0].numpy() == right).all()
    with pytest.raises(ValueError, match='exactness is "exact"'):
        torch.ops.pagoda.decode(*tensors, exactness="exact")


@pytest.mark.parametrize("name", ["int4", "nvfp4"])
def test_operator_with_two_dims_to_a_byte(name, need):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    need(name)
    import pagoda.torch

    scene = Scene(lengths=(20, 31, 9))
    generator = torch.Generator().manual_seed(1)
    pages = scene.k.shape[:3]
    k, v = (torch.randint(0, 256, (*pages, 32), dtype=torch.uint8, generator=generator) for _ in range(2))
    arrays = [torch.from_numpy(a) for a in (scene.block_table, scene.seq_lens)]
    q = torch.from_numpy(scene.q)
    scales = {"k_scale": torch.tensor(0.1), "v_scale": torch.tensor(0.5), "kv_type": name}
    if name == "nvfp4":
        scales |= {f"{side}_block_scale": torch.full((*pages, 4), 0x38, dtype=torch.uint8) for side in "kv"}  # 1 in e4m3
    cache = pagoda.PagedCache(k, v, *arrays, **scales)
    right = pagoda.plan(cache, num_q_heads=8).decode(q, cache)

    def layer(q, k, v, *rest):
        return torch.ops.pagoda.decode(q, k, v, *rest, **scales)[0] * 2

    made = torch.compile(layer, fullgraph=True, backend="aot_eager")(q, k, v, *arrays)
    assert made.shape == right.shape == (3, 8, 64) and torch.equal(made, right * 2)
    torch.library.opcheck(pagoda.torch.decode, (q, k, v, *arrays), scales)
    pagoda.torch.clear_plans()


def test_compile():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import pagoda.torch  # noqa: F401

    scene = Scene()
    tensors = [torch.from_numpy(a) for a in (scene.q, scene.k, scene.v, scene.block_table, scene.seq_lens)]

    def layer(q, k, v, block_table, seq_lens):
        out, lse = torch.ops.pagoda.decode(q * 0.5, k, v, block_table, seq_lens)
        return out + 1, lse.exp()

    out, sums = torch.compile(layer, fullgraph=True, backend="aot_eager")(*tensors)
    right, right_lse = scene.right(q=scene.q * 0.5)
    close(out, right + 1, TOLERANCE["fp32"])
    close(sums, np.exp(right_lse), 1e-5)


def test_jax():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    scene = Scene()
    cache = scene.cache(jax.numpy.asarray)
    q = jax.numpy.asarray(scene.q)
    plan = pagoda.plan(cache, num_q_heads=8)
    out, lse = plan.decode(q, cache, return_lse=True)
    assert isinstance(out, jax.Array)
    close(out, scene.right()[0], TOLERANCE["fp32"])
    close(lse, scene.right()[1], TOLERANCE["fp32"])
    with pytest.raises(ValueError, match="out is a JAX array, which is immutable; allowed: None"):
        plan.decode(q, cache, q)


class Stream:
    """A stream of CuPy (ptr), PyTorch (cuda_stream) or the protocol."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Protocol:
    def __cuda_stream__(self):
        return (0, 13)


def test_numbers_of_streams():
    """The rules for a GPU, without one."""
    from pagoda._arrays import stream_number

    array = np.zeros(1)
    assert stream_number("cpu", array, 5) == 0
    assert stream_number("cuda:0", array, 5) == 5
    assert stream_number("cuda:0", array, 0) == 1  # the legacy default stream
    assert stream_number("cuda:0", array, Stream(cuda_stream=11)) == 11
    assert stream_number("cuda:0", array, Stream(ptr=12)) == 12
    assert stream_number("cuda:0", array, Protocol()) == 13
    with pytest.raises(TypeError, match="stream is 'main'; allowed: a number, or a stream"):
        stream_number("cuda:0", array, "main")


def test_gpu():
    """Decodes on a stream of PyTorch's. Runs on a machine with a GPU and a build for it."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available() or not any(name in pagoda.configuration() for name in ("Cuda", "HIP")):
        pytest.skip("there is no GPU, or the build is for the CPU")
    scene = Scene()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        cache = scene.cache(lambda array: torch.from_numpy(array).cuda())
        q = torch.from_numpy(scene.q).cuda()
        plan = pagoda.plan(cache, num_q_heads=8)
        torch.cuda._sleep(50_000_000)  # a decode on another stream would read q before the next line
        q.mul_(2)
        out = plan.decode(q, cache)
    stream.synchronize()
    close(out.cpu(), scene.right(q=2 * scene.q)[0], TOLERANCE["fp32"])
    with pytest.raises(ValueError, match="pagoda.Plan.decode: q is on cpu; allowed: cuda:0, the plan's device"):
        plan.decode(torch.from_numpy(scene.q), cache)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        again = plan.decode(q, cache)
    q.mul_(0.5)
    graph.replay()
    torch.cuda.synchronize()
    close(again.cpu(), scene.right()[0], TOLERANCE["fp32"])
