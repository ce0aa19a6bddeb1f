#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times other libraries on the problems of pagoda_bench_decode, case by case beside it, on one NVIDIA GPU.

    python3 bench/peers/compare.py --bench build/bench/decode/pagoda_bench_decode [--filter REGEX] [--out FILE.json]

cuDNN, through PyTorch's scaled_dot_product_attention, on a contiguous cache; FlashInfer, its batch decode with tensor
cores and with CUDA cores, whichever is faster, on a scattered paged cache, planning excluded. Both are timed as Pagoda
is: cold caches in turns, all calls in one CUDA graph, median of its replays. The floor is a bare read of as many bytes,
of the same call of pagoda_bench_decode. A peer that is not installed, or cannot do a case, is shown as "-".
"""

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys

NAME = re.compile(
    r"decode/(?P<backend>[^/]+)/(?P<type>\w+)/(?P<q_heads>\d+)x(?P<kv_heads>\d+)x(?P<dim>\d+)(?:-(?P<dim_v>\d+))?"
    r"/B(?P<batch>\d+)/(?P<lengths>S\d+|[a-z-]+)/(?:page(?P<page>\d+)|contiguous)"
)
SUFFIX = "/manual_time"


class Case:
    """One name of pagoda_bench_decode, taken apart."""

    def __init__(self, name):
        part = NAME.fullmatch(name)
        if not part:
            raise ValueError(f"{name}: not the name of a case")
        self.name = name
        self.type = part["type"]
        self.q_heads, self.kv_heads = int(part["q_heads"]), int(part["kv_heads"])
        self.dim, self.latent = int(part["dim"]), part["dim_v"] is not None
        self.page = int(part["page"] or 0)
        self.lengths = lengths_of(part["lengths"], int(part["batch"]))
        # What cuDNN would be timed on is the same for all page sizes.
        self.group = name.rsplit("/", 1)[0]

    @property
    def even(self):
        return min(self.lengths) == max(self.lengths)

    @property
    def bytes(self):
        size = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1, "int4": 0.5}
        row = int(self.dim * size[self.type]) + (4 if self.type in ("int8", "int4") else 0)  # scales, a float a row
        return sum(self.lengths) * self.kv_heads * row * (1 if self.latent else 2)


def lengths_of(name, batch):
    """As bench/decode/cases.cpp has them."""
    if name.startswith("S"):
        return [int(name[1:])] * batch
    if name.endswith("-even"):
        tokens = sum(lengths_of(name.removesuffix("-even"), batch))
        return [tokens * (b + 1) // batch - tokens * b // batch for b in range(batch)]
    if name == "one-long":
        return [131072] + [512] * (batch - 1)
    if name == "conversation":
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "decode", "conversation.hpp")
        with open(path) as f:
            listed = f.read().split("conversation_lengths[256] = {")[1].split("}")[0]
        return [int(n) for n in listed.split(",")][:batch]
    raise ValueError(f"{name}: not known as lengths")


def rotation(cache_bytes, last_level):
    """Caches and calls, as bench/decode/cases.cpp chooses them."""
    caches = min(max(max(1_200_000_000, 4 * last_level) // cache_bytes + 1, 2), 512)
    calls = int(min(max(4e9 / cache_bytes, 8), 128))
    return caches, math.ceil(calls / caches) * caches


class Peers:
    """What is installed. Every figure is microseconds, or None with the reason in `notes`."""

    def __init__(self):
        self.notes, self.versions = {}, {"torch": None, "cudnn": None, "flashinfer": None}
        self.torch = self.flashinfer = None
        try:
            import torch

            if not torch.cuda.is_available():
                raise RuntimeError("it sees no GPU")
            self.torch = torch
            self.versions["torch"] = torch.__version__
            self.versions["cudnn"] = torch.backends.cudnn.version()
        except Exception as error:
            self.notes["torch"] = self.notes["cudnn"] = f"absent: {error}"
        try:
            import flashinfer

            self.flashinfer = flashinfer if self.torch else None
            self.versions["flashinfer"] = getattr(flashinfer, "__version__", "unknown")
        except Exception as error:
            self.notes["flashinfer"] = f"absent: {error}"
        if self.torch:
            properties = self.torch.cuda.get_device_properties(0)
            self.last_level = getattr(properties, "L2_cache_size", 64 << 20)
            self.evicted = self.torch.ones(2 * self.last_level // 4, dtype=self.torch.int32, device="cuda")

    def time(self, key, function, case):
        """function(case), or None where that peer cannot do it."""
        try:
            return function(case)
        except Exception as error:
            self.notes[key] = f"{type(error).__name__}: {error}".split("\n")[0][:300]
            print(f"{key}: {self.notes[key]}", file=sys.stderr)
            return None
        finally:
            if self.torch:  # the memory is for pagoda_bench_decode
                self.torch.cuda.empty_cache()

    def dtype(self, case):
        return {"fp16": self.torch.float16, "bf16": self.torch.bfloat16}[case.type]

    def normal(self, case, *shape):
        return self.torch.empty(shape, dtype=self.dtype(case), device="cuda").normal_()

    def seconds_of_call(self, call, caches, calls, samples=17):
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

    def cudnn_us(self, case):
        torch = self.torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        torch.manual_seed(1)
        caches, calls = rotation(case.bytes, self.last_level)
        batch, length = len(case.lengths), case.lengths[0]
        kv = self.normal(case, caches, 2, batch, case.kv_heads, length, case.dim)
        q = self.normal(case, batch, case.q_heads, 1, case.dim)
        attend = torch.nn.functional.scaled_dot_product_attention

        def call(i):
            attend(q, kv[i][0], kv[i][1], enable_gqa=case.q_heads != case.kv_heads)

        with torch.inference_mode(), sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            return self.seconds_of_call(call, caches, calls) * 1e6

    def flashinfer_us(self, case):
        """(us, "tc" or "cc")"""
        torch = self.torch
        torch.manual_seed(1)
        caches, calls = rotation(case.bytes, self.last_level)
        counts = [math.ceil(length / case.page) for length in case.lengths]
        pages = sum(counts)
        pool = self.normal(case, caches, pages, 2, case.page, case.kv_heads, case.dim)
        q = self.normal(case, len(case.lengths), case.q_heads, case.dim)

        def ints(values):
            return torch.tensor(values, dtype=torch.int32, device="cuda")

        indptr = ints([sum(counts[:b]) for b in range(len(counts) + 1)])
        indices = torch.randperm(pages, device="cuda").to(torch.int32)
        last = ints([length - (n - 1) * case.page for length, n in zip(case.lengths, counts)])
        workspace = torch.zeros(512 << 20, dtype=torch.uint8, device="cuda")
        best, failed = None, []
        for kind, tensor_cores in (("tc", True), ("cc", False)):
            try:
                wrapper = self.flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                    workspace, "NHD", use_cuda_graph=True, use_tensor_cores=tensor_cores,
                    paged_kv_indptr_buffer=torch.empty_like(indptr), paged_kv_indices_buffer=torch.empty_like(indices),
                    paged_kv_last_page_len_buffer=torch.empty_like(last))
                wrapper.plan(indptr, indices, last, case.q_heads, case.kv_heads, case.dim, case.page,
                             q_data_type=self.dtype(case), kv_data_type=self.dtype(case))
                us = self.seconds_of_call(lambda i: wrapper.run(q, pool[i]), caches, calls) * 1e6
            except Exception as error:
                failed.append(f"{kind}: {error}".split("\n")[0])
                continue
            if best is None or us < best[0]:
                best = us, kind
        if best is None:
            raise RuntimeError("; ".join(failed))
        return best


def run_bench(bench, *arguments):
    """Standard output. Its exit status counts: a case that fails by itself is in the JSON."""
    return subprocess.run([bench, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def ours(bench, cases):
    """Figures of each case by name, and the context."""
    names = "|".join(re.escape(case.name).replace(r"\-", "-") for case in cases)
    report = json.loads(run_bench(bench, f"--benchmark_filter=^({names}){SUFFIX}$", "--benchmark_format=json"))
    return {b["name"].removesuffix(SUFFIX): b for b in report["benchmarks"]}, report["context"]


def text(x):
    return "-" if x is None else f"{x:.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="the executable pagoda_bench_decode")
    parser.add_argument("--filter", default=".", help="regular expression: cases to run")
    parser.add_argument("--out", help="JSON to write")
    options = parser.parse_args()

    listed = run_bench(options.bench, "--benchmark_list_tests", f"--benchmark_filter={options.filter}").split()
    cases = [Case(name.removesuffix(SUFFIX)) for name in listed if name.startswith("decode/")]
    groups = {}
    for case in cases:
        groups.setdefault(case.group, []).append(case)
    peers = Peers()
    for name in ("cudnn", "flashinfer"):
        if name in peers.notes:
            print(f"{name} is {peers.notes[name]}", file=sys.stderr)

    width = max((len(case.name) for case in cases), default=0)
    print(f"{'us':{width}} {'floor':>9} {'pagoda':>9} {'ratio':>6} {'bar':>9} {'cuDNN':>9} {'FlashInfer':>12}")
    rows, context = [], None
    for group in groups.values():
        first = group[0]
        timeable = first.type in ("fp16", "bf16") and not first.latent
        cudnn, flashinfer = None, {}
        if peers.torch and timeable and first.even:
            cudnn = peers.time(f"cudnn {first.group}", peers.cudnn_us, first)
        for case in group:
            if peers.flashinfer and timeable and case.page:
                flashinfer[case.name] = peers.time(f"flashinfer {case.name}", peers.flashinfer_us, case)
        try:
            figures, context = ours(options.bench, group)
        except (subprocess.CalledProcessError, ValueError) as error:
            figures = {}
            print(f"{first.group}: {error}", file=sys.stderr)
        for case in group:
            b = figures.get(case.name, {"error_message": "it did not run"})
            us, kind = flashinfer.get(case.name) or (None, None)
            row = {"name": case.name, "bytes": case.bytes, "floor_us": b.get("floor_us"), "pagoda_us": b.get("us"),
                   "bar_us": b.get("bar_us"), "cudnn_us": cudnn, "flashinfer_us": us, "flashinfer_path": kind,
                   "error": b.get("error_message")}
            rows.append(row)
            ratio = f"{b['ratio']:.3f}" if "ratio" in b else "-"
            bar = "-" if row["bar_us"] is None else f"{row['bar_us']:.1f} {'ok' if b['us'] <= b['bar_us'] else '! '}"
            print(f"{case.name:{width}} {text(row['floor_us']):>9} {text(row['pagoda_us']):>9} {ratio:>6} {bar:>9}"
                  f" {text(cudnn):>9} {text(us):>9} {kind or '':2}"
                  + (f"  {row['error']}" if row["error"] else ""), flush=True)
    if options.out:
        with open(options.out, "w") as f:
            json.dump({"context": context, "peers": peers.versions, "notes": peers.notes, "rows": rows}, f, indent=1)
            f.write("\n")
    return 1 if any(row["error"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
