# SPDX-License-Identifier: Apache-2.0
"""Memory for caches, and arithmetic for its size."""

from __future__ import annotations

from typing import Any

from . import _core
from ._arrays import device_numbers, stream_number, type_name
from ._core import CacheMemory


def make_paged_cache(
    *,
    dtype: Any,
    num_pages: int,
    page_size: int,
    num_kv_heads: int,
    head_dim: int,
    head_dim_v: int = 0,
    order: str = "NHD",
    device: Any = "cpu",
    stream: Any = None,
) -> CacheMemory:
    """Allocates the pages of a PagedCache, zeroed and aligned for the fastest decodes. `k` and `v` of the result are
    DLPack arrays in the given order, which keep the memory alive.

    dtype: any type of a cache ("fp16", "int4", numpy.float32). Bytes of int4, mxfp4, nvfp4 and fp8_ds_mla are uint8: pass
        kv_type to PagedCache. `k` and `v` of fp8_ds_mla are the same rows.
    """
    device_type, device_id = device_numbers("pagoda.make_paged_cache", device)
    return CacheMemory(
        True,
        dtype=type_name(dtype),
        num_pages=num_pages,
        page_size=page_size,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        order=order,
        device_type=device_type,
        device_id=device_id,
        stream=stream_number(str(device), None, stream),
    )


def make_contiguous_cache(
    *,
    dtype: Any,
    num_sequences: int,
    max_seq_len: int,
    num_kv_heads: int,
    head_dim: int,
    head_dim_v: int = 0,
    order: str = "NHD",
    device: Any = "cpu",
    stream: Any = None,
) -> CacheMemory:
    """Allocates the rows of a ContiguousCache; see `make_paged_cache`."""
    device_type, device_id = device_numbers("pagoda.make_contiguous_cache", device)
    return CacheMemory(
        False,
        dtype=type_name(dtype),
        num_pages=num_sequences,
        page_size=max_seq_len,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        order=order,
        device_type=device_type,
        device_id=device_id,
        stream=stream_number(str(device), None, stream),
    )


def bytes_per_token(num_kv_heads: int, head_dim: int, dtype: Any, head_dim_v: int = 0) -> int:
    """Bytes of one token of one layer: a key and a value for each KV head, without scales. head_dim_v: 0: head_dim."""
    return _core.bytes_per_token(num_kv_heads, head_dim, type_name(dtype), head_dim_v)


def latent_bytes_per_token(kv_lora_rank: int, rope_dim: int, dtype: Any) -> int:
    """Bytes of one token in a latent cache: a row of kv_lora_rank + rope_dim elements."""
    return _core.latent_bytes_per_token(kv_lora_rank, rope_dim, type_name(dtype))


def reserved_tokens(seq_len: int, page_size: int) -> int:
    """Tokens of memory that a sequence occupies, in whole pages. Contiguous caches: page_size is max_seq_len."""
    return _core.reserved_tokens(seq_len, page_size)


def waste_fraction(seq_len: int, page_size: int) -> float:
    """Unused part of that memory: 0.75 for 512 tokens in pages of 2048."""
    return _core.waste_fraction(seq_len, page_size)


def sequences_that_fit(budget_bytes: int, token_bytes: int, seq_len: int, page_size: int) -> int:
    """Sequences of seq_len tokens that fit into budget_bytes, in pages that are not shared."""
    return _core.sequences_that_fit(budget_bytes, token_bytes, seq_len, page_size)
