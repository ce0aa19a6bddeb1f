# SPDX-License-Identifier: Apache-2.0
"""bench/peers without any of the peers: names of problems, rows, and going on after a kill."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "bench" / "peers"))

import compare  # noqa: E402
from cases import SUFFIX, Case  # noqa: E402
from peer import Peer, host_seconds  # noqa: E402


class Fake(Peer):
    name = "fake"

    def __init__(self, paged: bool) -> None:
        self.paged, self.timed = paged, []

    def cannot(self, case: Case) -> str | None:
        return "its type" if case.type == "int4" else None

    def time(self, case: Case) -> tuple[float, str]:
        self.timed.append(case.name)
        if "B7" in case.name:
            raise RuntimeError("no sevens")
        return 5.0, "how"


def cases(*names: str) -> list[Case]:
    return [Case(f"decode/{name}") for name in names]


class Names(unittest.TestCase):
    def test_all_that_were_measured_are_known(self) -> None:
        lines = (TOP / "bench" / "results" / "decode-h200.json").read_text().splitlines()
        rows = [row for row in map(json.loads, lines) if "name" in row]
        self.assertGreater(len(rows), 100)
        for row in rows:
            case = Case(row["name"].removesuffix(SUFFIX))
            self.assertEqual(case.bytes, row["bytes"], row["name"])

    def test_backends_and_pages_share_a_group(self) -> None:
        a, b, c = cases(
            "generic/fp16/32x8x128/B2/S8/page16",
            "tuned/fp16/32x8x128/B2/S8/page16",
            "generic/fp16/32x8x128/B2/S8/contiguous",
        )
        self.assertEqual(len({a.group, b.group, c.group}), 1)
        self.assertEqual(a.problem, b.problem)
        self.assertNotEqual(a.problem, c.problem)

    def test_windows_are_read_alone_and_not_by_peers(self) -> None:
        seen, all_read = cases(
            "generic/fp16/32x8x128/B2/S8192/page16-window4095+4-cap30-alibi-sinks",
            "generic/fp16/32x8x128/B2/S8192/page16-cap30",
        )
        self.assertEqual(seen.bytes, 2 * 4100 * 8 * 2 * 256)
        self.assertEqual(all_read.bytes, 2 * 8192 * 8 * 2 * 256)
        (four,) = cases("generic/fp16/32x8x128/B2q4/S8192/page16-window4095+4")  # windows one token apart
        self.assertEqual(four.bytes, 2 * 4103 * 8 * 2 * 256)
        peer = Peer()
        peer.types = ("fp16",)
        self.assertEqual(peer.cannot(all_read), "its score options")
        self.assertIsNone(peer.cannot(cases("generic/fp16/32x8x128/B2/S8192/page16")[0]))

    def test_rows_with_a_format_have_its_bytes(self) -> None:
        (case,) = cases("generic/fp8_ds_mla/16x1x576-512/B2/S8/page16")
        self.assertEqual(case.bytes, 2 * 8 * 656)

    def test_rows_join_with_ours(self) -> None:
        (case,) = cases("generic/fp16/32x8x128/B2/S8/page16")
        row = compare.peer_row(case, "fake", 6.0, "how", 3.0)
        self.assertEqual(row["name"], "decode/fake/fp16/32x8x128/B2/S8/page16/manual_time")
        self.assertEqual(row["ratio"], 2.0)
        self.assertNotIn("ratio", compare.peer_row(case, "fake", 6.0, "how", None))


class Groups(unittest.TestCase):
    group = cases(
        "generic/fp16/32x8x128/B2/S8/page16", "tuned/fp16/32x8x128/B2/S8/page16", "generic/fp16/32x8x128/B2/S8/page1"
    )

    def test_contiguous_peers_are_timed_once(self) -> None:
        peer = Fake(paged=False)
        self.assertEqual(len(compare.time_group([peer], self.group, {})), 2)
        self.assertEqual(len(peer.timed), 1)

    def test_paged_peers_are_timed_for_each_page_size(self) -> None:
        peer = Fake(paged=True)
        self.assertEqual(len(compare.time_group([peer], self.group, {})), 2)
        self.assertEqual(len(peer.timed), 2)

    def test_what_fails_is_noted(self) -> None:
        notes: dict[str, str] = {}
        group = cases("generic/fp16/32x8x128/B7/S8/page16", "generic/int4/32x8x128/B2/S8/page16")
        self.assertEqual(compare.time_group([Fake(paged=True)], group, notes), {})
        self.assertEqual(list(notes.values()), ["RuntimeError: no sevens"])

    def test_a_way_that_fails_is_noted_once(self) -> None:
        class TwoWays(Fake):
            def failed_ways(self) -> dict[str, str]:
                return {"slow": "no module"}

        notes: dict[str, str] = {}
        peer = TwoWays(paged=True)
        for _ in range(2):
            self.assertEqual(len(compare.time_group([peer], self.group, notes)), 2)
        self.assertEqual(notes, {"fake slow": "no module"})


class Journals(unittest.TestCase):
    def test_goes_on_where_it_was_killed(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "peers.jsonl"
            journal = compare.Journal(path)
            journal.begin({"git": "abc", "device": "x"})
            for row in (
                {"name": "a"},
                {"name": "a"},
                {"name": "b", "error_message": "no"},
                {"error_message": "did not run"},
            ):
                journal.add(row)
            with path.open("a") as f:
                f.write('{"name": "c", "re')
            again = compare.Journal(path)
            self.assertEqual(again.done, {"a"})
            self.assertEqual(len(path.read_text().splitlines()), 2)
            again.begin({"git": "abc", "device": "x"})
            with self.assertRaises(SystemExit):
                again.begin({"git": "other", "device": "x"})


class Processes(unittest.TestCase):
    @unittest.skipIf(len(compare.CPUS) < 2, "one CPU")
    def test_the_benchmark_may_use_all_cpus(self) -> None:
        # As PyTorch's OpenMP does with OMP_PROC_BIND, when it is imported.
        os.sched_setaffinity(0, {min(compare.CPUS)})
        try:
            seen = compare.run_bench(sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))")
        finally:
            os.sched_setaffinity(0, compare.CPUS)
        self.assertEqual(int(seen), len(compare.CPUS))


class Time(unittest.TestCase):
    def test_caches_are_taken_in_turns(self) -> None:
        seen: list[int] = []
        self.assertGreater(host_seconds(seen.append, 3, most_seconds=0), 0)
        self.assertEqual(seen, [0, 1, 2, 0])


if __name__ == "__main__":
    unittest.main()
