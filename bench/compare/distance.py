# SPDX-License-Identifier: Apache-2.0
"""The README's picture: times of decodes relative to a bare read of the same bytes, beside other libraries, as SVG.

Drawn without matplotlib, so that the same results give the same file everywhere and a test can compare it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from results import PEERS, Results

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 56, 50
Y_LOW, Y_HIGH = 0.93, 6.0
SERIES = (("flashinfer", "#e08e0b"), ("cudnn", "#d1495b"), ("pagoda", "#0b6e99"))  # the last is drawn on top
PROBLEMS = r"decode/(fp16|bf16)/\d+x\d+x128/B\d+/S\d+/page16"


@dataclass(frozen=True)
class Point:
    floor: float  #: microseconds of the bare read
    ratio: float  #: time of the decode over that of the bare read


def points(results: Results) -> dict[str, list[Point]]:
    """Problems that all three libraries were measured at, in the order of the file."""
    found: dict[str, list[Point]] = {name: [] for name, _ in SERIES}
    for key, by in results.rows.items():
        if not re.fullmatch(PROBLEMS, key):
            continue
        peers = {column.backend: samples for column, samples in by.items() if column.is_peer}
        own = [samples for column, samples in by.items() if not column.is_peer]
        if not own or not {"cudnn", "flashinfer"} <= set(peers):
            continue
        fastest = min(own, key=lambda samples: samples.median)
        for name, samples in (("pagoda", fastest), ("cudnn", peers["cudnn"]), ("flashinfer", peers["flashinfer"])):
            if fastest.floor is not None and samples.ratio is not None:
                found[name].append(Point(fastest.floor, samples.ratio))
    return found


def svg(results: Results) -> str:
    of = points(results)
    floors = [point.floor for found in of.values() for point in found]
    low, high = math.log10(min(floors) / 1.2), math.log10(max(floors) * 1.2)

    def x(us: float) -> float:
        return LEFT + (math.log10(us) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(ratio: float) -> float:
        share = math.log(ratio / Y_LOW) / math.log(Y_HIGH / Y_LOW)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def text(at_x: float, at_y: float, words: str, anchor: str = "middle", more: str = "") -> str:
        return f'<text x="{at_x:.1f}" y="{at_y:.1f}" text-anchor="{anchor}"{more}>{words}</text>'

    machine = next(column.machine for column in results.own)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f"<title>Decodes on an {machine}: time relative to a bare read of the same bytes</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for ratio in (1, 1.25, 1.5, 2, 3, 4, 5):
        stroke = 'stroke="#444444" stroke-dasharray="6 4"' if ratio == 1 else 'stroke="#e6e6e6"'
        lines.append(f'<path d="M{LEFT} {y(ratio):.1f}H{WIDTH - RIGHT}" {stroke}/>')
        lines.append(text(LEFT - 8, y(ratio) + 4, f"{ratio:g}", "end"))
    for us in (2, 5, 10, 20, 50, 100, 200, 500, 1000):
        if low <= math.log10(us) <= high:
            lines.append(f'<path d="M{x(us):.1f} {HEIGHT - BOTTOM}v5" stroke="#444444"/>')
            lines.append(text(x(us), HEIGHT - BOTTOM + 18, f"{us}"))
    lines.append(text(LEFT + 6, y(1) - 6, "memory floor: a bare read of the same bytes", "start"))
    lines.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "time of the bare read, microseconds"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    lines.append(text(18, middle, "time of the decode / bare read", more=f' transform="rotate(-90 18 {middle:.1f})"'))
    for name, color in SERIES:
        lines.append(f'<g fill="{color}" fill-opacity="0.75">')
        lines += [f'<circle cx="{x(p.floor):.1f}" cy="{y(p.ratio):.1f}" r="3.5"/>' for p in of[name]]
        lines.append("</g>")
    at = LEFT
    for name, color in reversed(SERIES):
        words = PEERS.get(name, "Pagoda")
        lines.append(f'<circle cx="{at + 6}" cy="20" r="5" fill="{color}"/>')
        lines.append(text(at + 17, 24, words, "start"))
        at += 40 + 8 * len(words)
    count = len(of["pagoda"])
    about = f"{machine}, fp16 and bf16, head_dim 128, pages of 16 tokens, {count} problems"
    lines.append(text(LEFT, 44, about, "start", ' fill="#555555"'))
    return "\n".join([*lines, "</svg>"]) + "\n"
