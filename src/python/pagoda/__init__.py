# SPDX-License-Identifier: Apache-2.0
"""Decode attention over contiguous and paged KV caches.

    cache = pagoda.PagedCache(k_pages, v_pages, block_table, seq_lens)   # arrays of NumPy, PyTorch, JAX or CuPy
    plan = pagoda.plan(cache, num_q_heads=32)                            # once for a shape
    out = plan.decode(q, cache)                                          # every step

Arrays are read and written where they are, through DLPack. Calls on a GPU are asynchronous on the current stream of the
queries' library; calls on a CPU return when they are done. The library's C++ interface describes layouts, options and
results: include/pagoda/README.md.

Errors: ValueError names the argument, its value and what is allowed. OutOfCapacity means that a pool is full. After an
error nothing has been launched or changed.
"""

from __future__ import annotations

import atexit
import os
from typing import Any

from . import _core
from ._core import CacheMemory, OutOfCapacity, Prompt
from ._cache import Cache, ContiguousCache, PagedCache, write_kv
from ._lists import Entries, entry, entry_query
from ._memory import (
    bytes_per_token,
    latent_bytes_per_token,
    make_contiguous_cache,
    make_paged_cache,
    reserved_tokens,
    sequences_that_fit,
    waste_fraction,
)
from ._plan import Plan, TableFault, check, merge, merge_pair, plan, workspace_bytes
from ._pool import ContiguousPool, PagedPool, Pool
from ._prefix import PrefixDecoder

__version__ = _core.version()

__all__ = [
    "Cache",
    "CacheMemory",
    "ContiguousCache",
    "ContiguousPool",
    "Entries",
    "OutOfCapacity",
    "PagedCache",
    "PagedPool",
    "Plan",
    "Pool",
    "PrefixDecoder",
    "Prompt",
    "TableFault",
    "bytes_per_token",
    "check",
    "configuration",
    "entry",
    "entry_query",
    "initialize",
    "latent_bytes_per_token",
    "make_contiguous_cache",
    "make_paged_cache",
    "merge",
    "merge_pair",
    "plan",
    "reserved_tokens",
    "sequences_that_fit",
    "types",
    "waste_fraction",
    "workspace_bytes",
    "write_kv",
]


def configuration() -> str:
    """How the library was built, as one line of text for reports."""
    return _core.configuration()


def types() -> list[str]:
    """The element types of caches that this build has kernels for, such as "fp16"."""
    return _core.types()


def initialize() -> None:
    """Initializes Kokkos now, and not in the first call that needs it. Kokkos reads its settings from the environment
    (KOKKOS_NUM_THREADS or OMP_NUM_THREADS, KOKKOS_DEVICE_ID)."""
    _core.start()


atexit.register(_core.shut_down)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_core.forked)


def __getattr__(name: str) -> Any:
    if name in ("torch", "transformers"):  # imported on demand: they need these packages
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
