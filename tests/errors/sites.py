# SPDX-License-Identifier: Apache-2.0
"""Finds the places in the sources that make a message of InvalidArgument.

A place is a call of require(condition, parts...), or of concat(parts...) whose literals say what is "allowed". A part is a
literal, a choice between literals, or a value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

CALL = re.compile(r"\b(require|concat)\(")
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
OTHER = re.compile(r"\b(\w*Error|OutOfCapacity|NotInitialized)\([^()]*$")  # other exceptions have other messages
COMMENT = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


@dataclass(frozen=True)
class Site:
    path: str
    line: int
    parts: tuple[tuple[str, ...] | str, ...]  # literals to choose from, or a value's name

    def text(self) -> str:
        """The message, with <name> for a value and [a|b] for a choice."""
        return "".join(
            f"<{p}>" if isinstance(p, str) else p[0] if len(p) == 1 else "[" + "|".join(p) + "]" for p in self.parts
        )

    def pattern(self) -> re.Pattern[str]:
        parts = ("(.*)" if isinstance(p, str) else "(?:" + "|".join(map(re.escape, p)) + ")" for p in self.parts)
        return re.compile("".join(parts), re.DOTALL)

    def literals(self) -> int:
        """How many characters are fixed: of two patterns that fit a message, the more exact one is meant."""
        return sum(min(map(len, p)) for p in self.parts if not isinstance(p, str))


def without_comments(text: str) -> str:
    def blank(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith('"') else re.sub(r"[^\n]", " ", match[0])

    return COMMENT.sub(blank, text)


def arguments(text: str, start: int) -> list[str]:
    """The arguments of the call whose parenthesis ends at `start`, split at its own commas."""
    depth, begin, found, i = 1, start, [], start
    while depth > 0:
        c = text[i]
        if c == '"':
            i = LITERAL.match(text, i).end() - 1
        elif c == "'":
            i = text.index("'", i + 2 if text[i + 1] == "\\" else i + 1)
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        if (c == "," and depth == 1) or depth == 0:
            found.append(text[begin:i].strip())
            begin = i + 1
        i += 1
    return found


def unescaped(literal: str) -> str:
    return literal.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")


def part_of(argument: str) -> tuple[str, ...] | str:
    rest = LITERAL.sub("", argument)
    if not rest.strip():
        return ("".join(unescaped(m[1]) for m in LITERAL.finditer(argument)),)
    branches = re.split(r"\?|:(?!:)(?<!::)", LITERAL.sub(lambda m: m[0].replace("?", "\0").replace(":", "\1"), argument))
    if "?" in rest:
        # cond ? a : cond ? b : c has the conditions at 0, and before each further question mark.
        texts = [b.strip().replace("\0", "?").replace("\1", ":") for b in branches[1:]]
        literals = tuple("".join(unescaped(m[1]) for m in LITERAL.finditer(t)) for t in texts if t.startswith('"'))
        conditions = rest.count("?") - 1
        if len(literals) == len(texts) - conditions:
            return literals
    return value_name(rest)


def value_name(expression: str) -> str:
    """A short name for the value of an expression: of a sum or a product, the names of its terms."""
    expression = re.sub(r"\[[^\[\]]*\]", "", expression)  # an index
    expression = re.sub(r"\bextent\(\w+\)", "extent", expression)
    terms = re.split(r" ([-+*]) ", expression)
    if len(terms) > 1 and all(t.count("(") == t.count(")") for t in terms):
        return " ".join(t if i % 2 or t.isdigit() else value_name(t) for i, t in enumerate(terms))
    # An identifier that is not the name of a function around it.
    names = re.findall(r"[A-Za-z_]\w*(?!\w*(?:\(|::|\.|->))", expression)
    names = [n for n in names if n not in ("int", "size_t", "std", "uint32_t", "int64_t", "max", "x")]
    calls = re.findall(r"([A-Za-z_]\w*)\(", expression)
    if calls and calls[0] in ("sizeof", "alignof"):
        return f"{calls[0]} {names[-1]}"
    return (names or calls or ["value"])[-1]


WHO = re.compile(r'const char\* (?:const )?who(?:\s*=\s*"([^"]*)"|[,)])')  # a text, or an argument
LOCAL = re.compile(r"const auto (\w+)\s*=\s*concat\(")


def sites_of(path: Path, name: str) -> list[Site]:
    text = without_comments(path.read_text())
    local = {m[1]: [part_of(a) for a in arguments(text, m.end())] for m in LOCAL.finditer(text)}
    found = []
    for match in CALL.finditer(text):
        before = text[: match.start()].rstrip()
        if before.endswith("void") or re.search(r"(?<!detail)::$", before):
            continue  # a definition, or a function of another library
        parts = arguments(text, match.end())
        if match[1] == "require":
            parts = parts[1:]
        elif not any("allowed" in p for p in parts) or OTHER.search(before):
            continue
        if parts and parts[0].startswith(("concat(", "detail::concat(")):
            continue  # counted as the call of concat that it is
        whos = [m[1] for m in WHO.finditer(text, 0, match.start())]
        if parts and parts[0] == "who" and whos and whos[-1]:
            parts[0] = f'"{whos[-1]}"'
        found.append(Site(name, text.count("\n", 0, match.start()) + 1, tuple(q for p in parts for q in local.get(p, [part_of(p)]))))
    return found


def all_sites(top: Path, folders: list[str]) -> list[Site]:
    files = sorted(
        f for folder in folders for f in (top / folder).rglob("*") if f.name.endswith((".hpp", ".cpp", ".cpp.in"))
    )
    skip = {top / "include/pagoda/error.hpp"}
    return [s for f in files if f not in skip and "python" not in f.parts for s in sites_of(f, str(f.relative_to(top)))]
