# SPDX-License-Identifier: Apache-2.0
"""bench/peers/prefix_peers.py without FlashInfer: problems from names, tables of levels, masks, and rows."""

from __future__ import annotations

import subprocess
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
    left = 9  #: problems before the GPU takes no more work

    def usable(self) -> bool:
        self.left -= 1
        return self.left > 0

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
    def run_problems(
        self, *names: str, left: int = 9, ours: Any = None
    ) -> tuple[bool, list[dict[str, Any]], dict[str, str]]:
        notes: dict[str, str] = {}
        figures = {name: {"name": name + SUFFIX, "us": 8.0, "floor_us": 4.0} for name in names}
        peer, problems = Fake(), [[PrefixCase(name)] for name in names]
        peer.left = left
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "peers.jsonl"
            file.write_text("")
            ran_bench = ours or (lambda bench, ways: (figures, {"git": "a", "device": "x"}))
            with mock.patch.object(prefix_peers, "ours", ran_bench):
                ran = prefix_peers.measure(peer, "bench", problems, Journal(file), notes)
            from results import load_lines

            return ran, load_lines(file.read_text())["benchmarks"], notes

    def test_a_peer_stands_beside_ours(self) -> None:
        ran, rows, notes = self.run_problems(TREE)
        self.assertTrue(ran)
        self.assertEqual([row["name"] for row in rows], [TREE.replace("packed", "flashinfer") + SUFFIX, TREE + SUFFIX])
        self.assertEqual((rows[0]["us"], rows[0]["ratio"], rows[0]["planning_us"]), (5.0, 1.25, 700.0))
        self.assertEqual((rows[0]["label"], notes), ("cascade", {}))

    def test_what_fails_is_noted_and_the_rest_goes_on(self) -> None:
        ran, rows, notes = self.run_problems(DRAFTS, TREE)
        self.assertEqual((ran, len(rows)), (True, 3))
        self.assertEqual(list(notes.values()), ["RuntimeError: no drafts"])

    def test_problems_behind_a_broken_gpu_are_left_for_the_next_run(self) -> None:
        other = TREE.replace("tree4", "tree5")
        _, rows, _ = self.run_problems(TREE, other, left=1)
        self.assertEqual([row["name"] for row in rows], [TREE.replace("packed", "flashinfer") + SUFFIX, TREE + SUFFIX])

    def test_without_figures_of_ours_the_run_goes_on(self) -> None:
        def fails(bench: str, ways: list[PrefixCase]) -> Any:
            raise subprocess.CalledProcessError(1, bench)

        self.assertEqual(self.run_problems(TREE, ours=fails)[:2], (False, []))

    def test_the_first_expression_comes_first(self) -> None:
        names = ["tree1/a", "tree2/a", "tree2/b", "drafts"]
        self.assertEqual(prefix_peers.chosen(names, ["tree2/b", "tree", "none"]), ["tree2/b", "tree1/a", "tree2/a"])


if __name__ == "__main__":
    unittest.main()
