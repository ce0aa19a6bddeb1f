# SPDX-License-Identifier: Apache-2.0
"""bench/compare on small results: what joins what, which ratios and verdicts come out, and what is said without data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[2]
COMPARE = TOP / "bench" / "compare"
sys.path.insert(0, str(COMPARE))

import claims  # noqa: E402
import rules  # noqa: E402
import distance  # noqa: E402
import readme  # noqa: E402
import report  # noqa: E402
import results as r  # noqa: E402


def context(**changes: str) -> dict[str, Any]:
    return {"device": "NVIDIA X1", "execution_space": "Cuda", "git": "0123456789ab", "git_dirty": "no", **changes}


def row(name: str, us: float, floor_us: float | None = None, **more: Any) -> dict[str, Any]:
    found = {
        "name": f"{name}/manual_time",
        "run_type": "iteration",
        "real_time": us,
        "time_unit": "us",
        "us": us,
        **more,
    }
    if floor_us:
        found["floor_us"] = floor_us
    return found


def results_of(*reports: tuple[dict[str, Any], list[dict[str, Any]]]) -> r.Results:
    results = r.Results()
    for with_context, rows in reports:
        r.add_report(results, {"context": with_context, "benchmarks": rows})
    return results


def verdict(results: r.Results, text: str) -> list[rules.Finding]:
    return next(found for claim, found in claims.judge_all(results) if text in claim.text)


def column(results: r.Results, backend: str) -> r.Column:
    return next(c for c in results.columns if c.backend == backend)


SHAPE = "fp16/32x8x128/B32/S1024/page16"


class Joining(unittest.TestCase):
    def test_backends_of_a_problem_are_one_row(self) -> None:
        results = results_of(
            (context(), [row(f"decode/generic/{SHAPE}", 40, 20), row(f"decode/tuned/{SHAPE}", 30, 20)]),
            (context(), [row(f"decode/cudnn/{SHAPE}", 36, 20)]),
        )
        self.assertEqual(list(results.rows), [f"decode/{SHAPE}"])
        self.assertEqual({c.backend for c in results.rows[f"decode/{SHAPE}"]}, {"generic", "tuned", "cudnn"})
        self.assertEqual([c.backend for c in results.own], ["generic", "tuned"])
        head, body = report.ratios(results, results.columns)
        self.assertEqual(body, [[f"decode/{SHAPE}", "40.0", "2.00", "30.0", "1.50", "0.75", "36.0", "1.80", "0.90"]])
        self.assertIn("/ generic", head)

    def test_slower_defaults_are_listed(self) -> None:
        def listed(tuned: float, generic: float, default: str) -> list[list[str]]:
            times = {"tuned": tuned, "generic": generic}
            rows = [row(f"decode/{b}/{SHAPE}", us, 20, is_default=float(b == default)) for b, us in times.items()]
            other = (context(git="ffff"), [row(f"decode/generic/{SHAPE}", 1, 20, is_default=0.0)])
            return report.defaults_table(results_of((context(), rows), other))[1]

        self.assertEqual(listed(101.01, 100, "generic"), [])
        self.assertEqual(listed(100.9, 100, "tuned"), [])
        self.assertEqual(len(listed(101.01, 100, "tuned")), 1)
        self.assertEqual(listed(202, 200, "tuned")[0][1:], ["X1, tuned, 0123456", "202.0", "generic", "200.0", "1.0%"])

    def test_machines_and_commits_are_columns(self) -> None:
        results = results_of(
            (context(), [row(f"decode/generic/{SHAPE}", 40, 20)]),
            (context(device="NVIDIA X2"), [row(f"decode/generic/{SHAPE}", 50, 25)]),
            (context(git="ffff"), [row(f"decode/generic/{SHAPE}", 60, 20)]),
        )
        self.assertEqual(len(results.columns), 3)
        self.assertEqual([len(columns) for _, columns in report.device_groups(results)], [2, 1])

    def test_repeated_measurements_have_a_spread(self) -> None:
        # Each is compared with the floor of its own run.
        results = results_of(
            (context(), [row(f"decode/generic/{SHAPE}", 40, 20), row(f"decode/generic/{SHAPE}", 44, 20)]),
            (context(), [row(f"decode/generic/{SHAPE}", 50, 40)]),
        )
        samples = results.get(results.columns[0], f"decode/{SHAPE}")
        self.assertEqual((samples.median, samples.ratio), (44, 2.0))
        self.assertAlmostEqual(samples.spread, 10 / 44)
        self.assertIn("±", report.spread_text(samples))
        self.assertEqual(report.spread_text(r.Samples("x", us=[1.0])), "")

    def test_means_are_left_out_and_units_understood(self) -> None:
        plain = {"name": "decode/generic/a", "run_type": "iteration", "real_time": 2.0, "time_unit": "ms"}
        mean = {**plain, "run_type": "aggregate", "name": "decode/generic/a_mean"}
        results = results_of((context(), [plain, mean]))
        self.assertEqual(results.us(results.columns[0], "decode/a"), 2000)
        self.assertEqual(len(results.rows), 1)

    def test_failures_are_told_and_not_figures(self) -> None:
        results = results_of(
            (context(), [{**row("decode/generic/a", 1), "error_occurred": True, "error_message": "wrong"}])
        )
        self.assertEqual(results.rows, {})
        self.assertEqual(results.errors[0][2], "wrong")

    def test_names_of_the_study_take_the_backend_from_their_label(self) -> None:
        results = results_of((context(), [row("study/K1/flash/T4096", 5, 2, label="backend: tuned; floor: strided")]))
        self.assertEqual(results.columns[0].backend, "tuned")
        self.assertEqual(list(results.rows), ["study/K1/flash/T4096"])

    def test_cuda_kernels_of_the_study_stand_beside_the_kokkos_ones(self) -> None:
        rows = [
            row("study/K1/flash/T4096", 8, 2, label="backend: generic; floor: strided"),
            row("study/K1/cuda-flash/T4096", 5, 2, label="backend: tuned; floor: strided"),
            row("study/K2/cuda-splits16/T4096", 9, 2, label="backend: tuned; floor: strided"),
        ]
        results = results_of((context(), rows))
        self.assertEqual(
            {key: {c.backend for c in by} for key, by in results.rows.items()},
            {"study/K1/flash/T4096": {"generic", "tuned"}, "study/K2/splits16/T4096": {"tuned"}},
        )


class Files(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def test_lines_of_a_run_that_was_killed(self) -> None:
        lines = [
            json.dumps({"context": context()}),
            json.dumps(row(f"decode/generic/{SHAPE}", 40, 20)),
            json.dumps(row("decode/generic/other", 40, 20))[:30],
        ]
        results = r.load([self.file("a.jsonl", "\n".join(lines))])
        self.assertEqual(list(results.rows), [f"decode/{SHAPE}"])
        self.assertEqual(r.load([self.file("b.jsonl", lines[0] + "\n")]).rows, {})

    def test_what_is_not_ours_is_refused(self) -> None:
        for text in ("{}", "[1]", "no json", '{"benchmarks": 3}\n{"a": 1}\n'):
            with self.assertRaises(r.Unreadable, msg=text):
                r.load([self.file("x.json", text)])
        with self.assertRaises(r.Unreadable):
            r.load([self.folder / "absent.json"])

    def test_results_of_the_repository(self) -> None:
        results = r.load(sorted((TOP / "bench" / "results").glob("*.json")))
        self.assertGreater(len(results.rows), 300)
        self.assertTrue(results.serve)
        self.assertTrue(
            any(key.startswith("serve/fp16/Llama-3-8B/conversation_first30min/60GB/") for key in results.rows)
        )
        for name, block in readme.BLOCKS.items():
            self.assertTrue(block().endswith("\n") or (name == "prefix" and block() == ""), name)

    def run_compare(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-B", str(COMPARE), *arguments],
            text=True,
            capture_output=True,
            env={**os.environ, **environment},
        )

    def test_without_matplotlib_the_rest_is_written(self) -> None:
        self.file("matplotlib.py", "raise ImportError('No module named matplotlib')\n")
        data = self.file(
            "a.json", json.dumps({"context": context(), "benchmarks": [row(f"decode/generic/{SHAPE}", 40, 20)]})
        )
        done = self.run_compare(str(data), "--out", str(self.folder / "out"), PYTHONPATH=str(self.folder))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("apt install python3-matplotlib", done.stderr)
        self.assertIn(SHAPE, done.stdout)
        page = (self.folder / "out" / "report.html").read_text()
        self.assertIn("apt install python3-matplotlib", page)
        self.assertIn("not measured", (self.folder / "out" / "verdicts.md").read_text())

    def test_a_bad_file_is_an_error(self) -> None:
        done = self.run_compare(str(self.file("a.json", "{}")))
        self.assertEqual(done.returncode, 2)
        self.assertIn("a.json", done.stderr)


class Verdicts(unittest.TestCase):
    def test_page_is_that_of_the_results(self) -> None:
        found = r.load(sorted((TOP / "bench" / "results").glob("*.json")))
        self.assertEqual(
            (TOP / "bench" / "results" / "report" / "verdicts.md").read_text(),
            report.verdicts_markdown(claims.judge_all(found)),
            "run python3 bench/compare bench/results/*.json --out bench/results/report",
        )

    def test_without_data_nothing_is_claimed(self) -> None:
        judged = claims.judge_all(r.Results())
        self.assertTrue(all(not findings for _, findings in judged))
        rows = report.verdict_rows(judged)[1]
        self.assertEqual({line[4] for line in rows}, {rules.NOT_MEASURED})
        self.assertEqual({line[3] for line in rows}, {""})

    def study(self, **more: float) -> r.Results:
        rows = [row(f"study/{name}", us, label="backend: generic") for name, us in more.items()]
        return results_of((context(), rows))

    def test_speed_up(self) -> None:
        def of(base: float) -> str:
            found = self.study(
                **{
                    "K1/flash/T4096": 10,
                    "K1/three-kernels/T4096": 44,
                    "K1/flash/T2097152": 100,
                    "K1/three-kernels/T2097152": base,
                }
            )
            return verdict(found, "baseline of three kernels")[0].verdict

        self.assertEqual(of(2900), rules.HOLDS)
        self.assertEqual(of(900), rules.PARTLY)
        self.assertEqual(of(90), rules.FAILS)
        self.assertEqual(verdict(self.study(**{"K1/flash/T4096": 10}), "baseline of three kernels"), [])

    def test_best_split(self) -> None:
        at = {f"K2/splits{n}/T2097152": us for n, us in ((16, 450), (64, 150), (128, 100), (256, 100.4), (512, 108))}
        found = verdict(self.study(**at), "128 splits")[0]
        self.assertEqual(found.verdict, rules.HOLDS)
        self.assertIn("within 0.5%: 128, 256", found.ours)
        self.assertIn("16 splits take 4.50x", found.ours)
        found = verdict(self.study(**{**at, "K2/splits512/T2097152": 80}), "128 splits")[0]
        self.assertEqual(found.verdict, rules.FAILS)

    def paging(self, copied: float, plain: float, batched: float) -> rules.Finding:
        rows = {
            "K4/serial-copy/T512/page16": 100 * copied,
            "K4/serial/T512/page16": 100 * plain,
            "K4/serial/T512/contiguous": 100,
            "K4/batched/T512/page16": 20 * batched,
            "K4/batched/T512/contiguous": 20,
        }
        return verdict(self.study(**rows), "Paging costs")[0]

    def test_paging_three_ways(self) -> None:
        found = self.paging(1.9, 1.05, 1.02)
        self.assertEqual(found.verdict, rules.PARTLY)
        for text in ("1.90x as the study timed it", "1.05x without the copy", "1.02x batched in one call"):
            self.assertIn(text, found.ours)
        self.assertEqual(self.paging(1.9, 1.8, 1.7).verdict, rules.HOLDS)
        self.assertEqual(self.paging(1.2, 1.2, 1.45).verdict, rules.FAILS)

    def test_page_size(self) -> None:
        def of(large: float) -> str:
            rows = {f"K4/batched/T512/page{n}": us for n, us in ((1, 30), (16, 20), (256, large))}
            return verdict(self.study(**rows), "Page size")[0].verdict

        self.assertEqual(of(20.5), rules.HOLDS)
        self.assertEqual(of(15), rules.PARTLY)

    def test_capacity(self) -> None:
        def of(paged: int) -> str:
            rows = [
                row(f"study/K3/{kind}/max{m}/4GiB", 1, sequences=n)
                for m, kind, n in (
                    (2048, "paged", paged),
                    (2048, "contiguous", 2048),
                    (4096, "paged", 8192),
                    (4096, "contiguous", 1024),
                )
            ]
            return verdict(results_of((context(), rows)), "4x and 8x")[0].verdict

        self.assertEqual(of(8192), rules.HOLDS)
        self.assertEqual(of(6000), rules.FAILS)

    def test_hosts_transfer_nothing(self) -> None:
        rows = [row("study/K1/flash-end-to-end/T4096", 10, transfer_us=8)]
        self.assertEqual(verdict(results_of((context(), rows)), "PCIe")[0].verdict, rules.HOLDS)
        self.assertEqual(verdict(results_of((context(execution_space="OpenMP"), rows)), "PCIe"), [])

    def test_flash_attention_of_another_run_is_no_comparison(self) -> None:
        key = "fp16/16x2x128/B1/S131072/page16"
        ours, theirs = row(f"decode/generic/{key}", 40, 30), row(f"decode/flash-attention/{key}", 1200, 30)
        self.assertEqual(verdict(results_of((context(), [ours, theirs])), "FlashAttention-2")[0].verdict, rules.HOLDS)
        self.assertEqual(
            verdict(results_of((context(), [ours]), (context(git="ffff"), [theirs])), "FlashAttention-2"), []
        )

    def test_peers_are_not_judged(self) -> None:
        results = results_of(
            (
                context(),
                [
                    row(f"decode/cudnn/fp16/32x8x128/B32/S8192/{layout}", 240, 230)
                    for layout in ("page16", "contiguous")
                ],
            )
        )
        self.assertEqual(verdict(results, "Paging costs"), [])


class Readme(unittest.TestCase):
    def test_picture_is_that_of_the_results(self) -> None:
        results = readme.results_of("peers-h200.json")
        self.assertEqual(readme.PICTURE.read_text(), distance.svg(results), "run bench/compare/readme.py --write README.md")
        found = distance.points(results)
        self.assertGreater(len(found["pagoda"]), 50)
        self.assertEqual({len(of) for of in found.values()}, {len(found["pagoda"])})

    def test_check_finds_a_changed_figure(self) -> None:
        text = (TOP / "README.md").read_text()
        right = readme.filled(text)
        self.assertEqual(right, readme.filled(right))
        self.assertEqual(text, right, "run python3 bench/compare/readme.py --write README.md")
        self.assertNotEqual(right, right.replace(" us | ", " ms | "))
        with self.assertRaises(ValueError):
            readme.filled(text.replace("<!-- measured: decode -->", ""))


if __name__ == "__main__":
    unittest.main()
