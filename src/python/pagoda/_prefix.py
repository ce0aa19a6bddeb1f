# SPDX-License-Identifier: Apache-2.0
"""Decodes that read shared prefixes once."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from . import _core
from ._arrays import outputs, stream_number, wait_for_jax
from ._cache import Array
from ._plan import Result, stream_of


class PrefixDecoder(_core.PrefixDecoder):
    """Decodes batches of a paged cache. Where sequences begin with the same pages, and reading these once is predicted to
    be faster, a decode reads them once. Otherwise it is the plain decode. Call `update` before the decodes of a step.

    cache: a cache of the shape of the decodes.
    max_entries, max_states: bounds on a list and its partial states. Default: 4 for each query token.
    state_type: "fp32", "fp16" or "bf16". Default: on GPUs that of each decode's outputs, if it is fp16 or bf16; otherwise
        "fp32". States of 16 bits have half the traffic, and each is rounded once, as outputs are.
    rates: a dict of rates that planning predicts times from, as in the attribute `rates`. Default: those of the machine.
    options: those of `pagoda.plan`, without workspace.
    """

    def __init__(
        self,
        cache: _core.Cache,
        *,
        num_q_heads: int,
        max_entries: int = 0,
        max_states: int = 0,
        state_type: Optional[str] = None,
        rates: Optional[Mapping[str, Any]] = None,
        stream: Any = None,
        **options: Any,
    ) -> None:
        given = None if rates is None else dict(rates)
        number = stream_of(cache, stream)
        super().__init__(cache, max_entries, max_states, state_type, given, number, num_q_heads=num_q_heads, **options)

    def plan(
        self,
        seq_lens: Array,
        block_table: Optional[Array] = None,
        *,
        page_indptr: Optional[Array] = None,
        sequence_ids: Optional[Array] = None,
        query_len: int = 1,
        cu_seqlens_q: Optional[Array] = None,
    ) -> bool:
        """Plans for the batch of the next decodes, unless the last plan still holds. Returns whether `install` has to be
        called. May run in another thread while decodes run.

        All arrays are int32 on the host: what the device's arrays hold when the decodes run.
        seq_lens: [sequence]. block_table, page_indptr, sequence_ids: as in `PagedCache`; without block_table nothing is
            shared.
        query_len: query tokens of each batch entry. cu_seqlens_q: [batch + 1], instead.
        """
        return self._plan(seq_lens, block_table, page_indptr, sequence_ids, query_len, cu_seqlens_q)

    def install(self, *, stream: Any = None) -> bool:
        """Makes later decodes follow the last plan. Returns whether they read a list."""
        return self._install(stream_number(self.device, None, stream))

    def update(self, seq_lens: Array, block_table: Optional[Array] = None, *, stream: Any = None, **tables: Any) -> bool:
        """`plan` and `install`. Returns whether decodes read a list."""
        self.plan(seq_lens, block_table, **tables)
        return self.install(stream=stream)

    def decode(
        self,
        q: Array,
        cache: _core.Cache,
        out: Optional[Array] = None,
        lse: Optional[Array] = None,
        *,
        return_lse: bool = False,
        stream: Any = None,
    ) -> Result:
        """Decodes the batch of the last `install`; see `Plan.decode`."""
        who = "pagoda.PrefixDecoder.decode"
        out, lse = outputs(who, q, self.head_dim_v, out, lse, return_lse)
        number = stream_number(self.device, q, stream)
        self._decode(q, cache, out, lse, number)
        wait_for_jax(q, self.device, number)
        return out if lse is None else (out, lse)

    def set_rates(self, **rates: Any) -> None:
        """Changes those rates that are named. The next `plan` is a new one."""
        self._set_rates(rates)
