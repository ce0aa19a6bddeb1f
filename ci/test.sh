#!/usr/bin/env bash
# ci/test.sh [arguments of ctest]: builds the library and its tests and runs them. Needs nothing but a
# Debian with its package mirror: what the machine lacks is found in a root of our own (ci/sid-root.sh).
set -euo pipefail
. "$(dirname "$0")/common.sh"
choose_env -DPAGODA_PROBE_DEMO=OFF
cd "$top"
build=$build_root/host

"${in_env[@]}" cmake --preset host -B "$build"
"${in_env[@]}" cmake --build "$build"
run_ctest "$build" "$@"
