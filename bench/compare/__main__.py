# SPDX-License-Identifier: Apache-2.0
"""Joins the results of any number of machines and backends, and prints their distance from the bare read.

    python3 bench/compare FILE.json... [--out FOLDER] [--filter REGEX]

FILE: Google Benchmark's JSON of pagoda_bench_decode, pagoda_bench_study or bench/peers/compare.py, what these write
with --resume, the JSON of pagoda-serve, or of ci/gpu.sh. Prints times, their ratios to the bare read and to Pagoda's
generic backend, the spread of repeated measurements, and the rows whose default backend is more than 0.5% + 0.5 us
slower than the other one. With --out also writes report.html (self-contained), its plots as PNG, verdicts.md (which
published claims hold), prefix.md (shared prefixes, chosen pages and trees of drafts, from pagoda_bench_prefix), and for
each FILE of bench/peers/compare.py a table of all its problems.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import plots
import report
from claims import judge_all
from results import Results, Unreadable, load


def keep(results: Results, pattern: str) -> None:
    wanted = re.compile(pattern)
    results.rows = {key: by for key, by in results.rows.items() if wanted.search(key)}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python3 bench/compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", metavar="FILE.json")
    parser.add_argument("--out", type=Path, help="folder for report.html, verdicts.md and the plots")
    parser.add_argument("--filter", default="", help="regular expression: only problems whose name has it")
    options = parser.parse_args()
    try:
        results = load(options.files)
        keep(results, options.filter)
    except (Unreadable, re.error) as error:
        print(f"bench/compare: {error}", file=sys.stderr)
        return 2

    for suite in report.SUITES:
        for device, columns in report.device_groups(results, suite):
            print(f"{device}, {suite}\n\n{report.as_text(report.ratios(results, columns, suite))}\n")
    print(report.as_text(report.distance_table(results)))
    defaults = report.defaults_table(results)
    known = sum("is_default" in samples.counters for by in results.rows.values() for samples in by.values())
    print(f"\nDefault backend more than 0.5% + 0.5 us behind the other one: {len(defaults[1])} rows of {known}\n")
    if defaults[1]:
        print(report.as_text(defaults))
    for key, column, message in results.errors:
        print(f"{key} ({column.label}): {message}", file=sys.stderr)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        verdicts = judge_all(results)
        if plots.MISSING:
            print(f"bench/compare: {plots.MISSING}", file=sys.stderr)
        pictures = {} if plots.MISSING else plots.save(results, options.out)
        for file in options.files:
            alone = load([file])
            if any(c.get("peers") for c in alone.contexts.values()) and any(k.startswith("decode/") for k in alone.rows):
                (options.out / f"{Path(file).stem}.md").write_text(report.peers_markdown(alone))
        if prefixes := report.prefix_markdown(results):
            (options.out / "prefix.md").write_text(prefixes)
        (options.out / "verdicts.md").write_text(report.verdicts_markdown(verdicts))
        (options.out / "report.html").write_text(report.page(results, verdicts, pictures))
        print(f"\n{options.out / 'report.html'}, {options.out / 'verdicts.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
