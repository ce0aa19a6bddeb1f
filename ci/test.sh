#!/usr/bin/env bash
# ci/test.sh [arguments of ctest]: builds the library and its tests and runs them. Needs only Debian and its package
# mirror: a private root (ci/sid-root.sh) has what the machine lacks. PAGODA_TEST_OPTIONS: options of CMake, besides those
# of the preset.
set -euo pipefail
. "$(dirname "$0")/common.sh"
choose_env -DPAGODA_PROBE_DEMO=OFF
cd "$top"
build=$build_root/host

read -ra options <<<"${PAGODA_TEST_OPTIONS:-}"
"${in_env[@]}" cmake --preset host -B "$build" "${options[@]}"
"${in_env[@]}" cmake --build "$build"
run_ctest "$build" "$@"
