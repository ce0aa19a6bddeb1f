# SPDX-License-Identifier: Apache-2.0
"""Compares what the tuning of MatrixFragment assumes with the compiled kernels, without a GPU.

    check_kernels.py --planned PROGRAM --arch gfx942 [--tools DIR] [--counts] OBJECT...

PROGRAM is tests/hip/planned.cpp. It prints the rows of the tuning. OBJECTs are HIP object files or programs with kernels
matrix_decode (matrix_decode.hip), or with the library's kernels of MatrixFragment. Every kernel must have no more scratch
memory than planned (those without options: none in the loop over tiles) and registers for the planned waves, load rows in
as few loads as the tuning plans (keys in 16 bytes), and multiply by the planned number of matrix instructions. The loop
over tiles of matrix_decode must have these loads and products and no LDS. --counts prints the instructions of that loop by class and, for each card of this architecture, the cycles in which
a SIMD issues them and the cycles in which the memory delivers the tile to it. DIR has llvm-readelf, llvm-objdump,
llvm-objcopy and clang-offload-bundler.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterable


@dataclass(frozen=True)
class Machine:
    """What an architecture has, and how it spells its instructions."""

    lanes: int  #: of a wave
    registers: int  #: of a lane, for all waves of a SIMD; on CDNA vector and accumulation registers together
    registers_unit: int
    groups: int  #: of 16 lanes that hold different elements of an operand
    product: str
    loads: dict[int, str]  #: by bytes


CDNA = Machine(
    64, 512, 8, 4, "v_mfma_f32_16x16x16", {4: "global_load_dword", 8: "global_load_dwordx2", 16: "global_load_dwordx4"}
)
RDNA3 = Machine(
    32, 1536, 24, 1, "v_wmma_f32_16x16x16", {4: "global_load_b32", 8: "global_load_b64", 16: "global_load_b128"}
)


def machine_of(arch: str) -> Machine:
    return RDNA3 if arch.startswith("gfx11") else CDNA


# Names of kernels: the numbers are DimTile and RowTiles; the library's general kernels end differently.
PLAIN = re.compile(r"matrix_decodeI.*?(Plain16ILN\w*?MatrixTypeE\d|StoredE2m1ILi\d+|Stored\w+?E?L)\w*?i(\d+)ELi(\d+)ELb([01])E")
LIBRARY = re.compile(r"DecodeKernel.*?MatrixFragmentI\w*?(?:Cdna|Rdna3)E(\w*?)Li(\d+)ELi(\d+)ELb0EEELb([01])E")
TYPES = (
    ("MatrixTypeE0", "fp16"), ("MatrixTypeE1", "bf16"), ("E4m3", "fp8_e4m3"), ("E5m2", "fp8_e5m2"), ("Int8", "int8"),
    ("Int4", "int4"), ("E2m1ILi32", "mxfp4"), ("E2m1ILi16", "nvfp4"), ("half_t", "fp16"), ("bfloat16_t", "bf16"), ("fp8_e4m3_t", "fp8_e4m3"), ("fp8_e5m2_t", "fp8_e5m2"),
    ("mxfp4x2_t", "mxfp4"), ("nvfp4x2_t", "nvfp4"), ("int4x2_t", "int4"), ("a", "int8"),
)  # fmt: skip
BITS = {"fp16": 16, "bf16": 16, "fp8_e4m3": 8, "fp8_e5m2": 8, "int8": 8, "int4": 4, "mxfp4": 4, "nvfp4": 4}
BLOCK_DIMS = {"mxfp4": 32, "nvfp4": 16}  #: dims of a block scale of one byte
SCALE_LOAD = re.compile(r"global_load_(ubyte|ushort|d16_u8|u8|u16|d16_b16)")


@dataclass(frozen=True)
class Planned:
    """A row of the tuning."""

    lanes: int
    bits: int
    key_dims: int
    value_dims: int
    row_tiles: int
    token_blocks: int
    waves_per_simd: int
    general_waves_per_simd: int
    general_scratch: int = 0
    scratch: int = 0

    @property
    def key(self) -> tuple[int, int, int]:
        return self.bits, self.key_dims, self.row_tiles

    def tile_bytes(self, block_dims: int) -> int:
        """block_dims: of a block scale, or 0."""
        dims = 16 * self.token_blocks * (self.key_dims + self.value_dims)
        return dims * self.bits // 8 + (dims // block_dims if block_dims else 0)

    @property
    def products(self) -> int:
        """Matrix instructions of a tile: for scores and for values."""
        return self.token_blocks * self.row_tiles * (self.key_dims + self.value_dims) // 16

    def loads(self, machine: Machine) -> Counter[str]:
        """Loads of a tile: for keys and for values."""
        keys = self.token_blocks * self.key_dims * self.bits // (128 * machine.groups)
        size = min(16, self.value_dims // 16 * self.bits // 8)  # bytes
        values = self.token_blocks * 16 // machine.groups * (self.value_dims // 16 * self.bits // 8 // size)
        return Counter({machine.loads[16]: keys}) + Counter({machine.loads[size]: values})


@dataclass(frozen=True)
class Card:
    """A line of backends/hip/cards.hpp."""

    card: str
    target: str
    simds: int  #: of all compute units
    mhz: int
    bytes_per_us: float
    vector_cycles: int
    transcendental_cycles: int
    matrix_cycles: int

    def prediction(self, classes: Counter[str], tile_bytes: int) -> str:
        issued = classes["matrix"] * self.matrix_cycles + classes["transcendental"] * self.transcendental_cycles
        issued += (classes["vector"] + classes["memory"] + classes["lanes"]) * self.vector_cycles
        read = tile_bytes * self.simds * self.mhz / self.bytes_per_us
        return f"{self.card}: {issued} cycles issued, {read:.0f} of the bytes, ratio {issued / read:.2f}"


@dataclass
class Instruction:
    address: int
    name: str
    operands: str

    @property
    def target(self) -> int:
        """Where a branch leads to."""
        offset = int(self.operands.split()[0])
        return self.address + 4 + 4 * (offset - 65536 if offset >= 32768 else offset)


@dataclass
class Kernel:
    name: str
    notes: dict[str, int]  #: resources, by the names of the code object's metadata
    code: list[Instruction] = field(default_factory=list)

    def loop(self, products: int = 1) -> list[Instruction]:
        """The shortest loop with loads from global memory and so many matrix instructions; [] if there is none."""
        found: list[Instruction] = []
        for last in self.code:
            if not last.name.startswith(("s_cbranch", "s_branch")) or last.target > last.address:
                continue
            body = [i for i in self.code if last.target <= i.address <= last.address]
            found_products = sum(i.name.startswith(("v_mfma", "v_wmma")) for i in body)
            if found_products >= products and any(i.name.startswith("global_load") for i in body):
                if not found or len(body) < len(found):
                    found = body
        return found


def parse_notes(text: str) -> dict[str, dict[str, int]]:
    """Output of llvm-readelf --notes: numbers of each kernel."""
    kernels: dict[str, dict[str, int]] = {}
    numbers: dict[str, int] = {}
    for line in text.splitlines():
        if match := re.match(r"(  - |    )\.(\w+):\s*(\S*)$", line):
            if match[1] == "  - ":
                numbers = {}
            if match[2] == "name":
                kernels[match[3]] = numbers
            elif match[3].isdigit():
                numbers[match[2]] = int(match[3])
    return kernels


def parse_code(text: str) -> dict[str, list[Instruction]]:
    """Output of llvm-objdump -d: instructions of each function."""
    functions: dict[str, list[Instruction]] = {}
    code: list[Instruction] = []
    for line in text.splitlines():
        if match := re.match(r"(?:[0-9a-f]+ )?<(\S+)>:$", line):
            code = functions.setdefault(match[1], [])
        elif match := re.match(r"\s+(\S+)\s*(.*?)\s*// ([0-9A-Fa-f]+):", line):
            code.append(Instruction(int(match[3], 16), match[1], match[2]))
    return functions


def lacks(got: Counter[str], wanted: Counter[str]) -> list[str]:
    return [f"{got[name]} {name} of {count}" for name, count in wanted.items() if got[name] < count]


def faults(kernel: Kernel, planned: Planned, general: bool, machine: Machine) -> Iterable[str]:
    notes, names = kernel.notes, Counter(i.name for i in kernel.code)
    scratch, allowed = notes.get("private_segment_fixed_size", 0), planned.general_scratch if general else planned.scratch
    if scratch > allowed:
        yield f"{scratch} bytes of scratch memory; planned are {allowed}"
    elif scratch and not general and any(i.name.startswith(("scratch_", "buffer_")) for i in kernel.loop()):
        yield "scratch memory in the loop over tiles"
    waves = planned.general_waves_per_simd if general else planned.waves_per_simd
    registers = -(-notes["vgpr_count"] // machine.registers_unit) * machine.registers_unit
    if registers * waves > machine.registers:
        yield f"{waves} waves of a SIMD are planned, {machine.registers // registers} fit ({registers} registers)"
    products = sum(count for name, count in names.items() if name.startswith(machine.product))
    if products < planned.products:
        yield f"{products} matrix instructions; a tile needs {planned.products}"
    for fault in lacks(names, planned.loads(machine)):
        yield fault
    if flat := sum(count for name, count in names.items() if re.match("flat_load_(dwordx|b64|b128)", name)):
        yield f"{flat} flat loads"


def loop_faults(kernel: Kernel, planned: Planned, machine: Machine, block_dims: int = 0) -> Iterable[str]:
    loop = kernel.loop(planned.products if block_dims else 1)
    names = Counter(i.name for i in loop)
    if not loop:
        yield "no loop over tiles"
        return
    products = sum(count for name, count in names.items() if name.startswith(machine.product))
    if products != planned.products:
        yield f"{products} matrix instructions in the loop; planned are {planned.products}"
    loads = Counter({name: count for name, count in names.items() if name.startswith("global_load")})
    if block_dims:  # the compiler may join loads of the scales of keys
        scales = sum(count for name, count in loads.items() if SCALE_LOAD.match(name))
        if scales < planned.token_blocks * 16 // machine.groups:
            yield f"{scales} loads of scales in the loop; a lane's values have one for each token"
        for fault in lacks(loads, planned.loads(machine)):
            yield fault
    elif loads != planned.loads(machine):
        yield f"loads in the loop are {dict(loads)}; planned are {dict(planned.loads(machine))}"
    # Lanes exchange maxima by ds_bpermute, which does not access LDS, when a running maximum rises.
    lds = [name for name in names if name.startswith("ds_") and name != "ds_bpermute_b32"]
    if lds or kernel.notes.get("group_segment_fixed_size", 0):
        yield f"LDS in the loop: {', '.join(lds) or 'allocated'}"


def class_of(name: str) -> str:
    if name.startswith(("v_mfma", "v_wmma")):
        return "matrix"
    if name.startswith(("v_exp", "v_log", "v_rcp")):
        return "transcendental"
    if name.startswith("v_"):
        return "vector"
    if name.startswith("global_"):
        return "memory"
    if name.startswith("ds_"):
        return "lanes"
    if name.startswith(("s_waitcnt", "s_nop", "s_delay_alu")):
        return "waits"
    return "scalar"


def check(
    kernels: Iterable[Kernel], rows: list[Planned], counts: bool, machine: Machine = CDNA, cards: Iterable[Card] = ()
) -> tuple[list[str], list[str]]:
    """Faults, and lines of the report. A row of the tuning for a type of the kernels, without a kernel, is a fault."""
    found: list[str] = []
    report: list[str] = []
    seen: set[tuple[int, int, int]] = set()
    for kernel in kernels:
        plain, library = PLAIN.search(kernel.name), LIBRARY.search(kernel.name)
        match = plain or library
        if match is None:
            continue
        name = next(name for part, name in TYPES if part in match[1])
        dims, row_tiles, last = int(match[2]), int(match[3]), match[4] == "1"
        general, scaled = library is not None and last, plain is not None and last
        key = BITS[name], dims, row_tiles
        planned = next((r for r in rows if r.lanes == machine.lanes and r.key == key), None)
        what = f"{name}, {dims} dims, {16 * row_tiles} rows"
        what += ", general" if general else ", scales of tokens" if scaled else ""
        if planned is None:
            found.append(f"{what}: the tuning has no such row")
            continue
        if name != "mxfp4":  # only some rows of 4 bits have kernels for it
            seen.add(key)
        found += [f"{what}: {fault}" for fault in faults(kernel, planned, general, machine)]
        block_dims = BLOCK_DIMS.get(name, 0)
        if plain and not scaled:
            found += [f"{what}: {fault}" for fault in loop_faults(kernel, planned, machine, block_dims)]
        line = f"{what}: {kernel.notes['vgpr_count']} registers"
        if plain and counts:
            classes = Counter(class_of(i.name) for i in kernel.loop(planned.products if block_dims else 1))
            line += f"; a tile: {', '.join(f'{n} {name}' for name, n in sorted(classes.items()))}"
            for card in cards:
                line += f"; {card.prediction(classes, planned.tile_bytes(block_dims))}"
        report.append(line)
    types = {bits for bits, _, _ in seen}
    found += [
        f"there is no kernel for {r.bits} bits, {r.key_dims} dims and {16 * r.row_tiles} rows"
        for r in rows
        if r.lanes == machine.lanes and r.key not in seen and (r.bits in types or not report)
    ]
    return found, report


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def kernels_of(file: str, arch: str, tools: Path) -> list[Kernel]:
    with tempfile.TemporaryDirectory() as made:
        bundle, code = f"{made}/bundle", f"{made}/code"
        subprocess.run([tools / "llvm-objcopy", f"--dump-section=.hip_fatbin={bundle}", file, "/dev/null"], check=True)
        bundler = [str(tools / "clang-offload-bundler"), "--type=o", f"--input={bundle}"]
        target = next((t for t in output_of(*bundler, "--list").split() if t.endswith(arch)), "")
        if not target:
            sys.exit(f"{file} has no code for {arch}")
        subprocess.run([*bundler, "--unbundle", f"--targets={target}", f"--output={code}"], check=True)
        notes = parse_notes(output_of(str(tools / "llvm-readelf"), "--notes", code))
        functions = parse_code(output_of(str(tools / "llvm-objdump"), "-d", "--no-show-raw-insn", code))
    return [Kernel(name, numbers, functions.get(name, [])) for name, numbers in notes.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("objects", nargs="+", metavar="OBJECT")
    parser.add_argument("--planned", required=True, metavar="PROGRAM")
    parser.add_argument("--arch", required=True)
    parser.add_argument("--tools", type=Path, default=Path("/usr/lib/llvm-21/bin"))
    parser.add_argument("--counts", action="store_true")
    args = parser.parse_args()
    lines = [json.loads(line) for line in output_of(args.planned).splitlines()]
    rows = [Planned(**line) for line in lines if "card" not in line]
    cards = [Card(**line) for line in lines if line.get("target") == args.arch]
    kernels = [kernel for file in args.objects for kernel in kernels_of(file, args.arch, args.tools)]
    found, report = check(kernels, rows, args.counts, machine_of(args.arch), cards)
    for line in found or report:
        print(f"{args.arch}, {line}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
