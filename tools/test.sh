#!/usr/bin/env bash
# Installs what is missing, builds and runs the tests: all that CI runs, or with --fast the set of under a minute.
# use: tools/test.sh [--fast | --stage NAME…]
#      stages: checks release e2e asan fuzz tsan
set -euo pipefail
. "$(dirname "$0")/lib.sh"
PATH=$PATH:$HOME/.cargo/bin

# Modules that run under ThreadSanitizer; gRPC is not linked there (its uninstrumented library gives false reports).
TSAN_TESTS="base_test platform_test kv_test kv_disk_test sparse_runtime_test engine_test engine_thread_test serving_test"
FUZZ_SECONDS=${SPINDLE_FUZZ_SECONDS:-10}

run_ctest() { # PRESET ctest arguments…
  local preset=$1
  shift
  (cd "$ROOT/build/$preset" && ctest --output-on-failure -j "$(jobs_count)" "$@") >&2
}

stage_checks() {
  "$ROOT/tools/format.sh" --check
  python3 "$ROOT/tools/check_layers.py"
}

stage_release() {
  "$ROOT/tools/build.sh" release
  run_ctest release
}

stage_e2e() {
  "$ROOT/tools/build.sh" release spindle faulty_server
  "$VENV/bin/python" "$ROOT/tests/e2e/run.py" --binary "$ROOT/build/release/bin/spindle" --model "$SPINDLE_TEST_MODEL" >&2
}

stage_asan() {
  "$ROOT/tools/build.sh" asan
  # Without the real model: what it is for runs in the release build.
  SPINDLE_TEST_MODEL="" run_ctest asan -L fast
}

stage_fuzz() {
  "$ROOT/tools/build.sh" asan fuzzers
  local target name scratch
  for target in "$ROOT"/build/asan/bin/*_fuzz; do
    name=$(basename "$target")
    say "fuzzing $name for $FUZZ_SECONDS s"
    scratch=$ROOT/build/asan/fuzz/$name
    mkdir -p "$scratch"
    "$target" -max_total_time="$FUZZ_SECONDS" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
      -artifact_prefix="$scratch/" "$scratch" "$ROOT/tests/fuzz/corpus/$name" >"$scratch.log" 2>&1 \
      || { tail -n 40 "$scratch.log" >&2; die "$name found something; the input is in $scratch"; }
    grep -E 'stat::number_of_executed_units' "$scratch.log" >&2
  done
}

stage_tsan() {
  # shellcheck disable=SC2086 # a list of words
  "$ROOT/tools/build.sh" tsan $TSAN_TESTS
  SPINDLE_TEST_MODEL="" run_ctest tsan -R "^($(echo $TSAN_TESTS | tr ' ' '|'))\$"
}

stages="checks release e2e asan fuzz tsan"
fast=0
if [ $# -gt 0 ]; then
  case $1 in
    --fast) fast=1 ;;
    --stage) shift; stages=$* ;;
    *) die "unknown argument '$1' (use: tools/test.sh [--fast | --stage NAME…])" ;;
  esac
fi

"$ROOT/tools/setup.sh"
SPINDLE_TEST_MODEL=$("$ROOT/tools/fetch_model.sh")
export SPINDLE_TEST_MODEL

if [ $fast = 1 ]; then
  "$ROOT/tools/build.sh" release
  run_ctest release -L fast
  exit 0
fi

for stage in $stages; do
  declare -F "stage_$stage" >/dev/null || die "unknown stage '$stage'"
  started=$SECONDS
  say "stage $stage"
  "stage_$stage"
  say "stage $stage passed in $((SECONDS - started)) s"
done
say "all passed in $SECONDS s: $stages"
