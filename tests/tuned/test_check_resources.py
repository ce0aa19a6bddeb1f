# SPDX-License-Identifier: Apache-2.0
"""check_resources.py finds kernels that break the tuning's assumptions."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import check_resources as c

KERNEL = "_ZN6pagoda5tuned13decode_kernelILi128EEEvNS0_4ArgsE"
HOST = "_ZN6pagoda5tunedL13decode_kernelILi128EEEvNS0_4ArgsE"


def usage(registers: int = 128, stack: int = 0, spills: int = 0, shared: int = 0) -> c.Usage:
    return c.Usage(registers, stack, spills, shared)


def planned(**other: Any) -> dict[str, Any]:
    return {
        "card": "H200",
        "sm": 90,
        "type": "fp16",
        "head_dim": 128,
        "group": 1,
        "warps": 8,
        "blocks": 1,
        "shared": 200_000,
        "shared_per_sm": 228 * 1024,
        "shared_per_block": 227 * 1024,
        "kernel": KERNEL,
        **other,
    }


def faults(row: dict[str, Any], of_kernel: c.Usage, sm: int = 90) -> list[str]:
    return list(c.faults([row], {sm: {KERNEL: of_kernel}}))


class Reading(unittest.TestCase):
    def test_usage(self) -> None:
        text = f"""
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{HOST}' for 'sm_80'
ptxas info    : Function properties for {HOST}
    0 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Function properties for _Z6calledv
    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 245 registers, used 1 barriers, 16 bytes cumulative stack size, 360 bytes cmem[0]
ptxas info    : Compile time = 27.784 ms
ptxas info    : Compiling entry function '_Z5other' for 'sm_80'
ptxas info    : Function properties for _Z5other
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 360 bytes cmem[0]
ptxas info    : Compiling entry function '{KERNEL}' for 'sm_90a'
ptxas info    : Function properties for {KERNEL}
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 16 bytes smem
"""
        self.assertEqual(
            c.parse_usage(text),
            {80: {KERNEL: usage(245, 16, 12), "_Z5other": usage(8)}, 90: {KERNEL: usage(168, shared=16)}},
        )

    def test_kernels_are_found_by_their_address(self) -> None:
        symbols = c.parse_symbols(f"0000000000001000 T main\n0000000000001960 t {HOST}\n                 U printf\n")
        self.assertEqual(symbols, {0x1000: "main", 0x1960: KERNEL})
        text = '{"main": 20480}\n{"kernel": 22880, "sm": 90}\n{"kernel": 0, "sm": 80}\n'  # loaded at 0x4000
        self.assertEqual(
            c.parse_planned(text, symbols), [{"kernel": KERNEL, "sm": 90}, {"kernel": "", "sm": 80}]
        )


class Judging(unittest.TestCase):
    def test_what_is_as_planned_passes(self) -> None:
        self.assertEqual(faults(planned(), usage(255)), [])
        self.assertEqual(faults(planned(warps=1, blocks=8, shared=27_000), usage(255)), [])

    def test_spills(self) -> None:
        self.assertIn("spills", faults(planned(), usage(stack=8))[0])
        self.assertIn("spills", faults(planned(), usage(spills=8))[0])

    def test_registers_are_given_in_whole_units_to_each_quarter(self) -> None:
        # 168 registers: 12 warps. 169, rounded up to 176: 11 fit the register file, but no quarter holds a third.
        row = planned(warps=4, blocks=3, shared=1000)
        self.assertEqual(faults(row, usage(168)), [])
        self.assertIn("3 blocks are planned, 2 fit (registers; 169 registers)", faults(row, usage(169))[0])

    def test_shared_memory_with_what_the_system_takes(self) -> None:
        row = planned(warps=4, blocks=2, shared=113 * 1024)
        self.assertEqual(faults(row, usage()), [])
        self.assertIn("1 fit (shared memory", faults({**row, "shared": 113 * 1024 + 1}, usage())[0])
        self.assertIn("1 fit (shared memory", faults(row, usage(shared=4))[0])
        self.assertIn("a block may have", faults(planned(shared=227 * 1024 + 4), usage())[0])

    def test_blocks_and_warps_of_a_multiprocessor(self) -> None:
        row = planned(card="A40", sm=86, warps=1, blocks=17, shared=0, shared_per_sm=102400, shared_per_block=101376)
        self.assertIn("16 fit (blocks", faults(row, usage(32), 86)[0])
        self.assertIn("6 fit (warps", faults({**row, "warps": 8, "blocks": 7}, usage(32), 86)[0])

    def test_kernels_that_are_not_there(self) -> None:
        self.assertIn("no such kernel", faults(planned(kernel=""), usage())[0])
        self.assertIn("no such kernel", faults(planned(kernel="_Zother"), usage())[0])

    def test_architectures_that_were_not_compiled_are_passed_over_and_said(self) -> None:
        row = planned(card="A100", sm=80)
        self.assertEqual(faults(row, usage()), [])
        self.assertEqual(list(c.summary([row], {90: {}})), ["A100: not compiled for sm_80"])

    def test_kernels_that_were_compiled_for_some_cards(self) -> None:
        rows = [planned(), planned(card="A100", sm=80), planned(card="A100", sm=80, kernel="_Zother")]
        self.assertEqual(c.compared(rows, {90: {KERNEL: usage()}}), [rows[0], rows[2]])
        self.assertEqual(c.compared(rows, {80: {KERNEL: usage()}}), rows[1:])
        self.assertEqual(c.compared(rows, {80: {KERNEL: usage()}, 90: {KERNEL: usage()}}), rows)
        self.assertEqual(c.compared(rows, {}), rows)

    def test_code_of_sm_80_is_for_sm_86_too(self) -> None:
        own, other = usage(registers=100), usage(registers=90)
        code = c.with_code_of_sm80({80: {KERNEL: own, "_Zother": own}, 86: {"_Zother": other}, 90: {}})
        self.assertEqual(code[86], {KERNEL: own, "_Zother": other})
        self.assertEqual(code[80], {KERNEL: own, "_Zother": own})
        self.assertEqual(c.with_code_of_sm80({90: {}})[86], {})


if __name__ == "__main__":
    unittest.main()
