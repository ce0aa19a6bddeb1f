# SPDX-License-Identifier: Apache-2.0
"""The figure of shared prefixes, after PAT's Figure 10."""

from __future__ import annotations

import textwrap
from typing import Any

import published as p
from figures import COLORS, finish, log_y, new
from results import PLAN_STEPS, Results, Samples, with_planning

WAYS = ("plain", "packed", "packed32")
CASCADE = "prefix/fp16/{}x{}x128/cascade256/page32"
#: What the figure includes; the report shows it below.
CAPTION = (
    "Bars: decodes alone, in CUDA graphs, cold; planning is in none of them. Crosses: packed, with a new plan and the copy of "
    f"its list in every step; dots: the same once in {PLAN_STEPS} steps (a plan serves until the tables' shape changes). "
    "Packed goes through PrefixDecoder, which decodes plainly where that is predicted to be faster; packed32: partial states "
    f"in fp32. c: a cascade of 256 sequences, which PAT's figure does not have. {p.PAT_NOTE}"
)


def problems_of(heads: tuple[int, int]) -> dict[str, str]:
    """Keys by the label on the axis: PAT's trees, and a cascade."""
    return {**{str(tree): p.pat_key(tree, heads) for tree in p.PAT_H200}, "c": CASCADE.format(*heads)}


def draw(axis: Any, heads: tuple[int, int], found: dict[str, dict[str, Samples]], on_h200: bool) -> None:
    """found: samples by way and label."""
    bars = {way: {label: s.median for label, s in of.items()} for way, of in found.items()}
    if on_h200:
        bars["PAT"] = {str(tree): row[p.PAT_HEADS.index(heads)] for tree, row in p.PAT_H200.items()}
    packed = found["packed"]
    places = {label: x for x, label in enumerate(packed)}
    width = 0.8 / len(bars)
    for i, ((name, of), color) in enumerate(zip(bars.items(), COLORS)):
        offset = (i + 0.5) * width - 0.4
        at = [(places[label] + offset, us) for label, us in of.items() if label in places]
        if at:
            axis.bar(*zip(*at), width=width, color=color, label=name)
        if name != "packed":
            continue
        for steps, mark, text in ((1, "x", "planned every step"), (PLAN_STEPS, ".", f"planned every {PLAN_STEPS} steps")):
            times = [(places[label] + offset, us) for label, s in packed.items() if (us := with_planning(s, steps))]
            if times:
                axis.plot(*zip(*times), mark, color="k", markersize=4, label=f"packed, {text}")
    reads = [(places[label], s.floor) for label, s in packed.items() if s.floor]
    if reads:
        axis.plot(*zip(*reads), "_", color="k", markersize=8, label="bare read of each token once")
    axis.set_xticks(list(places.values()), list(places))
    log_y(axis)
    finish(axis, "tree; c: cascade" if "c" in places else "tree", "us", f"heads {heads[0]}/{heads[1]}")


def prefix_trees(results: Results) -> Any:
    """PAT's Figure 10, in us: 20 trees, four pairs of heads; and a cascade. Of several runs, the first that has packed
    decodes."""
    runs = {(c.device, c.space, c.git): c for c in results.columns if results.of(c, r"prefix/.*tree.*")}
    for run in runs:
        ways = {c.backend: c for c in results.columns if (c.device, c.space, c.git) == run}
        panels = {}
        for heads in p.PAT_HEADS:
            found = {
                way: {label: s for label, key in problems_of(heads).items() if (s := results.get(ways[way], key))}
                for way in WAYS if way in ways
            }
            if found.get("packed"):
                panels[heads] = found
        if not panels:
            continue
        title = f"Trees of shared prefixes, fp16, cold, without planning in the bars: {run[0]}, {run[2]}"
        figure, axes = new(title, len(panels))
        for axis, (heads, found) in zip(axes, panels.items()):
            draw(axis, heads, found, "H200" in run[0])
        figure.supxlabel(textwrap.fill(CAPTION, 80 * len(panels)), fontsize=7, ha="center")
        return figure
    return None
