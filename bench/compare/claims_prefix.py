# SPDX-License-Identifier: Apache-2.0
"""The published claims about shared prefixes and trees of drafts, as rules (rules.py)."""

from __future__ import annotations

from typing import Callable

import published as p
from results import PLAN_STEPS, Samples, with_planning
from rules import FAILS, PARTLY, Claim, Curve, Fact, Facts, Point, Rows


def through_decoder(samples: Samples) -> float | None:
    """Times of PrefixDecoder, whether or not it packs, without planning."""
    return samples.median if "is_packed" in samples.counters else None


def planned(steps: int) -> Callable[[Samples], float | None]:
    return lambda samples: with_planning(samples, steps)


def reads_saved(samples: Samples) -> float | None:
    """Of batches of a trace: the share of all reads that are not the first of their token."""
    c = samples.counters
    return 1 - c["bytes"] / c["bytes_all"] if "is_packed" in c else None


def of_list(samples: Samples) -> float | None:
    """Times of lists of drafts, not of the chains beside them."""
    return samples.median if "entries" in samples.counters else None


def beside_plain(patterns: tuple[str, ...]) -> dict[str, Fact]:
    """Decodes through PrefixDecoder, and how many times as long plain decodes of the same run take: alone (`ratio`), with
    planning in every step (`every`), and planned once every N steps (`seldom`)."""

    def plain_over(name: str) -> Callable[[Facts], Curve]:
        return lambda f: getattr(f, name).map(lambda at, us: f.plain[at] / us)

    return {
        "plain": Rows(patterns, backend="plain"),
        "alone_us": Rows(patterns, through_decoder),
        "every_us": Rows(patterns, planned(1)),
        "seldom_us": Rows(patterns, planned(PLAN_STEPS)),
        "ratio": plain_over("alone_us"),
        "every": plain_over("every_us"),
        "seldom": plain_over("seldom_us"),
    }


def saved_on_average(name: str) -> Callable[[Facts], Point]:
    return lambda f: Point(sum(1 - 1 / x for x in getattr(f, name).measured().values()) / len(getattr(f, name)))


def times_of_pat(f: Facts) -> Curve:
    return Curve({
        f"{heads[0]}x{heads[1]}x128/tree{tree}": us
        for tree, row in p.PAT_H200.items() for heads, us in zip(p.PAT_HEADS, row)
    })


TREES = (r"prefix/fp16/(?P<x>\d+x\d+x128/tree\d+)/page32",)
SHARING_TREES = (r"prefix/fp16/(?P<x>\d+x\d+x128/tree(?!19|20)\d+)/page32",)
CASCADE = (r"prefix/fp16/(?P<x>\d+x\d+x128/cascade\d+)/page32",)
TRACES = (r"prefix/fp16/\d+x\d+x128/(?P<x>\w+/B\d+/step\d+)/page16",)
DRAFTS = (r"prefix/fp16/\d+x\d+x128/drafts(?P<x>\d+)/B\d+/S\d+/page16",)
PREFIX_BENCH = "pagoda_bench_prefix"
ONCE = f"planned once every N = {PLAN_STEPS} steps (a plan serves until the tables' shape changes)"
EVERY = "with planning in every step"

PREFIX_CLAIMS = (
    Claim(
        p.FLASH_ARTICLE, "DeFT: the splits of Flash-Decoding serve the trees of speculative decoding",
        "no figures there",
        PREFIX_BENCH,
        facts={
            "tree": Rows(DRAFTS, of_list),
            "chain": Rows(DRAFTS, backend="chain"),
            "read": Rows(DRAFTS, lambda s: s.ratio if "entries" in s.counters else None),
            "ratio": lambda f: Curve({at: us / f.chain[at] for at, us in f.tree.items() if at in f.chain}),
            "each": lambda f: f.tree.map(lambda at, us: us / at),
        },
        ours=(
            "a tree of {f.ratio.first.at} to {f.ratio.last.at} drafts takes {f.ratio.lowest:x} to {f.ratio.highest:x} as long "
            "as a causal chain of as many tokens",
            "{f.read.first:x} of a read of the context at {f.read.first.at} drafts, {f.read.last:x} at {f.read.last.at}",
            "for each draft {f.each.first} us at {f.each.first.at}, {f.each.last} at {f.each.last.at}",
        ),
        holds=lambda f: f.ratio.highest <= 1.1,
        partly=lambda f: f.each.last < f.each.first,
        why={PARTLY: "The context is read once for all drafts; the decode of a list takes longer than that of a chain."},
    ),
    Claim(
        p.FLASH_ARTICLE, "A cascade and trees of prefixes gain when shared tokens are read once",
        "no figures there; several levels, packed by simple rules",
        PREFIX_BENCH,
        facts={
            **beside_plain(CASCADE + SHARING_TREES),
            "cascades": lambda f: Curve({at: x for at, x in f.ratio.items() if "cascade" in at}),
            "faster": lambda f: Point(sum(x > 1 for x in f.seldom.measured().values()) / len(f.seldom)),
        },
        ours=(
            "cascade: {f.cascades.lowest:x} as fast as the plain decode",
            "all: {f.ratio.lowest:x} ({f.ratio.lowest.at}) to {f.ratio.highest:x} ({f.ratio.highest.at})",
            f"{EVERY} {{f.every.lowest:x}} to {{f.every.highest:x}}",
            f"{ONCE} {{f.seldom.lowest:x}} to {{f.seldom.highest:x}}, and faster in {{f.faster:%}} of them",
        ),
        holds=lambda f: f.faster == 1,
        partly=lambda f: f.faster >= 0.5,
        why=dict.fromkeys(
            (PARTLY, FAILS), "Plain decodes take shared pages from the second-level cache, and small trees share little."
        ),
        why_on_host={PARTLY: "A CPU is limited by products as well as by reads, and packing saves reads only."},
    ),
    Claim(
        p.PAT, "Reading shared prefixes once saves half of the time and more",
        "trees 1 to 18: on average 68% of FlashAttention's, 52% of FlashInfer's",
        PREFIX_BENCH,
        facts={
            **beside_plain(SHARING_TREES),
            "saved": lambda f: f.ratio.map(lambda _, ratio: 1 - 1 / ratio),
            "mean": saved_on_average("ratio"),
            "mean_every": saved_on_average("every"),
            "mean_seldom": saved_on_average("seldom"),
        },
        ours=(
            "{f.mean:%} of the plain decode's on average, {f.saved.lowest:%} to {f.saved.highest:%}",
            f"{EVERY} {{f.mean_every:%}}",
            f"{ONCE} {{f.mean_seldom:%}}",
        ),
        holds=lambda f: f.mean_seldom >= p.PAT_MEAN_SAVED["FlashInfer"],
        partly=lambda f: f.mean_seldom > 0.1,
        why=dict.fromkeys(
            (PARTLY, FAILS), "Plain decodes take shared pages from the second-level cache, so they lose less."
        ),
        why_on_host={PARTLY: "A CPU is limited by products as well as by reads, and packing saves reads only."},
    ),
    Claim(
        p.PAT, "Trees of prefixes are decoded up to 12x and 21x as fast",
        "up to 21.5x over FlashAttention, 11.7x over FlashInfer",
        PREFIX_BENCH,
        facts=beside_plain(SHARING_TREES),
        ours=(
            "{f.ratio.lowest:x} ({f.ratio.lowest.at}) to {f.ratio.highest:x} ({f.ratio.highest.at})",
            f"{EVERY} {{f.every.lowest:x}} to {{f.every.highest:x}}",
            f"{ONCE} {{f.seldom.lowest:x}} to {{f.seldom.highest:x}}",
        ),
        holds=lambda f: f.seldom.highest >= p.PAT_SPEEDUP["FlashInfer"],
        partly=lambda f: f.seldom.highest >= 3,
        why={PARTLY: "Only trees with many sequences for each shared token gain that much."},
    ),
    Claim(
        p.PAT, "Its times on an H200",
        "46 to 3769 us on 20 trees with four pairs of heads; planning, 0.6 to 66 ms, is not in them",
        f"{PREFIX_BENCH} on an H200",
        facts={
            "ours": Rows(TREES, through_decoder),
            "every_us": Rows(TREES, planned(1)),
            "seldom_us": Rows(TREES, planned(PLAN_STEPS)),
            "pat": times_of_pat,
            "relative": lambda f: f.ours.map(lambda at, us: us / f.pat[at]),
            "every": lambda f: f.every_us.map(lambda at, us: us / f.pat[at]),
            "seldom": lambda f: f.seldom_us.map(lambda at, us: us / f.pat[at]),
            "faster": lambda f: Point(sum(r <= 1 for r in f.relative.measured().values()) / len(f.relative)),
        },
        ours=(
            "both without planning, Pagoda takes {f.relative.lowest:x} ({f.relative.lowest.at}) to {f.relative.highest:x} "
            "({f.relative.highest.at}) as long",
            "as fast or faster in {f.faster:%} of the trees",
            f"Pagoda {EVERY} {{f.every.lowest:x}} to {{f.every.highest:x}}",
            f"Pagoda {ONCE} {{f.seldom.lowest:x}} to {{f.seldom.highest:x}}",
        ),
        holds=lambda f: f.relative.highest <= 1,
        partly=lambda f: f.faster >= 0.5,
        gpu_only=True,
    ),
    Claim(
        p.PAT, "Live requests share much of their reads",
        "59% of the prompt tokens of tool-agent are in the cache already; 2517 of conversations are one system prompt",
        f"{PREFIX_BENCH} --trace FILE",
        facts={"saved": Rows(TRACES, reads_saved), **beside_plain(TRACES)},
        ours=(
            "{f.saved.lowest:%} to {f.saved.highest:%} of the reads ({f.saved.highest.at})",
            "packed decodes are {f.ratio.lowest:x} to {f.ratio.highest:x} as fast",
            f"{EVERY} {{f.every.lowest:x}} to {{f.every.highest:x}}",
            f"{ONCE} {{f.seldom.lowest:x}} to {{f.seldom.highest:x}}",
        ),
        holds=lambda f: f.saved.lowest >= 0.3,
        partly=lambda f: f.saved.highest >= 0.3,
        why={FAILS: "Prompts share their beginning only, and are long behind it."},
    ),
)
