#!/usr/bin/env bash
# ci/demo.sh [arguments of pagoda-serve]: builds the demo and runs it. Needs what ci/test.sh needs.
set -euo pipefail
. "$(dirname "$0")/common.sh"
choose_env -DPAGODA_PROBE_DEMO=ON
build=$build_root/host

cd "$top"
{
  "${in_env[@]}" cmake --preset host -B "$build"
  "${in_env[@]}" cmake --build "$build" --target pagoda-serve
} >&2 # standard output is the demo's
cd "$OLDPWD"
export OMP_PROC_BIND=${OMP_PROC_BIND:-spread} OMP_PLACES=${OMP_PLACES:-threads}
exec "${in_env[@]}" "$build/bench/serve/pagoda-serve" "$@"
