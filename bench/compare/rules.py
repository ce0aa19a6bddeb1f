# SPDX-License-Identifier: Apache-2.0
"""Evaluates rules about published claims: reads figures from the results, fills in sentences, gives a verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping

from results import Column, Results, Samples

HOLDS, PARTLY, FAILS, NOT_MEASURED = "holds", "in part", "does not hold", "not measured"


class Missing(LookupError):
    """A figure that was not measured."""


class Point(float):
    """A figure, and in `at` where on its curve it lies. Formats: "" (three digits), "x" (1.02x), "%"."""

    at: Any

    def __new__(cls, value: float, at: Any = None) -> Point:
        point = super().__new__(cls, value)
        point.at = at
        return point

    def __format__(self, spec: str) -> str:
        value = float(self)
        if spec == "x":
            return f"{value:.2f}x" if value < 10 else f"{value:.0f}x"
        if spec == "%":
            return f"{100 * value:.0f}%"
        return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


class Curve(dict[Any, Point]):
    """Figures by what varies (tokens, page size, number of splits), or by name."""

    def __init__(self, points: Mapping[Any, float]) -> None:
        super().__init__({at: Point(value, at) for at, value in points.items()})

    def __missing__(self, at: Any) -> Point:
        raise Missing(at)

    def measured(self) -> Curve:
        if not self:
            raise Missing("no row")
        return self

    first = property(lambda self: self[min(self.measured())])
    last = property(lambda self: self[max(self.measured())])
    lowest = property(lambda self: min(self.measured().values()))
    highest = property(lambda self: max(self.measured().values()))

    def map(self, to: Callable[[Any, float], float]) -> Curve:
        return Curve({at: to(at, value) for at, value in self.items()})

    def within(self, low: int, high: int) -> Curve:
        return Curve({at: value for at, value in self.items() if low <= at <= high})

    def __format__(self, spec: str) -> str:
        """All figures: "2.00x at 1024, 4.00x at 2048", or by name "1.02x batched, 1.90x one by one"."""
        word = " at " if all(isinstance(at, int) for at in self.measured()) else " "
        return ", ".join(f"{self[at]:{spec}}{word}{at}" for at in (sorted(self) if word == " at " else self))


@dataclass(frozen=True)
class Rows:
    """The rows whose names match a pattern. Its group x is what varies. If it has a group `longest`, only the rows count in
    which that number is largest. Where patterns give the same x, the first pattern counts."""

    patterns: tuple[str, ...]
    statistic: Callable[[Samples], float | None] = lambda samples: samples.median
    over: tuple[str, ...] = ()  #: divides by the first of these rows that exists; {x}, {name}: the row's x and name
    backend: str = ""  #: another library that the same run measured, instead of the column

    def read(self, results: Results, column: Column) -> Curve:
        read_from, found = self._column(results, column), {}
        for pattern in reversed(self.patterns):
            for match, samples in results.of(read_from, pattern) if read_from else []:
                names, value = match.groupdict(), self.statistic(samples)
                if self.over:
                    keys = (key.format(**names, name=match[0]) for key in self.over)
                    row = next((row for key in keys if (row := results.get(column, key))), None)
                    below = self.statistic(row) if row else None
                    value = value / below if value is not None and below else None
                if value is not None:
                    found[int(names.get("longest", 0)), names["x"]] = value
        longest = max((length for length, _ in found), default=0)
        return Curve({int(x) if x.isdigit() else x: v for (length, x), v in found.items() if length == longest})

    def _column(self, results: Results, column: Column) -> Column | None:
        if not self.backend:
            return column
        run = (column.device, column.git, self.backend)
        return next((c for c in results.columns if (c.device, c.git, c.backend) == run), None)


@dataclass(frozen=True)
class Served:
    """A figure of a trace that pagoda-serve ran."""

    statistic: Callable[[dict[str, Any]], float]

    def read(self, results: Results, column: Column) -> Point:
        for other, report in results.serve:
            if other == column:
                return Point(self.statistic(report))
        raise Missing("no trace")


class Facts:
    """The figures of one rule and one column, as attributes."""

    def __getattr__(self, name: str) -> Any:
        raise Missing(name)


Fact = Rows | Served | Callable[[Facts], Any]
Condition = Callable[[Facts], bool]


@dataclass(frozen=True)
class Claim:
    source: str
    text: str
    published: str
    needs: str  #: what to run to judge it
    facts: dict[str, Fact]  #: in this order; a function is given the facts before it
    ours: tuple[str, ...]  #: sentences about the facts; those that lack a fact are left out
    holds: Condition
    partly: Condition = lambda facts: False
    why: dict[str, str] = field(default_factory=dict)  #: by verdict
    why_on_host: dict[str, str] = field(default_factory=dict)  #: where a CPU's reason is another
    gpu_only: bool = False


@dataclass(frozen=True)
class Finding:
    """What one column's figures say about a claim."""

    column: Column
    ours: str
    verdict: str
    why: str = ""


def filled(sentences: tuple[str, ...], facts: Facts) -> list[str]:
    found = []
    for sentence in sentences:
        try:
            found.append(sentence.format(f=facts))
        except Missing:
            pass
    return list(dict.fromkeys(found))


def judge(claim: Claim, results: Results, column: Column) -> Finding | None:
    """None: nothing was measured from which the claim can be judged."""
    if claim.gpu_only and column.on_host:
        return None
    facts = Facts()
    for name, fact in claim.facts.items():
        try:
            setattr(facts, name, fact.read(results, column) if isinstance(fact, (Rows, Served)) else fact(facts))
        except Missing:
            pass
    ours = "; ".join(filled(claim.ours, facts))
    if not ours:
        return None
    try:
        verdict = HOLDS if claim.holds(facts) else PARTLY if claim.partly(facts) else FAILS
    except Missing:
        return None
    why = (claim.why_on_host if column.on_host else {}).get(verdict, claim.why.get(verdict, ""))
    return Finding(column, ours, verdict, "".join(filled((why,), facts)))
