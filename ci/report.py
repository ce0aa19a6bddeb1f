# SPDX-License-Identifier: Apache-2.0
"""Prints the last lines of ci/checks.sh: passed, skipped and failed parts, and tests of ctest.

    report.py FOLDER PART...

FOLDER holds, for every part that ran, PART.status (its exit status), PART.reason (why it was skipped) and, where it
ran ctest, PART.xml (ctest --output-junit). Exits with 0 where no part failed and one passed.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

SKIPPED = 77  #: exit status of a part that ended with `skip`


@dataclass(frozen=True)
class Part:
    name: str
    verdict: str  #: "passed", "skipped" or "failed"
    reason: str = ""


def verdict_of(folder: Path, name: str) -> Part:
    """A part without a readable status failed, and so did one that was skipped without a reason."""
    try:
        status = int((folder / f"{name}.status").read_text())
    except (OSError, ValueError):
        return Part(name, "failed", "it left no exit status")
    if status == 0:
        return Part(name, "passed")
    if status != SKIPPED:
        return Part(name, "failed", f"exit status {status}")
    try:
        reason = (folder / f"{name}.reason").read_text().strip()
    except OSError:
        reason = ""
    return Part(name, "skipped", reason) if reason else Part(name, "failed", "it was skipped without a reason")


def reason_of(case: ElementTree.Element) -> str:
    """Why a test was skipped: what GTEST_SKIP or pagoda_add_skipped_test printed, or else what ctest says."""
    output = case.findtext("system-out") or ""
    if match := re.search(r": Skipped\n(.*?)(?:\n\n|\n\[|\Z)", output, re.DOTALL):
        if match[1].strip():
            return " ".join(match[1].split())
    if match := re.search(r"^Skipped: (.*)$", output, re.MULTILINE):
        return match[1].strip()
    skipped = case.find("skipped")
    message = skipped.get("message", "") if skipped is not None else ""
    return message or case.get("status", "") or "no reason given"


def ctest_lines(name: str, path: Path) -> list[str]:
    cases = list(ElementTree.parse(path).getroot().iter("testcase"))
    failed = [case.get("name", "") for case in cases if case.get("status") == "fail"]
    skipped: dict[str, list[str]] = {}
    for case in cases:
        if case.get("status") not in ("run", "fail"):
            skipped.setdefault(reason_of(case), []).append(case.get("name", ""))
    count = sum(map(len, skipped.values()))
    ran = len(cases) - count
    share = 100 * (ran - len(failed)) // ran if ran else 0
    lines = [f"{name}: {share}% tests passed, {len(failed)} tests failed out of {ran}, {count} skipped"]
    lines += [f"  failed: {test}" for test in failed]
    lines += [f"  skipped: {', '.join(tests)}: {reason}" for reason, tests in skipped.items()]
    return lines


def closing_lines(parts: list[Part]) -> list[str]:
    def names(verdict: str) -> str:
        told = [f"{p.name} ({p.reason})" if p.reason else p.name for p in parts if p.verdict == verdict]
        return f"{len(told)} {verdict}" + (f": {', '.join(told)}" if told else "")

    return [names("passed"), names("skipped"), names("failed")]


def main(folder: Path, names: list[str]) -> int:
    parts = []
    for name in names:
        part = verdict_of(folder, name)
        xml = folder / f"{name}.xml"
        if xml.exists():
            try:
                print("\n".join(ctest_lines(name, xml)))
            except ElementTree.ParseError as error:
                part = Part(name, "failed", f"ctest left no report: {error}")
        parts.append(part)
    print("\n".join(closing_lines(parts)))
    verdicts = {part.verdict for part in parts}
    return 0 if "passed" in verdicts and "failed" not in verdicts else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
