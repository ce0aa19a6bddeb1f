# SPDX-License-Identifier: Apache-2.0
"""bench/compare on small results of pagoda_bench_prefix: tables, claims, the figure, and the README's block."""

from __future__ import annotations

import json
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))

from test_compare import context, results_of, row, verdict  # noqa: E402

import plots  # noqa: E402
import prefix_tables  # noqa: E402
import readme  # noqa: E402
import report  # noqa: E402
import results as r  # noqa: E402
import rules  # noqa: E402

H200 = context(device="NVIDIA H200")
COST = {"predicted_plain_us": 1, "predicted_packed_us": 1}


def tree_rows(
    plain: float, packed: float, is_packed: int = 1, problem: str = "32x8x128/tree4/page32", **more: float
) -> list[dict[str, Any]]:
    counters = {"bytes": 10, "bytes_all": 60, "planning_us": 4, **COST, **more}
    return [
        row(f"prefix/plain/fp16/{problem}", plain, 16, **counters),
        row(f"prefix/packed/fp16/{problem}", packed, 16, is_packed=is_packed, **counters),
    ]


def tree(plain: float, packed: float, is_packed: int = 1, **more: Any) -> r.Results:
    return results_of((H200, tree_rows(plain, packed, is_packed, **more)))  # PAT takes 62 us


def drafts(**us: float) -> r.Results:
    """tree8=.., chain8=..: times of lists and chains."""
    rows = []
    for name, time in us.items():
        way, count = name.rstrip("0123456789"), name.lstrip("abcdefghijklmnopqrstuvwxyz")
        more = {"entries": 32} if way == "tree" else {}
        label = {"tree": "lists: generic fp16 heads", "chain": "plan: tuned fp16 heads"}[way]
        key = f"prefix/{way}/fp16/32x8x128/drafts{count}/B32/S4096/page16"
        rows.append(row(key, time, 10, products_us=3, label=label, **more))
    return results_of((H200, rows))


def chosen(page: int = 16) -> list[dict[str, Any]]:
    key = f"fp16/32x8x128/chosen{{}}/B32/S8192/page{page}"
    return [
        row("prefix/plain/" + key.format(5), 20, 16),
        row("prefix/per-head/" + key.format("5-per-head"), 30, 15),
        row("prefix/plain/" + key.format(100), 240, 200),
    ]


def everything() -> r.Results:
    trees = [f"{q}x{kv}x128/tree{t}/page32" for q, kv in ((32, 32), (32, 8)) for t in (1, 3, 4, 7, 14)]
    traces = [f"32x8x128/some_trace/B64/step{step}/page16" for step in (50, 150)]
    rows = [line for problem in (*trees, "32x8x128/cascade256/page32") for line in tree_rows(100, 40, problem=problem)]
    rows += tree_rows(50, 48, problem=traces[0]) + tree_rows(52, 52, 0, problem=traces[1])
    return results_of((H200, rows + chosen(1) + chosen()))


class Tables(unittest.TestCase):
    def test_shared_prefixes(self) -> None:
        head, body = prefix_tables.prefix_table(tree(100, 31))
        found = dict(zip(head, body[0]))
        self.assertEqual((found["PAT"], found["plain"], found["packed"]), ("62.0", "100.0", "31.0"))
        self.assertEqual((found["plain / packed"], found["PAT / best"], found["read of all"]), ("3.23", "2.00", "96.0"))
        self.assertEqual((found["planning"], found["planned every step"]), ("4.0", "35.0"))
        self.assertEqual(found["planned every 32 steps"], "31.1")
        self.assertEqual(dict(zip(head, prefix_tables.prefix_table(tree(100, 99, 0))[1][0]))["packed"], "99.0 (plain)")

    def test_a_peer_has_a_column_and_is_not_the_best_of_ours(self) -> None:
        peer = row("prefix/flashinfer/fp16/32x8x128/tree4/page32", 20, 16, planning_us=500)
        head, body = prefix_tables.prefix_table(results_of((H200, [*tree_rows(100, 31), peer])))
        found = dict(zip(head, body[0]))
        self.assertEqual((found["FlashInfer"], found["PAT / best"]), ("20.0 + 500.0", "2.00"))

    def test_copy_of_the_list_and_the_look_at_the_plan_count(self) -> None:
        results = tree(100, 31, update_us=64, holds_us=2)
        samples = results.get(results.columns[1], "prefix/fp16/32x8x128/tree4/page32")
        self.assertEqual(r.with_planning(samples, 1), 95)
        self.assertEqual(r.with_planning(samples, 32), 31 + (64 + 31 * 2) / 32)
        self.assertIsNone(r.with_planning(results.get(results.columns[0], samples.key), 1))

    def test_chosen_pages(self) -> None:
        results = results_of((H200, chosen()), (context(git="ffff"), chosen()[:1]))
        head, body = prefix_tables.chosen_table(results)
        self.assertEqual(body[0][2:], ["16", "5%", "16.0", "20.0", "1.25", "15.0", "30.0", "2.00", "240.0", "12.00"])
        self.assertEqual(body[1][3:7], ["100%", "200.0", "240.0", "1.20"])
        self.assertEqual(body[2][7:], ["-", "-", "-", "-", "-"])  # another run, without the dense decode
        self.assertEqual(len(head), len(body[0]))

    def test_trees_of_drafts(self) -> None:
        head, body = prefix_tables.drafts_table(drafts(tree8=20, chain8=16, tree128=40))
        self.assertEqual(body[0][2:], ["8", "10.0", "3.0", "20.0 (generic)", "2.00", "16.0 (tuned)", "1.60", "1.25", "-"])
        self.assertEqual(body[1][7:], ["-", "-", "-", "-"])
        self.assertEqual(len(head), len(body[0]))

    def test_page_has_those_with_rows(self) -> None:
        text = report.prefix_markdown(results_of((H200, chosen())))
        self.assertIn("## Chosen pages", text)
        self.assertNotIn("## Shared prefixes", text)
        self.assertEqual(report.prefix_markdown(r.Results()), "")
        for heading in ("Shared prefixes", "Chosen pages"):
            self.assertIn(f"<h3>{heading}</h3>", report.page(everything(), [], {}))


class Claims(unittest.TestCase):
    def test_pat(self) -> None:
        saves, times = "saves half of the time", "Its times on an H200"
        self.assertEqual(verdict(tree(100, 40), saves)[0].verdict, rules.HOLDS)
        self.assertEqual(verdict(tree(100, 60), saves)[0].verdict, rules.PARTLY)
        self.assertEqual(verdict(tree(100, 100, 0), saves)[0].verdict, rules.FAILS)
        self.assertEqual(verdict(tree(100, 62), times)[0].verdict, rules.HOLDS)
        self.assertEqual(verdict(tree(100, 63), times)[0].verdict, rules.FAILS)

    def test_planning_counts(self) -> None:
        found = verdict(tree(100, 40, planning_us=320), "saves half of the time")[0]
        self.assertEqual(found.verdict, rules.PARTLY)  # 40 + 320 / 32 = 50 us
        self.assertIn("60% of the plain decode's", found.ours)
        self.assertIn("with planning in every step -260%", found.ours)
        self.assertIn("planned once every N = 32 steps (a plan serves until the tables' shape changes) 50%", found.ours)
        for text in ("up to 12x and 21x", "Its times on an H200"):
            self.assertIn("with planning in every step", verdict(tree(100, 40), text)[0].ours)

    def test_drafts(self) -> None:
        def of(**us: float) -> list[rules.Finding]:
            return verdict(drafts(**us), "DeFT")

        self.assertEqual([f.verdict for f in of(tree8=20, chain8=20, tree128=60, chain128=60)], [rules.HOLDS])
        self.assertEqual(of(tree8=30, chain8=20, tree128=60, chain128=60)[0].verdict, rules.PARTLY)
        self.assertEqual(of(tree8=20, chain8=20, tree128=640, chain128=60)[0].verdict, rules.FAILS)
        self.assertIn("2.5 us at 8, 0.469 at 128", of(tree8=20, chain8=20, tree128=60, chain128=60)[0].ours)
        self.assertEqual(of(tree8=20), [])

    def test_cascade_and_trees(self) -> None:
        def of(tree_us: float, **more: float) -> rules.Finding:
            rows = tree_rows(100, 25, problem="32x8x128/cascade256/page32") + tree_rows(100, tree_us, **more)
            return verdict(results_of((H200, rows)), "A cascade and trees")[0]

        self.assertEqual(of(50).verdict, rules.HOLDS)
        self.assertIn("cascade: 4.00x as fast as the plain decode", of(50).ours)
        self.assertEqual(of(99.9).verdict, rules.PARTLY)  # with a planning of 4 us, once in 32 steps
        self.assertIn("faster in 50% of them", of(99.9).ours)


class Readme(unittest.TestCase):
    def test_block(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            with mock.patch.object(readme, "RESULTS", Path(folder)):
                self.assertEqual(readme.prefix(), "")
                rows = [
                    {"name": f"prefix/{c.backend}/{key.removeprefix('prefix/')}/manual_time", "real_time": 1, **s.counters}
                    for key, by in everything().rows.items() for c, s in by.items()
                ]
                (Path(folder) / readme.PREFIX_RESULTS).write_text(json.dumps({"context": H200, "benchmarks": rows}))
                text = readme.prefix()
        self.assertIn("| tree 4 (64 sequences, a prompt of 1024, 2 documents of 256), 32/8 | 16.0 | 100.0 | 40.0 | 4.0 | 62.0 |", text)
        self.assertIn("of 64, trace `some_trace`, 32/8 | 16.0 | 51.0 | 50.0 (1 of 2 packed) | 4.0 | - |", text)
        self.assertIn("| 5% of 32 x 8192 tokens, pages of 16, 32/8 | 16.0 | 20.0 | 240.0 |", text)
        self.assertIn("planning took", text)
        self.assertNotIn("tree 1 (", text)
        self.assertTrue(all(len(line) <= 118 for line in text.splitlines() if not line.startswith("|")))
        self.assertTrue(text.endswith("\n"))

    def test_without_plain_rows_or_chosen_pages(self) -> None:
        text = readme.prefix_block(results_of((H200, tree_rows(100, 90, 0)[1:])), "FILE")
        self.assertNotIn("| tree", text)
        self.assertNotIn("chosen", text)
        text = readme.prefix_block(results_of((H200, tree_rows(100, 90, 0))), "FILE")
        self.assertIn("| 90.0 (plain) |", text)


class Figure(unittest.TestCase):
    @unittest.skipIf(bool(plots.MISSING), plots.MISSING)
    def test_what_is_included_is_said(self) -> None:
        figure = plots.prefix_trees(everything())
        self.assertEqual([axis.get_title() for axis in figure.axes], ["heads 32/32", "heads 32/8"])
        self.assertIn("without planning", figure.get_suptitle())
        self.assertIn("planning is in none of them", " ".join(figure.get_supxlabel().split()))
        labels = [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
        self.assertEqual(set(labels), {
            "plain", "packed", "PAT", "packed, planned every step", "packed, planned every 32 steps",
            "bare read of each token once",
        })
        ticks = [[t.get_text() for t in axis.get_xticklabels()] for axis in figure.axes]
        self.assertEqual(ticks, [["1", "3", "4", "7", "14"], ["1", "3", "4", "7", "14", "c"]])

    @unittest.skipIf(bool(plots.MISSING), plots.MISSING)
    def test_without_rows(self) -> None:
        self.assertIsNone(plots.prefix_trees(r.Results()))


if __name__ == "__main__":
    unittest.main()
