#!/bin/sh
# Installs Kivu @VERSION@ for this user, without root:
#
#     curl --fail --silent --show-error --location @BASE@/install.sh | sh
#
# KIVU_INSTALL_FROM: address of the archives and their SHA256SUMS (default: the release's).
# KIVU_INSTALL_PREFIX: folder for bin/kivu and lib/kivu-@VERSION@-linux-MACHINE (default: ~/.local).
set -eu

fail() {
  echo "kivu: $1" >&2
  exit 1
}

download() {
  if command -v curl >/dev/null; then
    curl --fail --silent --show-error --location --retry 3 --output "$2" "$1"
  elif command -v wget >/dev/null; then
    wget --quiet --tries 3 --output-document "$2" "$1"
  else
    fail "needs \`curl\` or \`wget\`, but found neither"
  fi || fail "cannot download \`$1\`; nothing was installed"
}

# A function, so that a script that arrives in part does nothing.
main() {
  version=@VERSION@
  base=${KIVU_INSTALL_FROM:-@BASE@}
  prefix=${KIVU_INSTALL_PREFIX:-${HOME:?is not set; set KIVU_INSTALL_PREFIX}/.local}

  [ "$(uname -s)" = Linux ] || fail "there is no program for $(uname -s); use the container image"
  case $(uname -m) in
    x86_64 | amd64) machine=x86_64 ;;
    aarch64 | arm64) machine=aarch64 ;;
    *) fail "there is no program for the processor \`$(uname -m)\`, only for x86_64 and aarch64" ;;
  esac
  libc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || fail "needs glibc @GLIBC@ or later, but found another C library; use the container image"
  oldest=$(printf '%s\n' "glibc @GLIBC@" "$libc" | sort -V | head -n 1)
  [ "$oldest" = "glibc @GLIBC@" ] || fail "needs glibc @GLIBC@ or later, but found $libc; use the container image"
  for tool in sha256sum tar gzip mktemp; do
    command -v "$tool" >/dev/null || fail "needs \`$tool\`"
  done

  name=kivu-$version-linux-$machine
  mkdir -p "$prefix/lib" "$prefix/bin" || fail "cannot write to \`$prefix\`; set KIVU_INSTALL_PREFIX"
  prefix=$(cd "$prefix" && pwd)
  # On the same file system, so that the program is renamed into its place when it is complete.
  temporary=$(mktemp -d "$prefix/lib/.kivu-install-XXXXXX") || fail "cannot write to \`$prefix/lib\`; set KIVU_INSTALL_PREFIX"
  trap 'rm -rf "$temporary"' EXIT
  trap 'exit 130' HUP INT TERM

  download "$base/SHA256SUMS" "$temporary/SHA256SUMS"
  line=$(grep " $name.tar.gz\$" "$temporary/SHA256SUMS") || fail "\`$base/SHA256SUMS\` has no checksum for $name.tar.gz; nothing was installed"
  download "$base/$name.tar.gz" "$temporary/$name.tar.gz"
  (cd "$temporary" && echo "$line" | sha256sum -c >/dev/null 2>&1) ||
    fail "the SHA-256 of $name.tar.gz is not the one in SHA256SUMS; nothing was installed"
  tar -xzf "$temporary/$name.tar.gz" -C "$temporary" || fail "cannot unpack $name.tar.gz; nothing was installed"
  "$temporary/$name/kivu" --version >/dev/null || fail "the program does not run on this machine; nothing was installed"

  # From here on, an interruption would remove the program that was installed before.
  trap '' HUP INT TERM
  if [ -e "$prefix/lib/$name" ]; then
    mv -T "$prefix/lib/$name" "$temporary/old"
  fi
  mv -T "$temporary/$name" "$prefix/lib/$name"
  ln -s "$prefix/lib/$name/kivu" "$temporary/kivu"
  mv -fT "$temporary/kivu" "$prefix/bin/kivu"
  echo "installed Kivu $version as $prefix/bin/kivu"
  case :$PATH: in
    *:"$prefix/bin":*) ;;
    *) echo "\`$prefix/bin\` is not in PATH: add it, or run $prefix/bin/kivu" ;;
  esac
}

main
