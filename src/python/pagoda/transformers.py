# SPDX-License-Identifier: Apache-2.0
"""Pagoda as the attention of Hugging Face transformers, over a paged cache.

    pagoda.transformers.register()                                        # once
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="pagoda")
    cache = pagoda.transformers.PagedCache(model.config, max_seq_len=4096)
    model.generate(**inputs, past_key_values=cache)

Prompts and generated tokens are both decoded from the pages. Prompts of different lengths are padded on the left. The
model's window, soft cap and sinks are taken into account. Beam search and training are not supported.
"""

from __future__ import annotations

import itertools
from typing import Any, Optional, Tuple

import torch
import transformers
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from . import _cache, _plan


class _Pages:
    """The block table that all layers share. A sequence gets a page when its tokens reach it."""

    def __init__(self, max_seq_len: int, page_size: int) -> None:
        self.page_size = page_size
        self.pages_each = -(-max_seq_len // page_size)
        self.table: Tensor
        self._held: list[int] = []  # pages of each sequence
        self._free: list[int] = []

    def start(self, batch: int, device: torch.device) -> None:
        if len(self._held) not in (0, batch):
            raise ValueError(f"pagoda: the batch is {batch}; allowed: {len(self._held)}, as in the calls before")
        if not self._held:
            self.table = torch.zeros(batch, self.pages_each, dtype=torch.int32, device=device)
            self._held = [0] * batch
            self._free = list(range(batch * self.pages_each))

    def reserve(self, lengths: list[int]) -> None:
        for b, length in enumerate(lengths):
            needed = -(-length // self.page_size)
            if needed > self.pages_each:
                most = self.pages_each * self.page_size
                raise ValueError(f"pagoda: sequence {b} has {length} tokens; allowed: {most}, by max_seq_len")
            while self._held[b] < needed:
                self.table[b, self._held[b]] = self._free.pop()
                self._held[b] += 1

    def positions(self, sequences: Tensor, tokens: Tensor) -> Tensor:
        """Where these tokens lie: entries of a slot mapping."""
        pages = self.table[sequences, tokens // self.page_size].long()
        return pages * self.page_size + tokens % self.page_size

    def reset(self) -> None:
        self._held, self._free = [], []


class PagedLayer(CacheLayerMixin):  # type: ignore[misc]
    """The pages of one layer. `update` keeps the new keys and values for the attention function, which knows the mask."""

    def __init__(self, pages: _Pages) -> None:
        super().__init__()
        self.pages = pages
        self.seen = 0  # tokens, padding included
        self.lengths: list[int] = []  # tokens that are in the pages
        self.plans: dict[Tuple[Any, ...], Tuple[_plan.Plan, Optional[Tensor]]] = {}

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        batch, heads, _, dim = key_states.shape
        self.pages.start(batch, key_states.device)
        shape = (batch * self.pages.pages_each, self.pages.page_size, heads)
        self.keys = key_states.new_zeros(*shape, dim)
        self.values = value_states.new_zeros(*shape, value_states.shape[3])
        self.lengths = [0] * batch
        self.seq_lens = torch.zeros(batch, dtype=torch.int32, device=key_states.device)
        self.kv = _cache.PagedCache(self.keys, self.values, self.pages.table, self.seq_lens)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.seen += key_states.shape[2]
        key_states.pagoda_layer = self  # type: ignore[attr-defined]
        return key_states, value_states

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], options: dict[str, Any]) -> Tensor:
        """query: (batch, head, token, dim), key and value likewise. mask: (batch, token); False: padding."""
        batch, heads, tokens, _ = query.shape
        valid = None if mask is None else mask[:, -tokens:]
        counts = [tokens] * batch if valid is None else valid.sum(1).tolist()
        now = [length + count for length, count in zip(self.lengths, counts)]
        self.pages.reserve(now)
        if valid is None:
            valid = torch.ones(batch, tokens, dtype=torch.bool, device=query.device)
        sequences, columns = valid.nonzero(as_tuple=True)
        token = (self.seq_lens.long()[:, None] + valid.cumsum(1) - 1)[sequences, columns]
        rows = [states.transpose(1, 2)[sequences, columns] for states in (query, key, value)]
        _cache.write_kv(self.kv, self.pages.positions(sequences, token), rows[1], rows[2])
        self.lengths = now
        self.seq_lens.copy_(torch.tensor(now, dtype=torch.int32))
        plan = self._plan_for(heads, counts, tokens, query.device, options)
        out = plan.decode(rows[0], self.kv)
        assert isinstance(out, Tensor)
        if len(out) == batch * tokens:
            return out.view(batch, tokens, heads, -1)
        padded = out.new_zeros(batch, tokens, heads, out.shape[2])
        padded[sequences, columns] = out
        return padded

    def _plan_for(
        self, heads: int, counts: list[int], tokens: int, device: torch.device, options: dict[str, Any]
    ) -> _plan.Plan:
        ragged = any(count != tokens for count in counts)
        key = (heads, tokens, ragged, *((name, id(value) if isinstance(value, Tensor) else value) for name, value in options.items()))
        if key not in self.plans:
            starts = torch.zeros(len(counts) + 1, dtype=torch.int32, device=device) if ragged else None
            made = _plan.plan(self.kv, num_q_heads=heads, max_query_len=tokens, cu_seqlens_q=starts, **options)
            self.plans = {old: plan for old, plan in self.plans.items() if old[1] == 1}  # keeps those of single tokens
            self.plans[key] = (made, starts)
        plan, starts = self.plans[key]
        if starts is not None:
            starts.copy_(torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32))
        return plan

    def get_mask_sizes(self, query_length: int) -> Tuple[int, int]:
        return self.seen + query_length, 0

    def get_seq_length(self) -> int:
        return self.seen

    def get_max_length(self) -> int:
        return self.pages.pages_each * self.pages.page_size

    def reset(self) -> None:
        self.is_initialized, self.seen, self.lengths, self.plans = False, 0, [], {}
        self.pages.reset()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        raise ValueError("pagoda: beam search reorders the cache; allowed: greedy search and sampling")


class PagedCache(transformers.Cache):  # type: ignore[misc]
    """A cache of pages for a model, to be passed as past_key_values. Each layer has memory for max_seq_len tokens of each
    sequence; the batch, the type and the device are those of the first call."""

    def __init__(self, config: Any, max_seq_len: int, page_size: int = 16) -> None:
        pages = _Pages(max_seq_len, page_size)
        layers = config.get_text_config(decoder=True).num_hidden_layers
        super().__init__(layers=[PagedLayer(pages) for _ in range(layers)])


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Optional[Tensor],
    scaling: Optional[float] = None,
    dropout: float = 0.0,
    sliding_window: Optional[int] = None,
    softcap: Optional[float] = None,
    s_aux: Optional[Tensor] = None,
    **_: Any,
) -> Tuple[Tensor, None]:
    """The attention function that `register` gives to transformers."""
    layer = getattr(key, "pagoda_layer", None)
    if layer is None:
        raise ValueError("pagoda: the keys are not in a paged cache; allowed: past_key_values=pagoda.transformers.PagedCache")
    if dropout != 0:
        raise ValueError(f"pagoda: dropout is {dropout}; allowed: 0")
    options: dict[str, Any] = {"softmax_scale": scaling}
    if sliding_window is not None:
        options["window_left"] = sliding_window - 1
    if softcap is not None:
        options["logit_soft_cap"] = softcap
    if s_aux is not None:
        options["sinks"] = s_aux.detach().float()
    with torch.no_grad():
        return layer.attend(query.detach(), key.detach(), value.detach(), attention_mask, options), None


def padding_mask(*_: Any, attention_mask: Optional[Tensor] = None, **__: Any) -> Optional[Tensor]:
    """The mask that attention_forward gets: (batch, token), or None where there is no padding."""
    return None if attention_mask is None or bool(attention_mask.all()) else attention_mask


def register(name: str = "pagoda") -> None:
    """Makes attn_implementation="pagoda" known to transformers."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, padding_mask)
