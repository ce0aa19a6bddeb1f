#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times FlashInfer on the trees of pagoda_bench_prefix, in turns with it, on an NVIDIA GPU.

    python3 bench/peers/prefix_peers.py --bench build/bench/prefix/pagoda_bench_prefix \\
        [--filter REGEX...] [--resume FILE]

Trees of prefixes and the cascade: MultiLevelCascadeAttentionWrapper, one level for each of the tree's, with the faster
of the backends fa2 and fa3. Trees of drafts: XQA with masks. Written for FlashInfer 0.7.2. Decodes are timed in CUDA
graphs on cold caches, without planning; `planning_us` is the median host time of a plan, with the wait for it. All
results are compared with attention in fp32. FILE is as that of compare.py. FlashInfer compiles kernels at their first
use, for minutes; with FLASHINFER_DISABLE_JIT=1 it has only those that are compiled, and problems that need others are
named and left out.
"""

from __future__ import annotations

import argparse
import functools
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator

from cases import SUFFIX, rotation
from compare import Journal, ours, peer_row, run_bench
from peer import Absent
from prefix_cases import NAME, PrefixCase, draft_masks, flat_rows, level_tables, packed_mask
from torch_peers import TorchPeer

#: Of the norm of an output row, for every query token and head. Both sides round to 16 bits; without one of 8192 tokens
#: some heads are off by 0.02.
MOST_ERROR = {"fp16": 0.005, "bf16": 0.03}
REFERENCE_BYTES = 2 << 30  #: of temporary arrays
Found = tuple[float, str, float]  #: us of a decode, how, us of planning


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
        return self.torch.tensor(values, dtype=dtype or self.torch.int32, device=self.device)

    def usable(self) -> bool:
        """Whether the GPU still takes work: after an invalid access in a kernel it takes none from this process."""
        try:
            self.torch.cuda.synchronize()
        except Exception:
            return False
        return True

    def time_tree(self, case: PrefixCase) -> Found:
        try:
            return self.fastest(case)
        finally:
            self.torch.cuda.empty_cache()  # the memory is for pagoda_bench_prefix

    def fastest(self, case: PrefixCase) -> Found:
        """Of the paths whose results are right."""
        torch = self.torch
        torch.manual_seed(1)
        caches, calls = rotation(case.bytes, self.last_level)
        pool = self.normal(case.type, caches, case.pages, 2, case.page, case.kv_heads, case.dim)
        places = torch.randperm(case.pages, device="cuda").to(torch.int32)
        q = self.normal(case.type, case.batch * max(case.drafts, 1), case.q_heads, case.dim)
        right = self.reference(case, places, q, pool[0])
        paths: dict[str, Callable[..., Any]] = {"xqa, masks": self.xqa}
        if case.levels:
            paths = {f"cascade, {backend}": functools.partial(self.cascade, backend) for backend in ("fa2", "fa3")}
        found, failed = [], []
        for how, path in paths.items():
            try:
                run, plan = path(case, places, q)
                off, allowed = self.worst_error(run(pool[0]), right), MOST_ERROR[case.type]
                if not off <= allowed:
                    raise RuntimeError(f"a row of its result is off by {off:.3g}; allowed: {allowed}")
                us = self.graph_seconds(lambda i: run(pool[i]), caches, calls) * 1e6
                found.append((us, how, self.planning_us(plan)))
                print(f"{case.problem}, {how}: {us:.1f} us, rows off by at most {off:.2g}", file=sys.stderr, flush=True)
            except Exception as error:  # any exception of a library
                failed.append(f"{how}: {type(error).__name__}: {error}".split("\n")[0])
        if not found:
            raise RuntimeError("; ".join(failed))
        for line in failed:
            print(f"{case.problem}, {line}", file=sys.stderr, flush=True)
        return min(found)

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

    def worst_error(self, out: Any, right: Any) -> float:
        """The largest error of an output row, relative to its norm."""
        return float(((out.float().view_as(right) - right).norm(dim=-1) / right.norm(dim=-1)).max())

    def workspace(self) -> Any:
        return self.torch.zeros(512 << 20, dtype=self.torch.uint8, device=self.device)

    def cascade(
        self, backend: str, case: PrefixCase, places: Any, q: Any
    ) -> tuple[Callable[[Any], Any], Callable[[], Any]]:
        torch = self.torch
        queries, begins, pages, last = [], [], [], []
        for query_begins, page_begins, first in level_tables(case):  # the planner reads all but the pages on the host
            queries.append(torch.tensor(query_begins, dtype=torch.int32))
            begins.append(torch.tensor(page_begins, dtype=torch.int32))
            pages.append(places[first : first + page_begins[-1]].clone())
            last.append(torch.full((len(page_begins) - 1,), case.page, dtype=torch.int32))
        # Without use_cuda_graph it plans for exactly these queries, not for all batches of as many: graphs of this run
        # hold one plan only.
        wrapper = self.flashinfer.MultiLevelCascadeAttentionWrapper(len(queries), self.workspace(), "NHD")
        for level in wrapper._batch_prefill_wrappers:  # it has no public choice of the backend
            level._backend = backend
        sizes = (case.q_heads, case.kv_heads, case.dim, case.page)
        plan = functools.partial(
            wrapper.plan, queries, begins, pages, last, *sizes, q_data_type=q.dtype, kv_data_type=q.dtype
        )
        plan()
        return lambda kv: wrapper.run(q, kv), plan

    def xqa(self, case: PrefixCase, places: Any, q: Any) -> tuple[Callable[[Any], Any], None]:
        torch = self.torch
        words = [[packed_mask(bits, case.drafts) for bits in seen] for seen in draft_masks(case)]
        length = case.context + case.drafts
        run = functools.partial(
            self.flashinfer.decode.xqa_batch_decode_with_kv_cache,
            q,
            workspace_buffer=self.workspace(),
            block_tables=places.view(case.batch, -1),
            seq_lens=self.ints([length] * case.batch, torch.uint32),
            max_seq_len=length,
            bmm1_scale=case.dim**-0.5,
            kv_layout="NHD",
            q_len_per_req=case.drafts,
            mask=self.ints(words, torch.uint16),
        )
        return lambda kv: run(kv_cache=kv).view(-1, case.q_heads, case.dim), None

    def reference(self, case: PrefixCase, places: Any, q: Any, kv: Any) -> Any:
        """The output rows of all query tokens in fp32, some sequences at a time."""
        torch, queries = self.torch, max(case.drafts, 1)
        hidden = None
        if case.levels:
            tables, length = places[self.ints(flat_rows(case), torch.int64)], sum(tokens for _, tokens in case.levels)
        else:
            tables, length = places.view(case.batch, -1), case.context + case.drafts
            sees = [[[bits >> j & 1 for j in range(queries)] for bits in seen] for seen in draft_masks(case)]
            hidden = torch.nn.functional.pad(1 - self.ints(sees), (case.context, 0)).bool()
        q = q.view(case.batch, queries, case.kv_heads, -1, case.dim)
        out = torch.empty(q.shape, dtype=torch.float32, device=self.device)
        at_once = max(REFERENCE_BYTES // (12 * length * (case.kv_heads * case.dim + case.q_heads * queries)), 1)
        for few in (slice(first, first + at_once) for first in range(0, case.batch, at_once)):
            k, v = kv[tables[few].long()].float().movedim(2, 0).flatten(2, 3)[:, :, :length]
            scores = torch.einsum("snhgd,sthd->snhgt", q[few].float(), k) * case.dim**-0.5
            if hidden is not None:
                scores.masked_fill_(hidden[few, :, None, None], float("-inf"))
            out[few] = torch.einsum("snhgt,sthd->snhgd", scores.softmax(-1), v)
        return out.view(-1, case.q_heads, case.dim)


def prefix_row(case: PrefixCase, peer: str, found: Found, floor_us: float | None) -> dict[str, Any]:
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


def time_problems(peer: Any, problems: list[list[PrefixCase]], notes: dict[str, str]) -> Iterator[Found | None]:
    """What the peer takes for each problem; fewer are yielded if it is not usable any longer."""
    for ways in problems:
        problem, found = ways[0].problem, None
        try:
            found = peer.time_tree(ways[0])
        except Exception as error:  # any exception of a library: the others are still timed
            notes[f"{peer.name} {problem}"] = f"{type(error).__name__}: {error}".split("\n")[0][:300]
            print(f"{peer.name}, {problem}: {notes[f'{peer.name} {problem}']}", file=sys.stderr, flush=True)
        yield found
        if not peer.usable():
            return


def measure(peer: Any, bench: str, problems: list[list[PrefixCase]], journal: Journal, notes: dict[str, str]) -> bool:
    """Times problems: the peer, then all ways of Pagoda. Returns whether the latter ran."""
    timed = list(zip(problems, time_problems(peer, problems, notes)))
    try:
        figures, context = ours(bench, [way for ways, _ in timed for way in ways])
        context |= {"executable": Path(bench).name, "peers": {peer.name: peer.version}, "notes": notes}
        journal.begin(context)
    except (subprocess.CalledProcessError, ValueError) as error:
        figures = {}
        print(f"{bench}: {error}", file=sys.stderr, flush=True)
    right = True
    for ways, found in timed:
        rows = [figures.get(way.name, {"error_message": "it did not run"}) for way in ways]
        if found:
            floor = next((row["floor_us"] for row in rows if row.get("floor_us")), None)
            rows.insert(0, prefix_row(ways[0], peer.name, found, floor))
        if journal.context:
            for row in rows:  # ours last, as they mark the problem as done
                journal.add(row)
        times = [f"{row['name'].split('/')[1]} {row.get('us', float('nan')):.1f}" for row in rows if "name" in row]
        how = f" ({found[1]}; planning {found[2]:.1f})" if found else ""
        print(f"{ways[0].problem}: {', '.join(times)}{how}", flush=True)
        right = right and all("error_message" not in row for row in rows)
    return right


def chosen(listed: list[str], expressions: list[str]) -> list[str]:
    """The names with the first expression, then those with the second, ..."""
    return list(dict.fromkeys(name for text in expressions for name in listed if re.search(text, name)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="the executable pagoda_bench_prefix")
    parser.add_argument(
        "--filter", nargs="+", default=["."], metavar="REGEX", help="cases to run; those of the first expression first"
    )
    parser.add_argument("--resume", type=Path, metavar="FILE", help="JSON lines to write, and to go on with")
    parser.add_argument(
        "--together", type=int, default=4, metavar="N", help="number of problems in turns: the peer, then Pagoda"
    )
    options = parser.parse_args()
    listed = run_bench(options.bench, "--benchmark_list_tests", "--benchmark_filter=^prefix/").split()
    try:
        peer = FlashInferTrees()
    except Absent as error:
        print(f"flashinfer is absent: {error}", file=sys.stderr)
        return 2
    journal, notes, right = Journal(options.resume), {}, True
    problems = by_problem(chosen(listed, options.filter)).values()
    todo = [ways for ways in problems if any(way.name + SUFFIX not in journal.done for way in ways)]
    for first in range(0, len(todo), options.together):
        right = measure(peer, options.bench, todo[first : first + options.together], journal, notes) and right
        if not peer.usable():
            print("the GPU takes no more work of this process; go on with --resume", file=sys.stderr)
            return 3
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
