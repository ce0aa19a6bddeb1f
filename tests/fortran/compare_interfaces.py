# SPDX-License-Identifier: Apache-2.0
"""Compares the Fortran module with the C headers: constants, the fields of structs, and the arguments of functions.

    python3 compare_interfaces.py [TEST...]    # also fails if no TEST, a Fortran program, calls a function

A compiler checks neither side against the other: bind(C) links by name alone.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
HEADERS = [TOP / "include" / "pagoda" / f"pagoda{part}.h" for part in ("", "_lists", "_prefix", "_memory", "_pool")]
MODULES = sorted((TOP / "src" / "fortran").glob("*.f90"))

# A type is (kind, how): "int32", "size", "pointer", or the name of a struct; how: "value" or "reference".
Type = tuple[str, str]
SCALARS = {"int32_t": "int32", "int64_t": "int64", "uint64_t": "int64", "size_t": "size", "double": "double"}
OF_FORTRAN = {
    "integer(c_int32_t)": "int32",
    "integer(c_int64_t)": "int64",
    "integer(c_size_t)": "size",
    "real(c_double)": "double",
    "type(c_ptr)": "pointer",
}
ARRAY = {"PAGODA_MAX_ROW_TILES": 16}


class C:
    """What the headers declare."""

    def __init__(self, text: str):
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
        text = re.sub(r"static inline [^{]*\{.*?\n\}", " ", text, flags=re.DOTALL)
        self.constants = {n: int(v) for n, v in re.findall(r"\b(PAGODA_[A-Z0-9_]+)\s*=\s*(\d+)", text)}
        self.scalars = dict(SCALARS)
        for of, name in re.findall(r"typedef (\w+) (pagoda_\w+);", text):
            self.scalars[name] = self.scalars[of]
        bodies = re.findall(r"typedef struct (\w+) \{(.*?)\}", text, re.DOTALL)
        self.structs = {name: [] for name, _ in bodies}
        self.functions: dict[str, tuple[list[Type], Type | None]] = {}
        for name, body in bodies:
            self.structs[name] = [field for line in body.split(";") if line.strip() for field in self.fields(line)]
        for result, name, args in re.findall(r"PAGODA_C_EXPORT\s+([\w ]+[ *]+?)(pagoda_\w+)\(([^)]*)\);", text):
            listed = [] if args.strip() == "void" else [self.type_of(re.sub(r"\w+$", "", a.strip())) for a in args.split(",")]
            self.functions[name] = (listed, None if result.strip() == "void" else self.type_of(result))

    def type_of(self, text: str) -> Type:
        stars, name = text.count("*"), re.sub(r"\bconst\b|\*", "", text).strip()
        if stars == 0:
            return (self.scalars.get(name, name), "value")
        if stars == 2:
            return ("pointer", "reference")
        if name in self.scalars or name in self.structs:
            return (self.scalars.get(name, name), "reference")
        return ("pointer", "value")

    def fields(self, line: str) -> list[tuple[str, str, int]]:
        """(name, kind, elements) of each field of a declaration."""
        begin, name, count = re.fullmatch(r"(.*?)(\w+)(?:\[(\w+)\])?", " ".join(line.split())).groups()
        kind, how = self.type_of(begin)
        return [(name, "pointer" if how == "reference" or "*" in begin else kind, int(ARRAY.get(count, count or 1)))]


class Fortran:
    """What the modules declare."""

    def __init__(self, text: str):
        text = re.sub(r"!.*", "", text)
        text = re.sub(r"&\s*\n\s*", " ", text)
        self.constants = {n: int(v) for n, v in re.findall(r"\b(PAGODA_[A-Z0-9_]+) = (\d+)", text)}
        self.structs = {}
        for name, body in re.findall(r"type, bind\(C\), public :: (\w+)\n(.*?)end type", text, re.DOTALL):
            self.structs[name] = [f for line in body.splitlines() if line.strip() for f in self.fields(line.strip())]
        self.functions: dict[str, tuple[list[Type], Type | None]] = {}
        self.names = {}
        head = r"(function|subroutine) (\w+)\(([^)]*)\)\s+bind\(C, name=\"(pagoda_\w+)\"\)(?: result\((\w+)\))?\n(.*?)end \1"
        for _, own, args, name, result, body in re.findall(head, text, re.DOTALL):
            types = self.declared(body)
            listed = [types[a.strip()] for a in args.split(",") if a.strip()]
            self.functions[name] = (listed, (types[result][0], "value") if result else None)
            self.names[name] = own.replace("c_", "pagoda_", 1) if own.startswith("c_") else own

    @staticmethod
    def kind_of(text: str) -> str:
        return OF_FORTRAN.get(text) or re.fullmatch(r"type\((\w+)\)", text)[1]

    def fields(self, line: str) -> list[tuple[str, str, int]]:
        kind, _, names = line.partition(" :: ")
        found = []
        for name in re.sub(r" = [^,]+", "", names).split(", "):
            bare, count = re.fullmatch(r"(\w+)(?:\((\w+)\))?", name).groups()
            found.append((bare, self.kind_of(kind), int(ARRAY.get(count, count or 1))))
        return found

    def declared(self, body: str) -> dict[str, Type]:
        types = {}
        for line in body.splitlines():
            kind, _, names = line.strip().partition(" :: ")
            if not names or kind.startswith("import"):
                continue
            first, *attributes = kind.split(", ")
            how = "value" if "value" in attributes else "reference"
            for name in names.split(", "):
                types[name.split("(")[0].strip()] = (self.kind_of(first), how)
        return types


def same(c: Type | None, fortran: Type | None) -> bool:
    # A pointer to one or more values may be a c_ptr in Fortran, so that it can be null.
    return c == fortran or (fortran == ("pointer", "value") and c is not None and c[1] == "reference" and c[0] != "pointer")


def differences(c: C, f: Fortran) -> list[str]:
    found = []
    for what in ("structs", "functions"):
        in_c, in_f = set(getattr(c, what)), set(getattr(f, what))
        found += [f"{name}: not in the Fortran module" for name in sorted(in_c - in_f)]
        found += [f"{name}: not in the C headers" for name in sorted(in_f - in_c)]
    found += [f"{n}: {v} in C, {f.constants.get(n)} in Fortran" for n, v in c.constants.items() if f.constants.get(n) != v]
    for name in sorted(set(c.structs) & set(f.structs)):
        pairs = list(zip(c.structs[name], f.structs[name]))
        found += [f"{name}: field {a} in C, {b} in Fortran" for a, b in pairs if a != b]
        if len(c.structs[name]) != len(f.structs[name]):
            found.append(f"{name}: {len(c.structs[name])} fields in C, {len(f.structs[name])} in Fortran")
    for name in sorted(set(c.functions) & set(f.functions)):
        (args, result), (args_f, result_f) = c.functions[name], f.functions[name]
        if len(args) != len(args_f) or not all(map(same, args, args_f)) or not same(result, result_f):
            found.append(f"{name}: {args} -> {result} in C, {args_f} -> {result_f} in Fortran")
    return found


def main() -> None:
    c = C("\n".join(p.read_text() for p in HEADERS))
    f = Fortran("\n".join(p.read_text() for p in MODULES))
    found = differences(c, f)
    if len(sys.argv) > 1:
        tests = "\n".join(Path(name).read_text() for name in sys.argv[1:])
        found += [
            f"{name}: no test of tests/fortran calls it"
            for name in sorted(set(c.functions) & set(f.functions))
            if not re.search(rf"\b{f.names[name]}\b", tests)
        ]
    if found:
        sys.exit("\n".join(found))
    print(f"{len(c.functions)} functions, {len(c.structs)} structs and {len(c.constants)} constants are the same")


if __name__ == "__main__":
    main()
