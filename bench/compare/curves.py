# SPDX-License-Identifier: Apache-2.0
"""Curves that the claims and the plots share."""

from __future__ import annotations

import published as p
from rules import Rows


def gb_per_s(tokens: int, us: float) -> float:
    """The study's cache: fp32, one head, head_dim 128, keys and values."""
    return 8 * 128 * tokens / us * 1e-3


def k1(what: str) -> Rows:
    """us by T of one curve of K1. pagoda_bench_decode times the flash kernel too."""
    decode = (r"decode/fp32/1x1x128/B1/S(?P<x>\d+)/contiguous",) if what == "flash" else ()
    return Rows((rf"study/K1/{what}/T(?P<x>\d+)", *decode))


FLASH = k1("flash")
_shapes = "|".join(f"B{batch}/S(?={length}/)" for batch, length in p.FLASH_DECODING_SHAPES)
_table_f = rf"decode/fp16/16x2x128/(?:{_shapes})(?P<x>\d+)/"
TABLE_F = Rows((_table_f + "page16", _table_f + "contiguous"))  #: us by S

#: How K4 decodes 64 sequences.
MODE_TEXT = {"serial-copy": "as the study timed it", "serial": "without the copy", "batched": "batched in one call"}


def k4(length: int) -> Rows:
    """Pages of 16 over contiguous, by mode."""
    key = f"study/K4/{{}}/T{length}/{{}}"
    return Rows(
        (key.format(r"(?P<x>[\w-]+)", "page16"),),
        over=(key.format("{x}", "contiguous"), key.format("serial", "contiguous")),
    )


PAGE_SIZES = {
    "(as the study timed it, T = 512)": Rows((r"study/K4/serial-copy/T512/page(?P<x>\d+)",)),
    "(batched, T = 512)": Rows((r"study/K4/batched/T512/page(?P<x>\d+)",)),
    "(batched, T = 2048)": Rows((r"study/K4/batched/T2048/page(?P<x>\d+)",)),
    "(fp16 32/8, 32 x 8192)": Rows((r"decode/fp16/32x8x128/B32/S8192/page(?P<x>\d+)",)),
}
