# SPDX-License-Identifier: Apache-2.0
"""Peers that are reached through PyTorch. On a GPU they are timed as Pagoda is: cold caches in turns, all calls in one
CUDA graph, median of its replays."""

from __future__ import annotations

import math
import statistics
from typing import Any, Callable

from cases import Case, rotation
from peer import Absent, Peer, host_seconds


class TorchPeer(Peer):
    types: tuple[str, ...] = ("fp16", "bf16")

    def __init__(self) -> None:
        try:
            import torch
        except Exception as error:  # a broken installation raises all kinds of things
            raise Absent(str(error)) from error
        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.version = torch.__version__
        if self.device == "cuda":
            self.last_level = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 64 << 20)
            self.evicted = torch.ones(2 * self.last_level // 4, dtype=torch.int32, device="cuda")

    def cannot(self, case: Case) -> str | None:
        if case.type not in self.types or case.latent:
            return "its type or shape"
        return None

    def normal(self, case: Case, *shape: int) -> Any:
        dtype = {"fp32": self.torch.float32, "fp16": self.torch.float16, "bf16": self.torch.bfloat16}[case.type]
        return self.torch.empty(shape, dtype=dtype, device=self.device).normal_()

    def attention(self, case: Case, caches: int) -> Callable[[int], None]:
        """Calls of scaled_dot_product_attention on one of so many contiguous caches."""
        self.torch.manual_seed(1)
        kv = self.normal(case, caches, 2, len(case.lengths), case.kv_heads, case.lengths[0], case.dim)
        q = self.normal(case, len(case.lengths), case.q_heads, 1, case.dim)
        attend = self.torch.nn.functional.scaled_dot_product_attention
        grouped = {"enable_gqa": True} if case.q_heads != case.kv_heads else {}  # older versions do not know it
        return lambda i: attend(q, kv[i][0], kv[i][1], **grouped)

    def graph_seconds(self, call: Callable[[int], Any], caches: int, calls: int, samples: int = 17) -> float:
        torch = self.torch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for i in range(2):
                call(i % caches)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for i in range(calls):
                call(i % caches)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        seconds = []
        for sample in range(-2, samples):
            self.evicted.max()
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if sample >= 0:
                seconds.append(begin.elapsed_time(end) * 1e-3 / calls)
        return statistics.median(seconds)


class GpuAttention(TorchPeer):
    """One backend of PyTorch's scaled_dot_product_attention."""

    backend = ""

    def __init__(self) -> None:
        super().__init__()
        if self.device != "cuda":
            raise Absent("PyTorch sees no GPU")

    def cannot(self, case: Case) -> str | None:
        return super().cannot(case) or (None if case.even else "it takes sequences of one length")

    def time(self, case: Case) -> tuple[float, str]:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        caches, calls = rotation(case.bytes, self.last_level)
        try:
            with self.torch.inference_mode(), sdpa_kernel([getattr(SDPBackend, self.backend)]):
                return self.graph_seconds(self.attention(case, caches), caches, calls) * 1e6, "contiguous"
        finally:
            self.torch.cuda.empty_cache()  # the memory is for pagoda_bench_decode


class CuDNN(GpuAttention):
    name, backend = "cudnn", "CUDNN_ATTENTION"

    def __init__(self) -> None:
        super().__init__()
        self.version = str(self.torch.backends.cudnn.version())


class FlashAttention(GpuAttention):
    name, backend = "flash-attention", "FLASH_ATTENTION"


class TorchCpu(TorchPeer):
    name = "torch-cpu"
    types = ("fp32", "fp16", "bf16")

    def __init__(self) -> None:
        super().__init__()
        if self.device != "cpu":
            raise Absent("this machine is timed on its GPU")

    def cannot(self, case: Case) -> str | None:
        return super().cannot(case) or (None if case.even else "it takes sequences of one length")

    def time(self, case: Case) -> tuple[float, str]:
        caches = rotation(case.bytes, 64 << 20)[0]
        with self.torch.inference_mode():
            seconds = host_seconds(self.attention(case, caches), caches)
        return seconds * 1e6, f"contiguous, {self.torch.get_num_threads()} threads"


class FlashInfer(TorchPeer):
    """Its batch decode with tensor cores and with CUDA cores, whichever is faster, planning excluded."""

    name, paged = "flashinfer", True

    def __init__(self) -> None:
        super().__init__()
        if self.device != "cuda":
            raise Absent("PyTorch sees no GPU")
        try:
            import flashinfer
        except Exception as error:
            raise Absent(str(error)) from error
        self.flashinfer = flashinfer
        self.version = getattr(flashinfer, "__version__", "unknown")

    def cannot(self, case: Case) -> str | None:
        return super().cannot(case) or (None if case.page else "it reads pages")

    def time(self, case: Case) -> tuple[float, str]:
        torch = self.torch
        torch.manual_seed(1)
        caches, calls = rotation(case.bytes, self.last_level)
        counts = [math.ceil(length / case.page) for length in case.lengths]
        pages = sum(counts)
        pool = self.normal(case, caches, pages, 2, case.page, case.kv_heads, case.dim)
        q = self.normal(case, len(case.lengths), case.q_heads, case.dim)

        def ints(values: list[int]) -> Any:
            return torch.tensor(values, dtype=torch.int32, device="cuda")

        indptr = ints([sum(counts[:b]) for b in range(len(counts) + 1)])
        indices = torch.randperm(pages, device="cuda").to(torch.int32)
        last = ints([length - (n - 1) * case.page for length, n in zip(case.lengths, counts)])
        workspace = torch.zeros(512 << 20, dtype=torch.uint8, device="cuda")
        found, failed = [], []
        for kind, tensor_cores in (("tc", True), ("cc", False)):
            try:
                wrapper = self.flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                    workspace,
                    "NHD",
                    use_cuda_graph=True,
                    use_tensor_cores=tensor_cores,
                    paged_kv_indptr_buffer=torch.empty_like(indptr),
                    paged_kv_indices_buffer=torch.empty_like(indices),
                    paged_kv_last_page_len_buffer=torch.empty_like(last),
                )
                wrapper.plan(
                    indptr,
                    indices,
                    last,
                    case.q_heads,
                    case.kv_heads,
                    case.dim,
                    case.page,
                    q_data_type=q.dtype,
                    kv_data_type=q.dtype,
                )
                found.append((self.graph_seconds(lambda i: wrapper.run(q, pool[i]), caches, calls) * 1e6, kind))
            except Exception as error:
                failed.append(f"{kind}: {error}".split("\n")[0])
        torch.cuda.empty_cache()
        if not found:
            raise RuntimeError("; ".join(failed))
        return min(found)
