#!/usr/bin/env bash
# keep_usage.sh NVCC ARGUMENT...: compiles (the arguments name the object with -o) and stores ptxas' output for every
# kernel in OBJECT.usage: registers, stack, spills and shared memory. check_resources.py reads it.
set -uo pipefail
object=''
for ((i = 1; i < $#; ++i)); do
  [ "${!i}" != -o ] || { next=$((i + 1)) && object=${!next}; }
done
[ -n "$object" ] || { echo "keep_usage.sh: there is no -o OBJECT in: $*" >&2 && exit 2; }

usage='^ptxas info|^ *[0-9]+ bytes stack frame'
status=0
messages=$("$@" -Xptxas -v 2>&1 >/dev/null) || status=$?
grep -E "$usage" <<<"$messages" >"$object.usage"
grep -Ev "$usage|^$" <<<"$messages" >&2
exit "$status"
