#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times other libraries on the problems of pagoda_bench_decode, in turns with it.

    python3 bench/peers/compare.py --bench build/bench/decode/pagoda_bench_decode [--filter REGEX] [--resume FILE]

On an NVIDIA GPU: cuDNN and FlashAttention, through PyTorch's scaled_dot_product_attention, on a contiguous cache;
FlashInfer on a scattered paged cache, by the fastest of its ways to decode; those that fail are named. On a CPU: PyTorch,
llama.cpp's kernel, and vLLM's on pages of its own. Only installed libraries are timed; others, and unsupported cases, are
shown as "-". The floor is a bare read of the same bytes, from the same call of pagoda_bench_decode.

FILE has the results as JSON lines, in the form of the benchmarks' --resume. Problems in it are not measured again;
bench/compare reads it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch_peers
from cases import SUFFIX, Case
from ggml_peer import Ggml
from peer import Absent, Peer
from vllm_peer import VllmCpu

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "compare"))
from results import load_lines  # noqa: E402

# With OMP_PROC_BIND, PyTorch's OpenMP binds the thread that imports it to one CPU, and a child would be bound to it, too.
CPUS = os.sched_getaffinity(0)


class Journal:
    """The finished rows, one JSON object a line, as bench/common/journal.hpp writes them."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.context, self.done = path, None, set()
        if path and path.exists():
            report = load_lines(path.read_text())
            self.context = report["context"]
            rows = [row for row in report["benchmarks"] if "error_message" not in row]
            self.done = {row["name"] for row in rows}
            if self.context:
                lines = [{"context": self.context}, *rows]
                path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def begin(self, context: dict[str, Any]) -> None:
        for key in ("git", "device"):
            if self.context and self.context.get(key) != context.get(key):
                raise SystemExit(
                    f"{self.path} was begun with {key} {self.context.get(key)}, and here it is {context.get(key)}"
                )
        if not self.context:
            self.context = context
            if self.path:
                self.path.write_text(json.dumps({"context": context}) + "\n")

    def add(self, row: dict[str, Any]) -> None:
        if self.path and "name" in row and row["name"] not in self.done:
            self.done.add(row["name"])
            with self.path.open("a") as f:
                f.write(json.dumps(row) + "\n")


def run_bench(bench: str, *arguments: str) -> str:
    """Standard output. Its exit status counts: a case that fails by itself is in the JSON."""
    return subprocess.run(
        [bench, *arguments], check=True, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: os.sched_setaffinity(0, CPUS)
    ).stdout


def ours(bench: str, cases: list[Case]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Figures of each case by name, and the context."""
    names = "|".join(re.escape(case.name).replace(r"\-", "-") for case in cases)
    report = json.loads(run_bench(bench, f"--benchmark_filter=^({names}){SUFFIX}$", "--benchmark_format=json"))
    return {b["name"].removesuffix(SUFFIX): b for b in report["benchmarks"]}, report["context"]


def peers_here(ggml: str | None, wanted: str | None, notes: dict[str, str]) -> list[Peer]:
    found: list[Peer] = []
    known = (torch_peers.CuDNN, torch_peers.FlashAttention, torch_peers.FlashInfer, torch_peers.TorchCpu, Ggml, VllmCpu)
    names = wanted.split(",") if wanted else [make.name for make in known]
    for name in names:
        if name not in (make.name for make in known):
            raise SystemExit(f"--peers has {name}; allowed: {', '.join(make.name for make in known)}")
    for make in (make for make in known if make.name in names):
        try:
            found.append(make(ggml) if make is Ggml else make())
        except Absent as error:
            notes[make.name] = f"absent: {error}"
            print(f"{make.name} is {notes[make.name]}", file=sys.stderr)
    return found


def note(notes: dict[str, str], what: str, failure: str) -> None:
    """Prints and keeps the first failure of a library's problem, or of one of its ways to decode."""
    if what not in notes:
        notes[what] = failure
        print(f"{what}: {failure}", file=sys.stderr)


def time_group(peers: list[Peer], group: list[Case], notes: dict[str, str]) -> dict[tuple[str, str], tuple[float, str]]:
    """(us, how) by peer and problem. Peers that read a contiguous cache are timed once for all page sizes."""
    found: dict[tuple[str, str], tuple[float, str]] = {}
    for peer in peers:
        for i, case in enumerate(group):
            if peer.cannot(case) or (peer.name, case.problem) in found:
                continue
            if not peer.paged and i > 0:
                if (peer.name, group[0].problem) in found:
                    found[peer.name, case.problem] = found[peer.name, group[0].problem]
                continue
            try:
                found[peer.name, case.problem] = peer.time(case)
            except Exception as error:  # any exception of a library: the others are still timed
                note(notes, f"{peer.name} {case.name}", f"{type(error).__name__}: {error}".split("\n")[0][:300])
        for way, failure in peer.failed_ways().items():
            note(notes, f"{peer.name} {way}", failure)
    return found


def peer_row(case: Case, peer: str, us: float, how: str, floor_us: float | None) -> dict[str, Any]:
    parts = case.name.split("/")
    row = {
        "name": "/".join([parts[0], peer, *parts[2:]]) + SUFFIX,
        "run_type": "iteration",
        "real_time": us,
        "time_unit": "us",
        "us": us,
        "bytes": case.bytes,
        "label": how,
    }
    if floor_us:
        row |= {"floor_us": floor_us, "ratio": us / floor_us}
    return row


def text(x: float | None) -> str:
    return "-" if x is None else f"{x:.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="the executable pagoda_bench_decode")
    parser.add_argument("--filter", default=".", help="regular expression: cases to run")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="JSON lines to write, and to go on with")
    parser.add_argument(
        "--ggml", metavar="FOLDER", help="where the shared libraries of ggml are, if not in the usual places"
    )
    parser.add_argument("--peers", metavar="NAME,...", help="only these")
    parser.add_argument(
        "--together", type=int, default=4, metavar="N", help="number of problems in turns: each peer, then Pagoda"
    )
    options = parser.parse_args()

    listed = run_bench(options.bench, "--benchmark_list_tests", f"--benchmark_filter={options.filter}").split()
    cases = [Case(name.removesuffix(SUFFIX)) for name in listed if name.startswith("decode/")]
    notes: dict[str, str] = {}
    peers = peers_here(options.ggml, options.peers, notes)
    journal = Journal(options.resume)
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(case)
    todo = [g for g in groups.values() if any(case.name + SUFFIX not in journal.done for case in g)]

    width = max((len(case.name) for case in cases), default=0)
    print(f"{'us':{width}} {'floor':>9} {'pagoda':>9} {'of read':>8} " + " ".join(f"{peer.name:>16}" for peer in peers))
    failed = False
    for first in range(0, len(todo), options.together):
        turn = todo[first : first + options.together]
        theirs: dict[tuple[str, str], tuple[float, str]] = {}
        for number, group in enumerate(turn, first + 1):
            print(f"[{number} of {len(todo)}] {group[0].group}", file=sys.stderr, flush=True)
            theirs |= time_group(peers, group, notes)
        measured = [case for group in turn for case in group]
        try:
            figures, context = ours(options.bench, measured)
            context["executable"] = Path(options.bench).name
            context["peers"] = {peer.name: peer.version for peer in peers}
            context["notes"] = notes
            journal.begin(context)
        except (subprocess.CalledProcessError, ValueError) as error:
            figures = {}
            print(f"{', '.join(group[0].group for group in turn)}: {error}", file=sys.stderr)
        for case in measured:
            b = figures.get(case.name, {"error_message": "it did not run"})
            found = {peer: (us, how) for (peer, problem), (us, how) in theirs.items() if problem == case.problem}
            rows = [peer_row(case, peer, us, how, b.get("floor_us")) for peer, (us, how) in found.items()]
            if journal.context:
                for row in [*rows, b]:  # ours last, as it marks the case as done
                    journal.add(row)
            failed = failed or "error_message" in b
            print(
                f"{case.name:{width}} {text(b.get('floor_us')):>9} {text(b.get('us')):>9} {b.get('ratio', 0):>8.2f} "
                + " ".join(f"{text(found[peer.name][0] if peer.name in found else None):>16}" for peer in peers)
                + (f"  {b['error_message']}" if "error_message" in b else ""),
                flush=True,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
