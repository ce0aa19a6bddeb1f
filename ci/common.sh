# shellcheck shell=bash disable=SC2034
# Sourced by the scripts of this folder.
#
# top         the checkout cache       folder of everything the scripts make; they do not write in the checkout
# sid_build   what is built in the sid root (ci/sid-root.sh)

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
: "${HOME:=$(getent passwd "$(id -u)" | cut -d: -f6)}"
export HOME
cache=${XDG_CACHE_HOME:-$HOME/.cache}/pagoda
sid_build=$cache/sid-build
key=$(basename "$top")-$(printf %s "$top" | sha1sum | cut -c1-8)

# choose_env [options of ci/probe]: chooses between a build on the machine (if it has CMake, a compiler, Kokkos and the
# rest that ci/probe needs) and one in the sid root. Sets in_env, the prefix of commands, and build_root.
# PAGODA_ENV=native or sid makes the choice.
choose_env() {
  local probe=$cache/build/$key/probe
  mkdir -p "$probe"
  if [ "${PAGODA_ENV:-}" = native ] ||
    { [ "${PAGODA_ENV:-}" != sid ] && cmake -S "$top/ci/probe" -B "$probe" "$@" >"$probe/log" 2>&1; }; then
    in_env=()
    build_root=$cache/build/$key
    if [ -z "${CMAKE_GENERATOR:-}" ] && command -v ninja >/dev/null; then
      export CMAKE_GENERATOR=Ninja
    fi
  else
    in_env=("$top/ci/sid-root.sh")
    build_root=$sid_build/$key
  fi
}

# run_ctest BUILD [arguments of ctest]: runs the tests of a build folder through in_env. For a part of ci/checks.sh
# (PAGODA_PART), stores ctest's report.
run_ctest() {
  local build=$1 status=0
  shift
  rm -f "$build/ctest.xml"
  "${in_env[@]}" ctest --test-dir "$build" --output-on-failure --no-tests=error --output-junit "$build/ctest.xml" \
    --parallel "$CMAKE_BUILD_PARALLEL_LEVEL" \
    "$@" || status=$?
  [ -z "${PAGODA_PART:-}" ] || cp "$build/ctest.xml" "$PAGODA_PART.xml"
  return $status
}

# ccache stores sources that use precompiled headers (cmake/PagodaPrecompile.cmake).
export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}

# The version for the build's records: in the root the repository may not be visible.
if hash=$(git -C "$top" describe --always --dirty --abbrev=12 2>/dev/null); then
  export PAGODA_GIT_HASH=$hash
fi
CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
export CMAKE_BUILD_PARALLEL_LEVEL
