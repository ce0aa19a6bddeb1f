# SPDX-License-Identifier: Apache-2.0
"""What a decode called from Python takes beyond the same call from C++.

    OMP_NUM_THREADS=1 taskset -c 1 python bench/python_overhead.py

One sequence of one token, one head: the least work that a decode can have. Both calls write the same arrays in one
process. Prints the best of many rounds, in microseconds."""

from __future__ import annotations

import importlib.util
import timeit

import numpy as np

import pagoda

CALLS, ROUNDS = 2000, 25


def best(call) -> float:
    return min(timeit.repeat(call, number=CALLS, repeat=ROUNDS)) / CALLS * 1e6


def measure(library: str, convert) -> None:
    k = convert(np.ones((1, 16, 1, 64), np.float32))
    cache = pagoda.PagedCache(k, k, convert(np.zeros((1, 1), np.int32)), convert(np.ones(1, np.int32)))
    q, out = (convert(np.ones((1, 1, 64), np.float32)) for _ in range(2))
    plan = pagoda.plan(cache, num_q_heads=1)
    cpp = min(plan._seconds_per_call(q, cache, out, CALLS) for _ in range(ROUNDS)) * 1e6
    given, new = best(lambda: plan.decode(q, cache, out)), best(lambda: plan.decode(q, cache))
    print(
        f"{library}: C++ {cpp:.2f} us; from Python with out= {given:.2f} us ({given - cpp:+.2f}), with a new output "
        f"{new:.2f} us ({new - cpp:+.2f})"
    )


print(pagoda.configuration())
measure("NumPy", lambda array: array)
if importlib.util.find_spec("torch"):
    import torch

    measure("PyTorch", torch.from_numpy)
