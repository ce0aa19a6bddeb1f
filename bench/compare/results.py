# SPDX-License-Identifier: Apache-2.0
"""Reads results of the benchmarks, from any number of machines, and joins them by name.

Four forms are read: Google Benchmark's JSON (pagoda_bench_decode, pagoda_bench_study, bench/peers/compare.py), the JSON
lines that `--resume` writes, the JSON of pagoda-serve, and the JSON of ci/gpu.sh, which holds the others.

The second part of a name like decode/generic/fp16/32x8x128/B32/S8192/page16 is a backend of Pagoda or another
library. In prefix/packed/fp16/32x8x128/tree4/page32 it is the way of decoding (plain, packed, packed32, per-head, tree, chain). Rows
that agree in all other parts are the same problem. In the study (study/K1/...) the backend is in the label; the prefix cuda-
of a part (study/K1/cuda-flash/...) is dropped.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterable, Iterator

SUFFIX = "/manual_time"
TO_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
PEERS = {
    "cudnn": "cuDNN",
    "flash-attention": "FlashAttention (torch)",
    "flashinfer": "FlashInfer",
    "torch-cpu": "PyTorch (CPU)",
    "ggml": "ggml (llama.cpp)",
}


#: Steps for which a plan of shared prefixes serves in figures "planned once every N steps". It serves until sequences
#: come or leave, or pages that they share change; growth needs no new plan.
PLAN_STEPS = 32


class Unreadable(Exception):
    """A file in no known form."""


@dataclass(frozen=True)
class Column:
    """A backend (or another library) of one build on one device."""

    device: str
    space: str
    git: str
    backend: str

    @property
    def is_peer(self) -> bool:
        return self.backend in PEERS

    @property
    def on_host(self) -> bool:
        return self.space not in ("Cuda", "HIP", "SYCL")

    @property
    def machine(self) -> str:
        return self.device.replace("NVIDIA ", "")

    @property
    def label(self) -> str:
        return f"{self.machine}, {PEERS.get(self.backend, self.backend)}, {self.git}"


@dataclass
class Samples:
    """The same problem, measured once or several times in one column."""

    key: str
    us: list[float] = field(default_factory=list)
    floors: list[float] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    label: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.us)

    @property
    def floor(self) -> float | None:
        return statistics.median(self.floors) if self.floors else None

    @property
    def ratio(self) -> float | None:
        """Time over that of the bare read. Each time is compared with the read of its own run."""
        if not self.floors or len(self.floors) != len(self.us):
            return None
        return statistics.median(us / floor for us, floor in zip(self.us, self.floors))

    @property
    def spread(self) -> float | None:
        """Largest minus smallest, as a fraction of the median; None of a single measurement."""
        return (max(self.us) - min(self.us)) / self.median if len(self.us) > 1 else None


def us_text(us: float | None) -> str:
    return "-" if us is None else f"{us:.0f}" if us >= 1000 else f"{us:.1f}"


def with_planning(samples: Samples, steps: int) -> float | None:
    """us of a decode through PrefixDecoder with its share of the host's work, one decode in each step: a new plan and the
    copy of its list once in so many steps, and in the other steps a look whether the plan holds."""
    c = samples.counters
    if "is_packed" not in c or "planning_us" not in c:
        return None
    return samples.median + (c.get("update_us", c["planning_us"]) + (steps - 1) * c.get("holds_us", 0)) / steps


@dataclass
class Results:
    rows: dict[str, dict[Column, Samples]] = field(default_factory=dict)  #: by key, in the order of the files
    contexts: dict[Column, dict[str, Any]] = field(default_factory=dict)
    serve: list[tuple[Column, dict[str, Any]]] = field(default_factory=list)
    errors: list[tuple[str, Column, str]] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    @property
    def columns(self) -> list[Column]:
        return list(self.contexts)

    @property
    def own(self) -> list[Column]:
        return [c for c in self.columns if not c.is_peer]

    def get(self, column: Column, key: str) -> Samples | None:
        return self.rows.get(key, {}).get(column)

    def us(self, column: Column, key: str) -> float | None:
        found = self.get(column, key)
        return found.median if found else None

    def of(self, column: Column, pattern: str) -> list[tuple[re.Match[str], Samples]]:
        """Rows of a column whose whole key matches."""
        compiled = re.compile(pattern)
        return [
            (match, by[column]) for key, by in self.rows.items() if column in by and (match := compiled.fullmatch(key))
        ]

    def add(self, column: Column, key: str, context: dict[str, Any], row: dict[str, Any]) -> None:
        self.contexts.setdefault(column, context)
        if row.get("error_occurred") or row.get("error_message"):
            self.errors.append((key, column, row.get("error_message", "it failed")))
            return
        us = row.get("us", row["real_time"] * TO_US[row.get("time_unit", "ns")])
        samples = self.rows.setdefault(key, {}).setdefault(column, Samples(key))
        samples.us.append(us)
        if row.get("floor_us"):
            samples.floors.append(row["floor_us"])
        samples.counters = {k: v for k, v in row.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
        samples.label = row.get("label", "")


def split_name(name: str, label: str = "") -> tuple[str, str]:
    """(backend, key): the key is the name without the backend."""
    parts = name.removesuffix(SUFFIX).split("/")
    if parts[0] in ("decode", "serve", "prefix") and len(parts) > 2:
        return parts[1], "/".join([parts[0], *parts[2:]])
    found = re.search(r"backend: ([\w-]+)", label)
    return found[1] if found else "generic", "/".join(part.removeprefix("cuda-") for part in parts)


def column_of(context: dict[str, Any], backend: str) -> Column:
    git = context.get("git", "?").removesuffix("-dirty")[:7]
    dirty = "+" if context.get("git_dirty") == "yes" or context.get("git", "").endswith("-dirty") else ""
    return Column(context.get("device", "?"), context.get("execution_space", "?"), git + dirty, backend)


def add_benchmarks(into: Results, report: dict[str, Any]) -> None:
    context = report["context"]
    for row in report["benchmarks"]:
        if row.get("run_type", "iteration") != "iteration":
            continue  # means and other statistics of the same rows
        backend, key = split_name(row["name"], row.get("label", ""))
        into.add(column_of(context, backend), key, context, row)


def add_serve(into: Results, report: dict[str, Any]) -> None:
    """Rows of a served trace: a decode step of each pool, with the bare read of the same bytes."""
    options, build, machine = report["options"], report["build"], report["machine"]
    context = {
        "device": machine["device"],
        "execution_space": machine["execution_space"],
        "git": build["git_hash"],
        "compiler": build["compiler"],
        "kokkos_version": build["kokkos_version"],
    }
    trace = Path(options["trace"]).stem
    gigabytes = report["bytes_for_each_pool"] * 1e-9
    for pool, layout in (("contiguous", "contiguous"), ("paged", f"page{options['page_size']}")):
        r = report[pool]
        column = column_of(context, r["backend"])
        key = f"serve/{options['type']}/{options['model']}/{trace}/{gigabytes:g}GB/{layout}"
        steps = r["steps"]
        context["steps"] = len(steps)
        read = r["streaming_read"]["bytes"] / r["streaming_read"]["seconds"]
        for step in steps:
            into.add(
                column,
                key,
                context,
                {
                    "us": step["seconds"] * 1e6,
                    "floor_us": step["bytes"] / read * 1e6,
                    "bytes": step["bytes"],
                    "live": step["live"],
                    "real_time": 0,
                },
            )
        if pool == "paged":
            into.serve.append((column, report))


def load_lines(text: str) -> dict[str, Any]:
    """A file of `--resume`. The last line may be incomplete if the run was killed."""
    lines = [line for line in text.splitlines() if line.strip()]
    report: dict[str, Any] = {"context": None, "benchmarks": []}
    for number, line in enumerate(lines):
        try:
            entry = json.loads(line)
        except ValueError:
            if number + 1 == len(lines):
                break
            raise
        if "context" in entry:
            report["context"] = entry["context"]
        else:
            report["benchmarks"].append(entry)
    return report


def add_report(into: Results, report: Any) -> None:
    if not isinstance(report, dict):
        raise Unreadable("the JSON is not an object")
    if report.get("context") and "benchmarks" in report:
        add_benchmarks(into, report)
    elif "same_batch" in report and "machine" in report:
        add_serve(into, report)
    elif "preset" in report and "summary" in report:
        for kind in ("benchmarks", "demo"):
            for entry in report.get(kind, {}).values():
                if entry.get("report"):
                    add_report(into, entry["report"])
    else:
        raise Unreadable("it comes neither from Google Benchmark, nor from pagoda-serve, nor from ci/gpu.sh")


def load(paths: Iterable[str | Path]) -> Results:
    results = Results()
    for path in paths:
        try:
            text = Path(path).read_text()
            try:
                report = json.loads(text)
                if "benchmarks" not in report and "context" in report:
                    report = load_lines(text)  # no benchmark was finished yet
            except ValueError:
                report = load_lines(text)
            add_report(results, report)
        except (OSError, ValueError, KeyError, TypeError, Unreadable) as error:
            raise Unreadable(f"{path}: {error!r}" if isinstance(error, KeyError) else f"{path}: {error}") from error
        results.files.append(str(path))
    return results


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs))


SIZES = ((0, 16e6, "below 16 MB"), (16e6, 128e6, "16 to 128 MB"), (128e6, math.inf, "128 MB and more"))


def distances(results: Results) -> Iterator[tuple[Column, str, str, list[Samples]]]:
    """Decodes with a floor, by backend, element type and size: (column, type, size, rows)."""
    for column in results.columns:
        groups: dict[tuple[str, int], list[Samples]] = {}
        for match, samples in results.of(column, r"decode/(\w+)/.*"):
            size = samples.counters.get("bytes", 0)
            if samples.ratio is not None:
                bucket = next(i for i, (low, high, _) in enumerate(SIZES) if low <= size < high)
                groups.setdefault((match[1], bucket), []).append(samples)
        for (kind, bucket), rows in sorted(groups.items()):
            yield column, kind, SIZES[bucket][2], rows


def slower_defaults(results: Results) -> Iterator[tuple[Column, Column, Samples, Samples]]:
    """Decodes whose default backend takes more than 0.5% + 0.5 us longer than another one of the same build: (default's
    column, the other's, default's times, the other's). Rows say in `is_default` whether their backend is the default."""
    for by in results.rows.values():
        for column, samples in by.items():
            if column.is_peer or not samples.counters.get("is_default"):
                continue
            for other, theirs in by.items():
                same_build = (other.device, other.space, other.git) == (column.device, column.space, column.git)
                if same_build and other != column and samples.median > 1.005 * theirs.median + 0.5:
                    yield column, other, samples, theirs
