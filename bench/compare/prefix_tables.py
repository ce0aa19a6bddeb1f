# SPDX-License-Identifier: Apache-2.0
"""Tables of pagoda_bench_prefix: batches that share prefixes, chosen pages, trees of drafts."""

from __future__ import annotations

import re
from typing import Iterator

import published as p
from results import PLAN_STEPS, Results, Samples, us_text, with_planning

OWN_WAYS = ("plain", "packed", "packed32")
Table = tuple[list[str], list[list[str]]]
Run = tuple[str, str, str]  #: device, space, commit

PREFIX_NOTE = (
    "Read: a bare read of each token once. Plain, packed and fp32 states are decodes alone; planning is not in them. "
    "Packed goes through PrefixDecoder, which decodes plainly where that is predicted to be faster. Planning: host time of a "
    f'new plan. "Planned every step" adds it, and the copy of the list to the device, to each decode; "every {PLAN_STEPS} steps" '
    "adds it once in so many, and in the others the look whether the plan still holds: a plan serves until the tables' shape "
    "changes (sequences come or leave, or shared pages change). In both, a step is one decode of one layer, and nothing "
    f"overlaps. {p.PAT_NOTE} FlashInfer (where measured): its cascade wrapper, + its planning."
)
CHOSEN_NOTE = (
    "Sequences that read 5 or 20% of their pages, scattered: the same pages for all KV heads, or others for each KV head (as "
    "entries of one head). Choosing the pages is not in the times. Dense: the decode of all pages of the same cache."
)
DRAFTS_NOTE = (
    "Sequences with a tree of drafts behind their context: each draft sees the context, its ancestors and itself (a mask). "
    "Chain: the ordinary causal decode of as many query tokens. Read: each token once; products: of all query rows with all "
    "tokens, at 600 TFLOP/s. The masks are on the device before the decode. FlashInfer "
    "(where measured): XQA with masks."
)


def rows_of(results: Results, pattern: str) -> Iterator[tuple[re.Match[str], Run, dict[str, Samples]]]:
    """Rows by problem and run: (match, run, samples by way of decoding)."""
    for key, by in results.rows.items():
        if match := re.fullmatch(f"prefix/{pattern}", key):
            for run in dict.fromkeys((c.device, c.space, c.git) for c in by):
                yield match, run, {c.backend: s for c, s in by.items() if (c.device, c.space, c.git) == run}


def machine(run: Run) -> str:
    return run[0].replace("NVIDIA ", "")


def time_of(samples: Samples | None) -> str:
    return us_text(samples.median if samples else None)


def floor_of(samples: Samples | None) -> str:
    return us_text(samples.floor if samples else None)


def over(above: Samples | None, below: Samples | None) -> str:
    return f"{above.median / below.median:.2f}" if above and below else "-"


def ratio_of(samples: Samples | None) -> str:
    return f"{samples.ratio:.2f}" if samples and samples.ratio else "-"


def prefix_table(results: Results) -> Table:
    """Batches that share prefixes: the limits, PAT's time, and ours with the model's prediction beside it."""
    head = ["machine", "problem", "read", "products", "read of all", "PAT", "FlashInfer", "plain", "packed"]
    head += ["fp32 states"]
    head += ["plain / packed", "PAT / best", "predicted plain, packed", "planning", "planned every step"]
    head += [f"planned every {PLAN_STEPS} steps"]
    pat = {p.pat_key(t, heads): us for t, row in p.PAT_H200.items() for heads, us in zip(p.PAT_HEADS, row)}
    body = []
    for match, run, ways in rows_of(results, "(.*)"):
        plain, packed = ways.get("plain"), ways.get("packed")
        if not packed or not packed.floor:
            continue
        c = packed.counters
        best = min(ways[way].median for way in OWN_WAYS if way in ways)
        theirs = ways.get("flashinfer")
        published = pat.get(match[0]) if "H200" in run[0] else None
        body.append(
            [
                machine(run),
                match[1],
                us_text(packed.floor),
                us_text(c["products_us"]) if c.get("products_us") else "-",
                us_text(packed.floor * c["bytes_all"] / c["bytes"]),
                us_text(published),
                f"{time_of(theirs)} + {us_text(theirs.counters.get('planning_us'))}" if theirs else "-",
                time_of(plain),
                us_text(packed.median) + ("" if c.get("is_packed") else " (plain)"),
                time_of(ways.get("packed32")),
                over(plain, packed),
                f"{published / best:.2f}" if published else "-",
                f"{us_text(c['predicted_plain_us'])}, {us_text(c['predicted_packed_us'])}",
                us_text(c["planning_us"]),
                us_text(with_planning(packed, 1)),
                us_text(with_planning(packed, PLAN_STEPS)),
            ]
        )
    return head, body


CHOSEN = r"(?P<shape>.*)/chosen(?P<percent>\d+)(?P<by_head>-per-head)?/(?P<batch>B\d+/S\d+)/page(?P<page>\d+)"


def chosen_table(results: Results) -> Table:
    """Chosen pages beside the dense decode of the same cache."""
    found: dict[tuple[str, ...], dict[tuple[int, bool], Samples]] = {}
    for match, run, ways in rows_of(results, CHOSEN):
        samples = ways.get("per-head" if match["by_head"] else "plain")
        if samples:
            problem = (machine(run), run[2], f"{match['shape']}/{match['batch']}", match["page"])
            found.setdefault(problem, {})[int(match["percent"]), bool(match["by_head"])] = samples
    head = ["machine", "cache", "page size", "chosen", "read", "decode", "of read", "pages for each head: read", "decode"]
    head += ["of read", "dense decode", "dense / chosen"]
    body = []
    for (device, _, cache, page), of in found.items():
        dense = of.get((100, False))
        for percent in sorted({percent for percent, _ in of}):
            all_heads, by_head = of.get((percent, False)), of.get((percent, True))
            row = [device, cache, page, f"{percent}%"]
            for samples in (all_heads, by_head):
                row += [floor_of(samples), time_of(samples), ratio_of(samples)]
            body.append([*row, time_of(dense), over(dense, all_heads)])
    return head, body


def time_and_backend(samples: Samples | None) -> str:
    found = re.search(r"(?:lists|plan): (\w+) ", samples.label if samples else "")
    return time_of(samples) + (f" ({found[1]})" if found else "")


def drafts_table(results: Results) -> Table:
    """Trees of drafts beside causal chains of as many tokens."""
    head = ["machine", "problem", "drafts", "read", "products", "tree", "of read", "chain", "of read", "tree / chain"]
    head += ["FlashInfer"]
    body = []
    for match, run, ways in rows_of(results, r"(.*)/drafts(\d+)/(.*)"):
        tree, chain = ways.get("tree"), ways.get("chain")
        any_of = tree or chain
        if any_of:
            products = any_of.counters.get("products_us")
            row = [machine(run), f"{match[1]}/{match[3]}", match[2], floor_of(any_of), us_text(products or None)]
            row += [time_and_backend(tree), ratio_of(tree), time_and_backend(chain), ratio_of(chain), over(tree, chain)]
            row.append(time_of(ways.get("flashinfer")))
            body.append(row)
    return head, body


def prefix_tables(results: Results) -> list[tuple[str, str, Table]]:
    """(title, note, table) of those that have rows."""
    tables = (
        ("Shared prefixes", PREFIX_NOTE, prefix_table),
        ("Chosen pages", CHOSEN_NOTE, chosen_table),
        ("Trees of drafts", DRAFTS_NOTE, drafts_table),
    )
    return [(title, note, table) for title, note, make in tables if (table := make(results))[1]]
