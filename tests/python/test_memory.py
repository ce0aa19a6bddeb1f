# SPDX-License-Identifier: Apache-2.0
"""Memory for caches, arithmetic for its size, and prompts of pools."""

import numpy as np
import pytest
from support import TOLERANCE, Scene, close

import pagoda


@pytest.mark.parametrize("order", ["NHD", "HND"])
def test_paged_cache(order):
    scene = Scene(dim_v=32)
    pages, page_size = scene.k.shape[:2]
    memory = pagoda.make_paged_cache(
        dtype="fp32", num_pages=pages, page_size=page_size, num_kv_heads=2, head_dim=64, head_dim_v=32, order=order
    )
    k, v = np.from_dlpack(memory.k), np.from_dlpack(memory.v)
    assert memory.kv_type == "fp32" and memory.device == "cpu"
    assert k.ctypes.data % 1024 == 0 and not k.any() and v.shape[3] == 32
    axes = (0, 1, 2, 3) if order == "NHD" else (0, 2, 1, 3)
    k[:], v[:] = scene.k.transpose(axes), scene.v.transpose(axes)
    cache = pagoda.PagedCache(memory.k, memory.v, scene.block_table, scene.seq_lens, order=order)
    del memory  # the arrays keep it
    close(pagoda.plan(cache, num_q_heads=8).decode(scene.q, cache), scene.right()[0], TOLERANCE["fp32"])


def test_contiguous_cache_of_bytes():
    memory = pagoda.make_contiguous_cache(dtype="int4", num_sequences=3, max_seq_len=5, num_kv_heads=2, head_dim=64)
    k = np.from_dlpack(memory.k)
    assert k.shape == (3, 5, 2, 32) and k.dtype == np.uint8 and memory.kv_type == "int4"


def test_memory_errors():
    shape = dict(dtype="int4", num_pages=3, page_size=4, num_kv_heads=2, head_dim=64)
    for change, words in (
        ({"num_pages": 0}, "make_paged_cache: num_pages is 0; allowed: 1 or more"),
        ({"head_dim": 63}, "head_dim is 63 and head_dim_v 63; allowed: multiples of 2"),
        ({"dtype": "int3"}, 'pagoda.make_paged_cache: dtype is "int3"; allowed: fp64'),
        ({"order": "NDH"}, 'pagoda.make_paged_cache: order is "NDH"'),
        ({"device": "tpu"}, "pagoda.make_paged_cache: device is 'tpu'"),
    ):
        with pytest.raises(ValueError, match=words):
            pagoda.make_paged_cache(**{**shape, **change})
    with pytest.raises(ValueError, match="make_contiguous_cache: max_seq_len is 0; allowed: 1 or more"):
        pagoda.make_contiguous_cache(dtype="fp32", num_sequences=1, max_seq_len=0, num_kv_heads=1, head_dim=8)


def test_capacity():
    assert pagoda.bytes_per_token(8, 128, np.float16) == 4096
    assert pagoda.bytes_per_token(8, 128, "int4", 64) == 768
    assert pagoda.latent_bytes_per_token(512, 64, "bf16") == 1152
    assert pagoda.reserved_tokens(17, 16) == 32 and pagoda.waste_fraction(512, 2048) == 0.75
    assert pagoda.sequences_that_fit(2048, 16, 17, 16) == 4
    with pytest.raises(ValueError, match="page_size is 0; allowed: 1 or more"):
        pagoda.reserved_tokens(1, 0)
    with pytest.raises(ValueError, match="seq_len is -1"):
        pagoda.waste_fraction(-1, 1)
    with pytest.raises(ValueError, match="num_kv_heads is -1"):
        pagoda.bytes_per_token(-1, 64, "fp16")
    with pytest.raises(ValueError, match="rope_dim is -1"):
        pagoda.latent_bytes_per_token(1, -1, "fp16")
    with pytest.raises(ValueError, match="budget_bytes is -1"):
        pagoda.sequences_that_fit(-1, 1, 1, 1)


POOL = dict(dtype="fp32", num_kv_heads=1, head_dim=16, max_seq_len=12, max_sequences=3, page_size=4, num_q_heads=1)


def test_prompts():
    rng = np.random.default_rng(0)
    k, v = rng.standard_normal((2, 9, 1, 16)).astype(np.float32)
    q = rng.standard_normal((1, 1, 16)).astype(np.float32)
    pool = pagoda.PagedPool(**POOL)
    prompt = pagoda.Prompt(list(range(9)))
    assert prompt.num_tokens == 9 and pool.match(prompt) == 0 and pool.can_admit_prompt(prompt)
    first = pool.admit_prompt(prompt, k, v)
    assert pool.match(prompt) == 8 and pool.match(pagoda.Prompt(np.arange(9, dtype=np.int32), salt=1)) == 0
    second = pool.admit_prompt(prompt, k[8:], v[8:])
    third = pool.admit_prompt(prompt)
    assert pool.seq_len(third) == pool.named_tokens(third) == 8
    pool.append([third], k[8:], v[8:])
    pool.name(third, [8])
    assert pool.named_tokens(third) == 9 and pool.is_indexed(pool.block_table(third)[0])
    outs = [pool.decode([slot], q) for slot in (first, second, third)]
    scores = k[:, 0].astype(np.float64) @ q[0, 0] / 4
    weights = np.exp(scores - scores.max())
    for out in outs:
        close(out[0, 0], weights @ v[:, 0] / weights.sum(), TOLERANCE["fp32"])
    stats = pool.prefix_stats()
    assert (stats["prompts"], stats["hit_tokens"], stats["saved_bytes"]) == (3, 16, 16 * 2 * 16 * 4)
    assert abs(stats["hit_rate"] - 16 / 27) < 1e-12 and stats["indexed_pages"] == 2
    for slot in (first, second, third):
        pool.release(slot)
    assert pool.stats()["evictable_pages"] == 2 and pool.evict(1) == 1
    pool.reset_prefix_stats()
    assert pool.prefix_stats()["prompts"] == 0
    assert pool.options()["num_pages"] == 9 and pool.options()["dtype"] == "fp32"


def test_prompts_of_hashes():
    pool = pagoda.PagedPool(**POOL)
    k = np.zeros((9, 1, 16), np.float32)
    slot = pool.admit(k, k)
    pool.name(slot, page_hashes=[1 << 63, 5])
    assert pool.match(pagoda.Prompt(page_hashes=[1 << 63, 5], num_tokens=9)) == 8


def test_prompt_errors():
    pool = pagoda.PagedPool(**POOL)
    k = np.zeros((2, 1, 16), np.float32)
    prompt = pagoda.Prompt([1, 2])
    with pytest.raises(ValueError, match="pagoda.Prompt: num_tokens is 3; allowed: 0 or 2, as there are token_ids"):
        pagoda.Prompt([1, 2], num_tokens=3)
    with pytest.raises(ValueError, match="prompt has token_ids and page_hashes; allowed: one of them"):
        pool.match(pagoda.Prompt([1, 2], page_hashes=[1]))
    with pytest.raises(ValueError, match=r"prompt.token_ids\[1\] is -2"):
        pool.match(pagoda.Prompt([1, -2]))
    with pytest.raises(ValueError, match="pagoda.Pool.admit_prompt: k is given alone; allowed: both or none"):
        pool.admit_prompt(prompt, k)
    with pytest.raises(ValueError, match="k has 1 tokens"):
        pool.admit_prompt(prompt, k[:1], k[:1])
    with pytest.raises(ValueError, match="pagoda.Pool.name: both of token_ids and page_hashes is given"):
        pool.name(0, [1], page_hashes=[1])
    with pytest.raises(ValueError, match="pagoda.Pool.name: neither of token_ids and page_hashes is given"):
        pool.name(0)
    with pytest.raises(ValueError, match="slot is 0"):
        pool.name(0, [1])
    with pytest.raises(ValueError, match="page is 99"):
        pool.is_indexed(99)
    with pytest.raises(ValueError, match="num_pages is -1"):
        pool.evict(-1)
