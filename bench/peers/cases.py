# SPDX-License-Identifier: Apache-2.0
"""The problems of pagoda_bench_decode, from their names."""

from __future__ import annotations

import math
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "ci"))

from type_table import read_table

TYPES = read_table()
NAME = re.compile(
    r"decode/(?P<backend>[^/]+)/(?P<type>\w+)/(?P<q_heads>\d+)x(?P<kv_heads>\d+)x(?P<dim>\d+)(?:-(?P<dim_v>\d+))?"
    r"/B(?P<batch>\d+)(?:q(?P<q_tokens>\d+)(?:of\d+)?)?/(?P<lengths>S\d+|[a-z-]+)/(?:page(?P<page>\d+)|contiguous)(?P<order>-HND)?"
    r"(?:-off(?P<offset>\d+))?(?:-checked)?(?:-batch_invariant)?"
    r"(?P<options>(?:-window(?P<window>\d+)(?:\+(?P<initial>\d+))?)?(?:-cap[\d.]+)?(?:-alibi)?(?:-sinks)?)"
)
SUFFIX = "/manual_time"


class Case:
    """A case of pagoda_bench_decode, parsed from its name."""

    def __init__(self, name: str) -> None:
        part = NAME.fullmatch(name)
        if not part:
            raise ValueError(f"{name}: not a name of a case")
        self.name = name
        self.type = part["type"]
        self.q_heads, self.kv_heads = int(part["q_heads"]), int(part["kv_heads"])
        self.dim, self.latent = int(part["dim"]), part["dim_v"] is not None
        self.q_tokens = int(part["q_tokens"] or 1)
        self.page = int(part["page"] or 0)
        self.by_head = part["order"] is not None
        self.lengths = lengths_of(part["lengths"], int(part["batch"]))
        self.has_options = part["options"] != ""
        #: tokens of a sequence that its query tokens see at most: a window, themselves and the initial tokens
        self.most_visible = (
            int(part["window"]) + self.q_tokens + int(part["initial"] or 0) if part["window"] else math.inf
        )
        # A reader of contiguous caches has the same problem for all backends of Pagoda and all page sizes.
        first, _, *rest = name.split("/")
        self.problem = "/".join([first, *rest])
        self.group = "/".join([first, *rest[:-1]])

    @property
    def even(self) -> bool:
        return min(self.lengths) == max(self.lengths)

    @property
    def bytes(self) -> int:
        row = int(TYPES[self.type].row_bytes(self.dim))
        tokens = sum(min(length, self.most_visible) for length in self.lengths)
        return int(tokens) * self.kv_heads * row * (1 if self.latent else 2)


def lengths_of(name: str, batch: int) -> list[int]:
    """As bench/decode/cases.cpp has them."""
    if name.startswith("S"):
        return [int(name[1:])] * batch
    if name.endswith("-even"):
        tokens = sum(lengths_of(name.removesuffix("-even"), batch))
        return [tokens * (b + 1) // batch - tokens * b // batch for b in range(batch)]
    if name == "one-long":
        return [131072] + [512] * (batch - 1)
    if name == "mixed":
        golden = 0.6180339887498949
        return [int(2 ** (6 + 6 * (b * golden % 1))) for b in range(batch)]
    if name == "conversation":
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "decode", "conversation.hpp")
        with open(path) as f:
            listed = f.read().split("conversation_lengths[256] = {")[1].split("}")[0]
        return [int(n) for n in listed.split(",")][:batch]
    raise ValueError(f"{name}: these lengths are unknown")


def rotation(cache_bytes: int, last_level: int) -> tuple[int, int]:
    """Caches and calls, as bench/decode/cases.cpp chooses them."""
    caches = min(max(max(1_200_000_000, 4 * last_level) // cache_bytes + 1, 2), 512)
    calls = int(min(max(4e9 / cache_bytes, 8), 128))
    return caches, math.ceil(calls / caches) * caches
