# SPDX-License-Identifier: Apache-2.0
"""The interface of libraries that are timed beside Pagoda."""

from __future__ import annotations

import time
from typing import Callable

from cases import Case


class Absent(Exception):
    """The library is missing or unusable; the message has the reason."""


class Peer:
    """A library: its name in results, and whether it reads the pages of a case or a contiguous cache of its own (which
    is then timed once for all page sizes)."""

    name = ""
    paged = False
    version = ""
    types: tuple[str, ...] = ()
    latents: tuple[tuple[str, int], ...] = ()  #: types and head_dims of latent caches

    def failed_ways(self) -> dict[str, str]:
        """First errors of its ways to decode that could not be timed, where it has several and takes the fastest."""
        return {}

    def cannot(self, case: Case) -> str | None:
        """The reason for not timing a case, or None. No peer is timed with several query tokens, HND pages or
        score options."""
        known = (case.type, case.dim) in self.latents if case.latent else case.type in self.types
        if case.has_options:
            return "its score options"
        return None if known and case.q_tokens == 1 and not case.by_head else "its type or shape"

    def time(self, case: Case) -> tuple[float, str]:
        """(microseconds of a decode, how)."""
        raise NotImplementedError


def host_seconds(call: Callable[[int], None], caches: int, most_seconds: float = 2) -> float:
    """The fastest of many calls on caches in turns, as bench/decode/timing.hpp times a host."""
    call(0)
    least, begin, i = float("inf"), time.perf_counter(), 1
    while i < 4 or (i < 31 and time.perf_counter() - begin < most_seconds):
        start = time.perf_counter()
        call(i % caches)
        least = min(least, time.perf_counter() - start)
        i += 1
    return least
