# SPDX-License-Identifier: Apache-2.0
"""The README's tables of shared prefixes and chosen pages (readme.py)."""

from __future__ import annotations

import re
import statistics
import textwrap

import published as p
from results import Results, Samples, us_text

SHOWN_TREES = (3, 4, 7, 14)
SHOWN_HEADS = ((32, 32), (32, 8))
CASCADE = "prefix/fp16/32x8x128/cascade256/page32"
#: the shown trees in words (tests/prefix/pat_trees.hpp)
TREE_TEXT = {
    3: "1024 sequences, one prompt of 2048 tokens",
    4: "64 sequences, a prompt of 1024, 2 documents of 256",
    7: "512 sequences, a prompt of 32, 8 documents of 2048",
    14: "1024 sequences, 6 levels of prefixes",
}

INTRO = """What reading shared prefixes once saves: batches decoded plainly, and through `PrefixDecoder`, which decodes plainly where
that is predicted to be faster (`pagoda_bench_prefix`, {device}, fp16, head_dim 128, cold, in CUDA graphs). Read: a bare read of
each token once. Planning: host time of a new plan, not in the other columns; a plan serves until sequences come or leave, or
shared pages change.{pat}"""
PAT = " {note}"
CHOSEN = """Decodes of 5 and 20% of the pages of each sequence, the same for all KV heads (choosing them is not in the times), beside
the decode of all:"""


def wrapped(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False) + "\n"


def ways_of(results: Results, key: str) -> dict[str, Samples]:
    return {column.backend: samples for column, samples in results.rows.get(key, {}).items()}


def row(name: str, rows: list[dict[str, Samples]], pat: float | None, with_pat: bool) -> str:
    """One line; of several rows (steps of a trace) the means."""
    packed = [by["packed"] for by in rows]
    read, plain = ([us for us in of if us] for of in ((s.floor for s in packed), (by["plain"].median for by in rows)))
    mean = statistics.fmean(s.median for s in packed)
    lists = sum(bool(s.counters.get("is_packed")) for s in packed)
    how = "" if lists == len(packed) else " (plain)" if lists == 0 else f" ({lists} of {len(packed)} packed)"
    planning = statistics.fmean(s.counters["planning_us"] for s in packed)
    cells = [name, us_text(statistics.fmean(read) if read else None), us_text(statistics.fmean(plain)), us_text(mean) + how]
    return "| " + " | ".join([*cells, us_text(planning), *([us_text(pat)] if with_pat else [])]) + " |"


def problems(results: Results, on_h200: bool) -> list[tuple[str, list[str], float | None]]:
    """(name, keys, PAT's time) of each line."""
    found: list[tuple[str, list[str], float | None]] = []
    for tree in SHOWN_TREES:
        for heads in SHOWN_HEADS:
            pat = p.PAT_H200[tree][p.PAT_HEADS.index(heads)] if on_h200 else None
            found.append((f"tree {tree} ({TREE_TEXT[tree]}), {heads[0]}/{heads[1]}", [p.pat_key(tree, heads)], pat))
    found.append(("cascade (256 sequences, one prompt of 4096 tokens), 32/8", [CASCADE], None))
    traces: dict[str, list[str]] = {}
    for key in results.rows:
        if match := re.fullmatch(r"prefix/fp16/32x8x128/(\w+)/B(\d+)/step\d+/page16", key):
            traces.setdefault(f"live batches of {match[2]}, trace `{match[1]}`, 32/8", []).append(key)
    return found + [(name, keys, None) for name, keys in traces.items()]


def chosen_rows(results: Results) -> list[str]:
    lines = []
    for page in (1, 16, 64):
        key = f"prefix/fp16/32x8x128/chosen{{}}/B32/S8192/page{page}"
        dense = ways_of(results, key.format(100)).get("plain")
        for percent in (5, 20):
            chosen = ways_of(results, key.format(percent)).get("plain")
            if chosen:
                cells = [us_text(chosen.floor), us_text(chosen.median), us_text(dense.median if dense else None)]
                lines.append(f"| {percent}% of 32 x 8192 tokens, pages of {page}, 32/8 | " + " | ".join(cells) + " |")
    return lines


def prefix_block(results: Results, file: str) -> str:
    column = next(c for c in results.columns if c.backend == "packed")
    on_h200 = "H200" in column.device
    lines = []
    for name, keys, pat in problems(results, on_h200):
        rows = [by for key in keys if {"plain", "packed"} <= (by := ways_of(results, key)).keys()]
        if rows:
            lines.append(row(name, rows, pat, on_h200))
    note = PAT.format(note=p.PAT_NOTE) if on_h200 else ""
    text = wrapped(INTRO.format(device=column.machine, pat=note)) + "\n"
    head = ["batch, heads", "read", "plain", "`PrefixDecoder`", "planning", *(["PAT"] if on_h200 else [])]
    text += "| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|\n" + "\n".join(lines)
    if chosen := chosen_rows(results):
        text += "\n\n" + wrapped(CHOSEN) + "\n| chosen, heads | read | decode | all pages |\n|---|---|---|---|\n"
        text += "\n".join(chosen)
    return text + f"\n\n(Microseconds, commit {column.git}; all rows: `bench/results/{file}`.)\n"
