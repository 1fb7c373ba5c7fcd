#!/usr/bin/env bash
# Builds Spindle into build/<preset>. The binary is build/release/bin/spindle.
# use: tools/build.sh [PRESET] [TARGET…]     presets: release (default), clang, asan, tsan
set -euo pipefail
. "$(dirname "$0")/lib.sh"
PATH=$PATH:$HOME/.cargo/bin

preset=${1:-release}
[ $# -gt 0 ] && shift
dir=$ROOT/build/$preset
cd "$ROOT"
if [ ! -f "$dir/build.ninja" ]; then
  say "configuring $preset"
  mkdir -p "$dir"
  cmake --preset "$preset" >"$dir/configure.log" 2>&1 || { cat "$dir/configure.log" >&2; die "configure failed"; }
fi
say "building $preset ${*:-(everything)}"
ninja -C "$dir" -j "$(jobs_count)" "$@" >&2
