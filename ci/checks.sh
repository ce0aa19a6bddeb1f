#!/usr/bin/env bash
# ci/checks.sh [PART...]: checks that must pass before a change goes in; without arguments all of them:
#   tests                        the tests of an ordinary build (ci/test.sh)
#   install                      consumers of an installed Pagoda and of Pagoda as a sub-project
#   mpi                          Pagoda::mpi under mpirun with 1 to 4 ranks (install has a consumer of it)
#   python                       pip makes a wheel of the Python package, which passes its tests
#   format tidy scripts          clang-format, clang-tidy and shellcheck report nothing; README's figures match
#                                bench/results; pages name files that exist (ci/pages.py); the folders' includes form no
#                                cycle (ci/folders.py); the API pages build
#   cuda                         the CUDA sources of a type of each kind and pagoda-tune compile for A100, A40 and H100 without spills,
#                                and the number of blocks that the tuning of the hand-tuned kernels assumes fits (needs nvcc;
#                                PAGODA_CUDA_ALL=1: all types for all cards)
#   hip                          the library compiles for MI300, and the kernels with matrix instructions for MI250, MI300
#                                and RX 7900 have the registers, loads and products that the tuning plans
#   demo                         ci/demo.sh runs
#   asan-ubsan tsan              the tests that can show such errors, in builds with sanitizers (asan also with bounds checks)
#   fuzz                         fuzzers of decode problems, pools and the C interface, about a minute
#                                (PAGODA_FUZZ_SECONDS=T: T seconds each, with other seeds)
# ci/checks.sh host-debug        bounds checks alone
# ci/checks.sh fix-format        formats the sources in place
# ci/checks.sh root              makes the sid root with all packages that these need
#
# All parts run even when one fails. Each ends as passed, skipped (with the reason) or failed; the last lines count
# them, and the tests that ctest ran. The exit status is 0 if none failed and one passed. The tools come from the sid
# root, so that they are the same on every machine.
set -euo pipefail
. "$(dirname "$0")/common.sh"
. "$top/ci/parts.sh"
cd "$top"

if [ "${1:-}" = --part ]; then # one part, with errexit on
  "check_$2"
  exit
fi
[ $# != 0 ] || set -- "${all_parts[@]}"
for part in "$@"; do
  declare -F "check_$part" >/dev/null || { echo "ci/checks.sh: there is no part $part" >&2 && exit 2; }
done

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
for part in "$@"; do
  echo "=== $part"
  SECONDS=0 status=0
  PAGODA_PART=$results/$part "$0" --part "$part" || status=$?
  echo "$status" >"$results/$part.status"
  case $status in
    0) verdict=passed ;;
    77) verdict=skipped ;;
    *) verdict=failed ;;
  esac
  echo "=== $part: $verdict after $SECONDS s"
done
python=(python3)
command -v python3 >/dev/null || python=("${in_root[@]}" python3)
"${python[@]}" -B ci/report.py "$results" "$@"
