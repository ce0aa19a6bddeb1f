#!/usr/bin/env bash
# ci/sanitize.sh BUILD [TOOL...]
#
# Runs tests of the hand-tuned CUDA kernels and of checked plans, of a build folder, under NVIDIA's compute-sanitizer:
# memcheck, initcheck, synccheck and racecheck, or the tools named. Exits with 1 if a tool reports an error or a test fails.
# COMPUTE_SANITIZER names the tool where it is not on the path; SANITIZE_FILTER is another filter of tests for every tool.
set -euo pipefail
[ $# != 0 ] || { sed -n '2,/^set/{/^#/p}' "$0" >&2 && exit 2; }
build=$(cd "$1" && pwd)
shift
[ $# != 0 ] || set -- memcheck initcheck synccheck racecheck
sanitizer=$(command -v "${COMPUTE_SANITIZER:-compute-sanitizer}" || command -v /usr/local/cuda/bin/compute-sanitizer) ||
  { echo "ci/sanitize.sh: there is no compute-sanitizer here: name one by COMPUTE_SANITIZER" >&2 && exit 2; }
decode=$build/tests/decode/pagoda_test_decode
lists=$build/tests/tuned/pagoda_test_tuned_lists
checked=$build/tests/checked/pagoda_test_checked
for program in "$decode" "$lists" "$checked"; do
  [ -x "$program" ] || { echo "ci/sanitize.sh: $program is not built" >&2 && exit 2; }
done

# One query token for each sequence: every block size and group, split rows, whole rows, streams, copies by lanes, score
# options.
one_token='Tuned/*fp16.Groups:Tuned/*fp16.UnevenBatches:Tuned/*fp16.RepeatsBitForBit:TunedAlone.*'
one_token="$one_token:TunedOptions/*fp16.AllTogether"
# Latent caches, large groups and several query tokens.
many_rows='TunedMany/*fp16.RepeatsBitForBit:TunedMany/*fp16.FewerQueryTokensThanPlanned:TunedManyNaN/*fp16.LargeScores'

# Lists of entries: all layouts, types of outputs and partial states, rows without tokens, ends that move.
of_lists='TunedLists.Layouts:TunedLists.AlmostNothing:TunedLists.SequencesGrow'
# Lengths, page ids and sequence ids outside of the cache.
hostile_tables='Checked/Cuda_fp16.*'

filter_of() { # filter_of TOOL PROGRAM
  case $1,$2 in
    # racecheck follows the lane that arrives at a barrier in shared memory, but not the __syncwarp that orders the
    # other lanes of its warp before it: it reports hazards in the kernels for many query rows, and for lists, that are
    # none.
    "racecheck,$lists") echo "${SANITIZE_FILTER:--*}" ;;
    *",$lists") echo "${SANITIZE_FILTER:-$of_lists}" ;;
    *",$checked") echo "${SANITIZE_FILTER:-$hostile_tables}" ;;
    racecheck,*) echo "${SANITIZE_FILTER:-$one_token}" ;;
    *) echo "${SANITIZE_FILTER:-$one_token:$many_rows}" ;;
  esac
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} OMP_PROC_BIND=${OMP_PROC_BIND:-false}
failed=()
for tool in "$@"; do
  SECONDS=0
  status=0
  options=(--error-exitcode 9 --print-limit 10 --show-backtrace device)
  # The tool finds out by itself how many barriers a block has in shared memory, too few for these kernels, which then
  # fail (tests/tuned/many_barriers.cu shows it). At most, they have 48.
  [ "$tool" != synccheck ] || options+=(--num-cuda-barriers 64)
  ran=0
  for program in "$decode" "$lists" "$checked"; do
    filter=$(filter_of "$tool" "$program")
    [ "$filter" != '-*' ] || continue
    timeout 1800 "$sanitizer" --tool "$tool" "${options[@]}" \
      "$program" --gtest_brief=1 "--gtest_filter=$filter" >"$log" 2>&1 </dev/null || status=$?
    [ "$status" = 0 ] || break
    passed=$(sed -nE 's/^\[  PASSED  \] ([0-9]+) test.*/\1/p' "$log")
    ran=$((ran + ${passed:-0}))
  done
  if [ "$status" = 0 ] && [ "$ran" -gt 0 ]; then
    echo "ci/sanitize.sh: $tool passed: $ran tests, $SECONDS s"
  else
    failed+=("$tool")
    tail -n 60 "$log"
    echo "ci/sanitize.sh: $tool failed (exit status $status), $SECONDS s"
  fi
done
[ ${#failed[@]} = 0 ] || { echo "ci/sanitize.sh: failed: ${failed[*]}" && exit 1; }
