#!/usr/bin/env bash
# Line coverage of src/kv by its unit tests and the engine's: builds them with counters (preset coverage), runs them, prints a table per file, and
# fails below a bound (default 90 %).
# use: tools/coverage.sh [--min PERCENT] [--lines FILE…]     --lines: also lists the lines of these files that were not reached
set -euo pipefail
. "$(dirname "$0")/lib.sh"

# The tiers behind the prefix cache are tested through the engine too, the simulator through its command.
TESTS="kv_test kv_tiers_test kv_disk_test kv_fast_test kv_sim_test kv_sim_command_test kv_trace_test engine_test"
dir=$ROOT/build/coverage

# shellcheck disable=SC2086 # a list of words
"$ROOT/tools/build.sh" coverage $TESTS
find "$dir/src/kv" -name '*.gcda' -delete
for test in $TESTS; do
  say "running $test"
  "$dir/bin/$test" --gtest_brief=1 >"$dir/$test.log" 2>&1 || { tail -n 40 "$dir/$test.log" >&2; die "$test failed"; }
done
python3 "$ROOT/tools/coverage.py" --build "$dir" --source "$ROOT/src/kv" "$@"
