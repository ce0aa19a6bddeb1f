# SPDX-License-Identifier: Apache-2.0
"""Lists of entries: which tokens a decode reads for which query tokens."""

from __future__ import annotations

from typing import Any, Optional, Tuple

from . import _core
from ._arrays import device_of, stream_number
from ._cache import Array


def entry(
    sequence: int,
    first: int = 0,
    last: int = -1,
    *,
    query_begin: int,
    num_queries: int,
    state: int = -1,
    kv_head: int = -1,
    chain: int = 0,
) -> Tuple[int, ...]:
    """A row of the entries of a list: tokens first to last - 1 of a sequence, for a run of the list's query tokens.

    last: negative: the sequence's length when the decode runs. first: a multiple of the page size; in a contiguous cache
        any token.
    state: index of the partial state that the entry writes for each of its query tokens. Negative: it writes the output.
    kv_head: the only KV head that is read. Negative: all.
    chain: n > 0: the entry begins a chain of this entry and the next n, which write one partial state, or the output, for
        each query token (`Entry` in pagoda/entry.hpp). -k: it is the k-th entry behind the first one of its chain. 0: it
        stands alone. For plans with entry_chains.
    """
    return (sequence, first, last, query_begin, num_queries, state, kv_head, chain)


def entry_query(token: int, sequence: int, behind: int = 1, *, mask: int = -1) -> Tuple[int, ...]:
    """A row of the query tokens of a list: row `token` of q, which belongs to a sequence.

    behind: 1 for the newest token of the sequence; with a mask the number of newest tokens (at most 128) that it covers.
    mask: row of the list's masks, whose bit j says whether the token sees token seq_len - behind + j. Negative: none.
    """
    return (token, sequence, behind, 2 * mask if mask >= 0 else -1)


class Entries(_core.Entries):
    """A list of entries. Its arrays are on the device of the decodes and may change between them; they stay alive with
    the list. The first element of entries and queries is aligned to 16 bytes.

    entries: int32 (entry, 8), rows of `pagoda.entry`.
    queries: int32 (query, 4), rows of `pagoda.entry_query`.
    state_begin: int32 [query tokens + 1]: query token t has partial states state_begin[t] to state_begin[t + 1] - 1.
        Default: no entry writes partial states.
    masks: uint64 (mask, 2), the bits of up to 128 tokens. Default: no query token has a mask.
    """

    _first: Array  # tells the library and the stream

    def __init__(
        self, entries: Array, queries: Array, state_begin: Optional[Array] = None, masks: Optional[Array] = None
    ) -> None:
        super().__init__(entries, queries, state_begin, masks, stream_number(device_of(entries), entries))
        self._first = entries


States = Tuple[Any, Any]
