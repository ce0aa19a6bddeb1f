# SPDX-License-Identifier: Apache-2.0
"""ci/checks.sh and ci/report.py call nothing passed that did not run."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "ci"))

import report as r

CTEST = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="x" tests="5">
  <testcase name="pool.Good" status="run"><system-out>[       OK ]</system-out></testcase>
  <testcase name="pool.Bad" status="fail"><failure message=""/><system-out>wrong</system-out></testcase>
  <testcase name="serve.One" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
    <system-out>[ RUN      ] One
/a/b.cpp:76: Skipped
there is one
thread

[  SKIPPED ] One (0 ms)</system-out></testcase>
  <testcase name="serve.Two" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
    <system-out>Skipped: there is no Python 3.9
</system-out></testcase>
  <testcase name="serve.Three" status="notrun"><skipped message="Fixture dependency failed"/></testcase>
</testsuite>
"""


class Ctest(unittest.TestCase):
    def test_counts_and_reasons(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tests.xml"
            path.write_text(CTEST)
            self.assertEqual(
                r.ctest_lines("tests", path),
                [
                    "tests: 50% tests passed, 1 tests failed out of 2, 3 skipped",
                    "  failed: pool.Bad",
                    "  skipped: serve.One: there is one thread",
                    "  skipped: serve.Two: there is no Python 3.9",
                    "  skipped: serve.Three: Fixture dependency failed",
                ],
            )


class Parts(unittest.TestCase):
    def verdict(self, **files: str) -> r.Part:
        with tempfile.TemporaryDirectory() as folder:
            for suffix, text in files.items():
                (Path(folder) / f"hip.{suffix}").write_text(text)
            return r.verdict_of(Path(folder), "hip")

    def test_passed(self) -> None:
        self.assertEqual(self.verdict(status="0\n"), r.Part("hip", "passed"))

    def test_skipped_with_its_reason_only(self) -> None:
        self.assertEqual(self.verdict(status="77\n", reason="no hipcc\n"), r.Part("hip", "skipped", "no hipcc"))
        self.assertEqual(self.verdict(status="77\n").verdict, "failed")
        self.assertEqual(self.verdict(status="77\n", reason="\n").verdict, "failed")

    def test_everything_else_failed(self) -> None:
        self.assertEqual(self.verdict(status="1\n"), r.Part("hip", "failed", "exit status 1"))
        self.assertEqual(self.verdict().verdict, "failed")
        self.assertEqual(self.verdict(status="").verdict, "failed")


FAKE_PARTS = """
all_parts=({parts})
in_root=()
skip() {{ echo "$*" >"$PAGODA_PART.reason"; exit 77; }}
check_root() {{ true; }}
check_good() {{ true; }}
check_tested() {{ cp "$top/ctest.xml" "$PAGODA_PART.xml"; }}
check_broken() {{ false; echo "a failing command ends the part"; }}
check_unable() {{ skip "there is no compiler"; }}
check_truncated() {{ echo '<testsuite' >"$PAGODA_PART.xml"; }}
"""


class Run(unittest.TestCase):
    """.ci/run with other parts."""

    def run_parts(self, *parts: str) -> tuple[int, list[str]]:
        with tempfile.TemporaryDirectory() as folder:
            top = Path(folder)
            shutil.copytree(TOP / "ci", top / "ci", ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copytree(TOP / ".ci", top / ".ci")
            (top / "ci/parts.sh").write_text(FAKE_PARTS.format(parts=" ".join(parts)))
            (top / "ctest.xml").write_text(CTEST)
            done = subprocess.run([top / ".ci/run"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            return done.returncode, done.stdout.splitlines()

    def test_all_kinds(self) -> None:
        status, lines = self.run_parts("good", "broken", "unable", "tested", "truncated")
        self.assertEqual(status, 1)
        self.assertEqual(lines[-8], "tested: 50% tests passed, 1 tests failed out of 2, 3 skipped")
        self.assertEqual(lines[-3], "2 passed: good, tested")
        self.assertEqual(lines[-2], "1 skipped: unable (there is no compiler)")
        self.assertTrue(lines[-1].startswith("2 failed: broken (exit status 1), truncated (ctest left no report"), lines[-1])
        self.assertNotIn("a failing command ends the part", lines)

    def test_skipped_parts_do_not_fail(self) -> None:
        status, lines = self.run_parts("good", "unable")
        self.assertEqual((status, lines[-1]), (0, "0 failed"))

    def test_nothing_ran(self) -> None:
        self.assertEqual(self.run_parts("unable")[0], 1)


if __name__ == "__main__":
    unittest.main()
