# SPDX-License-Identifier: Apache-2.0
"""Checks that the pages (*.md) say what the repository contains.

    python3 ci/pages.py           # fails if a page is wrong, and says how
    python3 ci/pages.py --write   # copies the programs that pages show

 - A path in `code` or in a link exists, from the repository's root or from the page's folder. It may have * and {a,b}.
 - Between <!-- file: PATH --> and <!-- end --> stands the file PATH as it is.
 - The table of cmake/README.md has every option of CMakeLists.txt, and no page names an option that does not exist.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
FOLDERS = ("include", "src", "backends", "tests", "bench", "cmake", "ci")
# These are histories: they name files of their time.
HISTORIES = {"bench/NOTES.md", "CHANGELOG.md", "bench/data/README.md"}
FILE = re.compile(r"(<!-- file: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
LANGUAGES = {".cpp": "cpp", ".hpp": "cpp", ".txt": "cmake", ".sh": "bash"}


def pages() -> list[Path]:
    found = [*TOP.glob("*.md"), *(page for folder in FOLDERS for page in (TOP / folder).rglob("*.md"))]
    return sorted(page for page in found if "results" not in page.relative_to(TOP).parts)


def with_files(text: str) -> str:
    def copied(match: re.Match[str]) -> str:
        path = TOP / match[2]
        program = path.read_text().rstrip("\n") if path.is_file() else "there is no such file"
        return f"{match[1]}```{LANGUAGES.get(path.suffix, '')}\n{program}\n```\n{match[4]}"

    return FILE.sub(copied, text)


def spelled_out(path: str) -> list[str]:
    """a/{b,c}.hpp is a/b.hpp and a/c.hpp."""
    parts = [part[1:-1].split(",") if part[0] == "{" else [part] for part in re.findall(r"\{[^}]*\}|[^{]+", path)]
    return ["".join(choice) for choice in itertools.product(*parts)]


def missing_paths(page: Path, text: str) -> list[str]:
    """Paths of the page that do not exist. `code` is a path if it begins with a folder of ours, or is a file's name with
    a folder before it; what has a blank, < or $ in it is none."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    candidates = [m[1] for m in re.finditer(r"`([^`\n]+)`", prose) if re.fullmatch(r"[\w.*{},/+-]+", m[1])]
    candidates = [c for c in candidates if c.split("/")[0] in FOLDERS and "/" in c or re.search(r"/[\w*{},-]+\.\w+$", c)]
    candidates += [m[1] for m in re.finditer(r"\]\(([^)#:\s]+)\)", prose)]
    missing = []
    for candidate in candidates:
        for path in spelled_out(candidate):
            if not any(list(base.glob(path.rstrip("/"))) for base in (TOP, page.parent)):
                missing.append(path)
    return missing


def options() -> set[str]:
    """The options that CMakeLists.txt files of the project define."""
    found: set[str] = set()
    for file in (TOP / "CMakeLists.txt", TOP / "tests" / "CMakeLists.txt", *(TOP / "cmake").glob("*.cmake")):
        text = file.read_text()
        found |= set(re.findall(r"^\s*option\((PAGODA_\w+)", text, re.MULTILINE))
        found |= set(re.findall(r"^\s*set\((PAGODA_\w+)[^()]*?\bCACHE\b", text, re.MULTILINE))
    return found


def faults(page: Path) -> list[str]:
    name, text = str(page.relative_to(TOP)), page.read_text()
    found = []
    if name not in HISTORIES:
        found += [f"{name}: there is no {path}" for path in missing_paths(page, text)]
        found += [f"{name}: there is no option {o}" for o in re.findall(r"-D(PAGODA_\w+)=", text) if o not in options()]
    if name == "cmake/README.md":
        listed = set(re.findall(r"^\| `(PAGODA_\w+)` \|", text, re.MULTILINE))
        found += [f"{name}: the table lacks {option}" for option in sorted(options() - listed)]
        found += [f"{name}: there is no option {option}" for option in sorted(listed - options())]
    if text != with_files(text):
        found.append(f"{name}: a program is not the file's; run python3 ci/pages.py --write")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        for page in pages():
            if (text := page.read_text()) != with_files(text):
                page.write_text(with_files(text))
    found = [fault for page in pages() for fault in faults(page)]
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
