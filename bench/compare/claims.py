# SPDX-License-Identifier: Apache-2.0
"""The published claims, as rules (rules.py); those about lists of entries are in claims_prefix.py. A claim without data is
reported as not measured."""

from __future__ import annotations

import published as p
from claims_prefix import PREFIX_CLAIMS
from curves import FLASH, MODE_TEXT, PAGE_SIZES, TABLE_F, gb_per_s, k1, k4
from results import Results, Samples, geometric_mean
from rules import FAILS, HOLDS, PARTLY, Claim, Curve, Facts, Finding, Point, Rows, Served, judge


def in_words(modes: Curve) -> Curve:
    return Curve({text: modes[mode] for mode, text in MODE_TEXT.items() if mode in modes})


def usual_pages(f: Facts) -> dict[str, Curve]:
    """The curves of PAGE_SIZES, without other page sizes than 16 to 256."""
    curves = {name: getattr(f, name).within(16, 256) for name in PAGE_SIZES}
    return {name: curve for name, curve in curves.items() if len(curve) > 1}


def at_least_100_us(samples: Samples) -> float | None:
    return samples.median if samples.median >= 100 else None


END_TO_END = r"study/K1/flash-end-to-end/T(?P<x>\d+)"
STUDY_BENCH, DECODE_BENCH = "pagoda_bench_study", "pagoda_bench_decode"
PUBLISHED_SPAN = max(p.A100_FLASH_DECODING[:8]) / min(p.A100_FLASH_DECODING[:8])

CLAIMS = (
    Claim(
        p.STUDY, "Flash-decode is up to 28x as fast as a baseline of three kernels",
        "4.4x at T = 4096, 28x at 2097152",
        STUDY_BENCH,
        facts={"ratio": Rows((r"study/K1/three-kernels/T(?P<x>\d+)",), over=("study/K1/flash/T{x}",))},
        ours=("{f.ratio.first:x} at T = {f.ratio.first.at}", "{f.ratio.last:x} at T = {f.ratio.last.at}"),
        holds=lambda f: f.ratio.last >= 28,
        partly=lambda f: f.ratio.lowest > 1,
        why={
            PARTLY: "Faster at every length. The factor follows how many multiprocessors the softmax of one team leaves idle.",
            FAILS: "The baseline takes as long or less at T = {f.ratio.lowest.at}.",
        },
        why_on_host={PARTLY: "On a CPU the baseline loses by memory traffic, not by idle multiprocessors."},
    ),
    Claim(
        p.STUDY, "Its throughput grows with T",
        "157 GB/s at T = 4096, 511 at 2097152 (73% of the A40's peak)",
        STUDY_BENCH,
        facts={"us": FLASH, "speed": lambda f: f.us.map(gb_per_s)},
        ours=("{f.speed.first} GB/s at T = {f.speed.first.at}, {f.speed.last} at {f.speed.last.at}",),
        holds=lambda f: f.speed.last > 1.5 * f.speed.first,
        partly=lambda f: f.speed.last > f.speed.first,
        why_on_host=dict.fromkeys((PARTLY, FAILS), "A few tokens already keep a few cores busy."),
    ),
    Claim(
        p.STUDY, "The baseline's throughput falls with T",
        "35 GB/s at T = 4096, 18 at 2097152",
        STUDY_BENCH,
        facts={"us": k1("three-kernels"), "speed": lambda f: f.us.map(gb_per_s)},
        ours=(
            "{f.speed.first} GB/s at T = {f.speed.first.at}, {f.speed.last} at {f.speed.last.at}",
            "highest {f.speed.highest} at {f.speed.highest.at}",
        ),
        holds=lambda f: f.speed.last < 0.9 * f.speed.first,
        partly=lambda f: f.speed.last < 0.9 * f.speed.highest,
        why={
            PARTLY: "It rises while launches count, then falls.",
            FAILS: "Its last kernel (one thread for each output element, over all tokens) takes most of the time at every length.",
        },
        why_on_host={FAILS: "Few cores are idle beside the one team."},
    ),
    Claim(
        p.STUDY, "128 splits are best",
        "128 and 256 within 0.5%; 16 take 4.5x as long",
        STUDY_BENCH,
        facts={
            "us": Rows((r"study/K2/splits(?P<x>\d+)/T(?P<longest>\d+)",)),
            "lengths": Rows((r"study/K2/splits\d+/T(?P<x>\d+)",)),
            "T": lambda f: f.lengths.last.at,
            "counts": lambda f: ", ".join(map(str, sorted(f.us))),
            "near": lambda f: ", ".join(str(n) for n in sorted(f.us) if f.us[n] <= 1.005 * f.us.lowest),
            "speed": lambda f: f.us.map(lambda _, us: gb_per_s(f.T, us)),
            "relative": lambda f: f.us.map(lambda _, us: us / f.us.lowest),
            "flash": FLASH,
            "own": lambda f: f.flash.map(lambda _, us: us / f.us.lowest)[f.T],
        },
        ours=(
            "T = {f.T}: {f.us.lowest.at} splits (of {f.counts}), {f.speed.highest} GB/s",
            "within 0.5%: {f.near}",
            "{f.relative.first.at} splits take {f.relative.first:x} as long",
            "the library's own choice {f.own:x}",
        ),
        holds=lambda f: f.us[128] <= 1.005 * f.us.lowest,
        why={FAILS: "The best number follows the machine: as many splits as keep all multiprocessors busy."},
        why_on_host={FAILS: "The best number follows the machine: as many splits as keep all threads busy."},
    ),
    Claim(
        p.STUDY, "Paging costs 1.8x",
        "1.79x at N = 64, T = 512, one call for each sequence",
        STUDY_BENCH,
        facts={
            "short": k4(512),
            "long": k4(2048),
            "copy": lambda f: Point(f.short["serial-copy"] / f.short["serial"]),
            "short_text": lambda f: in_words(f.short),
            "long_text": lambda f: in_words(f.long),
            "large": Rows((r"decode/(?P<x>.*)/page16",), at_least_100_us, over=("decode/{x}/contiguous",)),
            "count": lambda f: len(f.large),
            "mean": lambda f: Point(geometric_mean(f.large.measured().values())),
            "factors": lambda f: Curve({**f.short, **({"large": f.large.highest} if f.large else {})}),
        },
        ours=(
            "T = 512: {f.short_text:x}",
            "T = 2048: {f.long_text:x}",
            "{f.count} decodes of 100 us or more, batched: {f.mean:x} on average, {f.large.lowest:x} to {f.large.highest:x}",
        ),
        holds=lambda f: f.factors.lowest >= 1.6,
        partly=lambda f: f.factors.highest >= 1.6,
        why={
            PARTLY: "The blocking copy of the block table in the timed loop makes {f.copy:x} of it.",
            FAILS: "What paging costs here: scattered memory and the look-up of page ids.",
        },
    ),
    Claim(
        p.STUDY, "Page size has no effect on throughput",
        "pages of 16 to 256 the same",
        STUDY_BENCH,
        facts={
            **PAGE_SIZES,
            "spread": lambda f: Curve({k: c.highest / c.lowest - 1 for k, c in usual_pages(f).items()}),
            "one": lambda f: Curve(
                {k: getattr(f, k)[1] / c.lowest for k, c in usual_pages(f).items() if 1 in getattr(f, k)}
            ),
        },
        ours=("pages of 16 to 256 differ by up to {f.spread:%}", "pages of 1 take {f.one:x}"),
        holds=lambda f: f.spread.highest < 0.05,
        partly=lambda f: True,
        why={PARTLY: "Larger pages are longer runs of memory."},
    ),
    Claim(
        p.STUDY, "Paging holds 4x and 8x the sequences",
        "4 GB, 512 tokens: 4x at max_seq_len 2048, 8x at 4096",
        STUDY_BENCH,
        facts={
            "ratio": Rows(
                (r"study/K3/paged/max(?P<x>\d+)/(?P<budget>\w+)",),
                lambda s: s.counters["sequences"],
                over=("study/K3/contiguous/max{x}/{budget}",),
            )
        },
        ours=("by max_seq_len: {f.ratio:x}",),
        holds=lambda f: all(abs(f.ratio[n] / ratio - 1) < 0.01 for n, ratio in p.A40_CAPACITY.items()),
    ),
    Claim(
        p.STUDY, "Decode attention is bound by memory",
        "511 of the A40's 696 GB/s (73%)",
        DECODE_BENCH,
        facts={
            "share": Rows(FLASH.patterns, lambda s: 1 / s.ratio if s.ratio else None),
            "us": FLASH,
            "speed": lambda f: f.us.map(gb_per_s),
        },
        ours=("{f.share.last:%} of a bare read at T = {f.share.last.at}, {f.speed.last} GB/s",),
        holds=lambda f: f.share.last >= 0.73,
        partly=lambda f: f.share.last >= 0.5,
        why=dict.fromkeys((PARTLY, FAILS), "The read is not all that takes time here."),
    ),
    Claim(
        p.STUDY, "End to end, PCIe transfers are most of the time",
        "63% at T = 2097152; 10.8 GB/s against 511",
        f"{STUDY_BENCH} on a GPU",
        facts={
            "share": Rows((END_TO_END,), lambda s: s.counters["transfer_us"] / s.median),
            "both": Rows((END_TO_END,)),
            "speed": lambda f: f.both.map(gb_per_s),
            "kernel": FLASH,
            "alone": lambda f: f.kernel.map(gb_per_s)[f.both.last.at],
        },
        ours=(
            "T = {f.share.last.at}: transfers are {f.share.last:%}",
            "{f.speed.last} GB/s end to end, {f.alone} in the kernel",
        ),
        holds=lambda f: f.share.last > 0.5,
        gpu_only=True,
    ),
    Claim(
        p.STUDY, "End to end the baseline is 1.6x slower",
        "1.5x to 1.6x at large T",
        f"{STUDY_BENCH} on a GPU",
        facts={
            "ratio": Rows(
                (r"study/K1/three-kernels-end-to-end/T(?P<x>\d+)",), over=("study/K1/flash-end-to-end/T{x}",)
            )
        },
        ours=("T = {f.ratio.last.at}: {f.ratio.last:x}",),
        holds=lambda f: 1.4 <= f.ratio.last <= 1.8,
        partly=lambda f: f.ratio.last > 1,
        why={PARTLY: "The baseline's kernel time over the transfers' time: both depend on the machine."},
        gpu_only=True,
    ),
    Claim(
        p.STUDY, "Capacity outweighs what paging costs per token (left open there)",
        "not measured there",
        "pagoda-serve --json",
        facts={
            "more": Served(lambda run: run["paged"]["live_mean"] / run["contiguous"]["live_mean"]),
            "slower": Served(lambda run: run["same_batch"]["paged_seconds"] / run["same_batch"]["contiguous_seconds"]),
            "gigabytes": Served(lambda run: run["bytes_for_each_pool"] * 1e-9),
        },
        ours=("{f.more:x} the sequences live in {f.gigabytes} GB", "the same batch takes {f.slower:x} as long"),
        holds=lambda f: f.more > f.slower,
    ),
    Claim(
        p.FLASH_DECODING, "Run time is almost constant up to 32k",
        "56 to 78 us up to 32k, 64 us at 64k",
        DECODE_BENCH,
        facts={
            "us": TABLE_F,
            "ends": lambda f: (f.us[256], f.us[32768]),  # without both ends there is nothing to say
            "short": lambda f: f.us.within(*(point.at for point in f.ends)),
            "span": lambda f: Point(f.short.highest / f.short.lowest),
            "published": lambda f: Point(PUBLISHED_SPAN),
            "at_64k": lambda f: f.ends and f.us[65536],
        },
        ours=(
            "{f.short.lowest} to {f.short.highest} us up to 32k, {f.span:x} (published: {f.published:x})",
            "{f.at_64k} us at 64k",
        ),
        holds=lambda f: f.span <= PUBLISHED_SPAN,
        partly=lambda f: f.span < 2,
        why=dict.fromkeys((PARTLY, FAILS), "The joins of long rows show, as the bare read takes the same for all rows."),
    ),
    Claim(
        p.FLASH_DECODING, "Up to 50x as fast as FlashAttention-2",
        "5x to 43x over 2.0.9; 43x at B = 1, S = 131072",
        "bench/peers/compare.py on a GPU",
        facts={"ratio": Rows(TABLE_F.patterns, over=("{name}",), backend="flash-attention")},
        ours=("{f.ratio.lowest:x} to {f.ratio.highest:x}", "{f.ratio.last:x} at S = {f.ratio.last.at}"),
        holds=lambda f: f.ratio.last >= 20,
        partly=lambda f: True,
        why={PARTLY: "Newer versions split long rows themselves (since 2.2); the published figures are of 2.0.9."},
    ),
    *PREFIX_CLAIMS,
)


def judge_all(results: Results) -> list[tuple[Claim, list[Finding]]]:
    return [(claim, [f for column in results.own if (f := judge(claim, results, column))]) for claim in CLAIMS]
