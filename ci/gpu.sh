#!/usr/bin/env bash
# ci/gpu.sh [--prebuilt DIR] [--out FILE] [PRESET]
# ci/gpu.sh --sanitize [--prebuilt DIR] [PRESET]
#
# On a machine with a GPU: builds for it, runs every test, example and Google Benchmark, and the demo, and writes
# one JSON with all of it, which bench/compare reads. PRESET is a configure preset (cuda-h200, hip-mi300, ...; by default the one for
# the GPU that is here). Building takes CMake, a Kokkos for this GPU (Kokkos_ROOT) and GoogleTest; with
# --prebuilt DIR, a build folder made elsewhere is run as it is, and bash and python3 are enough.
# Exits with 1 if a test, a benchmark or the demo failed; the JSON is written all the same.
# With --sanitize, runs tests of the hand-tuned kernels under compute-sanitizer instead (ci/sanitize.sh).
#
# PAGODA_DEMO_ARGS        arguments of pagoda-serve
# PAGODA_BENCHMARK_ARGS   arguments of every benchmark, such as --benchmark_filter=...
# PAGODA_PREFIX_TRACES    absolute paths of unzipped trace files, separated by spaces: pagoda_bench_prefix decodes live
#                         batches of them, beside those of bench/data/toolagent_first33s.jsonl
set -euo pipefail
. "$(dirname "$0")/common.sh"

prebuilt='' out='' preset='' sanitize=''
while [ $# != 0 ]; do
  case $1 in
    --prebuilt) prebuilt=$2 && shift 2 ;;
    --out) out=$2 && shift 2 ;;
    --sanitize) sanitize=yes && shift ;;
    -*) sed -n '2,/^set/{/^#/p}' "$0" >&2 && exit 2 ;;
    *) preset=$1 && shift ;;
  esac
done

gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1) ||
  gpu=$(rocminfo 2>/dev/null | sed -nE 's/^ *Name: *(gfx[0-9a-f]+).*/\1/p' | head -n 1) || gpu=''
if [ -z "$preset" ]; then
  case $gpu in
    *A100*) preset=cuda-a100 ;;
    *A40*) preset=cuda-a40 ;;
    *H100* | *H200*) preset=cuda-h200 ;;
    gfx90a) preset=hip-mi250 ;;
    gfx942) preset=hip-mi300 ;;
    gfx1100) preset=hip-rx7900 ;;
    *) echo "ci/gpu.sh: no preset for the GPU '$gpu': name one (cmake --list-presets)" >&2 && exit 2 ;;
  esac
fi

if [ -n "$prebuilt" ]; then
  build=$(cd "$prebuilt" && pwd)
else
  build=$cache/build/$key/$preset
  cd "$top"
  cmake --preset "$preset" -B "$build"
  cmake --build "$build"
fi
if [ -n "$sanitize" ]; then
  exec "$top/ci/sanitize.sh" "$build"
fi
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
out=${out:-$PWD/pagoda-$preset.json}
export OMP_PROC_BIND=${OMP_PROC_BIND:-false}

# run NAME COMMAND...: keeps the output and whether it passed; the report gives both.
run() {
  local name=$1 status=0
  shift
  echo "=== $name"
  timeout 1800 "$@" >"$results/$name.log" 2>&1 </dev/null || status=$?
  echo "$status" >"$results/$name.status"
  tail -n 4 "$results/$name.log"
}

# Where a benchmark keeps what it has finished: beside the report, so that a second call goes on after a kill.
journal() { echo "${out%.json}.$(basename "$1").jsonl"; }

shopt -s nullglob
for program in "$build"/tests/pagoda_test_* "$build"/tests/*/pagoda_test_*; do
  if [ ! -x "$program" ] || [ ! -f "$program" ]; then continue; fi
  run "$(basename "$program")" "$program" --gtest_brief=1 "--gtest_output=json:$results/$(basename "$program").json"
done
for program in "$build"/tests/random/pagoda_random_*; do
  if [ ! -x "$program" ] || [ ! -f "$program" ]; then continue; fi
  run "$(basename "$program")" "$program" --seed 1 --seconds 60
done
for program in "$build"/tests/examples/pagoda_example_*; do
  if [ ! -x "$program" ] || [ ! -f "$program" ]; then continue; fi
  run "$(basename "$program")" "$program"
done
if [ -x "$build/tests/tuned/pagoda_features" ]; then
  run pagoda_features "$build/tests/tuned/pagoda_features" --check "$top/backends/README.md"
fi
read -ra benchmark_args <<<"${PAGODA_BENCHMARK_ARGS:-}"
read -ra traces <<<"${PAGODA_PREFIX_TRACES:-}"
for program in "$build"/bench/pagoda_bench_* "$build"/bench/*/pagoda_bench_*; do
  if [ ! -x "$program" ] || [ ! -f "$program" ]; then continue; fi
  own_args=()
  if [ "$(basename "$program")" = pagoda_bench_prefix ]; then
    for trace in "${traces[@]}"; do own_args+=(--trace "$trace"); done
  fi
  run "$(basename "$program")" "$program" --resume "$(journal "$program")" "${own_args[@]}" "${benchmark_args[@]}"
done
if [ -x "$build/bench/serve/pagoda-serve" ]; then
  read -ra demo_args <<<"${PAGODA_DEMO_ARGS:-}"
  run pagoda-serve "$build/bench/serve/pagoda-serve" --json "$results/pagoda-serve.json" "${demo_args[@]}"
fi

python3 -B - "$results" "$build" "$preset" "$gpu" "$out" "$top" <<'END'
import glob, json, os, subprocess, sys

results, build, preset, gpu, out, top = sys.argv[1:]
sys.path.insert(0, os.path.join(top, "bench", "compare"))
from results import load_lines


def load(path):
    try:
        with open(path) as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


report = {"gpu": gpu, "preset": preset, "build": load(os.path.join(build, "pagoda_build_info.json"))}
try:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem", "--format=csv,noheader"]
    report["nvidia_smi"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0]
except (OSError, subprocess.CalledProcessError):
    pass
failed, journals = [], []
for status_file in sorted(glob.glob(os.path.join(results, "*.status"))):
    name = os.path.basename(status_file)[: -len(".status")]
    base = os.path.join(results, name)
    status = int(open(status_file).read())
    kind = ("tests" if name.startswith("pagoda_test_") else "random" if name.startswith("pagoda_random_")
            else "examples" if name.startswith(("pagoda_example_", "pagoda_features"))
            else "benchmarks" if name.startswith("pagoda_bench_") else "demo")
    entry = {"exit_status": status, "report": load(base + ".json")}
    if kind == "benchmarks":
        journal = f"{out.removesuffix('.json')}.{name}.jsonl"
        if os.path.exists(journal):
            entry["report"] = load_lines(open(journal).read())
            if any(b.get("error_occurred") for b in entry["report"]["benchmarks"]):
                failed.append(name)
            if status == 0:
                journals.append(journal)
    if status != 0 or entry["report"] is None:
        entry["output"] = open(base + ".log", errors="replace").read()[-20000:]
    if status != 0 and name not in failed:
        failed.append(name)
    report.setdefault(kind, {})[name] = entry
count = {key: sum((t["report"] or {}).get(key, 0) for t in report.get("tests", {}).values())
         for key in ("tests", "failures", "errors", "disabled")}
report["summary"] = {"failed": failed, **count}
with open(out, "w") as f:
    json.dump(report, f, indent=1)
for journal in journals:  # all that they hold is in the report
    os.remove(journal)
print(f"{out}: {count['tests']} tests, {count['failures']} failures; failed programs: {' '.join(failed) or 'none'}")
sys.exit(1 if failed or count["tests"] == 0 else 0)
END
