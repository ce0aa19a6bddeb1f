#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times FlashInfer on the trees of pagoda_bench_prefix, in turns with it, on an NVIDIA GPU.

    python3 bench/peers/prefix_peers.py --bench build/bench/prefix/pagoda_bench_prefix [--filter REGEX] [--resume FILE]

Trees of prefixes and the cascade: MultiLevelCascadeAttentionWrapper, one level for each of the tree's. Trees of drafts: XQA
with masks. Written for FlashInfer 0.7.2. Decodes are timed in CUDA graphs on cold caches, without planning; `planning_us`
is the median host time of a plan, with the wait for it. Results are compared with FlashInfer's plain decode of each
sequence's pages, or with PyTorch. FILE is as that of compare.py.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable

from cases import SUFFIX, rotation
from compare import Journal, ours, peer_row, run_bench
from peer import Absent
from prefix_cases import NAME, PrefixCase, draft_masks, flat_rows, level_tables, packed_mask
from torch_peers import TorchPeer

MOST_ERROR = 0.01  #: of the norm; both sides round to 16 bits


class FlashInferTrees(TorchPeer):
    name = "flashinfer"

    def __init__(self) -> None:
        super().__init__()
        if self.device != "cuda":
            raise Absent("PyTorch sees no GPU")
        try:
            import flashinfer
        except Exception as error:  # a broken installation may raise any exception
            raise Absent(str(error)) from error
        self.flashinfer = flashinfer
        self.version = getattr(flashinfer, "__version__", "unknown")

    def ints(self, values: Any, dtype: Any = None) -> Any:
        return self.torch.tensor(values, dtype=dtype or self.torch.int32, device="cuda")

    def time_tree(self, case: PrefixCase) -> tuple[float, str, float]:
        """(us of a decode, how, us of planning)."""
        torch = self.torch
        torch.manual_seed(1)
        caches, calls = rotation(case.bytes, self.last_level)
        pool = self.normal(case.type, caches, case.pages, 2, case.page, case.kv_heads, case.dim)
        places = torch.randperm(case.pages, device="cuda").to(torch.int32)
        q = self.normal(case.type, case.batch * max(case.drafts, 1), case.q_heads, case.dim)
        make, right = (self.cascade, self.plain) if case.levels else (self.xqa, self.reference)
        try:
            run, plan = make(case, places, q)
            error = self.error(run(pool[0]), right(case, places, q, pool[0]))
            if not error <= MOST_ERROR:
                raise RuntimeError(f"its result is off by {error:.3g}; allowed: {MOST_ERROR}")
            us = self.graph_seconds(lambda i: run(pool[i]), caches, calls) * 1e6
            return us, "cascade" if case.levels else "xqa, masks", self.planning_us(plan)
        finally:
            torch.cuda.empty_cache()  # the memory is for pagoda_bench_prefix

    def planning_us(self, plan: Callable[[], Any] | None) -> float:
        if plan is None:
            return 0.0
        times = []
        for _ in range(9):
            self.torch.cuda.synchronize()
            start = time.perf_counter()
            plan()
            self.torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        return statistics.median(times) * 1e6

    def error(self, out: Any, right: Any) -> float:
        """Of the first rows of `out`, as many as `right` has."""
        found = out.float()[: len(right)]
        return float((found - right.float()).norm() / right.float().norm())

    def workspace(self) -> Any:
        return self.torch.zeros(512 << 20, dtype=self.torch.uint8, device="cuda")

    def cascade(self, case: PrefixCase, places: Any, q: Any) -> tuple[Callable[[Any], Any], Callable[[], Any]]:
        torch = self.torch
        queries, begins, pages, last = [], [], [], []
        for query_begins, page_begins, first in level_tables(case):
            queries.append(self.ints(query_begins))
            begins.append(self.ints(page_begins))
            pages.append(places[first : first + page_begins[-1]].clone())
            last.append(self.ints([case.page] * (len(page_begins) - 1)))
        buffers = [[torch.empty_like(level) for level in of] for of in (queries, begins, pages, last)]
        wrapper = self.flashinfer.MultiLevelCascadeAttentionWrapper(
            len(queries), self.workspace(), "NHD", True, *buffers
        )
        sizes = (case.q_heads, case.kv_heads, case.dim, case.page)
        plan = functools.partial(
            wrapper.plan, queries, begins, pages, last, *sizes, q_data_type=q.dtype, kv_data_type=q.dtype
        )
        plan()
        return lambda kv: wrapper.run(q, kv), plan

    def plain(self, case: PrefixCase, places: Any, q: Any, kv: Any) -> Any:
        rows = flat_rows(case)
        indptr = self.ints([b * len(rows[0]) for b in range(case.batch + 1)])
        indices = places[self.ints([page for row in rows for page in row], self.torch.int64)]
        wrapper = self.flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace(), "NHD", use_tensor_cores=True)
        sizes = (case.q_heads, case.kv_heads, case.dim, case.page)
        last = self.ints([case.page] * case.batch)
        wrapper.plan(indptr, indices, last, *sizes, q_data_type=q.dtype, kv_data_type=q.dtype)
        return wrapper.run(q, kv)

    def xqa(self, case: PrefixCase, places: Any, q: Any) -> tuple[Callable[[Any], Any], None]:
        torch = self.torch
        words = [[packed_mask(bits, case.drafts) for bits in seen] for seen in draft_masks(case)]
        length = case.context + case.drafts
        run = functools.partial(
            self.flashinfer.decode.xqa_batch_decode_with_kv_cache,
            q,
            workspace_buffer=self.workspace(),
            block_tables=places.view(case.batch, -1),
            seq_lens=self.ints([length] * case.batch).to(torch.uint32),
            max_seq_len=length,
            bmm1_scale=case.dim**-0.5,
            kv_layout="NHD",
            q_len_per_req=case.drafts,
            mask=self.ints(words).to(torch.uint16),
        )
        return lambda kv: run(kv_cache=kv).view(-1, case.q_heads, case.dim), None

    def reference(self, case: PrefixCase, places: Any, q: Any, kv: Any) -> Any:
        """The drafts of the first sequence, in fp32."""
        torch, group = self.torch, case.q_heads // case.kv_heads
        length = case.context + case.drafts
        pages = kv[places.view(case.batch, -1)[0].long()].float()
        k, v = (pages[:, i].flatten(0, 1)[:length].repeat_interleave(group, dim=1) for i in (0, 1))
        sees = [[bits >> j & 1 for j in range(case.drafts)] for bits in draft_masks(case)[0]]
        hidden = self.ints([[0] * case.context + [1 - bit for bit in row] for row in sees]).bool()
        scores = torch.einsum("ihd,thd->hit", q[: case.drafts].float(), k) * case.dim**-0.5
        return torch.einsum("hit,thd->ihd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)


def prefix_row(case: PrefixCase, peer: str, found: tuple[float, str, float], floor_us: float | None) -> dict[str, Any]:
    us, how, planning_us = found
    return peer_row(case, peer, us, how, floor_us) | {"planning_us": planning_us}


def by_problem(names: list[str]) -> dict[str, list[PrefixCase]]:
    """The ways of each problem that the peer can take."""
    problems: dict[str, list[PrefixCase]] = {}
    for name in names:
        if NAME.fullmatch(name.removesuffix(SUFFIX)):
            case = PrefixCase(name)
            if case.type in FlashInferTrees.types:
                problems.setdefault(case.problem, []).append(case)
    return problems


def measure(peer: Any, bench: str, ways: list[PrefixCase], journal: Journal, notes: dict[str, str]) -> bool:
    """Times a problem: the peer, then all ways of Pagoda. Returns whether the latter ran."""
    case, found = ways[0], None
    try:
        found = peer.time_tree(case)
    except Exception as error:  # any exception of a library: the others are still timed
        notes[f"{peer.name} {case.problem}"] = f"{type(error).__name__}: {error}".split("\n")[0][:300]
        print(f"{peer.name}, {case.problem}: {notes[f'{peer.name} {case.problem}']}", file=sys.stderr)
    figures, context = ours(bench, ways)
    context |= {"executable": Path(bench).name, "peers": {peer.name: peer.version}, "notes": notes}
    journal.begin(context)
    rows = [figures.get(way.name, {"error_message": "it did not run"}) for way in ways]
    if found:
        floor = next((row["floor_us"] for row in rows if row.get("floor_us")), None)
        journal.add(prefix_row(case, peer.name, found, floor))
    for row in rows:
        journal.add(row)
    times = [f"{way.name.split('/')[1]} {row.get('us', float('nan')):.1f}" for way, row in zip(ways, rows)]
    theirs = f"{peer.name} {found[0]:.1f} (planning {found[2]:.1f})" if found else f"{peer.name} -"
    print(f"{case.problem}: {', '.join([*times, theirs])}", flush=True)
    return all("error_message" not in row for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="the executable pagoda_bench_prefix")
    parser.add_argument("--filter", default=".", help="regular expression: cases to run")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="JSON lines to write, and to go on with")
    options = parser.parse_args()
    listed = run_bench(options.bench, "--benchmark_list_tests", f"--benchmark_filter={options.filter}").split()
    try:
        peer = FlashInferTrees()
    except Absent as error:
        print(f"flashinfer is absent: {error}", file=sys.stderr)
        return 2
    journal, notes, right = Journal(options.resume), {}, True
    for ways in by_problem(listed).values():
        if any(way.name + SUFFIX not in journal.done for way in ways):
            right = measure(peer, options.bench, ways, journal, notes) and right
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
