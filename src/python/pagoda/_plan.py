# SPDX-License-Identifier: Apache-2.0
"""Plans, decodes and merges."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Tuple, Union

from . import _core
from ._arrays import device_of, empty, outputs, stream_number, wait_for_jax, writable
from ._cache import Array, Cache
from ._lists import States

Result = Union[Array, Tuple[Array, Array]]


class TableFault(NamedTuple):
    """What a decode of a plan with `checked` found wrong with a batch entry: its first fault."""

    entry: int  #: batch entry
    sequence: int  #: the sequence it names; -1 if its range in cu_seqlens_q is wrong
    page: int  #: position in the sequence's page list of a page id outside of the cache; otherwise -1
    value: int  #: what the array held
    message: str  #: the array, the position, the value and what is allowed


class Plan(_core.Plan):
    """How decodes of one shape run; made by `plan`. One decode runs on a plan at a time: calls from other threads wait,
    and each stream that decodes concurrently needs a plan of its own."""

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
        """Computes exact attention of the newest query tokens of each sequence over its cached keys and values.

        q: (query token, q head, head_dim), any strides. Tokens of one sequence are adjacent, in batch order.
        out: (query token, q head, head_dim_v). Default: a new array of q's library and type.
        lse: (query token, q head), float32 or float64: natural logarithm of the sum of exp(score).
        stream: default: the current stream of q's library. JAX has none, so a call on a GPU waits.

        Returns out, or (out, lse) if return_lse is set or lse is given.
        """
        out, lse = outputs("pagoda.Plan.decode", q, self.head_dim_v, out, lse, return_lse)
        if self.on_cpu:
            self._decode(q, cache, out, lse, 0)
        else:
            number = stream_number(self.device, q, stream)
            self._decode(q, cache, out, lse, number)
            wait_for_jax(q, self.device, number)
        return out if lse is None else (out, lse)

    def faults(self, *, stream: Any = None) -> List[TableFault]:
        """The faults of the last decode of a plan with `checked`, at most one for each batch entry, in their order. Waits
        for the device. stream: that of the decode, or one that waits for it."""
        return [TableFault(*fault) for fault in self._faults(stream_number(self.device, None, stream))]

    def fault_count(self, *, stream: Any = None) -> int:
        """The number of batch entries with a fault in the last decode; see `faults`."""
        return len(self.faults(stream=stream))

    def decode_entries(
        self,
        q: Array,
        cache: _core.Cache,
        entries: _core.Entries,
        out: Optional[Array] = None,
        lse: Optional[Array] = None,
        *,
        states: Optional[States] = None,
        return_lse: bool = False,
        stream: Any = None,
    ) -> Result:
        """Decodes a list of entries, with a plan that has max_entries. Entries with a negative state write out and lse, the
        others write `states`, which `merge_entries` then merges. `pagoda.check` examines lists.

        states: (out, lse): (state, q head, head_dim_v) of a plain type and (state, q head), float32 or float64; needed if
            the list has state_begin. See `empty_states`.
        """
        who = "pagoda.Plan.decode_entries"
        out, lse = outputs(who, q, self.head_dim_v, out, lse, return_lse)
        state_out, state_lse = (None, None) if states is None else states
        number = stream_number(self.device, q, stream)
        self._decode_entries(q, cache, entries, out, lse, state_out, state_lse, number)
        wait_for_jax(q, self.device, number)
        return out if lse is None else (out, lse)

    def empty_states(self, q: Array, num_states: int) -> States:
        """Partial states of float32 for `decode_entries`, in new arrays of q's library."""
        return empty(q, (num_states, q.shape[1], self.head_dim_v), True), empty(q, (num_states, q.shape[1]), True)

    def merge_entries(
        self,
        entries: _core.Entries,
        states: States,
        out: Array,
        lse: Optional[Array] = None,
        *,
        stream: Any = None,
    ) -> None:
        """Merges the partial states of each query token that has any into its row of out and lse, and adds the plan's
        sinks. Other rows are left as they are."""
        writable("pagoda.Plan.merge_entries", "out", out)
        number = stream_number(self.device, out, stream)
        self._merge_entries(entries, states[0], states[1], out, lse, number)
        wait_for_jax(out, self.device, number)


def stream_of(cache: _core.Cache, stream: Any) -> int:
    return stream_number(cache.device, getattr(cache, "_k", None), stream)


def plan(
    cache: _core.Cache,
    *,
    num_q_heads: int,
    max_batch: int = 0,
    max_seq_len: int = 0,
    max_query_len: int = 1,
    max_query_tokens: int = 0,
    cu_seqlens_q: Optional[Array] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = True,
    window_left: int = -1,
    num_initial_tokens: int = 0,
    logit_soft_cap: float = 0.0,
    alibi_slopes: Optional[Array] = None,
    sinks: Optional[Array] = None,
    backend: Optional[str] = None,
    programmatic_launch: bool = False,
    exactness: str = "fast",
    workspace: Optional[Array] = None,
    max_entries: int = 0,
    max_entry_queries: int = 1,
    max_listed_queries: int = 0,
    entry_chains: bool = False,
    checked: bool = False,
    stream: Any = None,
) -> Plan:
    """Makes a plan for decodes of this cache, and of others with the same shape, types and strides.

    num_q_heads: query heads, a multiple of the cache's KV heads.
    max_batch: bound on the batch of later decodes. Default: the cache's batch.
    max_seq_len: bound on every length, for tuning. Default: what the cache can hold.
    max_query_len: bound on the query tokens of one sequence.
    max_query_tokens: bound on all query tokens. Default: max_batch * max_query_len.
    cu_seqlens_q: int32 [max_batch + 1]: query tokens cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1 belong to batch entry b.
        Default: every entry has as many.
    softmax_scale: default: 1 / sqrt(head_dim).
    causal: a query token sees the tokens up to its own position. False: all tokens.
    window_left: tokens before its own position that a query token sees. -1: all.
    num_initial_tokens: first tokens that stay visible besides the window.
    logit_soft_cap: a score becomes cap * tanh(score / cap). 0: off.
    alibi_slopes: float32 [num_q_heads], adds slope * (token - query position).
    sinks: float32 [num_q_heads], the logit of one extra token with value 0.
    backend: "tuned" or "generic". Default: the faster one that supports the problem.
    exactness: "fast"; "batch_invariant": the bits of a sequence's results do not depend on the rest of the batch; or
        "reproducible": nor on the machine's number of multiprocessors or threads.
    workspace: uint8 [workspace_bytes(...)], aligned to 16 bytes. Default: the plan allocates it.
    max_entries: bound on the entries of a list: the plan is for `Plan.decode_entries`. 0: it is for `Plan.decode`.
    max_entry_queries: bound on the query tokens of an entry, for tuning.
    max_listed_queries: bound on the sum of the query tokens of all entries, for tuning. Default: max_entries *
        max_entry_queries.
    entry_chains: lists may have chains (`pagoda.entry`). Only the hand-tuned kernels of sm_90 carry these out; other plans
        are refused.
    checked: each decode examines lengths, ids, tables and cu_seqlens_q on the device first. A sequence with a fault gets
        NaN in its rows, the others are right, and `Plan.faults` reports them.
    """
    options = dict(locals())
    del options["cache"], options["stream"]
    return Plan(cache, stream_of(cache, stream), **options)


def workspace_bytes(cache: _core.Cache, **options: Any) -> int:
    """Bytes of workspace that plan(cache, **options) needs."""
    return _core.workspace_bytes(cache, **options)


def check(
    cache: _core.Cache,
    plan: Optional[Plan] = None,
    q: Optional[Array] = None,
    *,
    entries: Optional[_core.Entries] = None,
    num_states: int = 0,
    stream: Any = None,
) -> None:
    """Examines lengths, ids and tables, which a decode does not check, and raises ValueError with the array, the entry and
    what is allowed. With a plan and the queries of a decode, cu_seqlens_q too; with a list of entries, the list.
    num_states: partial states of that decode. Waits for the device."""
    if (plan is None) != (q is None):
        raise ValueError(f"pagoda.check: {'q' if plan is None else 'plan'} is given alone; allowed: both or none")
    number = stream_of(cache, stream)
    if entries is not None:
        if plan is None:
            raise ValueError("pagoda.check: entries is given without plan and q; allowed: with both")
        plan._check_entries(cache, q, entries, num_states, number)
    elif plan is None:
        _core.check(cache, number)
    else:
        plan._check(cache, q, number)


def merge(
    outs: Array, lses: Array, out: Optional[Array] = None, lse: Optional[Array] = None, *, stream: Any = None
) -> Tuple[Array, Array]:
    """Merges results over disjoint tokens into the result over all of them, and returns (out, lse).

    outs: (state, token, head, dim).
    lses: (state, token, head), float32 or float64; -infinity: an empty state.
    """
    out = empty(outs, outs.shape[1:]) if out is None else writable("pagoda.merge", "out", out)
    lse = empty(lses, lses.shape[1:]) if lse is None else writable("pagoda.merge", "lse", lse)
    device = device_of(outs)
    number = stream_number(device, outs, stream)
    _core.merge(outs, lses, out, lse, number)
    wait_for_jax(outs, device, number)
    return out, lse


def merge_pair(
    out_a: Array,
    lse_a: Array,
    out_b: Array,
    lse_b: Array,
    out: Optional[Array] = None,
    lse: Optional[Array] = None,
    *,
    stream: Any = None,
) -> Tuple[Array, Array]:
    """Merges two results, (token, head, dim) and (token, head) each. out and lse may be those of the first one."""
    out = empty(out_a, out_a.shape) if out is None else writable("pagoda.merge_pair", "out", out)
    lse = empty(lse_a, lse_a.shape) if lse is None else writable("pagoda.merge_pair", "lse", lse)
    device = device_of(out_a)
    number = stream_number(device, out_a, stream)
    _core.merge_pair(out_a, lse_a, out_b, lse_b, out, lse, number)
    wait_for_jax(out_a, device, number)
    return out, lse
