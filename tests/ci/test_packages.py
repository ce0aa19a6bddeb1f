# SPDX-License-Identifier: Apache-2.0
"""The recipes of cmake/packaging name options that exist, and the version of the project.

Spack is not needed: a few stand-ins for its module record what the recipe declares.
"""

from __future__ import annotations

import itertools
import re
import sys
import types
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

TOP = Path(__file__).resolve().parents[2]
PACKAGING = TOP / "cmake" / "packaging"
CMAKE = (TOP / "CMakeLists.txt").read_text()
VERSION = re.search(r"project\(Pagoda VERSION ([\d.]+)", CMAKE)[1]
TYPES = (TOP / "cmake" / "PagodaTypes.cmake").read_text()
OPTIONS = set(re.findall(r"^(?:option|set)\((PAGODA_\w+)", CMAKE + TYPES, re.MULTILINE))


class Spec:
    """A spec of which only variants are asked."""

    def __init__(self, variants: dict[str, bool]):
        self.on = variants
        self.variants = {
            "cuda_arch": types.SimpleNamespace(value=("90",)),
            "types": types.SimpleNamespace(value=("fp16", "fp32")),
        }

    def satisfies(self, text: str) -> bool:
        if text == "types=auto":
            return not self.on["types"]
        return self.on[text[1:]] == (text[0] == "+")

    def __getitem__(self, name: str) -> Any:
        return types.SimpleNamespace(hipcc="hipcc", kokkos_cxx="nvcc_wrapper", prefix=mock.MagicMock())


class Base:
    cuda_arch_values = ("80", "90")
    amdgpu_targets = ("gfx942",)
    run_tests = True
    prefix = "prefix"

    def define(self, name: str, value: Any) -> str:
        return f"-D{name}={value}"

    def define_from_variant(self, name: str, variant: str) -> str:
        return self.define(name, self.spec.on[variant])

    def __getitem__(self, name: str) -> Any:
        return self.spec[name]


class Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...


def recipe() -> tuple[type, list[tuple[str, tuple[Any, ...], dict[str, Any]]]]:
    """The class of the recipe, and the directives that it calls."""
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def directive(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append((name, args, kwargs))
            return Nothing()

        return call

    spack = types.ModuleType("spack.package")
    for name in ("license", "version", "variant", "depends_on", "extends", "conflicts", "when"):
        setattr(spack, name, directive(name))
    spack.auto_or_any_combination_of = lambda *names: ("auto", *names)  # type: ignore[attr-defined]
    spack.run_after = lambda phase: lambda f: f  # type: ignore[attr-defined]
    modules = {"spack": types.ModuleType("spack"), "spack.package": spack}
    for path, cls in (("cmake", "CMakePackage"), ("cuda", "CudaPackage"), ("rocm", "ROCmPackage")):
        module = types.ModuleType(f"spack_repo.builtin.build_systems.{path}")
        setattr(module, cls, type(cls, (Base,), {}))
        modules[module.__name__] = module
    for name in ("spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
        modules[name] = types.ModuleType(name)
    sys.modules.update(modules)
    code = (PACKAGING / "spack" / "package.py").read_text()
    scope: dict[str, Any] = {}
    exec(compile(code, "package.py", "exec"), scope)
    return scope["Pagoda"], calls


class Spack(unittest.TestCase):
    def setUp(self) -> None:
        self.cls, self.calls = recipe()
        self.variants = [args[0] for name, args, _ in self.calls if name == "variant"]

    def test_version_and_variants(self) -> None:
        self.assertIn(("version", (VERSION,), {}), self.calls)
        self.assertEqual(sorted(self.variants), ["c", "fortran", "mpi", "openmp", "python", "shared", "types"])

    def test_types_are_those_of_the_library(self) -> None:
        table = (TOP / "include" / "pagoda" / "detail" / "type_table.hpp").read_text()
        self.assertEqual(self.cls.types, tuple(re.findall(r"^ *X\((\w+),", table, re.MULTILINE)))
        package = self.cls()
        package.spec = Spec({v: v == "types" for v in (*self.variants, "cuda", "rocm")})
        self.assertIn("-DPAGODA_TYPES=('fp16', 'fp32')", package.cmake_args())

    def test_conditions_name_variants(self) -> None:
        known = {*self.variants, "cuda", "rocm"}
        for name, args, options in self.calls:
            for text in (str(options.get("when", "")), *(map(str, args) if name in ("conflicts", "when") else ())):
                for variant in re.findall(r"[+~](\w+)", text):
                    self.assertIn(variant, known, f"{name}{args}")

    def test_options_exist(self) -> None:
        names = [*self.variants, "cuda", "rocm"]
        for values in itertools.product((False, True), repeat=len(names)):
            package = self.cls()
            package.spec = Spec(dict(zip(names, values)))
            for arg in package.cmake_args():
                option = re.fullmatch(r"-D(\w+)=(.+)", arg)[1]
                self.assertTrue(option in OPTIONS or not option.startswith("PAGODA_"), arg)

    def test_shared_builds_have_no_tests(self) -> None:
        package = self.cls()
        for shared in (False, True):
            package.spec = Spec({v: v == "shared" and shared for v in (*self.variants, "cuda", "rocm")})
            self.assertIn(f"-DPAGODA_BUILD_TESTS={not shared}", package.cmake_args())

    def test_programs_for_hip_are_built_by_hipcc(self) -> None:
        for rocm in (False, True):
            package = self.cls()
            package.spec = Spec({v: v == "rocm" and rocm for v in (*self.variants, "cuda", "rocm")})
            ran: list[Any] = []
            names = {
                "Executable": lambda _: lambda *args: ran.extend(args),
                "install_test_root": lambda _: "root",
                "join_path": lambda *parts: "/".join(parts),
            }
            with mock.patch.dict(package.test_consumer.__globals__, names):
                package.test_consumer()
            for args in (ran, package.cmake_args()):
                self.assertEqual("-DCMAKE_CXX_COMPILER=hipcc" in args, rocm, args)

    def test_consumers_exist(self) -> None:
        self.assertTrue((TOP / "tests" / "install" / "find_package" / "CMakeLists.txt").is_file())


class Conda(unittest.TestCase):
    text = (PACKAGING / "conda" / "recipe.yaml").read_text()

    def test_version(self) -> None:
        self.assertEqual(re.search(r'^  version: "([\d.]+)"', self.text, re.MULTILINE)[1], VERSION)

    def test_options_exist(self) -> None:
        consumer = (TOP / "tests" / "install" / "find_package" / "CMakeLists.txt").read_text()
        for option in re.findall(r"-D((?:PAGODA|CONSUMER)_\w+)", self.text):
            self.assertTrue(option in OPTIONS or option in consumer, option)

    def test_requirements_are_those_of_the_python_package(self) -> None:
        project = (TOP / "pyproject.toml").read_text()
        for name, version in re.findall(r'"(scikit-build-core|nanobind)>=([\d.]+)"', project):
            self.assertIn(f"- {name} >={version}", self.text)

    def test_paths_exist(self) -> None:
        self.assertTrue((PACKAGING / "conda" / "../../.." / "pyproject.toml").is_file())
        self.assertIn("license_file: LICENSE", self.text)


if __name__ == "__main__":
    unittest.main()
