# SPDX-License-Identifier: Apache-2.0
"""The problems of pagoda_bench_prefix that other libraries can take, from their names: trees of prefixes and of drafts."""

from __future__ import annotations

import os
import random
import re
from functools import lru_cache

from cases import SUFFIX, TYPES

TREES_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "prefix", "pat_trees.hpp")
NAME = re.compile(
    r"prefix/(?P<way>[^/]+)/(?P<type>\w+)/(?P<q_heads>\d+)x(?P<kv_heads>\d+)x(?P<dim>\d+)/"
    r"(?:tree(?P<tree>\d+)|cascade(?P<cascade>\d+)|drafts(?P<drafts>\d+)/B(?P<batch>\d+)/S(?P<context>\d+))/page(?P<page>\d+)"
)
CASCADE_TOKENS = (4096, 128)  # on devices (bench/prefix/cases.cpp)


@lru_cache(maxsize=None)
def pat_trees() -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Nodes and tokens of each level, by the tree's number."""
    with open(TREES_FILE) as f:
        found = re.findall(r"\{(\d+), \{([\d, ]+)\}, \{([\d, ]+)\}, ", f.read())

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(n) for n in text.split(","))

    return {int(number): (numbers(nodes), numbers(tokens)) for number, nodes, tokens in found}


class PrefixCase:
    """A cold case of pagoda_bench_prefix. `levels`: (nodes, tokens) from the root to the batch; empty for drafts."""

    def __init__(self, name: str) -> None:
        part = NAME.fullmatch(name.removesuffix(SUFFIX))
        if not part:
            raise ValueError(f"{name}: not a tree of prefixes or drafts")
        self.name = name.removesuffix(SUFFIX)
        self.type, self.page = part["type"], int(part["page"])
        self.q_heads, self.kv_heads, self.dim = int(part["q_heads"]), int(part["kv_heads"]), int(part["dim"])
        self.drafts, self.context = int(part["drafts"] or 0), int(part["context"] or 0)
        self.levels: list[tuple[int, int]] = []
        if part["tree"]:
            self.levels = list(zip(*pat_trees()[int(part["tree"])]))
        elif part["cascade"]:
            self.levels = list(zip((1, int(part["cascade"])), CASCADE_TOKENS))
        self.batch = self.levels[-1][0] if self.levels else int(part["batch"])
        first, _, *rest = self.name.split("/")
        self.problem = "/".join([first, *rest])  #: the same for all ways of decoding

    @property
    def tokens(self) -> int:
        """Tokens in the cache, each once."""
        return sum(n * t for n, t in self.levels) if self.levels else self.batch * (self.context + self.drafts)

    @property
    def bytes(self) -> int:
        return 2 * self.tokens * self.kv_heads * int(TYPES[self.type].row_bytes(self.dim))

    @property
    def pages(self) -> int:
        if self.levels:
            return self.tokens // self.page
        return self.batch * -(-(self.context + self.drafts) // self.page)


def level_tables(case: PrefixCase) -> list[tuple[list[int], list[int], int]]:
    """Of each level: where its nodes begin among the queries, and among the level's pages; and its first page."""
    tables, first = [], 0
    for nodes, tokens in case.levels:
        each, pages = case.batch // nodes, tokens // case.page
        tables.append(([n * each for n in range(nodes + 1)], [n * pages for n in range(nodes + 1)], first))
        first += nodes * pages
    return tables


def flat_rows(case: PrefixCase) -> list[list[int]]:
    """Pages of each sequence, from the root on, before they are shuffled."""
    tables = level_tables(case)
    rows = []
    for b in range(case.batch):
        row: list[int] = []
        for (nodes, tokens), (_, begins, first) in zip(case.levels, tables):
            node = b * nodes // case.batch
            row += range(first + begins[node], first + begins[node + 1])
        rows.append(row)
    return rows


def draft_masks(case: PrefixCase) -> list[list[int]]:
    """For each draft of each sequence the drafts that it sees, as the bits of a number. Random trees, as those of
    bench/prefix/lists.cpp; not the same ones."""
    numbers, masks = random.Random(1), []
    for _ in range(case.batch):
        seen: list[int] = []
        for i in range(case.drafts):
            parent = numbers.randrange(i + 1) - 1
            seen.append((seen[parent] if parent >= 0 else 0) | 1 << i)
        masks.append(seen)
    return masks


def packed_mask(bits: int, drafts: int) -> list[int]:
    """Words of 16 bits, as XQA reads them: as many as fill a multiple of 32 bits."""
    return [bits >> 16 * word & 0xFFFF for word in range((drafts + 31) // 32 * 2)]
