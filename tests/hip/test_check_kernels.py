# SPDX-License-Identifier: Apache-2.0
"""check_kernels.py finds kernels that break the tuning's assumptions."""

from __future__ import annotations

import dataclasses
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import check_kernels as c

PLAIN = (
    "_ZN12_GLOBAL__N_113matrix_decodeIN6pagoda6detail3hip7Plain16ILNS3_10MatrixTypeE0EEELi128ELi1ELb0EEEvNS_4ArgsE"
)
INT8 = "_ZN12_GLOBAL__N_113matrix_decodeIN6pagoda6detail3hip10StoredInt8ELi128ELi1ELb{}EEEvNS_4ArgsE"
MXFP4 = (
    "_ZN12_GLOBAL__N_113matrix_decodeIN6pagoda6detail3hip10StoredE2m1ILi32ELNS3_14BlockScaleTypeE1ELi1EEE"
    "Li128ELi1ELb0EEEvNS_4ArgsE"
)
LIBRARY = (
    "_ZN6pagoda6detail12DecodeKernelIN6Kokkos3HIPENS0_14MatrixFragmentINS0_3hip4CdnaE{}Li128ELi1ELb0EEELb{}EEE"
)
ROW = c.Planned(
    lanes=64, bits=16, key_dims=128, value_dims=128, row_tiles=1, token_blocks=1, waves_per_simd=2,
    general_waves_per_simd=1,
)  # fmt: skip

NOTES = f"""
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .address_space:  global
        .name:           other
        .size:           48
    .group_segment_fixed_size: 0
    .name:           {PLAIN}
    .private_segment_fixed_size: 16
    .vgpr_count:     108
  - .agpr_count:     0
    .name:           second
    .vgpr_count:     8
amdhsa.target:   amdgcn-amd-amdhsa--gfx942
"""


def lines(names: list[str], first: int = 0x100) -> list[c.Instruction]:
    return [c.Instruction(first + 4 * i, name, "") for i, name in enumerate(names)]


def kernel(name: str = PLAIN, extra: tuple[str, ...] = (), without: str = "", **notes: int) -> c.Kernel:
    """One load and product of each kind before the loop, and all of a tile in it."""
    body = ["global_load_dwordx4"] * 8 + ["v_mfma_f32_16x16x16_f16"] * 16 + ["v_exp_f32_e32", *extra]
    if without:
        body.remove(without)
    code = lines(["global_load_dwordx4"] * 8 + body)
    begin, end = code[8].address, code[-1].address + 4
    code.append(c.Instruction(end, "s_cbranch_scc1", str(65536 + (begin - end - 4) // 4)))
    return c.Kernel(name, {"vgpr_count": 108, "private_segment_fixed_size": 0, **notes}, code)


def faults(*kernels: c.Kernel) -> list[str]:
    return c.check(kernels, [ROW], counts=False)[0]


class Reading(unittest.TestCase):
    def test_notes(self) -> None:
        notes = c.parse_notes(NOTES)
        self.assertEqual([PLAIN, "second"], list(notes))
        self.assertEqual((16, 108), (notes[PLAIN]["private_segment_fixed_size"], notes[PLAIN]["vgpr_count"]))
        self.assertEqual({"agpr_count": 0, "vgpr_count": 8}, notes["second"])

    def test_code(self) -> None:
        text = """
0000000000001900 <first>:
\tv_mov_b32_e32 v1, v0                                       // 000000001900: 7E020300
\ts_cbranch_scc0 65534                                       // 000000001904: BF84FFFE <first>

<second>:
\ts_endpgm                                                   // 000000001A00:
"""
        code = c.parse_code(text)
        self.assertEqual(["v_mov_b32_e32", "s_cbranch_scc0"], [i.name for i in code["first"]])
        self.assertEqual(0x1900, code["first"][1].target)
        self.assertEqual(["s_endpgm"], [i.name for i in code["second"]])


class Faults(unittest.TestCase):
    def test_kernels_as_planned(self) -> None:
        self.assertEqual([], faults(kernel(), *(kernel(LIBRARY.format("NS_6half_tE", i), vgpr_count=n) for i, n in ((0, 108), (1, 432)))),
        )

    def test_scratch(self) -> None:
        self.assertIn("16 bytes of scratch memory", faults(kernel(private_segment_fixed_size=16))[0])

    def test_planned_scratch(self) -> None:
        row = dataclasses.replace(ROW, general_scratch=16)
        plain, general = (
            kernel(LIBRARY.format("NS_6half_tE", i), vgpr_count=108, private_segment_fixed_size=16) for i in (0, 1)
        )
        self.assertEqual([], c.check([general], [row], counts=False)[0])
        self.assertIn("16 bytes of scratch memory; planned are 0", c.check([plain], [row], counts=False)[0][0])

    def test_scratch_outside_of_the_loop(self) -> None:
        row = dataclasses.replace(ROW, scratch=16)
        name = LIBRARY.format("NS_6half_tE", 0)
        outside = kernel(name, private_segment_fixed_size=16)
        outside.code = lines(["scratch_store_dword"], 0xF0) + outside.code
        inside = kernel(name, ("scratch_load_dword",), private_segment_fixed_size=16)
        self.assertEqual([], c.check([outside], [row], counts=False)[0])
        self.assertIn("scratch memory in the loop over tiles", c.check([inside], [row], counts=False)[0][0])

    def test_rdna(self) -> None:
        row = dataclasses.replace(ROW, lanes=32)
        body = ["global_load_b128"] * 32 + ["v_wmma_f32_16x16x16_f16"] * 16
        code = lines(body + ["s_cbranch_scc1"])
        code[-1] = dataclasses.replace(code[-1], operands=str(65536 - len(code)))
        found = c.check(
            [c.Kernel(PLAIN, {"vgpr_count": 264, "private_segment_fixed_size": 0}, code)], [row], False, c.RDNA3
        )
        self.assertEqual([], found[0])

    def test_registers(self) -> None:
        self.assertEqual([], faults(kernel(vgpr_count=256)))
        self.assertIn("2 waves of a SIMD are planned, 1 fit (264 registers)", faults(kernel(vgpr_count=257))[0])

    def test_products(self) -> None:
        self.assertIn("15 matrix instructions; a tile", faults(kernel(without="v_mfma_f32_16x16x16_f16"))[0])

    def test_loads(self) -> None:
        self.assertIn("planned are", faults(kernel(without="global_load_dwordx4"))[0])
        self.assertIn("'global_load_dword': 1", faults(kernel(extra=("global_load_dword",)))[0])
        self.assertIn("1 flat loads", faults(kernel(extra=("flat_load_dwordx4",)))[0])

    def test_block_scales(self) -> None:
        row = dataclasses.replace(ROW, bits=4, token_blocks=2)

        def found(*scales: str, products: int = 32, values: int = 8) -> list[str]:
            body = ["global_load_dwordx4"] * 2 + ["global_load_dword"] * values + ["v_mfma_f32_16x16x16_f16"] * products
            code = lines(["s_nop", *body, *scales, "s_cbranch_scc1"])
            code[-1] = dataclasses.replace(code[-1], operands=str(65536 - len(code) + 1))
            notes = {"vgpr_count": 128, "private_segment_fixed_size": 0}
            return c.check([c.Kernel(MXFP4, notes, code)], [row], counts=False)[0]

        self.assertEqual([], found(*["global_load_ubyte"] * 10))
        self.assertIn("mxfp4, 128 dims, 16 rows: 7 loads of scales", found(*["global_load_ubyte"] * 7)[0])
        self.assertIn("7 global_load_dword of 8", found(*["global_load_ubyte"] * 10, values=7)[0])
        self.assertIn("33 matrix instructions", found(*["global_load_ubyte"] * 10, products=33)[0])

    def test_lds(self) -> None:
        self.assertEqual([], faults(kernel(extra=("ds_bpermute_b32",))))
        self.assertIn("LDS in the loop: ds_read_b128", faults(kernel(extra=("ds_read_b128",)))[0])
        self.assertIn("LDS in the loop: allocated", faults(kernel(group_segment_fixed_size=64))[0])

    def test_no_loop(self) -> None:
        straight = kernel()
        straight.code.pop()
        self.assertIn("no loop over tiles", faults(straight)[0])

    def test_no_kernel(self) -> None:
        self.assertEqual(["there is no kernel for 16 bits, 128 dims and 16 rows"], faults())
        self.assertIn("the tuning has no such row", faults(kernel(PLAIN.replace("Li128", "Li96")))[0])


if __name__ == "__main__":
    unittest.main()
