# SPDX-License-Identifier: Apache-2.0
"""ci/pages.py finds what is wrong in a page."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "ci"))

import pages  # noqa: E402

PAGE = TOP / "src" / "README.md"


class Paths(unittest.TestCase):
    def missing(self, text: str) -> list[str]:
        return pages.missing_paths(PAGE, text)

    def test_paths_of_the_root_and_of_the_folder(self) -> None:
        self.assertEqual(self.missing("`src/version.cpp`, `dispatch/plan.cpp`, `tests/ci/`, [x](../README.md)"), [])
        self.assertEqual(self.missing("`src/absent.cpp`"), ["src/absent.cpp"])
        self.assertEqual(self.missing("`dispatch/absent.cpp` and [x](absent.md)"), ["dispatch/absent.cpp", "absent.md"])

    def test_patterns(self) -> None:
        self.assertEqual(self.missing("`backends/{host,cuda}/machine.hpp`, `src/dispatch/*.cpp`"), [])
        self.assertEqual(self.missing("`backends/{host,abacus}/machine.hpp`"), ["backends/abacus/machine.hpp"])
        self.assertEqual(self.missing("`src/dispatch/*.rs`"), ["src/dispatch/*.rs"])

    def test_what_is_no_path(self) -> None:
        self.assertEqual(self.missing("`a / b`, `src <x>/y.cpp`, `pagoda::plan`, `576/512`, [x](https://a.b/c.md)"), [])
        self.assertEqual(self.missing("```\n`src/absent.cpp`\n```\n"), [])


class Programs(unittest.TestCase):
    def test_a_program_is_the_file(self) -> None:
        page = "a\n<!-- file: src/version.cpp -->\nold\n<!-- end -->\nb\n"
        new = pages.with_files(page)
        self.assertIn((TOP / "src" / "version.cpp").read_text(), new)
        self.assertEqual(pages.with_files(new), new)
        self.assertIn("there is no such file", pages.with_files("<!-- file: src/absent.cpp -->\n<!-- end -->"))


class Options(unittest.TestCase):
    def test_options_are_found(self) -> None:
        self.assertLessEqual({"PAGODA_TYPES", "PAGODA_NATIVE", "PAGODA_TEST_THREADS"}, pages.options())


if __name__ == "__main__":
    unittest.main()
