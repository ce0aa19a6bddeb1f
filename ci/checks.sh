#!/usr/bin/env bash
# ci/checks.sh [PART...]: what CI checks beside the tests of ci/test.sh, all of it without arguments:
#   asan-ubsan tsan              the tests in builds that find what an ordinary one hides (asan with bounds checks)
#   install                      consumers of an installed Pagoda and of Pagoda as a sub-project
#   format tidy scripts          clang-format, clang-tidy and shellcheck have nothing to say; README's figures are those
#                                of bench/results
#   cuda                         the CUDA sources compile for A100, A40 and H100 without spills, and as many blocks of the
#                                hand-tuned kernels fit as their tuning counts on (where there is an nvcc)
#   demo                         ci/demo.sh runs
# ci/checks.sh host-debug        bounds checks alone
# ci/checks.sh fix-format        formats the sources in place
# ci/checks.sh root              makes the sid root with all that these need
# All parts run even when one fails; the tools come from the sid root, so they are everywhere the same.
set -euo pipefail
. "$(dirname "$0")/common.sh"
cd "$top"

llvm=21 # when sid drops this version, take the next one and run fix-format
tools="clang-$llvm clang-format-$llvm clang-tidy-$llvm libclang-rt-$llvm-dev libomp-$llvm-dev llvm-$llvm shellcheck"
in_root=("$top/ci/sid-root.sh" -p "$tools")
builds=$sid_build/$key

sources() { find include src backends tests bench -name '*.[hc]' -o -name '*.[hc]pp' -o -name '*.cu' -o -name '*.cuh'; }

build_and_test() { # build_and_test PRESET [option...]
  "${in_root[@]}" cmake --preset "$1" -B "$builds/$1" -DPAGODA_WERROR=ON "${@:2}"
  "${in_root[@]}" cmake --build "$builds/$1"
  "${in_root[@]}" ctest --test-dir "$builds/$1" --output-on-failure --no-tests=error -LE install
}

# The sanitizers' own machinery reads /proc, which a machine that refuses mounts keeps from the root.
need_proc() { "${in_root[@]}" test -e /proc/self || { echo "no /proc in the sid root: sanitizers cannot run" && exit 1; }; }

check_root() { "${in_root[@]}" true; }
check_host-debug() { build_and_test host-debug; }
# Types are instances of the same templates: fewer of them find as much in half the time.
check_asan-ubsan() { need_proc && build_and_test asan-ubsan -DPAGODA_BOUNDS_CHECK=ON "-DPAGODA_TYPES=fp64;fp16;int4"; }
check_tsan() { need_proc && build_and_test tsan -DCMAKE_CXX_COMPILER=clang++-$llvm -DPAGODA_TYPES=fp16; }
check_install() { ci/test.sh -L install; }
check_demo() { [ ! -d bench/serve ] || ci/demo.sh; }
check_scripts() {
  "${in_root[@]}" shellcheck ci/*.sh .ci/run
  "${in_root[@]}" python3 -B bench/compare/readme.py --check README.md
}

check_format() { sources | "${in_root[@]}" xargs clang-format-$llvm --dry-run -Werror; }
check_fix-format() { sources | "${in_root[@]}" xargs clang-format-$llvm -i; }

# Every source of the library and the programs once, and of what is compiled per data type the fp32 instance; tests
# would take several times as long. Configured for clang, as the flags of another compiler leave out what that one does
# by default.
check_tidy() {
  "${in_root[@]}" cmake --preset host-debug -B "$builds/tidy" -DCMAKE_CXX_COMPILER=clang++-$llvm -DPAGODA_BUILD_BENCH=ON
  "${in_root[@]}" run-clang-tidy-$llvm -quiet -j "$CMAKE_BUILD_PARALLEL_LEVEL" -p "$builds/tidy" \
    "^$top/(src|backends|bench)/|_fp32\.cpp$"
}

check_cuda() {
  local nvcc arch file need=(80 86 90) gencode=() compile
  nvcc=$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc) || { echo "no nvcc here: skipped" && return; }
  PATH=$PATH:$(dirname "$nvcc") # cuobjdump stands beside it
  for arch in "${need[@]}"; do
    gencode+=(-gencode "arch=compute_$arch,code=sm_$arch")
  done
  compile=("$nvcc" -std=c++20 -O3 --threads 2 -Werror all-warnings -I. -Iinclude "${gencode[@]}")
  made=$(mktemp -d) # not local: removed at exit
  trap 'rm -rf "$made"' EXIT
  find backends/cuda/tuned -name '*.cu' | while read -r file; do
    echo "nvcc $file"
    case $file in */many/*/kernels_*) # products of warpgroups: sm_90a alone has them
      "$nvcc" -std=c++20 -O3 -Werror all-warnings -I. -Iinclude -gencode arch=compute_90a,code=sm_90a \
        -c -o "$made/${file//\//_}.o" "$file"
      continue ;;
    esac
    "${compile[@]}" -DPAGODA_HAS_SM90A -c -o "$made/${file//\//_}.o" "$file"
  done
  # The kernels count on their registers, on nothing being spilled, and on so much shared memory.
  "${compile[@]}" -DPAGODA_HAS_SM90A -o "$made/planned" tests/tuned/planned.cpp "$made"/*.o
  python3 -B tests/tuned/test_check_resources.py
  python3 -B tests/tuned/check_resources.py "$made/planned" --need "${need[@]}"
  find bench -name '*.cu' | while read -r file; do
    echo "nvcc $file"
    "${compile[@]}" -Xptxas -warn-spills,-Werror -c -o /dev/null "$file"
  done
}

if [ $# = 1 ]; then
  declare -F "check_$1" >/dev/null || { echo "ci/checks.sh: there is no part $1" >&2 && exit 2; }
  "check_$1"
  exit
fi
[ $# != 0 ] || set -- format scripts install cuda demo asan-ubsan tsan tidy
failed=()
for part in "$@"; do
  echo "=== $part"
  SECONDS=0
  "$0" "$part" || failed+=("$part")
  echo "=== $part took $SECONDS s"
done
[ ${#failed[@]} = 0 ] || { echo "ci/checks.sh: failed: ${failed[*]}" && exit 1; }
echo "ci/checks.sh: passed: $*"
