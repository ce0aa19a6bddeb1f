# SPDX-License-Identifier: Apache-2.0
"""Lists of entries and shared prefixes against float64, and what they refuse."""

import numpy as np
import pytest
from support import TOLERANCE, Scene, close

import pagoda


def right(scene, sees):
    """(out, lse) in float64, where sees(row, head, token) says what a row sees."""
    out, lse = np.zeros((*scene.q.shape[:2], scene.dim_v)), np.zeros(scene.q.shape[:2])
    for row, head in np.ndindex(*lse.shape):
        b, group = row // scene.query_len, scene.heads // scene.kv_heads
        seen = [t for t in range(scene.seq_lens[b]) if sees(row, head // group, t)]
        keys = scene.tokens(scene.k, b)[seen, head // group]
        scores = keys @ scene.q[row, head].astype(np.float64) / np.sqrt(scene.dim)
        weights = np.exp(scores - scores.max())
        out[row, head] = weights @ scene.tokens(scene.v, b)[seen, head // group] / weights.sum()
        lse[row, head] = np.log(weights.sum()) + scores.max()
    return out, lse


def int32(rows):
    return np.array(rows, np.int32)


def test_draft_trees():
    drafts = 67  # two words of masks
    scene = Scene(lengths=(80, 99), query_len=drafts)
    rng = np.random.default_rng(1)
    ancestors = np.eye(drafts, dtype=bool)
    for i in range(1, drafts):
        parent = rng.integers(-1, i)
        if parent >= 0:
            ancestors[i] |= ancestors[parent]
    bits = np.zeros((drafts, 128), np.uint8)
    bits[:, :drafts] = ancestors
    masks = np.packbits(bits, axis=1, bitorder="little").view(np.uint64)
    entries = pagoda.Entries(
        int32([pagoda.entry(b, query_begin=b * drafts, num_queries=drafts) for b in range(2)]),
        int32([pagoda.entry_query(b * drafts + i, b, drafts, mask=i) for b in range(2) for i in range(drafts)]),
        masks=masks,
    )
    cache = scene.cache()
    plan = pagoda.plan(cache, num_q_heads=8, max_entries=2, max_entry_queries=drafts)
    pagoda.check(cache, plan, scene.q, entries=entries)
    out, lse = plan.decode_entries(scene.q, cache, entries, return_lse=True)

    def sees(row, _, token):
        context = scene.seq_lens[row // drafts] - drafts
        return token < context or ancestors[row % drafts, token - context]

    right_out, right_lse = right(scene, sees)
    close(out, right_out, TOLERANCE["fp32"])
    close(lse, right_lse, TOLERANCE["fp32"])
    assert entries.num_entries == 2 and entries.num_queries == 2 * drafts


def test_partial_states():
    scene = Scene(lengths=(20, 31, 9))
    entries = pagoda.Entries(
        int32([pagoda.entry(b, 8 * i, (8, -1)[i], query_begin=b, num_queries=1, state=i) for b in range(3) for i in (0, 1)]),
        int32([pagoda.entry_query(b, b) for b in range(3)]),
        state_begin=int32([0, 2, 4, 6]),
    )
    cache = scene.cache()
    sinks = np.linspace(-1, 2, 8, dtype=np.float32)
    plan = pagoda.plan(cache, num_q_heads=8, max_entries=6, sinks=sinks)
    states = plan.empty_states(scene.q, 6)
    assert states[0].shape == (6, 8, 64) and states[1].shape == (6, 8)
    pagoda.check(cache, plan, scene.q, entries=entries, num_states=6)
    out, lse = plan.decode_entries(scene.q, cache, entries, states=states, return_lse=True)
    plan.merge_entries(entries, states, out, lse)
    right_out, right_lse = scene.right(sinks=sinks)
    close(out, right_out, TOLERANCE["fp32"])
    close(lse, right_lse, TOLERANCE["fp32"])


def test_pages_of_a_head():
    scene = Scene(lengths=(32, 32))
    chosen = [[0, 2], [3, 1]]  # pages of each KV head
    table = int32([scene.block_table[b, chosen[h]] for b in range(2) for h in range(2)])
    cache = pagoda.PagedCache(scene.k, scene.v, table, int32([16] * 4))
    entries = pagoda.Entries(
        int32([pagoda.entry(r, query_begin=r, num_queries=1, kv_head=r % 2) for r in range(4)]),
        int32([pagoda.entry_query(r // 2, r) for r in range(4)]),
    )
    plan = pagoda.plan(cache, num_q_heads=8, max_entries=4)
    pagoda.check(cache, plan, scene.q, entries=entries)
    out = plan.decode_entries(scene.q, cache, entries)
    close(out, right(scene, lambda row, head, token: token // 8 in chosen[head])[0], TOLERANCE["fp32"])


def test_list_errors():
    scene = Scene()
    cache = scene.cache()
    plan = pagoda.plan(cache, num_q_heads=8, max_entries=3)
    rows = [pagoda.entry(b, query_begin=b, num_queries=1) for b in range(3)]
    queries = int32([pagoda.entry_query(b, b) for b in range(3)])
    entries = pagoda.Entries(int32(rows), queries)

    def refused(words):
        return pytest.raises(ValueError, match=words)

    plan.decode_entries(scene.q, cache, entries)
    with refused("pagoda.Entries: entries has 4 columns; allowed: 8"):
        pagoda.Entries(queries, queries)
    with refused("pagoda.Entries: queries holds int64; allowed: int32"):
        pagoda.Entries(int32(rows), queries.astype(np.int64))
    with refused("pagoda.Entries: entries has strides"):
        pagoda.Entries(np.asfortranarray(int32(rows)), queries)
    with refused("pagoda.Entries: masks holds float64; allowed: uint64"):
        pagoda.Entries(int32(rows), queries, masks=np.zeros((1, 2)))
    with refused(r"pagoda.Entries: masks has 1 axes; allowed: a dense array of \(mask, 2\)"):
        pagoda.Entries(int32(rows), queries, masks=np.zeros(2, np.uint64))
    with refused("4 entries"):
        plan.decode_entries(scene.q, cache, pagoda.Entries(int32([*rows, rows[0]]), queries))
    with refused("pagoda_decode_entries: state_out is NULL"):
        with_states = pagoda.Entries(int32(rows), queries, state_begin=int32([0, 0, 0, 0]))
        plan.decode_entries(scene.q, cache, with_states)
    with refused("entries.max_entries = 0"):
        pagoda.plan(cache, num_q_heads=8).decode_entries(scene.q, cache, entries)
    with refused("entry 0 of the list has kv_head 2; allowed: below 2"):
        wrong = pagoda.Entries(int32([pagoda.entry(0, query_begin=0, num_queries=1, kv_head=2)]), queries)
        pagoda.check(cache, plan, scene.q, entries=wrong)
    with refused("pagoda.check: entries is given without plan and q; allowed: with both"):
        pagoda.check(cache, entries=entries)
    with refused("options.max_entry_queries is -1"):
        pagoda.plan(cache, num_q_heads=8, max_entries=3, max_entry_queries=-1)
    with refused("only hand-tuned kernels carry out chains"):
        pagoda.plan(cache, num_q_heads=8, max_entries=3, entry_chains=True)
    with refused(r"entry 0 of the list has chain 1; allowed: 0 \(entries.chains of the plan is false\)"):
        chained = [pagoda.entry(0, 0, 8, query_begin=0, num_queries=1, chain=1)]
        chained.append(pagoda.entry(0, 8, query_begin=0, num_queries=1, chain=-1))
        pagoda.check(cache, plan, scene.q, entries=pagoda.Entries(int32(chained), queries))


# Rates with which reading a page twice is expensive.
SLOW = dict(memory_bytes_per_us=1.0, cache_bytes_per_us=1.0, state_bytes_per_us=1e9, item_us=0.0, list_us=0.0)


def shared_scene():
    scene = Scene(lengths=(60, 52, 64, 41), page_size=8)
    scene.block_table[:, :4] = scene.block_table[0, :4]
    return scene


def test_prefix_decoder():
    scene = shared_scene()
    cache = scene.cache()
    decoder = pagoda.PrefixDecoder(cache, num_q_heads=8, rates=SLOW)
    assert decoder.rates["list_us"] == 0 and decoder.rates["tiles"]
    assert decoder.update(scene.seq_lens, scene.block_table) and decoder.packed and decoder.graph_key != 0
    report = decoder.report()
    assert report["new_plan"] and report["entries"] > 0 and report["plain_because"] is None
    assert report["packed_us"] < report["plain_us"]
    assert "lists of entries" in decoder.describe(lists=True) and "head_dim 64" in decoder.describe()
    out, lse = decoder.decode(scene.q, cache, return_lse=True)
    right_out, right_lse = scene.right()
    close(out, right_out, TOLERANCE["fp32"])
    close(lse, right_lse, TOLERANCE["fp32"])
    # CSR lists of the same batch keep the plan.
    indptr = np.arange(5, dtype=np.int32) * scene.block_table.shape[1]
    assert decoder.update(scene.seq_lens, scene.block_table.reshape(-1), page_indptr=indptr)
    assert not decoder.report()["new_plan"]
    # Fewer sequences, by ids.
    ids = int32([2, 0])
    assert decoder.update(scene.seq_lens, scene.block_table, sequence_ids=ids)
    out = decoder.decode(scene.q[[2, 0]], scene.cache(sequence_ids=ids))
    close(out, right_out[[2, 0]], TOLERANCE["fp32"])
    # Nothing is shared without page ids.
    assert not decoder.update(scene.seq_lens) and decoder.report()["plain_because"]
    close(decoder.decode(scene.q, cache), right_out, TOLERANCE["fp32"])
    decoder.set_rates(teams=7, tiles=[(8, 1e3), (16, 2e3, 0.5)])
    with pytest.raises(ValueError, match="chain_rows of the rates is 64; allowed: 0"):
        decoder.set_rates(chain_rows=64)
    assert decoder.rates["teams"] == 7 and decoder.rates["tiles"] == [(8, 1e3, 0), (16, 2e3, 0.5)]


def test_prefix_errors():
    scene = shared_scene()
    cache = scene.cache()
    decoder = pagoda.PrefixDecoder(cache, num_q_heads=8, max_entries=1, rates=SLOW)

    def refused(words):
        return pytest.raises(ValueError, match=words)

    assert not decoder.update(scene.seq_lens, scene.block_table)
    assert "max_entries" in decoder.report()["plain_because"]
    with refused("max_states is -1"):
        pagoda.PrefixDecoder(cache, num_q_heads=8, max_states=-1)
    with refused("state_type"):
        pagoda.PrefixDecoder(cache, num_q_heads=8, state_type="fp64")
    with pytest.raises(TypeError, match="there is no option heads"):
        pagoda.PrefixDecoder(cache, num_q_heads=8, heads=3)
    with refused("pagoda.PrefixDecoder.plan: block_table has 2 rows or entries; allowed: 4"):
        decoder.plan(scene.seq_lens, scene.block_table[:2])
    with refused("pagoda.PrefixDecoder.plan: seq_lens holds int64; allowed: int32"):
        decoder.plan(scene.seq_lens.astype(np.int64), scene.block_table)
    with refused("pagoda.PrefixDecoder.plan: cu_seqlens_q has 3 rows or entries; allowed: 5"):
        decoder.plan(scene.seq_lens, scene.block_table, cu_seqlens_q=int32([0, 1, 2]))
    with refused("pagoda.PrefixDecoder.plan: page_indptr is given alone"):
        decoder.plan(scene.seq_lens, page_indptr=int32([0, 1]))
    with refused("tables.query_len is -1"):
        decoder.plan(scene.seq_lens, scene.block_table, query_len=-1)
    with refused("seq_lens"):
        decoder.plan(scene.seq_lens + 1000, scene.block_table)
    with refused("pagoda.PrefixDecoder.set_rates: there is no rate speed"):
        decoder.set_rates(speed=1)
    with refused("pagoda.PrefixDecoder.set_rates: teams is 'many'; allowed: a number"):
        decoder.set_rates(teams="many")
    with refused(r"pagoda.PrefixDecoder.set_rates: tiles is 3; allowed: a list of \(rows, flops_per_us\) or \(rows, "
        r"flops_per_us, item_us\)"):
        decoder.set_rates(tiles=3)
    with refused("memory_bytes_per_us"):
        decoder.set_rates(memory_bytes_per_us=0)
