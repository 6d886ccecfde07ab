# The kernel of the Soft-RoCE guest: given, built before, or built now. Sourced by scripts/soft-roce after
# packages.sh, and run by it to build.

uml_kernel_lib=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# The name of a kernel in the cache says what it was made of: the configuration and this recipe. Raise the number when a
# change below changes the result.
uml_kernel_name() {
  echo "linux-uml-$( { echo "recipe 1 $(uname -m)"; grep -v '^#' "$uml_kernel_lib/uml-kernel.config"; } | sha256sum | cut -c1-12)"
}

# packages_or_reason MAY_INSTALL NAME...: installs those that are missing, as scripts/setup does, or says which.
packages_or_reason() {
  local may_install=$1 missing
  shift
  if ! command -v dpkg-query > /dev/null; then
    echo "soft-roce: this is no Debian or Ubuntu; trusting that the equivalents of these are there: $*" >&2
    return 0
  fi
  mapfile -t missing < <(missing_packages "$@")
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$may_install" = no ] || [ "$(id -u)" != 0 ]; then
    echo "soft-roce: system packages are missing; as root:" >&2
    echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
    return 1
  fi
  echo "soft-roce: installing ${missing[*]}" >&2
  local log
  log=$(mktemp)
  if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } \
    > "$log" 2>&1; then
    echo "soft-roce: these packages could not be installed: ${missing[*]}" >&2
    tail -5 "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}

install_guest_packages() { packages_or_reason "$1" "${packages_guest[@]}"; }

# uml_kernel_path: the kernel that is given, or where the cache has or would have it.
uml_kernel_path() {
  if [ -n "${MXRDMA_UML_KERNEL:-}" ]; then
    realpath -m "$MXRDMA_UML_KERNEL"
  else
    echo "${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/mxrdma/$(uml_kernel_name)"
  fi
}

# build_uml_kernel TARGET: from Debian's linux-source, one process at a time. Run it in a process group of its own: a
# signal to the group ends all of it.
build_uml_kernel() {
  target=$1
  log=$target.log
  work=''
  mkdir -p "$(dirname "$target")" || { echo "soft-roce: cannot make the cache folder $(dirname "$target")" >&2; exit 1; }
  packages_or_reason yes "${packages_kernel[@]}" || exit 1
  trap '[ -z "$work" ] || rm -rf "$work"' EXIT
  trap 'exit 143' INT TERM HUP
  exec 9> "$(dirname "$target")/lock"
  flock -n 9 || { echo "soft-roce: another process is building the kernel; waiting for it" >&2; flock 9; }
  [ ! -x "$target" ] || return 0
  rm -rf "$(dirname "$target")"/linux-uml-*.build # of a build that was killed: the lock says that nobody is at it
  work=$target.build
  mkdir "$work"
  : > "$log"
  cd "$work"
  echo "soft-roce: building the guest's kernel once, about 10 minutes on two idle cores" >&2
  [ "$(df --output=avail -m . | tail -1)" -gt 3000 ] || give_up "the build needs 3 GB at $(dirname "$target")"
  unpack_source || give_up "Debian's package linux-source could not be had"
  cd linux-source-*/
  cp "$uml_kernel_lib/uml-kernel.config" kernel/configs/soft-roce.config
  make ARCH=um defconfig soft-roce.config >> "$log" 2>&1 9>&- || give_up "the kernel could not be configured"
  # A line of the fragment that depends on what is not set is dropped without a word.
  local setting
  for setting in CONFIG_RDMA_RXE=y CONFIG_RDMA_SIW=y CONFIG_INFINIBAND_USER_ACCESS=y CONFIG_HOSTFS=y CONFIG_OVERLAY_FS=y; do
    grep -qx "$setting" .config || give_up "this source does not allow $setting"
  done
  nice make ARCH=um -j"$(nproc)" linux >> "$log" 2>&1 9>&- &
  show_progress $!
  wait $! || give_up "the kernel could not be compiled"
  strip -o "$target.new" linux || give_up "the kernel could not be stripped"
  mv "$target.new" "$target" # at once: nobody ever sees half a kernel
  rm -f "$log"
  echo "soft-roce: the kernel is built: $target" >&2
}

give_up() {
  echo "soft-roce: $*; the log is $log" >&2
  tail -5 "$log" >&2
  exit 1
}

# show_progress PID: a line each half minute while the compilation runs.
show_progress() {
  local since=$SECONDS shown=0
  while kill -0 "$1" 2> /dev/null; do
    sleep 1
    if [ $((SECONDS - since)) -ge $((shown + 30)) ]; then
      shown=$((SECONDS - since))
      echo "soft-roce: $(grep -cE '^  (CC|AS) ' "$log") of about 1150 files compiled, $shown s" >&2
    fi
  done
}

# The newest linux-source-X.Y of the archive, into the current folder.
unpack_source() {
  local name
  newest() { apt-cache search --names-only '^linux-source-[0-9.]+$' 2> /dev/null | cut -d' ' -f1 | sort -V | tail -1; }
  command -v apt-get > /dev/null || { echo "there is no apt-get" >> "$log"; return 1; }
  [ "$(id -u)" != 0 ] || apt-get update -qq >> "$log" 2>&1 || true # without it an old list may still do
  name=$(newest)
  [ -n "$name" ] || { echo "apt-cache knows no package linux-source-X.Y" >> "$log"; return 1; }
  apt-get download "$name" >> "$log" 2>&1 &&
    dpkg-deb --fsys-tarfile "$name"_*.deb | tar x --wildcards "./usr/src/$name.tar.*" &&
    tar xf usr/src/"$name".tar.* &&
    rm -r usr "$name"_*.deb
}

# Run, not sourced: builds into the path that is given.
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  set -euo pipefail
  # shellcheck source=packages.sh
  . "$uml_kernel_lib/packages.sh"
  build_uml_kernel "$1"
fi
