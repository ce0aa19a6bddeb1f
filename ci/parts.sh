# shellcheck shell=bash disable=SC2034,SC2154
# The parts of ci/checks.sh, one function check_PART each. A part fails when a command fails (errexit is on), and ends
# with skip where it cannot run here.

all_parts=(tests format scripts install mpi python cuda hip demo asan-ubsan tsan fuzz tidy)

# skip REASON...: ends the part.
skip() {
  echo "skipped: $*"
  echo "$*" >"$PAGODA_PART.reason"
  exit 77
}

llvm=21 # that of sid's hipcc; when sid drops it, take the next one and run fix-format
tidy=22 # from this version on clang-tidy leaves out what system headers declare, which takes a third of the time
python_tools="python3-dev python3-pip python3-venv python3-nanobind python3-scikit-build-core python3-pathspec python3-numpy python3-ml-dtypes python3-pytest mypy"
tools="clang-$llvm clang-format-$llvm clang-tidy-$tidy libclang-rt-$llvm-dev libomp-$llvm-dev llvm-$llvm shellcheck hipcc libamdhip64-dev doxygen pkgconf libopenmpi-dev openmpi-bin $python_tools"
in_root=("$top/ci/sid-root.sh" -p "$tools")
builds=$sid_build/$key

sources() { find include src backends tests bench -name '*.[hc]' -o -name '*.[hc]pp' -o -name '*.cu' -o -name '*.cuh'; }

# configure PRESET [option...]: with the instruction sets that this processor runs: tests of the others would be skipped.
# The part tests compiles them all. A unity build compiles the sources of a target together, in half the time. tidy
# compiles each source of the library and the programs alone, and tsan each of its tests: these must include what they use.
configure() {
  local isas="" isa flag
  for isa in avx2:avx2 avx512:avx512vl avx512_bf16:avx512_bf16 amx:amx_int8; do
    flag=${isa#*:} isa=${isa%:*}
    ! grep -qw "$flag" /proc/cpuinfo || isas+="$isa;"
  done
  "${in_root[@]}" cmake --preset "$1" -B "$builds/$1" -DCMAKE_UNITY_BUILD=ON -DPAGODA_WERROR=ON "-DPAGODA_HOST_ISAS=${isas%;}" \
    "${@:2}"
}

build_and_test() { # build_and_test PRESET [option...]
  configure "$@"
  "${in_root[@]}" cmake --build "$builds/$1"
  in_env=("${in_root[@]}")
  run_ctest "$builds/$1" -LE install
}

# Sanitizers read /proc, which the root lacks on a machine that refuses mounts.
need_proc() { "${in_root[@]}" test -e /proc/self || { echo "no /proc in the sid root: sanitizers cannot run" && exit 1; }; }

check_root() { "${in_root[@]}" true; }
check_host-debug() { build_and_test host-debug; }
# All types are instances of the same templates, so a type of each kind finds the same errors in less time.
# The parts asan-ubsan and fuzz use one build.
asan_options=("-DCMAKE_CXX_COMPILER=clang++-$llvm" "-DCMAKE_C_COMPILER=clang-$llvm" -DPAGODA_FUZZ=ON -DPAGODA_BOUNDS_CHECK=ON
  "-DPAGODA_TYPES=fp16;int4;nvfp4;fp8_ds_mla")
check_asan-ubsan() { need_proc && build_and_test asan-ubsan "${asan_options[@]}"; }
check_tsan() { need_proc && build_and_test tsan -DCMAKE_CXX_COMPILER=clang++-$llvm -DPAGODA_TYPES=fp16; }
# The parts tests, install and mpi use one build, with Pagoda::mpi where there is an MPI. Installation scripts have not run
# in the root, so MPI's programs have their full names only.
test_host() { # test_host [arguments of ctest]
  local options="-DPAGODA_WERROR=ON -DCMAKE_UNITY_BUILD=ON"
  choose_env -DPAGODA_PROBE_DEMO=OFF
  [ ${#in_env[@]} = 0 ] || in_env=("${in_root[@]}")
  if "${in_env[@]}" bash -c 'command -v mpicxx.openmpi && command -v mpirun.openmpi' >/dev/null; then
    options+=" -DPAGODA_MPI=ON -DMPI_CXX_COMPILER=mpicxx.openmpi -DMPIEXEC_EXECUTABLE=/usr/bin/mpirun.openmpi"
  elif [ "$*" = "-L mpi" ]; then
    skip "there is no Open MPI here (Debian: libopenmpi-dev, openmpi-bin)"
  fi
  PAGODA_TEST_OPTIONS=$options ci/test.sh "$@"
}
# Without PAGODA_FUZZ_SECONDS the runs and their numbers are the same each time. Inputs that fail stay in the build folder.
check_fuzz() {
  need_proc
  local build=$builds/asan-ubsan runs seconds=${PAGODA_FUZZ_SECONDS:-} name pid options
  configure asan-ubsan "${asan_options[@]}"
  "${in_root[@]}" cmake --build "$build" --target pagoda_fuzz_problems pagoda_fuzz_pools pagoda_fuzz_c_boundary
  local pids=() failed=0
  for name in problems:250 pools:8000 c_boundary:60000; do
    runs=${name#*:} name=${name%:*}
    options=(-max_len=1000 -len_control=0 -print_final_stats=1 -verbosity=0 "-artifact_prefix=$build/$name-")
    if [ -n "$seconds" ]; then options+=("-max_total_time=$seconds"); else options+=("-runs=$runs" -seed=1); fi
    [ "$name" != pools ] || options+=(-detect_leaks=0) # some allocations fail there
    OMP_NUM_THREADS=1 OMP_PROC_BIND=false PAGODA_WARN=0 UBSAN_OPTIONS=print_stacktrace=1 \
      "${in_root[@]}" "$build/tests/fuzz/pagoda_fuzz_$name" "${options[@]}" >"$build/$name.log" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  cat "$build"/{problems,pools,c_boundary}.log
  return "$failed"
}
check_tests() { test_host -LE '^(install|mpi)$'; }
check_install() { test_host -L install; }
check_mpi() { test_host -L mpi; }
# A wheel, made from the source by pip as users do, installed in an environment of its own, and its tests. All packages are
# Debian's. Tests that need PyTorch, transformers or JAX are skipped, with that reason.
check_python() {
  local made=$builds/python offline=(--use-deprecated=legacy-certs) # the root has no file of certificates
  rm -rf "${made:?}/wheel" "$made/env" # CMake's build folder stays
  "${in_root[@]}" python3 -m pip "${offline[@]}" wheel . --no-deps --no-build-isolation --no-index -w "$made/wheel" \
    -C build-dir="$made/build" -C "cmake.define.PAGODA_TYPES=fp32;fp16;fp8_ds_mla" -C cmake.define.PAGODA_WERROR=ON \
    -C cmake.define.CMAKE_UNITY_BUILD=ON -C cmake.define.PAGODA_HOST_ISAS=
  "${in_root[@]}" python3 -m venv --without-pip --system-site-packages "$made/env"
  "${in_root[@]}" bash -c "python3 -m pip ${offline[*]} --python '$made/env/bin/python' install --no-deps --no-index '$made'/wheel/*.whl"
  # Installation scripts have not run in the root, so NumPy does not find BLAS by itself.
  # shellcheck disable=SC2016
  OMP_NUM_THREADS=2 "${in_root[@]}" bash -c 'LD_LIBRARY_PATH=$(printf %s: /usr/lib/*/blas /usr/lib/*/lapack) exec "$@"' - \
    "$made/env/bin/python" -B -m pytest -p no:cacheprovider -rs tests/python
}
check_demo() { ci/demo.sh; }
check_scripts() {
  "${in_root[@]}" shellcheck ci/*.sh .ci/run tests/tuned/keep_usage.sh
  "${in_root[@]}" python3 -B bench/compare/readme.py --check README.md
  "${in_root[@]}" python3 -B ci/pages.py
  "${in_root[@]}" python3 -B ci/folders.py
  "${in_root[@]}" cmake --preset host -B "$builds/docs" -DPAGODA_BUILD_TESTS=OFF -DPAGODA_BUILD_BENCH=OFF
  "${in_root[@]}" cmake --build "$builds/docs" --target docs
  "${in_root[@]}" python3 -B ci/type_table.py --check README.md
}

check_format() { sources | "${in_root[@]}" xargs -n 40 -P "$CMAKE_BUILD_PARALLEL_LEVEL" clang-format-$llvm --dry-run -Werror; }
check_fix-format() { sources | "${in_root[@]}" xargs clang-format-$llvm -i; }

# Every source of the library and the programs once; of sources compiled per data type, the fp32 instance. Tests would
# take several times as long. Configured for clang, as flags of other compilers omit clang's defaults. omp.h is that of
# clang $llvm: the packages of two versions conflict.
check_tidy() {
  "${in_root[@]}" cmake --preset host-debug -B "$builds/tidy" -DCMAKE_CXX_COMPILER=clang++-$llvm -DPAGODA_BUILD_BENCH=ON \
    -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON
  "${in_root[@]}" run-clang-tidy-$tidy -quiet -j "$CMAKE_BUILD_PARALLEL_LEVEL" -p "$builds/tidy" \
    "-config-file=$top/.clang-tidy" "-extra-arg=-idirafter/usr/lib/llvm-$llvm/lib/clang/$llvm/include" \
    "^$top/(src|backends|bench)/.*\.cpp$|_fp32\.cpp$"
}

# archs_of FILE: the architectures that a file is compiled for; none: it is left out, as its kernels are instances of code
# that is compiled for another type, too (planned.cpp with PAGODA_SOME_TYPES). Of warp kernels, those of fp16 are for A100
# too, and the plain ones of the types whose products differ. Only the plain kernels of fp16 are for A40: it can run the
# code for A100, with which its other kernels are compared. PAGODA_CUDA_ALL=1: all files for all cards.
archs_of() {
  case ${PAGODA_CUDA_ALL:-}$1 in
    backends/*_bf16.cu | backends/*_fp8_e5m2.cu | backends/*/option_kernels_int4.cu | backends/*/ragged_kernels_fp32.cu) ;;
    */wgmma/*kernels_*) echo 90a ;; # wgmma needs sm_90a
    backends/*/warp/kernels_fp16.cu) echo 80 86 90 ;;
    backends/*/warp/*_fp16.cu) echo 80 90 ;;
    backends/*/option_kernels_* | backends/*/ragged_kernels_*) echo 90 ;;
    backends/*/warp/kernels_*) echo 80 90 ;;
    *) echo 80 86 90 ;;
  esac
}

# compile_cuda FILE OBJECT
compile_cuda() {
  local flags=(-std=c++20 -O3 -Werror all-warnings -I. -Iinclude) begin=$SECONDS
  local arch
  for arch in $(archs_of "$1"); do flags+=(-gencode "arch=compute_$arch,code=sm_$arch"); done
  case $1 in
    bench/*) flags+=(-Xptxas "-warn-spills,-Werror") ;;
    */wgmma/*kernels_*) ;;
    *) flags+=(-DPAGODA_HAS_SM90A) ;;
  esac
  tests/tuned/keep_usage.sh "$nvcc" "${flags[@]}" -c -o "$2" "$1"
  echo "nvcc $1: $((SECONDS - begin)) s"
}

check_cuda() {
  local need=(80 86 90) file object partial=()
  nvcc=$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc) ||
    skip "there is no nvcc, neither in PATH nor in /usr/local/cuda/bin (any CUDA 13 toolkit will do, no GPU is needed)"
  made=$(mktemp -d) # not local: removed at exit
  trap 'rm -rf "$made"' EXIT
  python3 -B tests/tuned/test_check_resources.py
  local running=0 failed=0 planned=(-DPAGODA_HAS_SM90A)
  [ -n "${PAGODA_CUDA_ALL:-}" ] || planned+=(-DPAGODA_SOME_TYPES)
  while read -r file; do # not rates.cpp: it needs Kokkos, and `tests` compiles it
    [ -n "$(archs_of "$file")" ] || { echo "left out: $file (PAGODA_CUDA_ALL=1 compiles it)" && continue; }
    if [ "$running" -ge "$CMAKE_BUILD_PARALLEL_LEVEL" ]; then
      wait -n || failed=1
      running=$((running - 1))
    fi
    object=$made/${file//\//_}.o
    [ "$(archs_of "$file")" = "${need[*]}" ] || partial+=("$object")
    compile_cuda "$file" "$object" &
    running=$((running + 1))
  done < <(find backends/cuda/tuned bench -name '*.cu' -o -path 'backends/cuda/tuned/*.cpp' -o -path 'bench/tune/*.cpp' ! -name rates.cpp |
    awk '{ print /_fp32/ ? 0 : /ragged_/ ? 1 : /option_/ ? 2 : 3, $0 }' | sort | cut -d" " -f2) # the longest first
  while [ "$running" != 0 ]; do
    wait -n || failed=1
    running=$((running - 1))
  done
  [ "$failed" = 0 ]
  # Checks the kernels' registers, spills and shared memory.
  local kernels=("$made"/backends_*kernels_*.o)
  "$nvcc" -std=c++20 -O3 -I. -Iinclude "${planned[@]}" -o "$made/planned" tests/tuned/planned.cpp "${kernels[@]}"
  python3 -B tests/tuned/check_resources.py "$made/planned" --objects "${kernels[@]}" --need "${need[@]}" \
    --partial "${partial[@]}"
}

# Inspects the kernels of MatrixFragment, compiled without Kokkos, for MI250, MI300 and RX 7900. Then compiles all of the
# library in two data types, by hipcc for MI300, or for the presets that PAGODA_HIP_PRESETS names (hip-mi250, hip-mi300,
# hip-rx7900; each takes some minutes), and inspects its kernels too. Nothing is linked or run: ci/hip-kokkos is Kokkos'
# headers with HIP turned on. ci/gpu.sh does the rest on a machine with such a GPU.
check_hip() {
  local preset arch type made=$builds/hip-kernels
  mkdir -p "$made"
  "${in_root[@]}" python3 -B tests/hip/test_check_kernels.py
  "${in_root[@]}" g++ -std=c++20 -I. -o "$made/planned" tests/hip/planned.cpp
  for arch in gfx90a gfx942 gfx1100; do
    local define=()
    [ $arch != gfx1100 ] || define=(-DPAGODA_RDNA3)
    "${in_root[@]}" hipcc -std=c++20 -O3 -Wall -Wextra -Werror -I. "${define[@]}" --offload-arch=$arch -c \
      -o "$made/matrix_$arch.o" tests/hip/matrix_decode.hip
    inspect_hip $arch "$made/matrix_$arch.o" --counts
  done
  for preset in ${PAGODA_HIP_PRESETS:-hip-mi300}; do
    case $preset in
      hip-mi250) arch=gfx90a ;;
      hip-mi300) arch=gfx942 ;;
      *) arch=gfx1100 ;;
    esac
    "${in_root[@]}" cmake --preset "$preset" -B "$builds/$preset" -DKokkos_DIR="$top/ci/hip-kokkos" \
      -DCMAKE_UNITY_BUILD=ON -DPAGODA_WERROR=ON -DPAGODA_HOST_ISAS= "-DPAGODA_TYPES=fp16;mxfp4" \
      -DPAGODA_BUILD_TESTS=OFF -DPAGODA_BUILD_BENCH=OFF
    "${in_root[@]}" cmake --build "$builds/$preset"
    for type in fp16 mxfp4; do
      [ "$type $arch" != "mxfp4 gfx1100" ] || continue # has no matrix instructions there
      inspect_hip $arch "$builds/$preset/src/CMakeFiles/pagoda.dir/dispatch/generic_$type.cpp.o"
    done
  done
}

inspect_hip() { # inspect_hip ARCH OBJECT [option...]
  "${in_root[@]}" python3 -B tests/hip/check_kernels.py --planned "$builds/hip-kernels/planned" --arch "$1" \
    --tools "/usr/lib/llvm-$llvm/bin" "${@:3}" "$2"
}
