#!/usr/bin/env bash
# ci/sid-root.sh [-p "more packages"] COMMAND...
#
# Runs COMMAND in a private Debian sid root, in the current folder, with the user's files visible. Debian's stable
# releases have no Kokkos new enough; sid has one. The first call makes the root (a minute or two, 1.2 GB under the
# user's cache), later calls only enter it. Nothing of the machine is changed, and no privilege is needed where the
# kernel grants user namespaces: apt, with folders of its own, chooses and fetches the packages, and dpkg-deb unpacks
# them. Their installation scripts are not run; this script does the few steps that are needed.
#
# Where mounts are refused (an unprivileged container) the root sees a copy of the checkout and none of
# the user's other files, and has no /proc.
#
# PAGODA_SID_MIRROR   the Debian mirror to use instead of the machine's own, such as a dated snapshot
#                     for a day on which sid is broken
set -euo pipefail
. "$(dirname "$0")/common.sh"
PATH=$PATH:/usr/sbin:/sbin # a user's PATH lacks chroot

system="base-files bash coreutils dash diffutils findutils grep libc-bin mawk sed tar"
tools="g++ gfortran cmake ninja-build ccache git python3"
libraries="libkokkos-dev libgtest-dev libgmock-dev libbenchmark-dev libcli11-dev nlohmann-json3-dev"
packages="$system $tools $libraries"

root=$cache/sid
apt=$cache/sid-apt
log=$cache/sid-root.log

give_up() {
  [ ! -f "$log" ] || tail -n 20 "$log" >&2
  cat >&2 <<END
ci/sid-root.sh: $1
The whole log: $log. What to do, any of:
  - sid may be broken for the moment: try again later, or with PAGODA_SID_MIRROR=<a dated snapshot of
    Debian>; where an old root stopped working: rm -rf '$root' and try again;
  - install Kokkos 4.6 or newer, GoogleTest and CMake 3.25 yourself (set Kokkos_ROOT if Kokkos is not in
    a usual place): this root is then not needed.
END
  exit 1
}

# --- making the root -------------------------------------------------------------------------------

# The machine's own Debian mirror: the first that is not for security updates, of either format of apt's.
mirror() {
  if [ -n "${PAGODA_SID_MIRROR:-}" ]; then
    echo "$PAGODA_SID_MIRROR"
  elif grep -qs '^ID=debian' /etc/os-release; then
    {
      cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
        sed -nE 's/^[[:space:]]*deb[[:space:]]+(\[[^]]*\][[:space:]]*)?([^[:space:]]+).*/\2/p'
      cat /etc/apt/sources.list.d/*.sources 2>/dev/null |
        sed -nE 's/^URIs:[[:space:]]*([^[:space:]]+).*/\1/p'
    } | grep -E '/debian/?$' | head -n 1
  fi
}

# apt with private folders, the machine's proxies and certificates, and no installed package.
sid_apt() { APT_CONFIG=$apt/apt.conf apt-get -qq -y "$@"; }

set_up_apt() { # set_up_apt MIRROR
  mkdir -p "$apt"/{etc/trusted.gpg.d,state/lists/partial,cache/archives/partial}
  : >"$apt/status"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $1 sid main" >"$apt/etc/sources.list"
  {
    apt-config dump | grep -E '^(APT::Architecture |Acquire::)'
    cat <<END
Dir "$apt";
Dir::Etc "etc";
Dir::State "state";
Dir::State::status "$apt/status";
Dir::Cache "cache";
APT::Install-Recommends "false";
APT::Sandbox::User "";
Acquire::Check-Valid-Until "false";
END
  } >"$apt/apt.conf"
}

# make_root PACKAGE...: makes the root under a temporary name, so that an interrupted root is not used and no root mixes
# packages of two days.
make_root() {
  local part=$root.partial name
  rm -rf "$part"
  mkdir -p "$part"/{dev,proc,sys,usr/{bin,lib,lib64,sbin}}
  for name in bin lib lib64 sbin; do
    ln -s usr/$name "$part/$name"
  done
  sid_apt update
  sid_apt install --download-only "$@"
  for name in "$apt"/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$name" | tar -C "$part" --keep-directory-symlink --no-same-owner -x
  done
  rm -rf "$apt"
  # Steps of the installation scripts.
  echo 'root:x:0:0:root:/root:/bin/bash' >"$part/etc/passwd"
  ln -s g++ "$part/usr/bin/c++"
  ln -s gcc "$part/usr/bin/cc"
  ln -s mawk "$part/usr/bin/awk"
  printf '%s\n' "$@" >"$part/.pagoda-packages"
  rm -rf "$root.old" # of a call that was stopped
  [ ! -d "$root" ] || mv -T "$root" "$root.old"
  mv -T "$part" "$root"
  rm -rf "$root.old"
}

lacking() { # whether the root lacks one of $packages
  local package
  for package in $packages; do
    grep -qsx -- "$package" "$root/.pagoda-packages" || return 0
  done
  return 1
}

# --- in the root -----------------------------------------------------------------------------------

# Shows the user's files at their own paths: every folder of / that is not part of a system, and the folders that
# the call names. The mounts are in a namespace that ends with this script.
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

# Without mounts: copies the checkout, removes deleted files from the copy, and links the root's build folder to its
# usual place. Times are kept, so nothing is built twice.
copy_files() {
  [ -e "$root/dev/null" ] || cp -a /dev/{null,zero,full,random,urandom} "$root/dev/"
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

if [ "${1:-}" = --enter ]; then # --enter mount|copy OWNER-OR-NOTHING FOLDER VARIABLE=... COMMAND...
  if [ "$2" = mount ]; then
    mount_files "$top" "$cache" "$4"
  else
    copy_files
  fi
  owner=$3 folder=$4
  shift 4
  exec chroot ${owner:+--userspec="$owner"} "$root" /usr/bin/env -i --chdir="$folder" "$@"
fi

# --- as the user -----------------------------------------------------------------------------------

if [ "${1:-}" = -p ]; then
  packages="$packages $2"
  shift 2
fi

# may_mount COMMAND...: whether mounts are allowed in the namespace that COMMAND makes.
may_mount() { "$@" mount --rbind /proc /proc 2>/dev/null; }
owner=
files=mount
if [ "$(id -u)" = 0 ] && may_mount unshare --mount; then
  enter=(unshare --mount)
elif [ "$(id -u)" = 0 ]; then
  enter=()
  files=copy
elif may_mount unshare --map-root-user --mount; then
  enter=(unshare --map-root-user --mount) # root in there is the user
elif may_mount sudo -n unshare --mount; then
  owner=$(id -u):$(id -g)
  enter=(sudo -n env HOME="$HOME" XDG_CACHE_HOME="${cache%/pagoda}" unshare --mount)
else
  give_up "entering a root needs user namespaces, root, or a sudo that asks for no password."
fi

mkdir -p "$cache" "$sid_build"
if lacking; then
  (
    flock 9
    lacking || exit 0 # another call has made it meanwhile
    command -v apt-get dpkg-deb >/dev/null || give_up "this is no Debian: there is no apt-get."
    uri=$(mirror)
    [ -n "$uri" ] || give_up "no Debian mirror is configured on this machine: set PAGODA_SID_MIRROR."
    echo "ci/sid-root.sh: making a Debian sid root in $root" >&2
    # In a separate shell, because errexit is off inside a condition.
    export root apt uri packages
    bash -euxo pipefail -c "$(declare -f sid_apt set_up_apt make_root)
      set_up_apt \"\$uri\"; make_root $packages" >"$log" 2>&1 </dev/null 9>&- ||
      give_up "the root could not be made."
  ) 9>"$cache/sid-root.lock"
fi

variables=(PATH=/usr/bin:/usr/sbin HOME="$HOME" LANG=C.UTF-8 CCACHE_DIR="$sid_build/ccache"
  CCACHE_SLOPPINESS="$CCACHE_SLOPPINESS"
  CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_GENERATOR=Ninja)
while IFS= read -r name; do
  variables+=("$name=${!name}")
done < <(compgen -e | grep -E '^(CI|TERM|CXX|[A-Z]*SAN_OPTIONS|(PAGODA|OMP|KOKKOS|CTEST|GTEST)_.*|CMAKE_BUILD_PARALLEL_LEVEL)$')
exec "${enter[@]}" "$0" --enter "$files" "$owner" "$PWD" "${variables[@]}" "$@"
