# SPDX-License-Identifier: Apache-2.0
# Spack recipe: README.md of the folder above.
import os

from spack.package import *
from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.build_systems.rocm import ROCmPackage


class Pagoda(CMakePackage, CudaPackage, ROCmPackage):
    """Decode attention for Kokkos: attention of newly generated tokens over contiguous and paged KV caches."""

    license("Apache-2.0")

    version("0.1.0")

    types = ("fp64", "fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4", "mxfp4", "nvfp4", "fp8_ds_mla")
    variant("types", values=auto_or_any_combination_of(*types), description="Element types of caches; auto: all")
    variant("openmp", default=True, description="Kokkos with OpenMP on the host")
    variant("shared", default=False, description="Build a shared library")
    variant("c", default=True, description="C interface")
    variant("fortran", default=False, description="Fortran interface")
    variant("mpi", default=False, description="Decodes over MPI ranks")
    variant("python", default=False, description="Python package")

    depends_on("c", type="build", when="+c")
    depends_on("cxx", type="build")
    depends_on("fortran", type="build", when="+fortran")
    depends_on("cmake@3.25:", type="build")
    depends_on("kokkos@4.6:5")
    depends_on("kokkos+openmp", when="+openmp")
    depends_on("mpi", when="+mpi")
    depends_on("kokkos+cuda+wrapper", when="+cuda")  # without +wrapper Kokkos' recipe refuses GCC
    depends_on("kokkos+cuda_lambda", when="+cuda ^kokkos@4")
    for library in ("+shared", "+python"):
        depends_on("kokkos+pic", when=f"{library} ^kokkos~shared")
    for arch in CudaPackage.cuda_arch_values:
        depends_on(f"kokkos+cuda cuda_arch={arch}", when=f"+cuda cuda_arch={arch}")
    for target in ROCmPackage.amdgpu_targets:
        depends_on(f"kokkos+rocm amdgpu_target={target}", when=f"+rocm amdgpu_target={target}")
    extends("python@3.9:", when="+python")
    with when("+python"):
        depends_on("py-nanobind@2.8:", type="build")
        depends_on("py-numpy", type="test")
    depends_on("googletest+gmock", type="test")
    depends_on("cli11", type="test")

    conflicts("+cuda", when="+rocm", msg="Kokkos has one GPU backend")
    conflicts("~c", when="+fortran", msg="the Fortran interface stands on the C interface")
    conflicts("~c", when="+python", msg="the Python package stands on the C interface")
    conflicts("+shared", when="+python", msg="the extension module holds the static library")
    conflicts("cuda_arch=none", when="+cuda", msg="name the GPU: cuda_arch=90")
    conflicts("amdgpu_target=none", when="+rocm", msg="name the GPU: amdgpu_target=gfx942")

    def cmake_args(self):
        tests = self.run_tests and self.spec.satisfies("~shared")
        args = [
            self.define_from_variant("BUILD_SHARED_LIBS", "shared"),
            self.define_from_variant("PAGODA_C", "c"),
            self.define_from_variant("PAGODA_FORTRAN", "fortran"),
            self.define_from_variant("PAGODA_MPI", "mpi"),
            self.define_from_variant("PAGODA_PYTHON", "python"),
            self.define("PAGODA_INSTALL", True),
            self.define("PAGODA_BUILD_TESTS", tests),
            self.define("PAGODA_BUILD_BENCH", False),
        ]
        if not self.spec.satisfies("types=auto"):
            args.append(self.define("PAGODA_TYPES", self.spec.variants["types"].value))
        if self.spec.satisfies("+cuda"):
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value))
            args.append(self.define("CMAKE_CXX_COMPILER", self.cuda_compiler()))
        return args + self.hip_compiler()

    def hip_compiler(self):
        """For programs that use the package, too: Kokkos passes them options that only hipcc knows."""
        return [self.define("CMAKE_CXX_COMPILER", self.spec["hip"].hipcc)] if self.spec.satisfies("+rocm") else []

    def cuda_compiler(self):
        """The wrapper of Kokkos' dependency kokkos-nvcc-wrapper. An external Kokkos has no dependencies: its own wrapper."""
        try:
            return self["kokkos"].kokkos_cxx
        except KeyError:
            return join_path(self.spec["kokkos"].prefix.bin, "nvcc_wrapper")

    @run_after("install")
    def install_python(self):
        if self.spec.satisfies("~python"):
            return
        cmake = Executable(self.spec["cmake"].prefix.bin.cmake)
        cmake("--install", self.build_directory, "--component", "python", "--prefix", python_platlib)
        install_tree(join_path(self.stage.source_path, "src", "python", "pagoda"), join_path(python_platlib, "pagoda"))

    @run_after("install")
    def keep_consumers(self):
        """The consumers that `spack test run` builds."""
        cache_extra_test_sources(self, join_path("tests", "install"))

    def test_consumer(self):
        """build and run programs that use the installed package"""
        source = join_path(install_test_root(self), "tests", "install", "find_package")
        options = [
            f"-DCMAKE_PREFIX_PATH={self.prefix};{self.spec['kokkos'].prefix}",
            self.define("CONSUMER_IN_C", self.spec.satisfies("+c")),
            self.define("CONSUMER_IN_FORTRAN", self.spec.satisfies("+fortran")),
            self.define("CONSUMER_WITH_MPI", self.spec.satisfies("+mpi")),
            *self.hip_compiler(),
        ]
        cmake = Executable(self.spec["cmake"].prefix.bin.cmake)
        cmake("-S", source, "-B", "consumer", *options)
        cmake("--build", "consumer")
        ctest = Executable(self.spec["cmake"].prefix.bin.ctest)
        ctest("--test-dir", "consumer", "--output-on-failure", "--no-tests=error")

    def test_python(self):
        """import the Python package and ask for its version"""
        if self.spec.satisfies("~python"):
            raise SkipTest("built without +python")
        python = Executable(os.path.join(self.spec["python"].prefix.bin, "python3"))
        out = python("-c", "import pagoda; print(pagoda.__version__)", output=str.split, error=str.split)
        assert str(self.version) in out
