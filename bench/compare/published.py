# SPDX-License-Identifier: Apache-2.0
"""Published figures that ours are compared with."""

GI = 2**30 / 1e9  #: the study counts in Gi/s (2^30 bytes a second); times this it is GB/s

# Heidari et al., "Efficient Decode Attention: Flash-Decoding with Paged KV Caches", on an A40 (696 GB/s): fp32, one
# head, one sequence, head_dim 128.
STUDY = 'Heidari et al., "Efficient Decode Attention: Flash-Decoding with Paged KV Caches"'
A40_PEAK = 696.0
A40_FLASH = {4096: 146 * GI, 2097152: 476 * GI}  # GB/s; section VII.B
A40_BASELINE = {4096: 33 * GI, 2097152: 17 * GI}
A40_END_TO_END = {4096: 4.9 * GI, 2097152: 10.1 * GI}  # VII.C
A40_CPU = {4096: 3.3 * GI, 2097152: 1.18 * GI}
# VII.A and VIII.C, at T = 2097152; The study gives 512 and 1024 as 8% and 13% below.
A40_SPLITS = {16: 106 * GI, 128: 476.7 * GI, 256: 474.4 * GI, 512: 0.92 * 476.7 * GI, 1024: 0.87 * 476.7 * GI}
A40_PAGED, A40_CONTIGUOUS = 12.0 * GI, 21.5 * GI  # VII.E: N = 64, T = 512
A40_CAPACITY = {2048: 4, 4096: 8}  # VII.D: paged over contiguous sequences by max_seq_len
A40_TRANSFER_SHARE = 0.63  # VIII.E, of the time end to end at T = 2097152
A40_BASELINE_END_TO_END = 1.6  # VII.C: times as slow as flash-decode at large T

# Dao et al., "Flash-Decoding for long-context inference": fp16, 16/2 heads, head_dim 128, on an A100; us.
FLASH_DECODING = 'Dao et al., "Flash-Decoding for long-context inference"'
FLASH_DECODING_SHAPES = (
    (256, 256),
    (128, 512),
    (64, 1024),
    (32, 2048),
    (16, 4096),
    (8, 8192),
    (4, 16384),
    (2, 32768),
    (1, 65536),
    (1, 131072),
)
A100_FLASH_DECODING = (63.4, 67.7, 77.7, 58.5, 57.0, 56.4, 58.2, 60.3, 64.4, 106.6)
A100_FLASH_ATTENTION_2 = (390.5, 366.3, 364.8, 352.0, 401.7, 529.2, 582.7, 1156.1, 2300.6, 4592.2)


# "Flash-Decoding", an article with sources, May 2026, section on related work: DeFT adapts the splits of Flash-Decoding to
# the trees of speculative decoding. It has no figures of it. PAT (section 10) names DeFT (Yao et al., 2024) and cascades
# (Ye et al., 2024) as decodes that read shared prefixes of several levels once, packed by simple rules.
FLASH_ARTICLE = 'The article "Flash-Decoding" (2026) and Yi et al., section 10, on DeFT (Yao et al.) and cascades (Ye et al.)'


def table_f_key(batch: int, length: int, layout: str = "page16") -> str:
    return f"decode/fp16/16x2x128/B{batch}/S{length}/{layout}"


# Yi et al., "PAT: Accelerating LLM Decoding via Prefix-Aware Attention with Resource Efficient Multi-Tile Kernel": its
# kernels, measured on an H200 with its published code: fp16, head_dim 128, pages of 32 tokens, cold; us by tree
# (tests/prefix/pat_trees.hpp) for these query and kv heads. Planning on the CPU took 0.6 to 66 ms more.
PAT = 'Yi et al., "PAT: Accelerating LLM Decoding via Prefix-Aware Attention"'
PAT_NOTE = (
    "PAT: its kernels alone, measured on an H200 with its published code, in events around one call; its planning took 0.6 to "
    "66 ms more, which is not in them."
)
# Section 8.3, trees 1 to 18: mean reduction of the time of FlashAttention and of FlashInfer, and largest speedups.
PAT_MEAN_SAVED = {"FlashAttention": 0.678, "FlashInfer": 0.521}
PAT_SPEEDUP = {"FlashAttention": 21.5, "FlashInfer": 11.7}
PAT_HEADS = ((32, 32), (16, 8), (32, 8), (64, 8))
PAT_H200 = {
    1: (70, 46, 49, 48),
    2: (84, 46, 54, 68),
    3: (317, 142, 217, 360),
    4: (123, 61, 62, 65),
    5: (86, 47, 57, 71),
    6: (605, 198, 214, 254),
    7: (650, 223, 250, 327),
    8: (617, 212, 232, 279),
    9: (108, 49, 61, 77),
    10: (171, 85, 108, 166),
    11: (1276, 381, 418, 509),
    12: (296, 118, 156, 213),
    13: (315, 125, 154, 238),
    14: (291, 118, 155, 220),
    15: (308, 125, 153, 239),
    16: (102, 57, 62, 76),
    17: (284, 112, 150, 192),
    18: (193, 98, 102, 112),
    19: (997, 274, 275, 276),
    20: (3769, 995, 997, 1001),
}


def pat_key(tree: int, heads: tuple[int, int], warm: bool = False) -> str:
    return f"prefix/fp16/{heads[0]}x{heads[1]}x128/tree{tree}/page32" + ("/warm" if warm else "")
