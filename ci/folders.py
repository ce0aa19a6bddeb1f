# SPDX-License-Identifier: Apache-2.0
"""Checks that no two folders of the sources include each other, directly or through other folders.

    python3 ci/folders.py           # fails if there is a cycle, and names its includes
    python3 ci/folders.py --list    # prints the folders, each after those it includes

A folder is include/, src/NAME/ or backends/NAME/ with all below it. The files beside these (src/version.cpp,
backends/machines.hpp) make up the folders src and backends.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
ROOTS = ("include", "src", "backends")
SUFFIXES = {".hpp", ".h", ".cuh", ".inc", ".cpp", ".cu", ".c", ".in"}
INCLUDE = re.compile(r"^\s*#\s*include\s+(?:\"([^\"]+)\"|<(pagoda/[^>]+)>)", re.MULTILINE)

# Folder -> the folders it includes -> one include of each, "FILE includes HEADER".
Graph = dict[str, dict[str, str]]


def folder_of(path: Path) -> str:
    """Of a path relative to the repository's root."""
    parts = path.parts
    return parts[0] if parts[0] == "include" or len(parts) == 2 else "/".join(parts[:2])


def headers_of(text: str) -> list[str]:
    return [quoted or f"include/{public}" for quoted, public in INCLUDE.findall(text)]


def graph_of(sources: dict[str, str]) -> Graph:
    """sources: paths relative to the root, and what is in these files. Headers that CMake makes belong to no folder."""
    graph: Graph = {}
    for path, text in sorted(sources.items()):
        includes = graph.setdefault(folder_of(Path(path)), {})
        for header in headers_of(text):
            folder = folder_of(Path(header)) if header.split("/")[0] in ROOTS and "/" in header else None
            if folder and folder != folder_of(Path(path)):
                includes.setdefault(folder, f"{path} includes {header}")
    return graph


def cycle_of(graph: Graph) -> list[str]:
    """The folders of a cycle, the first one again at its end; [] if there is none."""
    finished: set[str] = set()

    def search(path: list[str]) -> list[str]:
        for folder in sorted(graph.get(path[-1], {})):
            if folder in path:
                return [*path[path.index(folder) :], folder]
            if folder not in finished and (found := search([*path, folder])):
                return found
        finished.add(path[-1])
        return []

    for folder in sorted(graph):
        if folder not in finished and (found := search([folder])):
            return found
    return []


def in_order(graph: Graph) -> list[str]:
    """The folders of a graph without cycles, each after those it includes."""
    order: list[str] = []

    def visit(folder: str) -> None:
        if folder in order:
            return
        for other in sorted(graph.get(folder, {})):
            visit(other)
        order.append(folder)

    for folder in sorted(graph):
        visit(folder)
    return order


def sources() -> dict[str, str]:
    files = [file for root in ROOTS for file in (TOP / root).rglob("*") if file.suffix in SUFFIXES]
    return {str(file.relative_to(TOP)): file.read_text() for file in files}


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks that folders do not include each other.")
    parser.add_argument("--list", action="store_true", help="print the folders, each after those it includes")
    arguments = parser.parse_args()
    graph = graph_of(sources())
    cycle = cycle_of(graph)
    if cycle:
        print("ci/folders.py: these folders include each other:", file=sys.stderr)
        for folder, other in zip(cycle, cycle[1:]):
            print(f"  {folder} -> {other}: {graph[folder][other]}", file=sys.stderr)
        return 1
    if arguments.list:
        for folder in in_order(graph):
            print(f"{folder}: {', '.join(sorted(graph.get(folder, {}))) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
