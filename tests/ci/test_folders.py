# SPDX-License-Identifier: Apache-2.0
"""ci/folders.py finds folders that include each other."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "ci"))

import folders  # noqa: E402


class Folders(unittest.TestCase):
    def test_names(self) -> None:
        names = {
            "include/pagoda/detail/x.hpp": "include",
            "src/plan/x.cpp": "src/plan",
            "src/plan/prefix/x.cpp": "src/plan",
            "src/version.cpp": "src",
            "backends/cuda/tuned/warp/x.cuh": "backends/cuda",
            "backends/machines.hpp": "backends",
        }
        for path, folder in names.items():
            self.assertEqual(folders.folder_of(Path(path)), folder)

    def test_what_is_included(self) -> None:
        text = '#include "src/plan/split.hpp"\n#  include <pagoda/plan.hpp>\n#include <vector>\n// #include "src/x/y.hpp"\n'
        self.assertEqual(folders.headers_of(text), ["src/plan/split.hpp", "include/pagoda/plan.hpp"])
        graph = folders.graph_of({"src/kernel/a.hpp": text + '#include "src/kernel/b.hpp"\n#include "made_by_cmake.hpp"\n'})
        self.assertEqual(sorted(graph["src/kernel"]), ["include", "src/plan"])

    def test_a_cycle_is_found(self) -> None:
        sources = {
            "src/plan/a.hpp": '#include "src/base/a.hpp"\n',
            "src/kernel/a.hpp": '#include "src/plan/a.hpp"\n',
            "src/base/a.hpp": "",
        }
        self.assertEqual(folders.cycle_of(folders.graph_of(sources)), [])
        order = folders.in_order(folders.graph_of(sources))
        self.assertEqual(order, ["src/base", "src/plan", "src/kernel"])
        sources["src/base/a.hpp"] = '#include "src/kernel/b.hpp"\n'
        cycle = folders.cycle_of(folders.graph_of(sources))
        self.assertEqual(cycle[0], cycle[-1])
        self.assertEqual(set(cycle), {"src/base", "src/kernel", "src/plan"})

    def test_the_planner_is_below_kernels_and_dispatch(self) -> None:
        order = folders.in_order(folders.graph_of(folders.sources()))
        self.assertEqual(folders.cycle_of(folders.graph_of(folders.sources())), [])
        for folder in ("src/kernel", "src/dispatch", "backends/cuda"):
            self.assertLess(order.index("src/plan"), order.index(folder))


if __name__ == "__main__":
    unittest.main()
