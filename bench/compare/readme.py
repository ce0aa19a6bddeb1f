# SPDX-License-Identifier: Apache-2.0
"""The README's figures, taken from bench/results.

    python3 bench/compare/readme.py --check README.md     # fails if a figure differs from the results
    python3 bench/compare/readme.py --write README.md     # writes them

This writes the text between <!-- measured: NAME --> and <!-- end -->, and the picture (PICTURE).
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any, Callable

import distance
from prefix_readme import prefix_block
from results import PEERS, Column, Results, Samples, geometric_mean, load

RESULTS = Path(__file__).resolve().parent.parent / "results"
PREFIX_RESULTS = "prefix-h200.json"
PREFIX_PEERS = "prefix-peers-h100.json"
PICTURE = RESULTS / "report" / "distance.svg"
BLOCK = re.compile(r"(<!-- measured: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

# (type and heads, batch x tokens, name without the backend) of the table of decodes
DECODES = (
    ("fp16 32/8", "1 x 512", "fp16/32x8x128/B1/S512/page16"),
    ("", "32 x 1024", "fp16/32x8x128/B32/S1024/page16"),
    ("", "32 x 8192", "fp16/32x8x128/B32/S8192/page16"),
    ("", "32 x 8192, contiguous", "fp16/32x8x128/B32/S8192/contiguous"),
    ("", "1 x 131072", "fp16/32x8x128/B1/S131072/page16"),
    ("fp16 16/2", "64 x 1024", "fp16/16x2x128/B64/S1024/page16"),
    ("", "1 x 65536", "fp16/16x2x128/B1/S65536/page16"),
    ("bf16 latent, 576/512, 16 heads", "64 x 4096, page 64", "bf16/16x1x576-512/B64/S4096/page64"),
    ("64 heads", "64 x 4096, page 64", "bf16/64x1x576-512/B64/S4096/page64"),
    ("128 heads", "64 x 4096, page 64", "bf16/128x1x576-512/B64/S4096/page64"),
    ("fp16 64/4", "32 x 8192", "fp16/64x4x128/B32/S8192/page16"),
    ("fp16 32/8, 4 query tokens", "32 x 8192", "fp16/32x8x128/B32q4/S8192/page16"),
    ("16 query tokens", "32 x 8192", "fp16/32x8x128/B32q16/S8192/page16"),
    ("fp8_e4m3 32/8", "32 x 1024", "fp8_e4m3/32x8x128/B32/S1024/page16"),
    ("", "32 x 8192", "fp8_e4m3/32x8x128/B32/S8192/page16"),
    ("int8 32/8", "32 x 8192", "int8/32x8x128/B32/S8192/page16"),
    ("int4 32/8", "32 x 8192", "int4/32x8x128/B32/S8192/page16"),
    ("fp32 1/1", "1 x 2097152, contiguous", "fp32/1x1x128/B1/S2097152/contiguous"),
)


def results_of(name: str) -> Results:
    return load([RESULTS / name])


def fastest(results: Results, key: str) -> tuple[Column, Samples]:
    """Pagoda's fastest backend at this problem."""
    found = [(column, samples) for column, samples in results.rows[f"decode/{key}"].items() if not column.is_peer]
    return min(found, key=lambda entry: entry[1].median)


def span(values: list[float], digits: int = 0) -> str:
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def wrapped(text: str) -> str:
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False) + "\n"


def decode() -> str:
    results = results_of("decode-h200.json")
    backends = {fastest(results, key)[0].backend for _, _, key in DECODES}
    lines = ["| type, heads | batch x tokens | read | Pagoda | of the read |", "|---|---|---|---|---|"]
    for heads, shape, key in DECODES:
        column, samples = fastest(results, key)
        assert samples.floor is not None and samples.ratio is not None
        who = f" ({column.backend})" if len(backends) > 1 else ""
        lines.append(
            f"| {heads} | {shape} | {samples.floor:.1f} us | {samples.median:.1f} us{who} | {100 / samples.ratio:.0f}% |"
        )
    commits = ", ".join(sorted({column.git for column in results.own}))
    return "\n".join(lines) + f"\n\n(Commit {commits}; all rows: `bench/results/decode-h200.json`.)\n"


def best_rows(results: Results, pattern: str) -> list[tuple[re.Match[str], Samples]]:
    keys = ((re.fullmatch(f"decode/{pattern}", key), key) for key in results.rows)
    return [(match, fastest(results, key.removeprefix("decode/"))[1]) for match, key in keys if match]


def paging_cost(page: str) -> Callable[[Results], str]:
    def cost(results: Results) -> str:
        found = []
        for match, paged in best_rows(results, rf"(.*)/page{page}"):
            contiguous = f"{match[1]}/contiguous"
            if paged.median >= 100 and f"decode/{contiguous}" in results.rows:
                found.append(paged.median / fastest(results, contiguous)[1].median - 1)
        mean = geometric_mean(1 + cost for cost in found) - 1
        return f"{100 * mean:.0f}% on average, at most {100 * max(found):.0f}%"

    return cost


def over_read(pattern: str) -> Callable[[Results], str]:
    return lambda results: (
        span([s.median - s.floor for _, s in best_rows(results, pattern) if s.floor is not None]) + " us over the read"
    )


def times_read(pattern: str) -> Callable[[Results], str]:
    """Of rows that take 50 us or more."""
    return lambda results: (
        span([s.ratio for _, s in best_rows(results, pattern) if s.ratio and s.median >= 50], 1) + " times the read"
    )


# (what, figure) of the table of limits
LIMITS = (
    ("pages of 16 tokens against contiguous, decodes of 100 us or more", paging_cost("16")),
    ("pages of 1 token, the same", paging_cost("1")),
    ("small problems (up to 4 x 1024 tokens)", over_read("fp16/.*/B[1-4]/S(512|1024)/page16")),
    (
        "one long sequence, which is split many times",
        over_read("fp16/(32x8|16x2)x128/B1/S(16384|65536|131072)/page16"),
    ),
    ("int4 caches (limited by unpacking, and by KV rows of 64 bytes)", times_read("int4/.*page16")),
    ("int4 caches in HND order", times_read("int4/.*-HND")),
    ("latent caches with 64 and 128 heads", times_read("bf16/(64|128)x1x576-512/B64/.*")),
)


def limits() -> str:
    results = results_of("decode-h200.json")
    lines = [f"| {what} | {figure(results)} |" for what, figure in LIMITS]
    return "\n".join(["| where time is lost | how much |", "|---|---|", *lines]) + "\n"


def ratios_to(peer: str, results: Results, own: tuple[str, ...] = ()) -> list[float]:
    """Pagoda's times over the peer's, in all problems that both have. own: the backends to compare; all if empty."""
    ratios = []
    for by in results.rows.values():
        ours = [s.median for c, s in by.items() if not c.is_peer and (not own or c.backend in own)]
        theirs = [s.median for c, s in by.items() if c.backend == peer]
        ratios += [min(ours) / us for us in theirs if ours]
    return ratios


def peers() -> str:
    results, trees = results_of("peers-h200.json"), results_of(PREFIX_PEERS)
    ratios = {PEERS[name]: ratios_to(name, results) for name in ("cudnn", "flashinfer")}
    ratios["FlashInfer's cascade, at shared prefixes"] = ratios_to("flashinfer", trees, ("packed",))
    ratios["FlashInfer's XQA with masks, at trees of drafts"] = ratios_to("flashinfer", trees, ("tree",))
    lines = ["| Pagoda's time over that of | problems | least | mean | most |", "|---|---|---|---|---|"]
    for name, of in ratios.items():
        lines.append(f"| {name} | {len(of)} | {min(of):.2f} | {geometric_mean(of):.2f} | {max(of):.2f} |")
    return "\n".join(lines) + "\n\n" + wrapped(
        f"(H200, commit {results.own[0].git}, `bench/peers/compare.py`; all problems: `bench/results/report/peers-h200.md`. "
        f"The last two: H100, commit {trees.own[0].git}, `bench/peers/prefix_peers.py`; all problems: "
        "`bench/results/report/prefix.md`.)"
    )


def command(options: dict[str, Any]) -> str:
    if Path(options["trace"]).stem == "toolagent_first33s":
        return "ci/demo.sh"
    return f"pagoda-serve --trace {Path(options['trace']).name} --memory-gb {options['memory_gb']:g} --steps {options['steps']}"


def milliseconds(s: float) -> str:
    return f"{s * 1e3:.2f} ms"


def serve() -> str:
    lines = ["| machine, command | | contiguous | paged |", "|---|---|---|---|"]
    commits = []
    for name, machine in (("serve-h200.json", "H200"), ("serve-epyc2.json", "EPYC, 2 cores")):
        report = json.loads((RESULTS / name).read_text())
        a, b, same = report["contiguous"], report["paged"], report["same_batch"]
        read = [f"{p['streaming_read']['gb_per_second']:.3g}" for p in (a, b)]
        read_text = " and ".join(dict.fromkeys(f"{float(x):g}" for x in read))
        rows = (
            (
                "sequences live",
                f"{a['live_mean']:.0f}",
                f"{b['live_mean']:.0f} ({b['live_mean'] / a['live_mean']:.1f}x)",
            ),
            ("reserved but unused", f"{100 * a['waste_mean']:.1f}%", f"{100 * b['waste_mean']:.1f}%"),
            (
                f"fraction of the streaming read ({read_text} GB/s)",
                *(f"{100 * p['fraction_of_streaming_read']:.1f}%" for p in (a, b)),
            ),
            (
                f"same {same['sequences']} sequences, time of a decode",
                milliseconds(same["contiguous_seconds"]),
                f"{milliseconds(same['paged_seconds'])} ({same['paged_seconds'] / same['contiguous_seconds']:.2f}x)",
            ),
            ("worst error, in tolerances", *(f"{p['check']['worst_error_in_tolerances']:.2f}" for p in (a, b))),
        )
        for i, row in enumerate(rows):
            lines.append(
                "| " + " | ".join([f"{machine}, `{command(report['options'])}`" if i == 0 else "", *row]) + " |"
            )
        commits.append(f"{machine}: commit {report['build']['git_hash'].removesuffix('-dirty')[:7]}")
    trace = "`conversation_first30min.jsonl`: the first 30 minutes of Mooncake's conversation trace"
    return "\n".join(lines) + "\n\n" + wrapped(f"({'; '.join(commits)}. {trace}.)")


def prefix() -> str:
    """Empty as long as nothing was measured."""
    return prefix_block(results_of(PREFIX_RESULTS), PREFIX_RESULTS) if (RESULTS / PREFIX_RESULTS).exists() else ""


BLOCKS: dict[str, Callable[[], str]] = {
    "serve": serve,
    "decode": decode,
    "limits": limits,
    "peers": peers,
    "prefix": prefix,
}


def filled(text: str) -> str:
    found = [m[2] for m in BLOCK.finditer(text)]
    if sorted(found) != sorted(BLOCKS):
        raise ValueError(f"measured blocks are {found}; allowed: one each of {list(BLOCKS)}")
    return BLOCK.sub(lambda m: m[1] + BLOCKS[m[2]]() + m[4], text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", type=Path, metavar="README.md")
    what.add_argument("--write", type=Path, metavar="README.md")
    options = parser.parse_args()
    path: Path = options.check or options.write
    text = path.read_text()
    try:
        right = filled(text)
    except ValueError as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    picture = distance.svg(results_of("peers-h200.json"))
    if options.write:
        path.write_text(right)
        PICTURE.write_text(picture)
    elif not PICTURE.exists() or PICTURE.read_text() != picture:
        print(f"{PICTURE}: not that of bench/results; run python3 bench/compare/readme.py --write {path}", file=sys.stderr)
        return 1
    elif text != right:
        sys.stderr.writelines(
            difflib.unified_diff(text.splitlines(True), right.splitlines(True), str(path), "bench/results")
        )
        print(
            f"{path}: figures differ from bench/results; run python3 bench/compare/readme.py --write {path}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
