# SPDX-License-Identifier: Apache-2.0
"""Which published claims hold here: each is judged from the data alone, and what was not measured is said to be so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import published as p
from results import Column, Results, geometric_mean

HOLDS, PARTLY, FAILS, NOT_MEASURED = "holds", "in part", "does not hold", "not measured"


@dataclass(frozen=True)
class Finding:
    """What one column has to say to a claim."""

    column: Column
    ours: str
    verdict: str
    why: str = ""  #: where it differs


@dataclass(frozen=True)
class Claim:
    source: str
    text: str
    published: str
    needs: str  #: what to run to judge it
    judge: Callable[[Results, Column], Finding | None]


def gb_per_s(tokens: int, us: float) -> float:
    """Of the study's cache: fp32, one head, head_dim 128, keys and values."""
    return 8 * 128 * tokens / us * 1e-3


def curve(results: Results, column: Column, what: str) -> dict[int, float]:
    """us by T of one curve of K1."""
    return {int(m[1]): s.median for m, s in results.of(column, rf"study/K1/{what}/T(\d+)")}


def flash_curve(results: Results, column: Column) -> dict[int, float]:
    """K1's kernel, which pagoda_bench_decode times too."""
    found = {int(m[1]): s.median for m, s in results.of(column, r"decode/fp32/1x1x128/B1/S(\d+)/contiguous")}
    return found | curve(results, column, "flash")


def number(x: float) -> str:
    """Three digits, and no exponent."""
    return f"{x:.0f}" if x >= 100 else f"{x:.3g}"


def times(x: float) -> str:
    return f"{x:.2f}x" if x < 10 else f"{x:.0f}x"


def ends(curve_us: dict[int, float]) -> tuple[int, int]:
    return min(curve_us), max(curve_us)


def speed_up(results: Results, column: Column) -> Finding | None:
    flash, base = curve(results, column, "flash"), curve(results, column, "three-kernels")
    both = sorted(flash.keys() & base.keys())
    if not both:
        return None
    ratio = {t: base[t] / flash[t] for t in both}
    ours = "; ".join(f"T = {t}: {times(ratio[t])}" for t in dict.fromkeys((both[0], both[-1])))
    if ratio[both[-1]] >= 28:
        return Finding(column, ours, HOLDS)
    if min(ratio.values()) > 1:
        why = (
            "The baseline is Kokkos code with as many threads to a team as Kokkos chooses; on a CPU its three passes "
            "differ from one by what they read and write, not by idle multiprocessors."
            if column.on_host
            else "Faster at every length, by another factor: how much the one-team softmax loses depends on how many "
            "multiprocessors stand idle beside it, and on the longest T measured."
        )
        return Finding(column, ours, PARTLY, why)
    slower = ", ".join(str(t) for t in both if ratio[t] <= 1)
    return Finding(column, ours, FAILS, f"The baseline is as fast or faster at T = {slower}.")


def flash_grows(results: Results, column: Column) -> Finding | None:
    found = flash_curve(results, column)
    if len(found) < 2:
        return None
    first, last = ends(found)
    a, b = gb_per_s(first, found[first]), gb_per_s(last, found[last])
    ours = f"{number(a)} GB/s at T = {first}, {number(b)} at {last}"
    if b > 1.5 * a:
        return Finding(column, ours, HOLDS)
    return Finding(
        column,
        ours,
        PARTLY if b > a else FAILS,
        "Few cores are busy with few tokens already, so there is little left to gain." if column.on_host else "",
    )


def baseline_falls(results: Results, column: Column) -> Finding | None:
    found = curve(results, column, "three-kernels")
    if len(found) < 2:
        return None
    first, last = ends(found)
    best = min(found, key=lambda t: found[t] / t)
    speed = {t: gb_per_s(t, found[t]) for t in (first, best, last)}
    ours = ", ".join(f"{number(v)} GB/s at T = {t}" for t, v in speed.items())
    if speed[last] < 0.9 * speed[first]:
        return Finding(column, ours, HOLDS)
    if speed[last] < 0.9 * speed[best]:
        return Finding(column, ours, PARTLY, "It rises until launches no longer count, and falls from there.")
    return Finding(
        column,
        ours,
        FAILS,
        (
            "With few cores there is no idle machine beside the one team."
            if column.on_host
            else "The last kernel, a thread for each output element over all tokens, takes most of the time at every length."
        ),
    )


def best_split(results: Results, column: Column) -> Finding | None:
    by_length: dict[int, dict[int, float]] = {}
    for match, samples in results.of(column, r"study/K2/splits(\d+)/T(\d+)"):
        by_length.setdefault(int(match[2]), {})[int(match[1])] = samples.median
    if not by_length:
        return None
    longest = max(by_length)
    found = by_length[longest]
    best = min(found, key=lambda n: found[n])
    near = sorted(n for n in found if found[n] <= 1.005 * found[best])
    least = min(found)
    ours = (
        f"T = {longest}: {best} splits (of {', '.join(map(str, sorted(found)))}), {number(gb_per_s(longest, found[best]))} GB/s; within 0.5%: "
        f"{', '.join(map(str, near))}; {least} splits take {times(found[least] / found[best])} as long"
    )
    own = flash_curve(results, column).get(longest)
    if own:
        ours += f"; the library's own choice {times(own / found[best])}"
    if 128 in near:
        return Finding(column, ours, HOLDS)
    return Finding(
        column,
        ours,
        FAILS,
        "The best number follows the machine, not the length: as many pieces as keep all "
        f"{'threads' if column.on_host else 'multiprocessors'} busy, here "
        + ("far fewer." if best < 128 else "more, as there are more of them than the A40's 84."),
    )


def three_ways(results: Results, column: Column, length: int, page: int) -> dict[str, float]:
    """Paged over contiguous: as the study timed it, without the copy, batched."""
    found = {}
    for mode, against in (("serial-copy", "serial"), ("serial", "serial"), ("batched", "batched")):
        paged = results.us(column, f"study/K4/{mode}/T{length}/page{page}")
        contiguous = results.us(column, f"study/K4/{against}/T{length}/contiguous")
        if paged and contiguous:
            found[mode] = paged / contiguous
    return found


MODE_TEXT = {"serial-copy": "as the study timed it", "serial": "without the copy", "batched": "batched in one call"}


def paged_cost(results: Results, column: Column) -> Finding | None:
    parts, at_512 = [], {}
    for length in (512, 2048):
        found = three_ways(results, column, length, 16)
        if length == 512:
            at_512 = found
        if found:
            parts.append(f"T = {length}: " + ", ".join(f"{times(v)} {MODE_TEXT[m]}" for m, v in found.items()))
    large = [
        paged.median / contiguous.median
        for match, paged in results.of(column, r"decode/(.*)/page16")
        if paged.median >= 100 and (contiguous := results.get(column, f"decode/{match[1]}/contiguous"))
    ]
    if large:
        parts.append(
            f"{len(large)} decodes of 100 us or more, batched: {times(geometric_mean(large))} on average, "
            f"{times(min(large))} to {times(max(large))}"
        )
    if not parts:
        return None
    ours = "; ".join(parts)
    copied, plain, batched = (at_512.get(m) for m in ("serial-copy", "serial", "batched"))
    why = "What paging costs in a batch is the order in memory and the look-up."
    if copied and plain and batched:
        share = copied / plain
        why = (
            f"The blocking copy of the block table in the timed loop makes {times(share)} of it; "
            if share > 1.1
            else f"The blocking copy of the block table hardly counts here ({times(share)}); "
        )
        why += f"without it paging costs {times(plain)}, and {times(batched)} where one call decodes all sequences."
    ways = [way for way in (*at_512.values(), max(large, default=None)) if way]
    verdict = HOLDS if min(ways, default=0) >= 1.6 else PARTLY if max(ways, default=0) >= 1.6 else FAILS
    return Finding(column, ours, verdict, why)


def page_size(results: Results, column: Column) -> Finding | None:
    parts, flat, small = [], True, []
    for key, mode in (
        (r"study/K4/serial-copy/T512/page(\d+)", "as the study timed it, T = 512"),
        (r"study/K4/batched/T512/page(\d+)", "batched, T = 512"),
        (r"study/K4/batched/T2048/page(\d+)", "batched, T = 2048"),
        (r"decode/fp16/32x8x128/B32/S8192/page(\d+)", "fp16 32/8, 32 x 8192"),
    ):
        found = {int(m[1]): s.median for m, s in results.of(column, key)}
        usual = [v for page, v in found.items() if 16 <= page <= 256]
        if len(usual) < 2:
            continue
        span = max(usual) / min(usual)
        flat = flat and span < 1.05
        text = f"{mode}: pages of 16 to 256 differ by up to {100 * (span - 1):.0f}%"
        if 1 in found:
            small.append(found[1] / min(usual))
            text += f", page 1 {times(small[-1])}"
        parts.append(text)
    if not parts:
        return None
    if not flat:
        return Finding(column, "; ".join(parts), PARTLY, "Larger pages read longer runs of memory.")
    if small and max(small) > 1.03:
        return Finding(
            column,
            "; ".join(parts),
            HOLDS,
            "Below 16, which the study did not measure, a page for each "
            "token does cost: one row is all that is read in a run.",
        )
    return Finding(column, "; ".join(parts), HOLDS)


def capacity(results: Results, column: Column) -> Finding | None:
    sequences: dict[tuple[str, int], float] = {}
    budget = ""
    for match, samples in results.of(column, r"study/K3/(paged|contiguous)/max(\d+)/(\w+)"):
        sequences[match[1], int(match[2])] = samples.counters["sequences"]
        budget = match[3]
    ratios = {
        m: sequences["paged", m] / n
        for (kind, m), n in sequences.items()
        if kind == "contiguous" and ("paged", m) in sequences
    }
    if not ratios:
        return None
    ours = f"{budget}, by max_seq_len: " + ", ".join(f"{r:.3g}x at {m}" for m, r in sorted(ratios.items()))
    wanted = {m: r for m, r in p.A40_CAPACITY.items() if m in ratios}
    return Finding(
        column, ours, HOLDS if wanted and all(abs(ratios[m] / r - 1) < 0.01 for m, r in wanted.items()) else FAILS
    )


def memory_bound(results: Results, column: Column) -> Finding | None:
    rows = [
        (int(m[1]), s, s.ratio)
        for pattern in (r"decode/fp32/1x1x128/B1/S(\d+)/contiguous", r"study/K1/flash/T(\d+)")
        for m, s in results.of(column, pattern)
        if s.ratio
    ]
    if not rows:
        return None
    longest = max(t for t, _, _ in rows)
    samples, ratio = [(s, r) for t, s, r in rows if t == longest][-1]
    share = 100 / ratio
    ours = f"{share:.0f}% of a bare read at T = {longest}, {number(gb_per_s(longest, samples.median))} GB/s"
    return Finding(
        column,
        ours,
        HOLDS if share >= 73 else PARTLY if share >= 50 else FAILS,
        "" if share >= 73 else "The read is not all that takes time here.",
    )


def transfers(results: Results, column: Column) -> Finding | None:
    if column.on_host:
        return None  # nothing is transferred there
    rows = {int(m[1]): s for m, s in results.of(column, r"study/K1/flash-end-to-end/T(\d+)")}
    if not rows:
        return None
    longest = max(rows)
    share = rows[longest].counters["transfer_us"] / rows[longest].median
    kernel = flash_curve(results, column).get(longest)
    ours = f"T = {longest}: transfers are {100 * share:.0f}%"
    if kernel:
        ours += (
            f"; {number(gb_per_s(longest, rows[longest].median))} GB/s end to end, {number(gb_per_s(longest, kernel))} in "
            "the kernel"
        )
    return Finding(column, ours, HOLDS if share > 0.5 else FAILS)


def baseline_end_to_end(results: Results, column: Column) -> Finding | None:
    if column.on_host:
        return None
    flash, base = curve(results, column, "flash-end-to-end"), curve(results, column, "three-kernels-end-to-end")
    both = flash.keys() & base.keys()
    if not both:
        return None
    longest = max(both)
    ratio = base[longest] / flash[longest]
    return Finding(
        column,
        f"T = {longest}: {times(ratio)}",
        HOLDS if 1.4 <= ratio <= 1.8 else PARTLY if ratio > 1 else FAILS,
        (
            ""
            if 1.4 <= ratio <= 1.8
            else "It is the baseline's kernel time over the time of the transfers, and " "both are another machine's."
        ),
    )


def table_f(results: Results, column: Column) -> dict[tuple[int, int], float]:
    found = {}
    for batch, length in p.FLASH_DECODING_SHAPES:
        us = results.us(column, p.table_f_key(batch, length)) or results.us(
            column, p.table_f_key(batch, length, "contiguous")
        )
        if us:
            found[batch, length] = us
    return found


def flat(results: Results, column: Column) -> Finding | None:
    found = table_f(results, column)
    if not {(256, 256), (2, 32768)} <= found.keys():
        return None
    to_32k = [us for (_, length), us in found.items() if length <= 32768]
    span, theirs = max(to_32k) / min(to_32k), max(p.A100_FLASH_DECODING[:8]) / min(p.A100_FLASH_DECODING[:8])
    ours = f"{number(min(to_32k))} to {number(max(to_32k))} us up to 32k, {times(span)} (published: {times(theirs)})"
    if (1, 65536) in found:
        ours += f"; {number(found[1, 65536])} us at 64k"
    return Finding(
        column,
        ours,
        HOLDS if span <= theirs else PARTLY if span < 2 else FAILS,
        (
            ""
            if span <= theirs
            else "The bare read is the same for all rows, so the joins of long rows show; on "
            "the A100 they drown in what every row takes there."
        ),
    )


def over_flash_attention(results: Results, column: Column) -> Finding | None:
    ours_us = table_f(results, column)
    for other in results.columns:
        if other.backend == "flash-attention" and (other.device, other.git) == (column.device, column.git):
            theirs = table_f(results, other)
            ratios = {shape: theirs[shape] / ours_us[shape] for shape in theirs.keys() & ours_us.keys()}
            if ratios:
                longest = max(ratios, key=lambda shape: shape[1])
                text = (
                    f"{times(min(ratios.values()))} to {times(max(ratios.values()))}; {times(ratios[longest])} at "
                    f"B = {longest[0]}, S = {longest[1]}"
                )
                return Finding(
                    column,
                    text,
                    HOLDS if ratios[longest] >= 20 else PARTLY,
                    (
                        ""
                        if ratios[longest] >= 20
                        else "FlashAttention has cut long rows itself since its "
                        "version 2.2: what is timed here is no longer the 2.0.9 of the table."
                    ),
                )
    return None


def trace(results: Results, column: Column) -> Finding | None:
    for other, report in results.serve:
        if other == column:
            more = report["paged"]["live_mean"] / report["contiguous"]["live_mean"]
            slower = report["same_batch"]["paged_seconds"] / report["same_batch"]["contiguous_seconds"]
            return Finding(
                column,
                f"{times(more)} the sequences live in {report['bytes_for_each_pool'] * 1e-9:g} GB; the "
                f"same batch takes {times(slower)} as long",
                HOLDS if more > slower else FAILS,
            )
    return None


STUDY_BENCH, DECODE_BENCH = "pagoda_bench_study", "pagoda_bench_decode"

CLAIMS = (
    Claim(
        p.STUDY,
        "Flash-decode is up to 28x as fast as a baseline of three kernels",
        "4.4x at T = 4096, 28x at 2097152",
        STUDY_BENCH,
        speed_up,
    ),
    Claim(
        p.STUDY,
        "Its throughput grows with T",
        "157 GB/s at T = 4096, 511 at 2097152 (73% of the A40's peak)",
        STUDY_BENCH,
        flash_grows,
    ),
    Claim(
        p.STUDY,
        "The baseline's throughput falls with T",
        "35 GB/s at T = 4096, 18 at 2097152",
        STUDY_BENCH,
        baseline_falls,
    ),
    Claim(p.STUDY, "128 splits are best", "128 and 256 within 0.5%; 16 take 4.5x as long", STUDY_BENCH, best_split),
    Claim(
        p.STUDY, "Paging costs 1.8x", "1.79x at N = 64, T = 512, one call for each sequence", STUDY_BENCH, paged_cost
    ),
    Claim(p.STUDY, "Page size has no effect on throughput", "pages of 16 to 256 the same", STUDY_BENCH, page_size),
    Claim(
        p.STUDY,
        "Paging holds 4x and 8x the sequences",
        "4 GB, 512 tokens: 4x at max_seq_len 2048, 8x at 4096",
        STUDY_BENCH,
        capacity,
    ),
    Claim(
        p.STUDY, "Decode attention is bound by memory", "511 of the A40's 696 GB/s (73%)", DECODE_BENCH, memory_bound
    ),
    Claim(
        p.STUDY,
        "End to end, PCIe transfers are most of the time",
        "63% at T = 2097152; 10.8 GB/s against 511",
        f"{STUDY_BENCH} on a GPU",
        transfers,
    ),
    Claim(
        p.STUDY,
        "End to end the baseline is 1.6x slower",
        "1.5x to 1.6x at large T",
        f"{STUDY_BENCH} on a GPU",
        baseline_end_to_end,
    ),
    Claim(
        p.STUDY,
        "Capacity outweighs what paging costs per token (left open there)",
        "not measured there",
        "pagoda-serve --json",
        trace,
    ),
    Claim(
        p.FLASH_DECODING,
        "Run time is almost constant up to 32k",
        "56 to 78 us up to 32k, 64 us at 64k",
        DECODE_BENCH,
        flat,
    ),
    Claim(
        p.FLASH_DECODING,
        "Up to 50x as fast as FlashAttention-2",
        "5x to 43x over 2.0.9; 43x at B = 1, S = 131072",
        "bench/peers/compare.py on a GPU",
        over_flash_attention,
    ),
)


def judge_all(results: Results) -> list[tuple[Claim, list[Finding]]]:
    return [(claim, [f for column in results.own if (f := claim.judge(results, column))]) for claim in CLAIMS]
