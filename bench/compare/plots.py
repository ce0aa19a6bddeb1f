# SPDX-License-Identifier: Apache-2.0
"""The plots of the report. Each function returns a figure, or None without data."""

from __future__ import annotations

from typing import Any, Callable

import published as p
from curves import FLASH, MODE_TEXT, TABLE_F, gb_per_s, k1
from figures import COLORS, GREY, MISSING, axis_of_powers, finish, from_zero, log_y, new, tokens_text
from prefix_plot import prefix_trees
from results import PEERS, Column, Results

if not MISSING:
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter

MARKERS = {"fp32": "s", "fp16": "o", "bf16": "^", "fp8_e4m3": "D", "fp8_e5m2": "d", "int8": "P", "int4": "X"}


def floor_curve(results: Results, column: Column) -> dict[int, float]:
    rows = results.of(column, r"decode/fp32/1x1x128/B1/S(\d+)/contiguous") + results.of(
        column, r"study/K1/flash/T(\d+)"
    )
    return {int(m[1]): s.floor for m, s in rows if s.floor}


def throughput(results: Results) -> Any:
    columns = [c for c in results.own if len(FLASH.read(results, c)) > 1]
    if not columns:
        return None
    figure, axes = new("One head, fp32, head_dim 128: keys and values read, kernel alone", len(columns))
    for axis, column in zip(axes, columns):
        curves = (
            ("bare read", floor_curve(results, column), GREY, "--"),
            ("flash decode", FLASH.read(results, column), COLORS[0], "-"),
            ("three kernels", k1("three-kernels").read(results, column), COLORS[1], "-"),
            ("reference, one core, float64", k1("cpu-reference").read(results, column), COLORS[5], "-"),
        )
        ticks: set[int] = set()
        for name, found, color, line in curves:
            if found:
                ts = sorted(found)
                ticks |= set(ts)
                axis.plot(ts, [gb_per_s(t, found[t]) for t in ts], line, color=color, marker=".", label=name)
        if not column.on_host:
            for name, ends, color in (
                ("A40 study: flash decode", p.A40_FLASH, COLORS[0]),
                ("A40 study: baseline", p.A40_BASELINE, COLORS[1]),
            ):
                axis.plot(
                    list(ends),
                    list(ends.values()),
                    linestyle="none",
                    marker="o",
                    markerfacecolor="none",
                    color=color,
                    label=name,
                )
                ticks |= set(ends)
        axis_of_powers(axis, ticks)
        log_y(axis)
        finish(axis, "tokens T", "GB/s", column.label)
    return figure


def split_counts(results: Results) -> Any:
    columns = [c for c in results.own if results.of(c, r"study/K2/.*")]
    if not columns:
        return None
    figure, axes = new("Split into N batch entries by hand, and merged", len(columns))
    for axis, column in zip(axes, columns):
        by_length: dict[int, dict[int, float]] = {}
        for match, samples in results.of(column, r"study/K2/splits(\d+)/T(\d+)"):
            by_length.setdefault(int(match[2]), {})[int(match[1])] = samples.median
        own = FLASH.read(results, column)
        fewest = min(n for found in by_length.values() for n in found)
        shades = plt.get_cmap("viridis")
        lowest_label = float("inf")
        for i, (length, found) in enumerate(sorted(by_length.items(), reverse=True)):
            color = shades(0.9 - 0.9 * i / max(len(by_length) - 1, 1))
            counts = sorted(found)
            axis.plot(counts, [found[n] for n in counts], color=color, marker=".")
            end = found[counts[-1]]
            if end < 0.8 * lowest_label:  # or it would overlap the previous label
                axis.annotate(f" {tokens_text(length)}", (counts[-1], end), fontsize=8, va="center", color=color)
                lowest_label = end
            if length in own:
                axis.plot([fewest / 1.6], [own[length]], marker="<", color=color, linestyle="none")
        axis.plot([], [], marker="<", color="k", linestyle="none", label="the library's own choice")
        axis_of_powers(axis, {n for f in by_length.values() for n in f}, lambda x, _: f"{x:g}")
        axis.set_xlim(right=1.9 * axis.get_xlim()[1])
        log_y(axis)
        finish(axis, "splits N; at the line's end: tokens T", "us", column.label)
    return figure


def capacity(results: Results) -> Any:
    columns = [c for c in results.own if results.of(c, r"study/K3/.*")]
    if not columns:
        return None
    figure, axes = new("Sequences of 512 tokens that a pool admits", len(columns))
    for axis, column in zip(axes, columns):
        budget = ""
        for kind, color in (("contiguous", COLORS[1]), ("paged", COLORS[0])):
            found = {}
            for match, samples in results.of(column, rf"study/K3/{kind}/max(\d+)/(\w+)"):
                found[int(match[1])], budget = samples.counters["sequences"], match[2]
            lengths = sorted(found)
            axis.plot(lengths, [found[m] for m in lengths], color=color, marker="o", label=kind)
            for m in lengths:
                axis.annotate(
                    f"{found[m]:g}", (m, found[m]), fontsize=7, textcoords="offset points", xytext=(0, 5), ha="center"
                )
        axis_of_powers(axis, lengths, lambda x, _: f"{x:g}")
        axis.set_yscale("log", base=2)
        axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        finish(axis, "max_seq_len", f"sequences in {budget}", column.label)
    return figure


def page_sizes(results: Results) -> Any:
    panels = [
        (c, length) for c in results.own for length in (512, 2048) if results.of(c, rf"study/K4/\w.*/T{length}/page\d+")
    ]
    if not panels:
        return None
    figure, axes = new("64 sequences, one head, fp32: time over that of a contiguous cache, three ways", len(panels))
    for axis, (column, length) in zip(axes, panels):
        pages: set[int] = set()
        for mode, color in zip(MODE_TEXT, (COLORS[1], COLORS[4], COLORS[0])):
            contiguous = results.us(
                column, f"study/K4/{'batched' if mode == 'batched' else 'serial'}/T{length}/contiguous"
            )
            found = {int(m[1]): s.median for m, s in results.of(column, rf"study/K4/{mode}/T{length}/page(\d+)")}
            if contiguous and found:
                sizes = sorted(found)
                pages |= set(sizes)
                axis.plot(sizes, [found[n] / contiguous for n in sizes], color=color, marker=".", label=MODE_TEXT[mode])
        axis.axhline(1, color=GREY, linestyle="--", linewidth=1)
        if length == 512 and not column.on_host:
            axis.axhline(
                p.A40_CONTIGUOUS / p.A40_PAGED, color=GREY, linestyle=":", linewidth=1, label="A40 study, 16 to 256"
            )
        axis_of_powers(axis, pages, lambda x, _: f"{x:g}")
        from_zero(axis)
        finish(axis, "page_size", "paged / contiguous", f"{column.label}, T = {length}")
    return figure


def page_sizes_large(results: Results) -> Any:
    key = r"decode/fp16/32x8x128/B32/S8192/page(\d+)"
    columns = [c for c in results.columns if len(results.of(c, key)) > 1]
    if not columns:
        return None
    figure, (axis,) = new("fp16, 32/8 heads, 32 x 8192, shuffled pages: time over the bare read")
    pages: set[int] = set()
    for color, column in zip(COLORS, columns):
        found = {int(m[1]): s.ratio for m, s in results.of(column, key) if s.ratio}
        sizes = sorted(found)
        pages |= set(sizes)
        axis.plot(sizes, [found[n] for n in sizes], color=color, marker="o", label=column.label)
        contiguous = results.get(column, "decode/fp16/32x8x128/B32/S8192/contiguous")
        if contiguous and contiguous.ratio:
            axis.axhline(contiguous.ratio, color=color, linestyle="--", linewidth=1, label="contiguous")
    axis.axhline(1, color=GREY, linewidth=1)
    axis_of_powers(axis, pages, lambda x, _: f"{x:g}")
    from_zero(axis)
    finish(axis, "page_size", "time / bare read")
    return figure


def end_to_end(results: Results) -> Any:
    # Hosts have no transfers.
    columns = [c for c in results.own if not c.on_host and k1("flash-end-to-end").read(results, c)]
    if not columns:
        return None
    figure, axes = new("End to end: keys and values copied to the device, the output back", len(columns))
    for axis, column in zip(axes, columns):
        ticks: set[int] = set()
        for what, name, color, line in (
            ("flash", "flash decode, kernel", COLORS[0], ":"),
            ("flash-end-to-end", "flash decode, end to end", COLORS[0], "-"),
            ("three-kernels", "three kernels, kernel", COLORS[1], ":"),
            ("three-kernels-end-to-end", "three kernels, end to end", COLORS[1], "-"),
            ("cpu-reference", "reference, one core, float64", COLORS[5], "-"),
        ):
            found = k1(what).read(results, column)
            ts = sorted(found)
            ticks |= set(ts)
            if ts:
                axis.plot(ts, [gb_per_s(t, found[t]) for t in ts], line, color=color, marker=".", label=name)
        axis_of_powers(axis, ticks)
        log_y(axis)
        finish(axis, "tokens T", "GB/s", column.label)
    return figure


def table_f_plot(results: Results) -> Any:
    measured = [c for c in results.columns if TABLE_F.read(results, c) and not c.on_host]
    columns = sorted(measured, key=lambda c: -len(TABLE_F.read(results, c)))
    if not columns:
        return None
    figure, (axis,) = new("Flash-Decoding's table: fp16, 16/2 heads, head_dim 128", width=9)
    places = range(len(p.FLASH_DECODING_SHAPES))
    axis.plot(
        places,
        p.A100_FLASH_ATTENTION_2,
        color=COLORS[5],
        linestyle=":",
        marker=".",
        label="published, A100: FlashAttention-2.0.9",
    )
    axis.plot(places, p.A100_FLASH_DECODING, color=COLORS[5], marker=".", label="published, A100: Flash-Decoding")
    for color, column in zip(COLORS, columns):
        found = TABLE_F.read(results, column)
        at = [(i, found[n]) for i, (_, n) in enumerate(p.FLASH_DECODING_SHAPES) if n in found]
        axis.plot(*zip(*at), color=color, marker="o", linestyle="-" if len(at) > 5 else "none", label=column.label)
    reads = [
        (i, s.floor)
        for i, (b, n) in enumerate(p.FLASH_DECODING_SHAPES)
        if (s := results.get(columns[0], p.table_f_key(b, n))) and s.floor
    ]
    if reads:
        axis.plot(*zip(*reads), color=GREY, linestyle="--", label=f"bare read, {columns[0].machine}")
    axis.set_xticks(list(places), [f"{b}x{tokens_text(n)}" for b, n in p.FLASH_DECODING_SHAPES])
    log_y(axis)
    finish(axis, "batch x tokens", "us")
    return figure


def floor_distance(results: Results) -> Any:
    devices: dict[str, list[Column]] = {}
    for column in results.columns:
        if any(s.ratio for _, s in results.of(column, r"decode/.*")):
            devices.setdefault(column.device, []).append(column)
    if not devices:
        return None
    figure, axes = new("Distance to the floor: time over a bare read of the same bytes", len(devices))
    for axis, (device, columns) in zip(axes, devices.items()):
        types: set[str] = set()
        for color, column in zip(COLORS, columns):
            for match, samples in results.of(column, r"decode/(\w+)/.*"):
                if samples.ratio and "bytes" in samples.counters:
                    types.add(match[1])
                    axis.plot(
                        samples.counters["bytes"] / 1e6,
                        samples.ratio,
                        MARKERS.get(match[1], "v"),
                        color=color,
                        markersize=4,
                        alpha=0.6,
                        markeredgewidth=0,
                    )
            axis.plot(
                [],
                [],
                color=color,
                marker="o",
                linestyle="none",
                label=f"{PEERS.get(column.backend, column.backend)}, {column.git}",
            )
        for kind in sorted(types):
            axis.plot([], [], MARKERS.get(kind, "v"), color=GREY, markersize=4, label=kind)
        axis.axhline(1, color=GREY, linewidth=1)
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        log_y(axis)
        finish(axis, "MB read", "time / bare read", device)
    return figure


PLOTS: tuple[tuple[str, str, Callable[[Results], Any]], ...] = (
    ("floor", "Distance to the floor", floor_distance),
    ("throughput", "Throughput over the length", throughput),
    ("splits", "Latency over the number of splits", split_counts),
    ("capacity", "Capacity", capacity),
    ("pages", "Page size, as the study had it", page_sizes),
    ("pages-large", "Page size, a large batch", page_sizes_large),
    ("end-to-end", "End to end, with transfers", end_to_end),
    ("table-f", "Flash-Decoding's table", table_f_plot),
    ("prefix", "Trees of shared prefixes, as PAT had them", prefix_trees),
)


def save(results: Results, folder: Any) -> dict[str, Any]:
    """Writes a PNG for each plot that has data; paths by name."""
    made = {}
    for name, _, draw in PLOTS:
        figure = draw(results)
        if figure is not None:
            made[name] = folder / f"{name}.png"
            figure.savefig(made[name], dpi=110)
            plt.close(figure)
    return made
