# SPDX-License-Identifier: Apache-2.0
"""Caches of keys and values."""

from __future__ import annotations

from typing import Any, Optional

from . import _core
from ._arrays import device_of, scale, stream_number, wait_for_jax, writable

# An array of NumPy, PyTorch, JAX, CuPy, or another object with __dlpack__.
Array = Any


class Cache(_core.Cache):
    """Keys and values of some sequences. Make a PagedCache or a ContiguousCache.

    A cache keeps its arrays alive. Lengths, tables and ids are read when a decode runs, so their contents may change
    between decodes; for other arrays, make another cache.
    """

    _k: Array  # tells the library and the stream


class PagedCache(Cache):
    """A cache of pages.

    k: (page, token, KV head, head_dim), any strides; with order "HND", (page, KV head, token, head_dim).
    v: the same axes with head_dim_v. It may share memory with k (latent caches).
    block_table: int32 (sequence, page of the sequence). With page_indptr: int32 [entries], the lists of all sequences.
    seq_lens: int32 [sequence], tokens that each sequence holds.
    page_indptr: int32 [sequences + 1], where the list of each sequence begins in block_table. max_seq_len is then
        required: tokens of the longest sequence that the lists will hold.
    sequence_ids: int32 [batch], the sequence of each batch entry. Default: entry b is sequence b.
    k_scale, v_scale: scales of a quantized cache: a float, or float32 of rank 0, 1 (KV head) or 3 (page, token, KV head),
        of extent 1 where one scale serves all; the latter with axes in scale_order.
    k_block_scale, v_block_scale: block scales of mxfp4 and nvfp4: (page, token, KV head, block), bytes.
    kv_type: the type of elements that k and v hold as bytes: "int4", "mxfp4", "nvfp4", "fp8_e4m3", ... With "fp8_ds_mla"
        (latent caches of DeepSeek-V3.2 as vLLM stores them), k is uint8 (page, token, 1, 656), v is the same array, and
        there are no scales: each row has its own. Queries have 576 dims, outputs 512.
    """

    def __init__(
        self,
        k: Array,
        v: Array,
        block_table: Array,
        seq_lens: Array,
        *,
        page_indptr: Optional[Array] = None,
        max_seq_len: int = 0,
        sequence_ids: Optional[Array] = None,
        order: str = "NHD",
        k_scale: Any = None,
        v_scale: Any = None,
        k_block_scale: Optional[Array] = None,
        v_block_scale: Optional[Array] = None,
        scale_order: str = "NHD",
        kv_type: Optional[str] = None,
    ) -> None:
        super().__init__(
            True,
            k=k,
            v=v,
            seq_lens=seq_lens,
            block_table=block_table,
            page_indptr=page_indptr,
            sequence_ids=sequence_ids,
            k_scale=scale(k, k_scale),
            v_scale=scale(v, v_scale),
            k_block_scale=k_block_scale,
            v_block_scale=v_block_scale,
            order=order,
            scale_order=scale_order,
            kv_type=kv_type,
            max_seq_len=max_seq_len,
            stream=stream_number(device_of(k), k),
        )
        self._k = k


class ContiguousCache(Cache):
    """A cache in which each sequence has one block of memory: k is (sequence, token, KV head, head_dim). The other
    arguments are those of PagedCache."""

    def __init__(
        self,
        k: Array,
        v: Array,
        seq_lens: Array,
        *,
        sequence_ids: Optional[Array] = None,
        order: str = "NHD",
        k_scale: Any = None,
        v_scale: Any = None,
        k_block_scale: Optional[Array] = None,
        v_block_scale: Optional[Array] = None,
        scale_order: str = "NHD",
        kv_type: Optional[str] = None,
    ) -> None:
        super().__init__(
            False,
            k=k,
            v=v,
            seq_lens=seq_lens,
            sequence_ids=sequence_ids,
            k_scale=scale(k, k_scale),
            v_scale=scale(v, v_scale),
            k_block_scale=k_block_scale,
            v_block_scale=v_block_scale,
            order=order,
            scale_order=scale_order,
            kv_type=kv_type,
            stream=stream_number(device_of(k), k),
        )
        self._k = k


def write_kv(cache: _core.Cache, slot_mapping: Array, k: Array, v: Array, *, stream: Any = None) -> None:
    """Writes row i of k (token, KV head, head_dim) and v to position slot_mapping[i] of the cache, converted to its type.

    slot_mapping: int64 [token], page * page_size + token in the page, or sequence * max_seq_len + token. A negative
        position skips its row.
    """
    writable("pagoda.write_kv", "the cache's k", getattr(cache, "_k", None))
    number = stream_number(cache.device, k, stream)
    _core.write_kv(cache, slot_mapping, k, v, number)
    wait_for_jax(k, cache.device, number)
