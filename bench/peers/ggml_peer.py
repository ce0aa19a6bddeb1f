# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's kernel: ggml_flash_attn_ext on the CPU, from the shared libraries of an installed ggml or llama.cpp."""

from __future__ import annotations

import array
import ctypes
import ctypes.util
import os
import random

from cases import Case, rotation
from peer import Absent, Peer, host_seconds


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


TYPES = {"fp32": 0, "fp16": 1}  # ggml_type


class Ggml(Peer):
    name = "ggml"

    types = tuple(TYPES)

    def __init__(self, folder: str | None = None) -> None:
        self.base, self.cpu = (self.library(name, folder) for name in ("ggml-base", "ggml-cpu"))
        pointer, i64, f32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
        try:
            for library, function, result, arguments in (
                (self.base, "ggml_init", pointer, [InitParams]),
                (self.base, "ggml_free", None, [pointer]),
                (self.base, "ggml_new_tensor_4d", pointer, [pointer, ctypes.c_int, i64, i64, i64, i64]),
                (self.base, "ggml_get_data", pointer, [pointer]),
                (self.base, "ggml_nbytes", ctypes.c_size_t, [pointer]),
                (self.base, "ggml_flash_attn_ext", pointer, [pointer] * 5 + [f32] * 3),
                (self.base, "ggml_new_graph", pointer, [pointer]),
                (self.base, "ggml_build_forward_expand", None, [pointer, pointer]),
                (self.cpu, "ggml_cpu_init", None, []),
                (self.cpu, "ggml_graph_compute_with_ctx", ctypes.c_int, [pointer, pointer, ctypes.c_int]),
            ):
                getattr(library, function).restype = result
                getattr(library, function).argtypes = arguments
        except AttributeError as error:
            raise Absent(str(error)) from error
        self.cpu.ggml_cpu_init()
        self.threads = len(os.sched_getaffinity(0))
        self.version = os.path.basename(getattr(self.base, "_name", ""))

    @staticmethod
    def library(name: str, folder: str | None) -> ctypes.CDLL:
        found = ctypes.util.find_library(name)
        if folder:
            files = sorted(f for f in os.listdir(folder) if f.startswith(f"lib{name}") and ".so" in f)
            found = os.path.join(folder, files[0]) if files else None
        if not found:
            raise Absent(f"there is no lib{name} ({folder or 'Debian: apt install libggml-dev'})")
        try:
            return ctypes.CDLL(found, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise Absent(str(error)) from error

    def cannot(self, case: Case) -> str | None:
        return super().cannot(case) or (None if case.even else "it takes sequences of one length")

    def fill(self, tensor: int, kind: str, seed: int) -> None:
        """N(0, 1) numbers, repeated every 64 Ki, because Python is too slow for gigabytes."""
        normal = random.Random(seed)
        numbers = [normal.gauss(0, 1) for _ in range(1 << 16)]
        if kind == "fp16":
            import struct

            block = struct.pack(f"{len(numbers)}e", *numbers)
        else:
            block = array.array("f", numbers).tobytes()
        at, size = self.base.ggml_get_data(tensor), self.base.ggml_nbytes(tensor)
        for begin in range(0, size, len(block)):
            ctypes.memmove(at + begin, block, min(len(block), size - begin))

    def time(self, case: Case) -> tuple[float, str]:
        caches = rotation(case.bytes, 64 << 20)[0]
        batch, length = len(case.lengths), case.lengths[0]
        scratch = 64 << 20
        context = self.base.ggml_init(InitParams(caches * (case.bytes + scratch) + scratch, None, False))
        if not context:
            raise RuntimeError("ggml_init failed")
        try:
            graphs = []
            tensor = self.base.ggml_new_tensor_4d
            q = tensor(context, TYPES["fp32"], case.dim, 1, case.q_heads, batch)
            self.fill(q, "fp32", 1)
            for i in range(caches):
                k, v = (tensor(context, TYPES[case.type], case.dim, length, case.kv_heads, batch) for _ in range(2))
                self.fill(k, case.type, 2 * i + 2)
                self.fill(v, case.type, 2 * i + 3)
                out = self.base.ggml_flash_attn_ext(context, q, k, v, None, case.dim**-0.5, 0.0, 0.0)
                graph = self.base.ggml_new_graph(context)
                self.base.ggml_build_forward_expand(graph, out)
                graphs.append(graph)

            def call(i: int) -> None:
                if self.cpu.ggml_graph_compute_with_ctx(context, graphs[i], self.threads) != 0:
                    raise RuntimeError("ggml_graph_compute_with_ctx failed")

            return host_seconds(call, caches) * 1e6, f"contiguous, {self.threads} threads"
        finally:
            self.base.ggml_free(context)
