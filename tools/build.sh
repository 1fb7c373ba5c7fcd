#!/usr/bin/env bash
# Builds Spindle into build/<preset>. The binary is build/release/bin/spindle.
# use: tools/build.sh [PRESET] [TARGET…]     presets: release (default), clang, asan, tsan, coverage
set -euo pipefail
. "$(dirname "$0")/lib.sh"
PATH=$PATH:$HOME/.cargo/bin

preset=${1:-release}
[ $# -gt 0 ] && shift
dir=$ROOT/build/$preset
cd "$ROOT"
# The server alone is configured without tests, so that a machine that only serves needs no test libraries; asking for more later
# configures again.
options=
[ "$*" = spindle ] && options="-DSPINDLE_TESTS=OFF -DSPINDLE_BENCH=OFF"
if [ ! -f "$dir/build.ninja" ] || { [ -z "$options" ] && grep -q '^SPINDLE_TESTS:[A-Z]*=OFF' "$dir/CMakeCache.txt"; }; then
  say "configuring $preset"
  mkdir -p "$dir"
  # shellcheck disable=SC2086 # a list of words
  cmake --preset "$preset" $options >"$dir/configure.log" 2>&1 || { cat "$dir/configure.log" >&2; die "configure failed"; }
fi
say "building $preset ${*:-(everything)}"
ninja -C "$dir" -j "$(jobs_count)" "$@" >&2
