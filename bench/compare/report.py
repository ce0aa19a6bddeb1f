# SPDX-License-Identifier: Apache-2.0
"""Output for people: tables as text, the verdicts as Markdown, and one HTML page with everything."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import Iterable, Sequence

import plots
import prefix_plot
import published as p
from curves import TABLE_F
from prefix_tables import prefix_tables
from results import PEERS, Column, Results, Samples, distances, geometric_mean, slower_defaults, us_text
from rules import NOT_MEASURED, Claim, Finding

SUITES = ("decode/", "study/", "serve/", "prefix/")
Table = tuple[list[str], list[list[str]]]


def spread_text(samples: Samples) -> str:
    return "" if samples.spread is None else f" ±{50 * samples.spread:.1f}%"


def reference_of(results: Results, column: Column) -> Column:
    """The column to compare a column with: Pagoda's first on the same device, from the same build if possible."""
    same = [c for c in results.own if c.device == column.device]
    return next((c for c in same if c.git == column.git), same[0] if same else column)


def ratios(results: Results, columns: Sequence[Column], prefix: str = "") -> Table:
    """Every row of these columns: time, its ratio to the bare read and, for other columns, to the reference column."""
    head = ["problem"]
    for column in columns:
        head += [column.label, "of read"]
        if reference_of(results, column) != column:
            head.append(f"/ {reference_of(results, column).backend}")
    body = []
    for key, by in results.rows.items():
        if not key.startswith(prefix) or not any(c in by for c in columns):
            continue
        row = [key.removeprefix(prefix)]
        for column in columns:
            samples = by.get(column)
            row.append("-" if samples is None else us_text(samples.median) + spread_text(samples))
            row.append("-" if samples is None or samples.ratio is None else f"{samples.ratio:.2f}")
            reference = reference_of(results, column)
            if reference != column:
                against = by.get(reference)
                row.append("-" if samples is None or against is None else f"{samples.median / against.median:.2f}")
        body.append(row)
    return head, body


def device_groups(results: Results, prefix: str = "") -> list[tuple[str, list[Column]]]:
    groups: dict[str, list[Column]] = {}
    for column in results.columns:
        if any(key.startswith(prefix) and column in by for key, by in results.rows.items()):
            groups.setdefault(column.device, []).append(column)
    return list(groups.items())


def distance_table(results: Results) -> Table:
    body = []
    for column, kind, size, rows in distances(results):
        found = [s.ratio for s in rows if s.ratio is not None]
        worst = max(rows, key=lambda s: s.ratio or 0)
        body.append(
            [
                column.label,
                kind,
                size,
                str(len(rows)),
                f"{geometric_mean(found):.2f}",
                f"{min(found):.2f}",
                f"{worst.ratio:.2f} ({worst.key.removeprefix(f'decode/{kind}/')})",
            ]
        )
    return ["who", "type", "bytes read", "rows", "of read, mean", "best", "worst"], body


def defaults_table(results: Results) -> Table:
    """Rows whose default backend is the slower one."""
    return ["problem", "default", "us", "other", "us", "over"], [
        [
            samples.key.removeprefix("decode/"),
            column.label,
            us_text(samples.median),
            other.backend,
            us_text(theirs.median),
            f"{100 * (samples.median / theirs.median - 1):.1f}%",
        ]
        for column, other, samples, theirs in slower_defaults(results)
    ]


def peers_table(results: Results) -> Table:
    """Every problem of a run of bench/peers/compare.py: the bare read, Pagoda's backends and the other libraries, all in
    microseconds, and the faster backend of Pagoda over the fastest of the others."""
    backends = [b for b in ("generic", "tuned", *PEERS) if any(c.backend == b for c in results.columns)]
    body = []
    for key, by in results.rows.items():
        found = {column.backend: samples for column, samples in by.items()}
        own, others = ([s.median for b, s in found.items() if (b in PEERS) == peer] for peer in (False, True))
        floor = next((s.floor for b, s in found.items() if b not in PEERS and s.floor), None)
        if not own or floor is None or not key.startswith("decode/"):
            continue
        body.append([key.removeprefix("decode/"), us_text(floor)])
        for backend in backends:
            path = f" ({found[backend].label})" if backend == "flashinfer" and backend in found else ""
            body[-1].append((us_text(found[backend].median) if backend in found else "-") + path)
        body[-1].append(f"{min(own) / min(others):.2f}" if others else "-")
    return ["problem", "read", *(PEERS.get(b, b) for b in backends), "ours / theirs"], body


def peers_markdown(results: Results) -> str:
    column = results.own[0]
    versions = ", ".join(f"{PEERS[k]} {v}" for k, v in results.contexts[column].get("peers", {}).items())
    return (
        f"# Beside other libraries\n\nWritten by `python3 bench/compare` from a run of `bench/peers/compare.py` ({column.machine}, "
        f"commit {column.git}; {versions}); do not edit.\n\nMicroseconds, cold, in CUDA graphs, in turns of a few "
        "problems; read: a bare read of the same bytes. cuDNN reads a contiguous cache whatever the problem's page size. "
        "FlashInfer: the fastest of its paths, planning left out.\n\n" + as_markdown(peers_table(results)) + "\n"
    )


def table_f_table(results: Results) -> Table:
    columns = [c for c in results.columns if TABLE_F.read(results, c)]
    head = ["batch x tokens", "FlashAttention-2.0.9, A100, published", "Flash-Decoding, A100, published"]
    for column in columns:
        head += [f"{column.label}, us", "of read"]
    body = []
    for i, (batch, length) in enumerate(p.FLASH_DECODING_SHAPES):
        row = [f"{batch} x {length}", us_text(p.A100_FLASH_ATTENTION_2[i]), us_text(p.A100_FLASH_DECODING[i])]
        for column in columns:
            samples = results.get(column, p.table_f_key(batch, length))
            row += [
                us_text(samples.median) if samples else "-",
                f"{samples.ratio:.2f}" if samples and samples.ratio else "-",
            ]
        body.append(row)
    return head, body


def traces_table(results: Results) -> Table:
    """Suite D: a trace's requests in two pools of the same size."""
    body = []
    for column, run in results.serve:
        a, b, same = run["contiguous"], run["paged"], run["same_batch"]
        body.append(
            [
                column.label,
                f"{Path(run['options']['trace']).stem}, {run['options']['model']}, {run['options']['type']}",
                f"{run['bytes_for_each_pool'] * 1e-9:g} GB",
                f"{a['live_mean']:.0f}",
                f"{b['live_mean']:.0f} ({b['live_mean'] / a['live_mean']:.1f}x)",
                f"{100 * a['waste_mean']:.1f}% / {100 * b['waste_mean']:.1f}%",
                f"{100 * a['fraction_of_streaming_read']:.1f}% / {100 * b['fraction_of_streaming_read']:.1f}%",
                f"{same['paged_seconds'] / same['contiguous_seconds']:.2f} ({same['sequences']} sequences)",
            ]
        )
    return [
        "who",
        "trace",
        "each pool",
        "live, contiguous",
        "live, paged",
        "reserved, unused: contiguous / paged",
        "of the streaming read",
        "same batch, paged / contiguous",
    ], body


def machines(results: Results) -> Table:
    body = []
    for column, context in results.contexts.items():
        peers = context.get("peers") or {}
        with_what = (
            ", ".join(f"{k} {v}" for k, v in peers.items() if v)
            if column.is_peer
            else f"{context.get('compiler', '?')}, Kokkos {context.get('kokkos_version', '?')}"
        )
        rows = sum(column in by for by in results.rows.values())
        body.append(
            [
                column.device,
                column.space,
                PEERS.get(column.backend, column.backend),
                column.git,
                with_what,
                context.get("date", ""),
                str(rows),
            ]
        )
    return ["device", "space", "who", "commit", "built with", "date", "rows"], body


def verdict_rows(verdicts: Iterable[tuple[Claim, list[Finding]]]) -> Table:
    body = []
    for claim, findings in verdicts:
        for finding in findings:
            body.append([claim.text, claim.published, finding.column.label, finding.ours, finding.verdict, finding.why])
        if not findings:
            body.append([claim.text, claim.published, "", "", NOT_MEASURED, f"Needs {claim.needs}."])
    return ["claim", "published", "measured on", "ours", "verdict", "why"], body


def as_text(table: Table) -> str:
    head, body = table
    widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
    lines = []
    for row in [head, *body]:
        lines.append("  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))]).rstrip())
    return "\n".join(lines)


def as_markdown(table: Table) -> str:
    head, body = table
    rows = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def as_html(table: Table, by_verdict: bool = False) -> str:
    head, body = table
    cells = "".join(f"<th>{html.escape(c)}</th>" for c in head)
    out = [f"<table><thead><tr>{cells}</tr></thead><tbody>"]
    for row in body:
        style = ""
        if by_verdict:
            style = {"holds": ' class="yes"', "in part": ' class="part"', "does not hold": ' class="no"'}.get(
                row[4], ' class="none"'
            )
        out.append(f"<tr{style}>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>")
    return "".join(out) + "</tbody></table>"


def prefix_markdown(results: Results) -> str:
    """The tables that have rows; empty if none has."""
    parts = [f"## {title}\n\n{note}\n\n{as_markdown(table)}\n" for title, note, table in prefix_tables(results)]
    head = "# Lists of entries\n\nWritten by `python3 bench/compare`; do not edit. Microseconds.\n\n"
    return head + "\n".join(parts) if parts else ""


VERDICTS_INTRO = """Fixed rules (bench/compare/claims.py) judge each claim from the measurements alone. Published: {study} on an A40
(fp32, one head; Gi/s converted to GB/s), and {flash} on an A100 (fp16). Ours are other machines, so compare factors, not
times."""


def verdicts_markdown(verdicts: list[tuple[Claim, list[Finding]]]) -> str:
    intro = VERDICTS_INTRO.format(study=p.STUDY, flash=p.FLASH_DECODING)
    return (
        "# Which published claims hold\n\nWritten by `python3 bench/compare`; do not edit.\n\n"
        + intro
        + "\n\n"
        + as_markdown(verdict_rows(verdicts))
        + "\n"
    )


STYLE = """body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1150px;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:.6em 0;font-size:12.5px;display:block;overflow-x:auto}
td,th{padding:.22em .6em;border-bottom:1px solid #e3e3e3;text-align:left;vertical-align:top}
th{border-bottom:1px solid #888}td{font-variant-numeric:tabular-nums}img{max-width:100%}
tr.yes td:nth-child(5){color:#1d7a46;font-weight:600}tr.no td:nth-child(5){color:#b3261e;font-weight:600}
tr.part td:nth-child(5){color:#a15c00;font-weight:600}tr.none td{color:#777}.note{color:#777}"""


def page(results: Results, verdicts: list[tuple[Claim, list[Finding]]], pictures: dict[str, Path]) -> str:
    out = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Pagoda: measurements</title><style>{STYLE}</style>",
        "<h1>Pagoda: measurements</h1>",
        "<p>Times are microseconds; “of read” is the time over that of a bare read of the same bytes, cold, in the same "
        "run: 1 is the floor. Where a problem was measured several times, its median stands here, and ± half of the "
        "range. Cards of one kind differ by about 2%, so times of different runs are compared through their floors.</p>",
        "<h2>Who was measured</h2>",
        as_html(machines(results)),
        "<h2>Which published claims hold</h2>",
        f"<p>{html.escape(VERDICTS_INTRO.format(study=p.STUDY, flash=p.FLASH_DECODING))}</p>",
        as_html(verdict_rows(verdicts), by_verdict=True),
    ]
    tables = {"floor": distance_table, "table-f": table_f_table}
    for name, title, _ in plots.PLOTS:
        out.append(f"<h2>{html.escape(title)}</h2>")
        if name in pictures:
            data = base64.b64encode(pictures[name].read_bytes()).decode()
            out.append(f'<img alt="{html.escape(title)}" src="data:image/png;base64,{data}">')
        elif plots.MISSING:
            out.append(f"<p class=note>{html.escape(plots.MISSING)}</p>")
        else:
            out.append("<p class=note>Not measured.</p>")
        if name in tables:
            table = tables[name](results)
            out.append(as_html(table) if table[1] else "")
        if name == "prefix":
            out.append(f"<p class=note>{html.escape(prefix_plot.CAPTION)}</p>" if name in pictures else "")
            for heading, note, table in prefix_tables(results):
                out.append(f"<h3>{html.escape(heading)}</h3><p>{html.escape(note)}</p>{as_html(table)}")
    out.append("<h2>Served traces</h2>")
    out.append(as_html(traces_table(results)) if results.serve else "<p class=note>Not measured.</p>")
    out.append("<h2>All rows</h2>")
    for suite in SUITES:
        for device, columns in device_groups(results, suite):
            out.append(
                f"<details><summary>{suite.rstrip('/')}, {html.escape(device)}</summary>"
                f"{as_html(ratios(results, columns, suite))}</details>"
            )
    if results.errors:
        out.append("<h2>What failed</h2>")
        out.append(as_html((["problem", "who", "error"], [[k, c.label, e] for k, c, e in results.errors])))
    return "\n".join(out) + "</html>\n"
