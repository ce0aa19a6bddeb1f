# SPDX-License-Identifier: Apache-2.0
"""Peers that run through PyTorch. On a GPU they are timed like Pagoda: cold caches in turns, all calls in one
CUDA graph, median of its replays."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from typing import Any, Callable, Iterable

from cases import Case, rotation
from peer import Absent, Peer, host_seconds


class TorchPeer(Peer):
    types: tuple[str, ...] = ("fp16", "bf16")

    def __init__(self) -> None:
        try:
            import torch
        except Exception as error:  # a broken installation may raise any exception
            raise Absent(str(error)) from error
        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.version = torch.__version__
        if self.device == "cuda":
            self.last_level = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 64 << 20)
            self.evicted = torch.ones(2 * self.last_level // 4, dtype=torch.int32, device="cuda")

    def normal(self, name: str, *shape: int) -> Any:
        torch = self.torch
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}.get(name, torch.float16)
        values = torch.empty(shape, dtype=dtype, device=self.device).normal_()
        return values.to(torch.float8_e4m3fn) if name == "fp8_e4m3" else values

    def attention(self, case: Case, caches: int) -> Callable[[int], None]:
        """Calls of scaled_dot_product_attention on one of several contiguous caches."""
        self.torch.manual_seed(1)
        kv = self.normal(case.type, caches, 2, len(case.lengths), case.kv_heads, case.lengths[0], case.dim)
        q = self.normal(case.type, len(case.lengths), case.q_heads, 1, case.dim)
        attend = self.torch.nn.functional.scaled_dot_product_attention
        grouped = {"enable_gqa": True} if case.q_heads != case.kv_heads else {}  # older versions lack it
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


class Pages:
    """Scattered pages for the sequences of a case, in the forms that FlashInfer reads."""

    def __init__(self, torch: Any, case: Case) -> None:
        counts = [math.ceil(length / case.page) for length in case.lengths]

        def ints(values: Iterable[int]) -> Any:
            return torch.tensor(list(values), dtype=torch.int32, device="cuda")

        self.count = sum(counts)
        self.queries = ints(range(len(counts) + 1))
        self.indptr = ints(itertools.accumulate(counts, initial=0))
        self.indices = torch.randperm(self.count, device="cuda").to(torch.int32)
        self.last = ints(length - (n - 1) * case.page for length, n in zip(case.lengths, counts))
        self.lengths = ints(case.lengths)
        self.table = torch.zeros(len(counts), max(counts), dtype=torch.int32, device="cuda")
        self.table[torch.arange(max(counts), device="cuda") < ints(counts)[:, None]] = self.indices


class FlashInfer(TorchPeer):
    """The fastest of its decodes, planning excluded: with tensor cores (tc), with CUDA cores (cc), persistent (ba), xqa;
    fa3 on a latent cache. Unsupported cases are left out, and so is xqa on an fp8 cache: it also rounds queries and
probabilities to fp8, with errors of 5 to 7%."""

    name, paged = "flashinfer", True
    types = ("fp16", "bf16", "fp8_e4m3")
    latents = (("bf16", 576),)

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
        self.failed: dict[str, str] = {}

    def failed_ways(self) -> dict[str, str]:
        return self.failed

    def cannot(self, case: Case) -> str | None:
        return super().cannot(case) or (None if case.page else "it reads pages")

    def time(self, case: Case) -> tuple[float, str]:
        try:
            return self.fastest(case)
        finally:
            self.torch.cuda.empty_cache()  # the memory is for pagoda_bench_decode

    def fastest(self, case: Case) -> tuple[float, str]:
        self.torch.manual_seed(1)
        caches, calls = rotation(case.bytes, self.last_level)
        pages = Pages(self.torch, case)
        page = [case.page, case.dim] if case.latent else [2, case.page, case.kv_heads, case.dim]
        pool = self.normal(case.type, caches, pages.count, *page)
        q = self.normal("bf16" if case.type == "bf16" else "fp16", len(case.lengths), case.q_heads, case.dim)
        paths: dict[str, Callable[..., Callable[[Any], Any]]] = {"fa3": self.latent}
        if not case.latent:
            paths = {
                "tc": functools.partial(self.batch_decode, True),
                "cc": functools.partial(self.batch_decode, False),
                "ba": self.persistent,
            }
            if case.type != "fp8_e4m3":
                paths["xqa"] = self.xqa
        found, failed = [], {}
        for kind, path in paths.items():
            try:
                run = path(case, pages, q, pool.dtype)
                found.append((self.graph_seconds(lambda i: run(pool[i]), caches, calls) * 1e6, kind))
            except Exception as error:
                failed[kind] = str(error).split("\n")[0][:300]
        self.failed = failed | self.failed
        if not found:
            raise RuntimeError("; ".join(f"{kind}: {error}" for kind, error in failed.items()))
        return min(found)

    def workspace(self) -> Any:
        return self.torch.zeros(512 << 20, dtype=self.torch.uint8, device="cuda")

    def batch_decode(self, tensor_cores: bool, case: Case, pages: Pages, q: Any, kv_type: Any) -> Callable[[Any], Any]:
        wrapper = self.flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            self.workspace(),
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=tensor_cores,
            paged_kv_indptr_buffer=self.torch.empty_like(pages.indptr),
            paged_kv_indices_buffer=self.torch.empty_like(pages.indices),
            paged_kv_last_page_len_buffer=self.torch.empty_like(pages.last),
        )
        wrapper.plan(
            pages.indptr,
            pages.indices,
            pages.last,
            case.q_heads,
            case.kv_heads,
            case.dim,
            case.page,
            q_data_type=q.dtype,
            kv_data_type=kv_type,
        )
        return lambda kv: wrapper.run(q, kv)

    def persistent(self, case: Case, pages: Pages, q: Any, kv_type: Any) -> Callable[[Any], Any]:
        wrapper = self.flashinfer.BatchAttention("NHD")
        wrapper.plan(
            pages.queries,
            pages.indptr,
            pages.indices,
            pages.lengths,
            case.q_heads,
            case.kv_heads,
            case.dim,
            case.dim,
            case.page,
            q_data_type=q.dtype,
            kv_data_type=kv_type,
        )
        return lambda kv: wrapper.run(q, kv)

    def xqa(self, case: Case, pages: Pages, q: Any, kv_type: Any) -> Callable[[Any], Any]:
        return functools.partial(
            self.flashinfer.decode.trtllm_batch_decode_with_kv_cache,
            q,
            workspace_buffer=self.workspace(),
            block_tables=pages.table,
            seq_lens=pages.lengths.to(self.torch.uint32),
            max_seq_len=max(case.lengths),
            bmm1_scale=case.dim**-0.5,
            bmm2_scale=1.0,
            kv_layout="NHD",
            backend="xqa",
        )

    def latent(self, case: Case, pages: Pages, q: Any, kv_type: Any) -> Callable[[Any], Any]:
        wrapper = self.flashinfer.mla.BatchMLAPagedAttentionWrapper(
            self.workspace(),
            use_cuda_graph=True,
            qo_indptr=self.torch.empty_like(pages.queries),
            kv_indptr=self.torch.empty_like(pages.indptr),
            kv_indices=self.torch.empty_like(pages.indices),
            kv_len_arr=self.torch.empty_like(pages.lengths),
            backend="fa3",
        )
        wrapper.plan(
            metadata=self.flashinfer.mla.MLAPlanMetadata.csr(pages.queries, pages.indptr, pages.indices, pages.lengths),
            num_heads=case.q_heads,
            head_dim_ckv=512,
            head_dim_kpe=64,
            page_size=case.page,
            causal=False,
            sm_scale=case.dim**-0.5,
            q_data_type=q.dtype,
            kv_data_type=kv_type,
        )
        return lambda kv: wrapper.run(query=q, kv_cache=kv)
