#!/usr/bin/env bash
# ci/sid-root.sh [-p "more packages"] COMMAND...
#
# Runs COMMAND in a Debian sid root of our own, in the current folder, seeing the user's files. Debian's
# stable releases have no Kokkos new enough; sid has one. The first call makes the root (a minute or
# two, 1.2 GB under the user's cache), later calls only enter it. Nothing of the machine is changed,
# except that debootstrap is installed if it is missing.
#
# Where mounts are refused (an unprivileged container) the root sees a copy of the checkout and none of
# the user's other files, and has no /proc.
#
# PAGODA_SID_MIRROR   the Debian mirror to use instead of the machine's own, such as a dated snapshot
#                     for a day on which sid is broken
set -euo pipefail

base="g++ cmake ninja-build ccache git python3 libkokkos-dev libgtest-dev libbenchmark-dev libcli11-dev nlohmann-json3-dev"

. "$(dirname "$0")/common.sh"
root=$cache/sid
log=$cache/sid-root.log
lock=$cache/sid-root.lock

give_up() {
  [ ! -f "$log" ] || tail -n 20 "$log" >&2
  cat >&2 <<END
ci/sid-root.sh: $1
The whole log: $log. What to do, any of:
  - sid may have moved under an old root, or be broken today: rm -rf '$root' and try again;
  - PAGODA_SID_MIRROR=<a dated snapshot of Debian, or another mirror> and try again;
  - install Kokkos 4.6 or newer, GoogleTest and CMake 3.25 yourself (set Kokkos_ROOT if it is not in a
    usual place): this root is then not needed.
END
  exit 1
}

# The machine's own Debian mirror: the first that is not for security updates, of either format of apt's.
mirror() {
  if [ -n "${PAGODA_SID_MIRROR:-}" ]; then
    echo "$PAGODA_SID_MIRROR"
    return
  fi
  grep -qs '^ID=debian' /etc/os-release || return 0
  {
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
      sed -nE 's/^[[:space:]]*deb[[:space:]]+(\[[^]]*\][[:space:]]*)?([^[:space:]]+).*/\2/p'
    cat /etc/apt/sources.list.d/*.sources 2>/dev/null | sed -nE 's/^URIs:[[:space:]]*([^[:space:]]+).*/\1/p'
  } | grep -E '^https?://.*/debian/?$' | head -n 1
}

# --- as root ---------------------------------------------------------------------------------------

# may_mount: whether a mount is allowed here. Everything mounted is in a namespace that dies with us.
may_mount() { unshare --mount mount --bind /proc /proc 2>/dev/null; }

# Everything apt asks the network for, and how, is the machine's own.
apt_settings() {
  echo 'APT::Install-Recommends "false";'
  echo 'Acquire::Check-Valid-Until "false";' # a snapshot is old by design
  apt-config dump | grep -E '^Acquire::(https?::Proxy |Check-Date|Retries|ForceIPv)' || true
  if [ -f /etc/ssl/certs/ca-certificates.crt ]; then
    mkdir -p "$1/etc/pagoda"
    cp /etc/ssl/certs/ca-certificates.crt "$1/etc/pagoda/host-certificates.crt"
    echo 'Acquire::https::CaInfo "/etc/pagoda/host-certificates.crt";'
  fi
}

# make_root MIRROR: in a temporary name, so that what is interrupted is never taken for complete.
make_root() {
  local part=$root.partial
  rm -rf --one-file-system "$part"
  if ! command -v debootstrap >/dev/null; then
    apt-get install -y debootstrap || { apt-get update && apt-get install -y debootstrap; }
  fi
  debootstrap --variant=minbase --include=ca-certificates sid "$part" "$1"
  apt_settings "$part" >"$part/etc/apt/apt.conf.d/90pagoda"
  : >"$part/.pagoda-packages"
  mv -T "$part" "$root"
}

# add_packages PACKAGE...: an interrupted installation leaves its packages off the list, and is resumed.
add_packages() {
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/" 2>/dev/null || true
  in_root dpkg --configure -a
  in_root apt-get update
  in_root apt-get install -y "$@"
  printf '%s\n' "$@" >>"$root/.pagoda-packages"
}

in_root() { chroot "$root" /usr/bin/env DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }

# Shows the user's files at their own paths: every folder of / that is no part of a system, and those we
# were asked for wherever they lie.
mount_files() {
  local dir
  for dir in /*; do
    case $dir in
      /bin | /boot | /etc | /lib* | /run | /sbin | /usr | /var) ;;
      *) [ -L "$dir" ] || [ ! -d "$dir" ] || { mkdir -p "$root$dir" && mount --rbind "$dir" "$root$dir"; } ;;
    esac
  done
  for dir in "$@"; do
    case $dir in
      /etc/* | /lib* | /run/* | /usr/* | /var/*) mkdir -p "$root$dir" && mount --rbind "$dir" "$root$dir" ;;
    esac
  done
}

# Without mounts: copies the checkout, drops from the copy what it no longer has, and shows the build
# folder of the root where it would otherwise be. Times are kept, so nothing is built twice.
copy_files() {
  mkdir -p "$root$top" "$root$sid_build"
  tar -C "$top" --exclude=./.git --exclude=./build -c . | tar -C "$root$top" -x
  (cd "$root$top" && find . -type f -o -type l) | while IFS= read -r file; do
    [ -e "$top/$file" ] || [ -L "$top/$file" ] || rm -f "$root$top/$file"
  done
  if [ ! -L "$sid_build" ]; then
    rmdir "$sid_build"
    ln -s "$root$sid_build" "$sid_build"
  fi
}

if [ "${1:-}" = --make ]; then # --make MIRROR PACKAGE...
  shift
  [ -f "$root/.pagoda-packages" ] || make_root "$1"
  shift
  [ $# = 0 ] || add_packages "$@"
  exit
elif [ "${1:-}" = --enter ]; then # --enter mount|copy OWNER FOLDER VARIABLE=... COMMAND...
  if [ "$2" = mount ]; then
    mount_files "$top" "$cache" "$4"
  else
    copy_files
  fi
  owner=$3 folder=$4
  shift 4
  exec chroot --userspec="$owner" "$root" /usr/bin/env -i --chdir="$folder" "$@"
fi

# --- as the user -----------------------------------------------------------------------------------

packages=$base
if [ "${1:-}" = -p ]; then
  packages="$base $2"
  shift 2
fi

as_root=()
if [ "$(id -u)" != 0 ]; then
  as_root=(sudo -n XDG_CACHE_HOME="${cache%/pagoda}" ${PAGODA_SID_MIRROR:+PAGODA_SID_MIRROR="$PAGODA_SID_MIRROR"})
  sudo -n true 2>/dev/null || give_up "making and entering a root needs root, or a sudo that asks for no password."
fi
if "${as_root[@]}" unshare --mount mount --bind /proc /proc 2>/dev/null; then
  namespace=(unshare --mount)
  files=mount
else
  namespace=()
  files=copy
fi

mkdir -p "$cache" "$sid_build"
missing=()
lacking() {
  missing=()
  local package
  for package in $packages; do
    grep -qsx -- "$package" "$root/.pagoda-packages" || missing+=("$package")
  done
  [ ${#missing[@]} != 0 ]
}
if lacking; then
  (
    flock 9
    if lacking; then # another call may have done it meanwhile
      uri=$(mirror)
      [ -n "$uri" ] || give_up "no Debian mirror is configured on this machine: set PAGODA_SID_MIRROR."
      echo "ci/sid-root.sh: making a Debian sid root in $root (${missing[*]})" >&2
      "${as_root[@]}" "${namespace[@]}" "$0" --make "$uri" "${missing[@]}" >"$log" 2>&1 </dev/null 9>&- ||
        give_up "the root could not be made."
    fi
  ) 9>"$lock"
fi

variables=(PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME="${HOME:-/root}" LANG=C.UTF-8 CCACHE_DIR="$sid_build/ccache"
  CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_GENERATOR=Ninja)
while IFS= read -r name; do
  variables+=("$name=${!name}")
done < <(compgen -e | grep -E '^(CI|TERM|CXX|[A-Z]*SAN_OPTIONS|LD_PRELOAD|(PAGODA|OMP|KOKKOS|CTEST|GTEST)_.*|CMAKE_BUILD_PARALLEL_LEVEL)$')
exec "${as_root[@]}" "${namespace[@]}" "$0" --enter "$files" "$(id -u):$(id -g)" "$PWD" "${variables[@]}" "$@"
