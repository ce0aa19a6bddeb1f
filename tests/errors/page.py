# SPDX-License-Identifier: Apache-2.0
"""Compares the messages of InvalidArgument in the sources with those that tests provoke, and makes the page of them.

    python3 page.py --check PAGE PROGRAM...    # fails if a message has no test, or the page differs from the sources
    python3 page.py --write PAGE PROGRAM...

Each PROGRAM is a command line; it runs its tests of errors with PAGODA_ERRORS_LOG (tests/support/error_log.cpp) set.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from sites import Site, all_sites

TOP = Path(__file__).resolve().parents[2]
MESSAGE = re.compile(r"^\|[^|]*\| ((?:[^|\\]|\\.)*) \|", re.MULTILINE)
VERB = re.compile(r"\s(?:is|are|has|have|holds|belongs|asks?|takes?|gets?|at once|lies|gives|needs|and page_rows)\b")
HEAD = """# Errors

Every message of `pagoda::InvalidArgument`, made from the sources and from the tests that provoke them. `<name>` stands for a
value, `[a|b]` for one of two texts. In C the status is `PAGODA_INVALID_ARGUMENT` and `pagoda_last_error()` has the message;
in Python the exception is a `ValueError`. A call that throws has launched and changed nothing. A build for CPUs with all
types cannot provoke the messages with a note in brackets.

To regenerate this page: `cmake --build BUILD --target errors-page`.
"""

def messages_of(programs: list[str]) -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "errors"
        log.touch()
        for program in programs:
            done = subprocess.run(
                shlex.split(program), env={**os.environ, "PAGODA_ERRORS_LOG": str(log)}, capture_output=True, text=True
            )
            if done.returncode != 0:
                sys.exit(f"{program} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        return set(log.read_text().split("\0")) - {""}


def assigned(sites: list[Site], messages: set[str]) -> tuple[dict[Site, set[str]], list[str]]:
    """The messages of each site, and those that no site makes."""
    patterns = sorted(((s, s.pattern()) for s in sites), key=lambda p: -p[0].literals())
    found: dict[Site, set[str]] = {s: set() for s in sites}
    strange = []
    for message in sorted(messages):
        fits = [s for s, pattern in patterns if pattern.fullmatch(message)]
        if fits:
            for site in fits:
                if site.pattern() == fits[0].pattern():
                    found[site].add(message)
        else:
            strange.append(message)
    # Of two places whose messages have the same form, the one with more words of its own has got the message.
    for site, pattern in patterns:
        if not found[site]:
            found[site] = {m for m in messages if pattern.fullmatch(m)}
    return found, strange


def area(site: Site) -> str:
    if site.path.startswith("src/c/"):
        return "C interface"
    if site.path.startswith("src/mpi/"):
        return "MPI"
    if "prefix/" in site.path or "prefix_decoder" in site.path:
        return "Shared prefixes"
    if "pool/" in site.path or site.path.endswith(("kv_cache.hpp", "kv_capacity.hpp")):
        return "Pools and caches"
    return "Plans, decodes, merges, checks"


def listed(words: set[str]) -> str:
    return ", ".join(f"`{w}`" for w in sorted(words))


def row(site: Site, messages: set[str], note: str | None) -> str:
    calls, names = set(), set()
    for message in messages or {site.text().replace("<who>: ", ": ")}:
        call, _, rest = message.partition(": ")
        calls.add(call)
        rest = VERB.split(rest, maxsplit=1)[0]
        names.add("" if len(rest) >= 40 or rest.endswith("there") else re.sub(r"\d+", "i", rest))
    text = site.text()
    if len(site.parts) > 1 and isinstance(site.parts[0], str):  # the call, if it is a value, has a column of its own
        text = re.sub(r"^<\w+>(<call>)?(::\w+)?(: )?", "", text)
    else:
        text = text.partition(": ")[2]
    text = text.replace("|", "\\|").replace("<", "\\<")
    return f"| {listed(names - {''})} | {text}{f' ({note})' if note else ''} | {listed(calls - {''})} |"


def page_of(found: dict[Site, set[str]], elsewhere: dict[str, str]) -> str:
    page = HEAD
    for name in sorted({area(s) for s in found}):
        rows = {row(s, m, elsewhere.get(s.text())) for s, m in found.items() if area(s) == name}
        page += f"\n## {name}\n\n| argument | message | calls |\n|---|---|---|\n" + "\n".join(sorted(rows)) + "\n"
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", type=Path)
    mode.add_argument("--write", type=Path)
    parser.add_argument("--without", action="append", default=[], help="a folder whose messages this build lacks")
    parser.add_argument("program", nargs="+")
    given = parser.parse_args()

    if given.write and given.without:
        sys.exit(f"this build lacks {', '.join(given.without)}: the page needs a build with PAGODA_C and PAGODA_MPI")
    # Lines of NOTE<tab>MESSAGE.
    lines = (Path(__file__).parent / "elsewhere.txt").read_text().splitlines()
    elsewhere = {text: note for note, _, text in (line.partition("\t") for line in lines)}
    sites = all_sites(TOP, ["include", "src", "backends"])
    found, strange = assigned(sites, messages_of(given.program))
    here = [s for s in sites if not any(s.path.startswith(f) for f in given.without)]
    faults = [
        f"{s.path}:{s.line}: no test provokes this message: {s.text()}"
        for s in here
        if not found[s] and s.text() not in elsewhere
    ]
    texts = {s.text() for s in sites}
    faults += [f"tests/errors/elsewhere.txt: no source has this message: {t}" for t in sorted(set(elsewhere) - texts)]
    faults += [f"no require() or concat() of the sources makes this message: {m}" for m in strange]
    if faults:
        sys.exit(
            "\n".join(faults) + "\nAdd a test to the area's test_errors.cpp (with Error or Refus in its name), then run: "
            "cmake --build BUILD --target errors-page"
        )
    page = page_of(found, elsewhere)
    if given.write:
        given.write.write_text(page)
    elif given.without:
        print(f"the page is not compared: this build lacks {', '.join(given.without)}")
    else:
        # Only the messages: other columns depend a little on the types of the build.
        old, new = (Counter(m[1] for m in MESSAGE.finditer(text)) for text in (given.check.read_text(), page))
        changed = [f"+ {text}" for text in new - old] + [f"- {text}" for text in old - new]
        if changed:
            sys.exit(
                f"{given.check} is out of date; run: cmake --build BUILD --target errors-page\n" + "\n".join(changed)
            )


if __name__ == "__main__":
    main()
