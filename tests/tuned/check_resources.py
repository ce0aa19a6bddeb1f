# SPDX-License-Identifier: Apache-2.0
"""Compares the resources that the tuning assumes with those of the compiled kernels, card by card, without a GPU.

    check_resources.py PROGRAM --objects OBJECT... [--need SM...] [--partial OBJECT...]

PROGRAM is tests/tuned/planned.cpp, linked with the kernels. It prints how many blocks of each kernel must run on a
multiprocessor at the same time. OBJECTs are the kernels' object files, each with an OBJECT.usage, in which
keep_usage.sh stored the output of ptxas. Every kernel of a card must exist, have no stack, spill nothing, and fit the
planned number of blocks. Cards whose architecture no OBJECT has are skipped, unless --need names it. Kernels of the objects
that --partial names are compiled for some architectures only, and skipped for other cards; a card of sm_86 has those for
sm_80, which it can run.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable


@dataclass(frozen=True)
class Limits:
    """Limits of a multiprocessor: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"."""

    warps: int
    blocks: int
    registers: int = 65536
    registers_unit: int = 256  #: a warp gets a multiple of it
    warps_unit: int = 4  #: of what the registers have room for: one to each quarter of a multiprocessor
    shared_unit: int = 128
    shared_reserved: int = 1024  #: of every block, by the system


LIMITS = {80: Limits(64, 32), 86: Limits(48, 16), 90: Limits(64, 32)}


@dataclass(frozen=True)
class Usage:
    """Resources of a kernel, compiled for one architecture."""

    registers: int
    stack: int  #: bytes, the most of the kernel and the functions it calls
    spills: int  #: bytes of spill stores and loads
    shared: int  #: bytes, static, without what the system reserves


Usages = dict[int, dict[str, Usage]]  #: by architecture and name


def plain(name: str) -> str:
    """A mangled name without the mark of internal linkage, which nvcc gives kernels on the host only."""
    return re.sub(r"^(_ZN(?:\d+[a-z_]+?)*)L(?=\d)", r"\1", name)


def parse_usage(text: str) -> Usages:
    """Output of ptxas -v. Code for sm_90a is for the cards of sm_90."""
    found: Usages = {}
    sm, name, stack, spills = 0, "", 0, 0
    for line in text.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)' for 'sm_(\d+)a?'", line):
            name, sm, stack, spills = plain(match[1]), int(match[2]), 0, 0
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stack = max(stack, int(match[1]))
            spills += int(match[2]) + int(match[3])
        elif name and (match := re.search(r"Used (\d+) registers", line)):
            shared = re.search(r"(\d+) bytes smem", line)
            found.setdefault(sm, {})[name] = Usage(int(match[1]), stack, spills, int(shared[1]) if shared else 0)
            name = ""
    return found


def parse_symbols(text: str) -> dict[int, str]:
    """Output of nm: names by address."""
    rows = (line.split() for line in text.splitlines())
    return {int(row[0], 16): plain(row[2]) for row in rows if len(row) == 3 and row[1] in "tTwWuV"}


def parse_planned(text: str, symbols: dict[int, str]) -> list[dict[str, Any]]:
    """Output of PROGRAM, with the kernels' names for their addresses ("" for null)."""
    rows = [json.loads(line) for line in text.splitlines()]
    main = next(address for address, name in symbols.items() if name == "main")
    moved = rows.pop(0)["main"] - main
    for row in rows:
        row["kernel"] = symbols.get(row["kernel"] - moved, "") if row["kernel"] else ""
    return rows


def up(n: int, unit: int) -> int:
    return -(-n // unit) * unit


def blocks_that_fit(row: dict[str, Any], usage: Usage, limits: Limits) -> tuple[int, str]:
    """Blocks that fit on a multiprocessor, and the resource that limits them."""
    of_warp = up(usage.registers * 32, limits.registers_unit)
    warps = limits.registers // of_warp // limits.warps_unit * limits.warps_unit
    shared = up(row["shared"] + usage.shared, limits.shared_unit) + limits.shared_reserved
    return min(
        (warps // row["warps"], "registers"),
        (row["shared_per_sm"] // shared, "shared memory"),
        (limits.warps // row["warps"], "warps"),
        (limits.blocks, "blocks"),
    )


def faults(rows: Iterable[dict[str, Any]], usages: Usages) -> Iterable[str]:
    for row in rows:
        if row["sm"] not in usages:
            continue
        what = f"{row['card']}, {row['type']}, head_dim {row['head_dim']}, group {row['group']}, {row['warps']} warps"
        usage = usages[row["sm"]].get(row["kernel"])
        if usage is None:
            yield f"{what}: there is no such kernel for sm_{row['sm']} ({row['kernel'] or 'null'})"
            continue
        if usage.stack or usage.spills:
            yield f"{what}: spills ({usage.stack} bytes of stack, {usage.spills} bytes of spill stores and loads)"
        if row["shared"] > row["shared_per_block"]:
            yield f"{what}: {row['shared']} bytes of shared memory; a block may have {row['shared_per_block']}"
        fit, short = blocks_that_fit(row, usage, LIMITS[row["sm"]])
        if fit < row["blocks"]:
            yield f"{what}: {row['blocks']} blocks are planned, {fit} fit ({short}; {usage.registers} registers)"


def summary(rows: list[dict[str, Any]], usages: Usages) -> Iterable[str]:
    for card in dict.fromkeys(row["card"] for row in rows):
        own = [row for row in rows if row["card"] == card]
        sm = own[0]["sm"]
        if sm not in usages:
            yield f"{card}: not compiled for sm_{sm}"
            continue
        kernels = {row["kernel"] for row in own}
        most = max(usages[sm][k].registers for k in kernels if k in usages[sm])
        yield f"{card}: {len(own)} choices of {len(kernels)} kernels, at most {most} registers, occupancy as planned"


def usages_of(objects: Iterable[str]) -> Usages:
    return parse_usage("".join(Path(f"{name}.usage").read_text() for name in objects))


def with_code_of_sm80(usages: Usages) -> Usages:
    """Cards of sm_86 run code for sm_80 where they have none of their own."""
    return {**usages, 86: {**usages.get(80, {}), **usages.get(86, {})}}


def compared(rows: Iterable[dict[str, Any]], partial: Usages) -> list[dict[str, Any]]:
    """The rows without kernels that are compiled, but not for the row's card."""
    names = {name for of_sm in partial.values() for name in of_sm}
    return [row for row in rows if row["kernel"] not in names or row["kernel"] in partial.get(row["sm"], {})]


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("program")
    parser.add_argument("--objects", nargs="+", required=True, metavar="OBJECT")
    parser.add_argument("--need", type=int, nargs="*", default=[], metavar="SM")
    parser.add_argument("--partial", nargs="*", default=[], metavar="OBJECT")
    parser.add_argument("--nm", default="nm")
    args = parser.parse_args()
    usages = usages_of(args.objects)
    rows = parse_planned(output_of(args.program), parse_symbols(output_of(args.nm, args.program)))
    partial = with_code_of_sm80(usages_of(args.partial))
    rows = compared(rows, partial)
    for sm in usages:
        usages[sm] = {**partial.get(sm, {}), **usages[sm]}
    found = [f"{args.program} has no code for sm_{sm}" for sm in args.need if sm not in usages]
    found += faults(rows, usages)
    for line in found or summary(rows, usages):
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
