# SPDX-License-Identifier: Apache-2.0
"""Writes the table of element types in README.md from include/pagoda/detail/type_table.hpp.

    python3 ci/type_table.py --check README.md    # fails if README.md differs from the table
    python3 ci/type_table.py --write README.md    # writes it

It writes the text between <!-- types --> and <!-- end -->, and the list in -DPAGODA_TYPES="...".
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).resolve().parent.parent / "include" / "pagoda" / "detail" / "type_table.hpp"
COLUMNS = 11
BLOCK = re.compile(r"(<!-- types -->\n)(.*?)(<!-- end -->)", re.DOTALL)
LIST = re.compile(r'-DPAGODA_TYPES="[\w;]+"')
SCALE_BITS = {"void": 0, "e8m0_t": 8, "fp8_e4m3_t": 8}


class Type(NamedTuple):
    name: str
    cpp: str
    bits: int
    dims: int
    scales: str
    block: int
    block_scale: str
    holds: str

    @property
    def quantized(self) -> bool:
        return self.scales != "none" or self.block > 0

    def row_bytes(self, dims: int) -> float:
        """Bytes of a row's numbers, and of its own scales."""
        own = re.search(r"row of (\d+) bytes", self.holds)
        if self.scales == "in_rows" and own:
            return int(own[1])
        if self.block == 0:
            return dims * self.bits / 8 + (4 if self.scales == "required" else 0)
        return dims * self.bits / 8 + -(-dims // self.block) * SCALE_BITS[self.block_scale] / 8

    @property
    def scales_in_words(self) -> str:
        if self.block == 0:
            return self.scales
        per_tensor = " and a float for the tensor" if self.scales == "required" else ""
        return f"required: `{self.block_scale}` for {self.block} dims{per_tensor}"


def read_table() -> dict[str, Type]:
    types = {}
    for line in TABLE.read_text().splitlines():
        if not re.match(r" *X\(", line):
            continue
        match = re.match(r' *X\((.*), *"([^"]+)"\)', line)
        cells = [cell.strip() for cell in match[1].split(",")] if match else []
        if match is None or len(cells) != COLUMNS - 1:
            raise SystemExit(f"{TABLE}: this row needs {COLUMNS} columns, the last one a text: {line}")
        name, cpp, bits, dims, _, _, scales, block, block_scale, _ = cells
        holds = match[2]
        types[name] = Type(name, cpp, int(bits), int(dims), scales, int(block), block_scale, holds)
    return types


def written(readme: str) -> str:
    types = read_table()
    lines = ["| type | element | holds | scales |", "|---|---|---|---|"]
    lines += [f"| {t.name} | `{t.cpp}` | {t.holds} | {t.scales_in_words} |" for t in types.values()]
    table = "\n".join(lines) + "\n"
    readme, blocks = BLOCK.subn(lambda block: block[1] + table + block[3], readme)
    readme, lists = LIST.subn(f'-DPAGODA_TYPES="{";".join(types)}"', readme)
    if blocks != 1 or lists != 1:
        raise SystemExit(f"README has {blocks} tables of types and {lists} lists of PAGODA_TYPES; allowed: one of each")
    return readme


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", type=Path, metavar="README")
    parser.add_argument("--write", type=Path, metavar="README")
    options = parser.parse_args()
    path = options.check or options.write
    if path is None:
        parser.error("one of --check and --write is needed")
    old = path.read_text()
    new = written(old)
    if options.write:
        path.write_text(new)
    elif old != new:
        print(f"{path} does not say what {TABLE.name} says; python3 ci/type_table.py --write {path} puts it right")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
