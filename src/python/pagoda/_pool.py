# SPDX-License-Identifier: Apache-2.0
"""Pools: memory and bookkeeping for many sequences."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence

from . import _core
from ._arrays import device_numbers, outputs, stream_number, type_name, wait_for_jax
from ._cache import Array
from ._plan import Result


class Pool(_core.Pool):
    """Memory for the keys and values of many sequences. Make a PagedPool or a ContiguousPool.

    A sequence is identified by its slot. A pool has one owner: calls from other threads wait. After an error the pool is
    as it was before. Arrays of keys and values are (token, KV head, head_dim) of any plain type.
    """

    def prepare(self, *, num_q_heads: int, stream: Any = None, **options: Any) -> None:
        """Makes the plan of later decodes, with the options of `pagoda.plan`."""
        self._prepare(stream_number(self.device, None, stream), num_q_heads=num_q_heads, **options)

    def admit(self, k: Array, v: Array, *, stream: Any = None) -> int:
        """Adds a sequence that holds these rows, and returns its slot."""
        return self._admit(k, v, stream_number(self.device, k, stream))

    def admit_tokens(self, num_tokens: int, *, stream: Any = None) -> int:
        """Adds a sequence of num_tokens tokens, whose rows `write` sets later, and returns its slot."""
        return self._admit_tokens(num_tokens, stream_number(self.device, None, stream))

    def admit_prompt(
        self, prompt: _core.Prompt, k: Optional[Array] = None, v: Optional[Array] = None, *, stream: Any = None
    ) -> int:
        """Adds a sequence that holds this prompt, shares the pages that the prefix index has, names its tokens, and returns
        its slot. k and v: rows of the last tokens of the prompt, at least of those behind `match(prompt)`. Without them the
        sequence consists of the first `match(prompt)` tokens: append the others, and name them."""
        if (k is None) != (v is None):
            raise ValueError(f"pagoda.Pool.admit_prompt: {'v' if k is None else 'k'} is given alone; allowed: both or none")
        if k is None:
            return self._admit_matched(prompt, stream_number(self.device, None, stream))
        return self._admit_prompt(prompt, k, v, stream_number(self.device, k, stream))

    def name(
        self,
        slot: int,
        token_ids: Optional[Sequence[int]] = None,
        *,
        page_hashes: Optional[Sequence[int]] = None,
    ) -> None:
        """Names the next tokens of a sequence by ids, or its next full pages by hashes, so that later prompts share them.
        Their rows must have been written, and must not be written again."""
        if (token_ids is None) == (page_hashes is None):
            given = "both" if token_ids is not None else "neither"
            raise ValueError(f"pagoda.Pool.name: {given} of token_ids and page_hashes is given; allowed: one of them")
        if token_ids is not None:
            self._name_tokens(slot, token_ids)
        else:
            self._name_pages(slot, page_hashes)

    def fork(self, slot: int, num_tokens: int = -1, *, stream: Any = None) -> int:
        """Adds a sequence that starts with the first num_tokens tokens (-1: all) of another one, and returns its slot.
        Paged pools share the pages until one of both writes into a page that is not full."""
        return self._fork(slot, num_tokens, stream_number(self.device, None, stream))

    def append(
        self, slots: Sequence[int], k: Array, v: Array, counts: Optional[Sequence[int]] = None, *, stream: Any = None
    ) -> None:
        """Appends counts[i] tokens (default: one) to the sequence in slots[i]; k and v have the rows of one sequence after
        those of the one before."""
        self._append(slots, k, v, counts, stream_number(self.device, k, stream))

    def reserve(self, slots: Sequence[int], counts: Optional[Sequence[int]] = None, *, stream: Any = None) -> None:
        """Lengthens sequences as `append` does, without rows: `write` sets them later."""
        self._reserve(slots, counts, stream_number(self.device, None, stream))

    def write(self, slot_mapping: Array, k: Array, v: Array, *, stream: Any = None) -> None:
        """Writes row i of k and v to position slot_mapping[i] (int64); see `pagoda.write_kv`. Lengths do not change."""
        self._write(slot_mapping, k, v, stream_number(self.device, k, stream))

    def decode(
        self,
        slots: Sequence[int],
        q: Array,
        out: Optional[Array] = None,
        lse: Optional[Array] = None,
        *,
        return_lse: bool = False,
        stream: Any = None,
    ) -> Result:
        """Decodes these sequences in this order; see `Plan.decode`."""
        out, lse = outputs("pagoda.Pool.decode", q, self.head_dim_v, out, lse, return_lse)
        number = stream_number(self.device, q, stream)
        self._decode(slots, q, out, lse, number)
        wait_for_jax(q, self.device, number)
        return out if lse is None else (out, lse)

    def cache(self, slots: Sequence[int], *, stream: Any = None) -> _core.Cache:
        """The cache in which batch entry b is the sequence in slots[b], for a plan of yours. The next call changes the
        sequences of all caches that it has returned."""
        return self._cache(slots, stream_number(self.device, None, stream))

    def set_rates(self, **rates: Any) -> None:
        """Changes those of `rates` that are named. The next `decode` makes a new plan. Raises ValueError if decodes of the
        pool are always plain."""
        self._set_rates(rates)

    def batch_pages(self, slots: Sequence[int], query_len: int = 1) -> Dict[str, Any]:
        """Tables of these sequences on the host, with query_len query tokens of each: the arguments of
        `PrefixDecoder.plan`. The arrays are copies, for DLPack."""
        seq_lens, page_indptr, page_indices = self._batch_pages(slots, query_len)
        tables = {"seq_lens": seq_lens, "query_len": query_len}
        return tables if page_indices is None else {**tables, "block_table": page_indices, "page_indptr": page_indptr}


class PagedPool(Pool):
    """A pool of pages, which are given to sequences as they grow.

    dtype: "fp64", "fp32", "fp16" or "bf16", or a dtype of an array library.
    max_seq_len: tokens of the longest sequence. max_sequences: sequences held at a time.
    head_dim_v: default: head_dim. num_pages: default: enough for max_sequences of max_seq_len.
    num_q_heads: makes the plan of decodes at once; without it, call `prepare` before decodes.
    share_prefixes: how decodes read pages that several sequences hold. "automatic": once for all of them where that is
        predicted to be faster. "never": once for each sequence.
    max_entries, max_states, state_type: bounds and partial states of these decodes, as in `PrefixDecoder`.
    """

    def __init__(
        self,
        *,
        dtype: Any,
        num_kv_heads: int,
        head_dim: int,
        max_seq_len: int,
        max_sequences: int,
        head_dim_v: int = 0,
        page_size: int = 16,
        num_pages: int = 0,
        order: str = "NHD",
        num_q_heads: int = 0,
        share_prefixes: str = "automatic",
        max_entries: int = 0,
        max_states: int = 0,
        state_type: Optional[str] = None,
        device: Any = "cpu",
        stream: Any = None,
    ) -> None:
        device_type, device_id = device_numbers("pagoda.PagedPool", device)
        super().__init__(
            True,
            dtype=type_name(dtype),
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            max_seq_len=max_seq_len,
            max_sequences=max_sequences,
            head_dim_v=head_dim_v,
            page_size=page_size,
            num_pages=num_pages,
            order=order,
            share_prefixes=share_prefixes,
            max_entries=max_entries,
            max_states=max_states,
            state_type=state_type,
            device_type=device_type,
            device_id=device_id,
            stream=stream_number(str(device), None, stream),
        )
        if num_q_heads != 0:
            self.prepare(num_q_heads=num_q_heads, stream=stream)


class ContiguousPool(Pool):
    """A pool that reserves max_seq_len tokens for each sequence. The arguments are those of PagedPool,
    without those of pages."""

    def __init__(
        self,
        *,
        dtype: Any,
        num_kv_heads: int,
        head_dim: int,
        max_seq_len: int,
        max_sequences: int,
        head_dim_v: int = 0,
        order: str = "NHD",
        num_q_heads: int = 0,
        device: Any = "cpu",
        stream: Any = None,
    ) -> None:
        device_type, device_id = device_numbers("pagoda.ContiguousPool", device)
        super().__init__(
            False,
            dtype=type_name(dtype),
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            max_seq_len=max_seq_len,
            max_sequences=max_sequences,
            head_dim_v=head_dim_v,
            page_size=0,
            num_pages=0,
            order=order,
            share_prefixes="automatic",
            max_entries=0,
            max_states=0,
            state_type=None,
            device_type=device_type,
            device_id=device_id,
            stream=stream_number(str(device), None, stream),
        )
        if num_q_heads != 0:
            self.prepare(num_q_heads=num_q_heads, stream=stream)
