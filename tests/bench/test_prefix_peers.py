# SPDX-License-Identifier: Apache-2.0
"""bench/peers/prefix_peers.py without FlashInfer: problems from names, tables of levels, masks, and rows."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "bench" / "peers"))

import prefix_peers  # noqa: E402
from cases import SUFFIX  # noqa: E402
from compare import Journal  # noqa: E402
from prefix_cases import PrefixCase, draft_masks, flat_rows, level_tables, packed_mask, pat_trees  # noqa: E402

TREE = "prefix/packed/fp16/32x8x128/tree4/page32"
DRAFTS = "prefix/tree/fp16/32x8x128/drafts70/B2/S100/page16"


class Fake:
    name, version = "flashinfer", "0"

    def time_tree(self, case: PrefixCase) -> tuple[float, str, float]:
        if case.drafts:
            raise RuntimeError("no drafts\nat all")
        return 5.0, "cascade", 700.0


class Names(unittest.TestCase):
    def test_trees(self) -> None:
        self.assertEqual(len(pat_trees()), 20)
        case = PrefixCase(TREE + SUFFIX)
        self.assertEqual(case.levels, [(1, 1024), (2, 256), (64, 256)])
        self.assertEqual((case.batch, case.tokens, case.pages), (64, 1024 + 512 + 16384, 32 + 16 + 512))
        self.assertEqual(case.bytes, case.tokens * 8 * 128 * 2 * 2)
        self.assertEqual(PrefixCase("prefix/plain/fp16/32x8x128/cascade256/page32").levels, [(1, 4096), (256, 128)])

    def test_drafts(self) -> None:
        case = PrefixCase(DRAFTS)
        self.assertEqual((case.batch, case.context, case.drafts, case.tokens, case.pages), (2, 100, 70, 340, 22))

    def test_others_are_left_out(self) -> None:
        names = [TREE, TREE.replace("packed", "plain"), TREE + "/warm", "plan/pat_tree:1", TREE.replace("fp16", "int8")]
        names += ["prefix/plain/fp16/32x8x128/chosen5/B32/S8192/page16"]
        problems = prefix_peers.by_problem([name + SUFFIX for name in names])
        self.assertEqual({k: [c.name for c in of] for k, of in problems.items()}, {"prefix/fp16/32x8x128/tree4/page32": names[:2]})


class Tables(unittest.TestCase):
    def test_levels_and_rows_agree(self) -> None:
        for number in pat_trees():
            case = PrefixCase(f"prefix/packed/fp16/32x8x128/tree{number}/page32")
            tables, rows = level_tables(case), flat_rows(case)
            self.assertEqual(len({page for row in rows for page in row}), case.pages)
            self.assertEqual({len(row) for row in rows}, {sum(t for _, t in case.levels) // 32})
            self.assertTrue(all(queries[-1] == case.batch for queries, _, _ in tables))
            for queries, begins, first in tables if number in (1, 4) else []:
                for node in range(len(queries) - 1):
                    pages = set(range(first + begins[node], first + begins[node + 1]))
                    holders = [b for b, row in enumerate(rows) if pages & set(row)]
                    self.assertEqual(holders, list(range(queries[node], queries[node + 1])))

    def test_masks(self) -> None:
        case = PrefixCase(DRAFTS)
        for seen in draft_masks(case):
            for i, bits in enumerate(seen):
                self.assertTrue(bits >> i & 1)
                self.assertEqual(bits >> (i + 1), 0)
                ancestors = [j for j in range(i) if bits >> j & 1]
                if ancestors:  # all that the parent sees
                    self.assertEqual(bits ^ 1 << i, seen[ancestors[-1]])
        self.assertEqual(packed_mask(1 << 69 | 3, 70), [3, 0, 0, 0, 32, 0])
        self.assertEqual(len(packed_mask(1, 8)), 2)


class Rows(unittest.TestCase):
    def run_problem(self, name: str) -> tuple[bool, list[dict[str, Any]], dict[str, str]]:
        notes: dict[str, str] = {}
        figures = {name: {"name": name + SUFFIX, "us": 8.0, "floor_us": 4.0}}
        with tempfile.TemporaryDirectory() as folder:
            journal = Journal(Path(folder) / "peers.jsonl")
            with mock.patch.object(prefix_peers, "ours", lambda bench, ways: (figures, {"git": "a", "device": "x"})):
                ran = prefix_peers.measure(Fake(), "bench", [PrefixCase(name)], journal, notes)
            from results import load_lines

            return ran, load_lines((Path(folder) / "peers.jsonl").read_text())["benchmarks"], notes

    def test_a_peer_stands_beside_ours(self) -> None:
        ran, rows, notes = self.run_problem(TREE)
        self.assertTrue(ran)
        self.assertEqual([row["name"] for row in rows], [TREE.replace("packed", "flashinfer") + SUFFIX, TREE + SUFFIX])
        self.assertEqual((rows[0]["us"], rows[0]["ratio"], rows[0]["planning_us"]), (5.0, 1.25, 700.0))
        self.assertEqual(notes, {})

    def test_what_fails_is_noted(self) -> None:
        ran, rows, notes = self.run_problem(DRAFTS)
        self.assertEqual((ran, len(rows)), (True, 1))
        self.assertEqual(list(notes.values()), ["RuntimeError: no drafts"])


if __name__ == "__main__":
    unittest.main()
