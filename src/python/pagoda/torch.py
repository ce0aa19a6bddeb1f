# SPDX-License-Identifier: Apache-2.0
"""The PyTorch operator torch.ops.pagoda.decode, which torch.compile takes as it is. Importing this module registers it.

    import pagoda.torch
    out, lse = pagoda.torch.decode(q, k_pages, v_pages, block_table, seq_lens)

The operator is a function of tensors: it makes a plan when it meets a shape for the first time and keeps it. The first
call with a shape allocates, so call it once before you capture a CUDA graph.
"""

from __future__ import annotations

import threading
from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from . import _core
from ._arrays import stream_number
from ._cache import ContiguousCache, PagedCache
from ._plan import Plan, plan

# Plans by shape, options and stream, and the tensors that plans read. One decode runs on a plan at a time.
_plans: dict[Tuple[Any, ...], Tuple[Plan, dict[str, Tensor]]] = {}
_lock = threading.Lock()


def clear_plans() -> None:
    """Destroys the plans that the operator has made."""
    with _lock:
        _plans.clear()


def _shape_of(tensor: Optional[Tensor]) -> Any:
    return None if tensor is None else (tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _plan_for(cache: _core.Cache, key: Tuple[Any, ...], arrays: dict[str, Optional[Tensor]], **options: Any) -> Plan:
    given = {name: tensor for name, tensor in arrays.items() if tensor is not None}
    key = (key, tuple((name, _shape_of(tensor)) for name, tensor in given.items()), tuple(options.items()))
    with _lock:
        if key not in _plans:
            own = {name: tensor.clone() for name, tensor in given.items()}
            _plans[key] = (plan(cache, **options, **own), own)
        made, own = _plans[key]
    for name, tensor in given.items():
        own[name].copy_(tensor)
    return made


@torch.library.custom_op("pagoda::decode", mutates_args=())
def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_table: Optional[Tensor],
    seq_lens: Tensor,
    order: str = "NHD",
    softmax_scale: Optional[float] = None,
    causal: bool = True,
    window_left: int = -1,
    logit_soft_cap: float = 0.0,
    max_query_len: int = 1,
    cu_seqlens_q: Optional[Tensor] = None,
    alibi_slopes: Optional[Tensor] = None,
    sinks: Optional[Tensor] = None,
    k_scale: Optional[Tensor] = None,
    v_scale: Optional[Tensor] = None,
    kv_type: Optional[str] = None,
    num_initial_tokens: int = 0,
    k_block_scale: Optional[Tensor] = None,
    v_block_scale: Optional[Tensor] = None,
    backend: Optional[str] = None,
    exactness: str = "fast",
) -> Tuple[Tensor, Tensor]:
    """Returns (out, lse): attention of the newest query tokens over the cache (k, v, block_table, seq_lens), and the
    logarithm of the sum of exp(score) in float32. The arguments are those of pagoda.PagedCache and pagoda.plan;
    block_table None: the cache is contiguous."""
    shared: dict[str, Any] = {
        "order": order,
        "k_scale": k_scale,
        "v_scale": v_scale,
        "k_block_scale": k_block_scale,
        "v_block_scale": v_block_scale,
        "scale_order": order,
        "kv_type": kv_type,
    }
    cache: _core.Cache
    if block_table is None:
        cache = ContiguousCache(k, v, seq_lens, **shared)
    else:
        cache = PagedCache(k, v, block_table, seq_lens, **shared)
    stream = stream_number(cache.device, q)
    tensors = (q, k, v, block_table, seq_lens, k_scale, v_scale, k_block_scale, v_block_scale)
    key = (cache.device, stream, *(_shape_of(tensor) for tensor in tensors), order, kv_type)
    made = _plan_for(
        cache,
        key,
        {"cu_seqlens_q": cu_seqlens_q, "alibi_slopes": alibi_slopes, "sinks": sinks},
        num_q_heads=q.shape[1],
        softmax_scale=softmax_scale,
        causal=causal,
        window_left=window_left,
        num_initial_tokens=num_initial_tokens,
        logit_soft_cap=logit_soft_cap,
        max_query_len=max_query_len,
        backend=backend,
        exactness=exactness,
    )
    out, lse = made.decode(q.detach(), cache, return_lse=True)
    return out, lse


# Types of which a byte holds two dims.
_TWO_DIMS = ("int4", "mxfp4", "nvfp4")


@decode.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_table: Optional[Tensor],
    seq_lens: Tensor,
    order: str = "NHD",
    softmax_scale: Optional[float] = None,
    causal: bool = True,
    window_left: int = -1,
    logit_soft_cap: float = 0.0,
    max_query_len: int = 1,
    cu_seqlens_q: Optional[Tensor] = None,
    alibi_slopes: Optional[Tensor] = None,
    sinks: Optional[Tensor] = None,
    k_scale: Optional[Tensor] = None,
    v_scale: Optional[Tensor] = None,
    kv_type: Optional[str] = None,
    *_: Any,
    **__: Any,
) -> Tuple[Tensor, Tensor]:
    rows, heads, _dim = q.shape
    head_dim_v = 512 if kv_type == "fp8_ds_mla" else v.shape[3] * (2 if kv_type in _TWO_DIMS else 1)
    return q.new_empty((rows, heads, head_dim_v)), q.new_empty((rows, heads), dtype=torch.float32)
