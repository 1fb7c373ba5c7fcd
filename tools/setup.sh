#!/usr/bin/env bash
# Installs what is missing to build, serve and test Spindle on Debian 12: Debian packages, a Rust compiler and a private
# Python environment. Idempotent; does nothing when all is there.
# use: tools/setup.sh [--no-tests | --packaging]
#   --no-tests: only what building and serving need     --packaging: these and what tools/packaging needs
set -euo pipefail
. "$(dirname "$0")/lib.sh"

with_tests=1
with_packaging=1
for arg in "$@"; do
  case $arg in
    --no-tests) with_tests=0 with_packaging=0 ;;
    --packaging) with_tests=0 ;;
    *) die "unknown argument '$arg' (use: tools/setup.sh [--no-tests | --packaging])" ;;
  esac
done

# The packages of one section of tools/packages.txt.
section() { sed -n "/^# --- $1\$/,/^# --- /p" "$ROOT/tools/packages.txt" | grep -v '^#'; }

install_missing() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} = 0 ] && return
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  if [ -z "${apt_updated:-}" ]; then
    as_root apt-get update -qq
    apt_updated=1
  fi
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

install_rust() {
  local version=""
  PATH=$PATH:$HOME/.cargo/bin
  command -v cargo >/dev/null && version=$(rustc --version 2>/dev/null | cut -d ' ' -f 2)
  if [ -n "$version" ] && version_at_least "$version" 1.87; then return; fi
  say "installing a Rust compiler (found: ${version:-none}, wanted: 1.87 or newer)"
  install_missing rustc-web cargo-web
}

# The stamp holds the list that was installed, so that a changed list is installed again.
install_python() {
  local wanted=$ROOT/tools/requirements.txt stamp=$VENV/.installed
  if [ ! -x "$VENV/bin/python" ]; then
    say "making the Python environment in .venv"
    python3 -m venv "$VENV"
  fi
  [ $with_tests = 1 ] || return 0
  cmp -s "$wanted" "$stamp" 2>/dev/null && return
  say "installing Python packages into .venv"
  "$VENV/bin/pip" install -q --disable-pip-version-check -r "$wanted"
  cp "$wanted" "$stamp"
}

[ -f /etc/debian_version ] || die "this script knows Debian packages only; see tools/packages.txt for the list"
wanted=$(section build)
[ $with_tests = 1 ] && wanted+=" $(section tests)"
[ $with_packaging = 1 ] && wanted+=" $(section packaging)"
# shellcheck disable=SC2086 # a list of words
install_missing $wanted
install_rust
install_python
