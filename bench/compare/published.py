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


def table_f_key(batch: int, length: int, layout: str = "page16") -> str:
    return f"decode/fp16/16x2x128/B{batch}/S{length}/{layout}"
