# SPDX-License-Identifier: Apache-2.0
"""Pools as objects."""

import numpy as np
import pytest
from support import TOLERANCE, close

import pagoda

SHAPE = dict(dtype="fp32", num_kv_heads=2, head_dim=32, max_seq_len=24, max_sequences=3, num_q_heads=4)


def rows(rng, tokens):
    return rng.standard_normal((2, tokens, 2, 32)).astype(np.float32)


def right(q, k, v):
    out = np.zeros(q.shape)
    for head in range(4):
        scores = k[:, head // 2].astype(np.float64) @ q[head] / np.sqrt(32)
        weights = np.exp(scores - scores.max())
        out[head] = weights @ v[:, head // 2] / weights.sum()
    return out


@pytest.mark.parametrize("kind", [pagoda.PagedPool, pagoda.ContiguousPool])
def test_serving(kind):
    rng = np.random.default_rng(0)
    pool = kind(**SHAPE, **({"page_size": 4} if kind is pagoda.PagedPool else {}))
    told = {}
    for tokens in (5, 12):
        k, v = rows(rng, tokens)
        told[pool.admit(k, v)] = [k, v]
    child = pool.fork(1, 6)
    told[child] = [array[:6] for array in told[1]]
    for _ in range(3):
        slots = list(told)
        k, v = rows(rng, len(slots))
        pool.append(slots, k, v)
        for i, slot in enumerate(slots):
            told[slot] = [np.concatenate([old, new[i : i + 1]]) for old, new in zip(told[slot], (k, v))]
        q = rng.standard_normal((len(slots), 4, 32)).astype(np.float32)
        out, lse = pool.decode(slots, q, return_lse=True)
        assert lse.shape == (3, 4)
        for i, slot in enumerate(slots):
            close(out[i], right(q[i], *told[slot]), TOLERANCE["fp32"])
    assert [pool.seq_len(slot) for slot in told] == [8, 15, 9]
    assert pool.stats()["tokens_held"] == 32 and pool.holds(child) and not pool.can_admit(1)
    # A plan of one's own over the pool's memory.
    cache = pool.cache([child, 0])
    del pool
    out = pagoda.plan(cache, num_q_heads=4).decode(q[:2], cache)
    close(out[0], right(q[0], *told[child]), TOLERANCE["fp32"])


def test_memory_without_a_copy():
    pool = pagoda.PagedPool(**SHAPE, page_size=4, order="HND")
    slot = pool.admit_tokens(6)
    k, v = rows(np.random.default_rng(1), 6)
    positions = pool.slot_mapping(slot, 0, 6)
    pool.write(np.array(positions, np.int64), k, v)
    keys = np.from_dlpack(pool.k)
    assert keys.shape == (18, 4, 2, 32)
    assert (keys[positions[5] // 4, positions[5] % 4] == k[5]).all()
    assert pool.block_table(slot) == [positions[0] // 4, positions[4] // 4]
    assert pool.page_ref_count(positions[0] // 4) == 1
    del pool
    assert (keys[positions[0] // 4, positions[0] % 4] == k[0]).all()  # the array keeps the pool


def test_capacity():
    pool = pagoda.PagedPool(**SHAPE, page_size=4, num_pages=2)
    pool.admit_tokens(8)
    with pytest.raises(pagoda.OutOfCapacity, match="pages"):
        pool.admit_tokens(1)
    assert issubclass(pagoda.OutOfCapacity, RuntimeError)
    pool.release(0)
    assert pool.admit_tokens(1) == 0


def test_errors():
    with pytest.raises(ValueError, match='pagoda.PagedPool: dtype is "int32"; allowed: fp64'):
        pagoda.PagedPool(**{**SHAPE, "dtype": np.int32})
    with pytest.raises(ValueError, match='pagoda.PagedPool: device is .tpu.; allowed: "cpu", "cuda" or "rocm"'):
        pagoda.PagedPool(**SHAPE, device="tpu")
    with pytest.raises(ValueError, match="pagoda.PagedPool: the arrays are on cuda:0; allowed: cpu"):
        if "Cuda" in pagoda.configuration():
            pytest.skip("this build has CUDA")
        pagoda.PagedPool(**SHAPE, device="cuda")
    pool = pagoda.PagedPool(**{**SHAPE, "num_q_heads": 0})
    k, v = rows(np.random.default_rng(1), 2)
    pool.admit(k, v)
    with pytest.raises(ValueError, match="prepare"):
        pool.decode([0], np.zeros((1, 4, 32), np.float32))
    with pytest.raises(ValueError, match="pagoda.Pool.append: counts has 2 entries; allowed: 1, as slots"):
        pool.append([0], k, v, counts=[1, 1])
    with pytest.raises(ValueError, match="slot"):
        pool.release(2)


def test_shared_prefixes():
    rng = np.random.default_rng(2)
    k, v = rows(rng, 20)
    q = rng.standard_normal((2, 4, 32)).astype(np.float32)
    cheap = dict(memory_bytes_per_us=1.0, cache_bytes_per_us=1.0, state_bytes_per_us=1e9, item_us=0.0, list_us=0.0)
    for share in ("automatic", "never"):
        pool = pagoda.PagedPool(**SHAPE, page_size=4, share_prefixes=share)
        assert pool.options()["share_prefixes"] == share
        slots = [pool.admit(k, v)]
        slots.append(pool.fork(slots[0], 18))
        if share == "automatic":
            assert pool.prefix_report()["plain_because"] == "there was no decode yet"
            pool.set_rates(**cheap)
            assert pool.rates["memory_bytes_per_us"] == 1 and pool.rates["teams"] > 0
        out = pool.decode(slots, q)
        close(out[0], right(q[0], k, v), TOLERANCE["fp32"])
        close(out[1], right(q[1], k[:18], v[:18]), TOLERANCE["fp32"])
        report = pool.prefix_report()
        assert (report["plain_because"] is None) == (report["entries"] > 0) == (share == "automatic")
        # A decoder of one's own, from the pool's tables.
        cache = pool.cache(slots)
        decoder = pagoda.PrefixDecoder(cache, num_q_heads=4, rates=cheap)
        tables = pool.batch_pages(slots)
        assert list(np.from_dlpack(tables["seq_lens"])) == [20, 18]
        assert list(np.from_dlpack(tables["page_indptr"])) == [0, 5, 10]
        assert list(np.from_dlpack(tables["block_table"]))[:5] == pool.block_table(slots[0])
        assert decoder.update(**tables)
        close(decoder.decode(q, cache), out, 4 * TOLERANCE["fp32"])
        # The fork gets a last page of its own.
        pool.reserve(slots[1:])
        tables = pool.batch_pages(slots[::-1], query_len=2)
        assert list(np.from_dlpack(tables["seq_lens"])) == [19, 20] and tables["query_len"] == 2
        assert list(np.from_dlpack(tables["block_table"])) == pool.block_table(slots[1]) + pool.block_table(slots[0])
        assert pool.block_table(slots[0])[4] != pool.block_table(slots[1])[4]
    assert set(pagoda.ContiguousPool(**SHAPE).batch_pages([])) == {"seq_lens", "query_len"}


def test_bounds_of_shared_prefixes():
    rng = np.random.default_rng(3)
    k, v = rows(rng, 20)
    q = rng.standard_normal((2, 4, 32)).astype(np.float32)
    cheap = dict(memory_bytes_per_us=1.0, cache_bytes_per_us=1.0, state_bytes_per_us=1e9, item_us=0.0, list_us=0.0)
    for options, because in (
        (dict(state_type="fp16"), None),
        (dict(state_type="fp32"), None),
        (dict(max_entries=1), "the list has more than max_entries entries"),
        (dict(max_states=1), "the list has more than max_states partial states"),
    ):
        pool = pagoda.PagedPool(**SHAPE, page_size=4, **options)
        slots = [pool.admit(k, v)]
        slots.append(pool.fork(slots[0], 18))
        pool.set_rates(**cheap)
        out = pool.decode(slots, q)
        close(out[0], right(q[0], k, v), 1e-2)
        assert pool.prefix_report()["plain_because"] == because
    with pytest.raises(ValueError, match="state_type is int8; allowed: fp32, fp16 or bf16"):
        pagoda.PagedPool(**SHAPE, state_type="int8")


def test_errors_of_shared_prefixes():
    with pytest.raises(ValueError, match="pagoda.PagedPool: share_prefixes is always; allowed: automatic or never"):
        pagoda.PagedPool(**SHAPE, share_prefixes="always")
    pool = pagoda.PagedPool(**SHAPE, share_prefixes="never")
    with pytest.raises(ValueError, match="::rates: decodes read no lists, because PoolOptions::share_prefixes is never"):
        pool.set_rates(teams=1)
    with pytest.raises(ValueError, match="batch_pages: slot"):
        pool.batch_pages([1])
    with pytest.raises(ValueError, match="query_len is -1"):
        pool.batch_pages([], query_len=-1)
    with pytest.raises(ValueError, match="pagoda.Pool.set_rates: there is no rate speed"):
        pagoda.PagedPool(**SHAPE).set_rates(speed=1)


def test_dtype_of_a_library():
    assert np.from_dlpack(pagoda.ContiguousPool(**{**SHAPE, "dtype": np.float32}).k).dtype == np.float32
