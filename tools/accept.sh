#!/usr/bin/env bash
# Runs one acceptance line at full size. Results are kept in build/accept, so that a line that has passed for this commit is not run again
# (--again runs it anyway).
# use: tools/accept.sh NAME [--again]
#   A1  set-up on this machine: second start serves within 10 s    A2  end-to-end suite
#   A3  logits against references     A4  bit-equality at full size   A5  comparison with other engines (see tools/compare/README.md)
#   A6  memory                        A7  sanitizers, 10 minutes per fuzz target
#   A8  load test                     A9  format, layers, both compilers
#   B1  placement of KV changes no bit        B2  more requests than the fast tier holds
#   B3  restarts and kills of a server with a disk tier
#   B5  faults of the disk tier: in simulation, then in a server
#   B6  simulator: frozen tables, cost of bucketed LRU, lock-step with recorded servers
#   B7  metadata and look-ups         B8  gather, disk and bookkeeping beside what the machine gives
#   B10 experiments D2, D3, D4, D9 (see tools/experiments/README.md)
#   B11 resident size below the memory plan; coverage of src/kv (its sanitizers: A7)
#   C2  a token budget that covers the context gives dense attention (over HTTP; without the shortcut: sparse_runtime_test)
#   C3  quality gates of every algorithm at 4,096 and 7,500 tokens: hours; goes on where it was interrupted.
#       SPINDLE_QUALITY_ARGS: further arguments of `spindle eval`, SPINDLE_QUALITY_ALGORITHMS: a selection, those with a comma in one run
#   C4  speed of sparse decoding beside our own dense, on a quiet machine (beside other engines: tools/compare/README.md)
#   C5  requests held, throughput and time to the first token against dense at equal fast memory; emulated link; hours, on a quiet machine.
#       SPINDLE_CAPACITY_ARGS: further arguments, for example "--only capacity" or "--lgb-pairs 1"
#   C6  two requests share a document's KV; conversations that change their algorithm
#   C7  a request among others that mix algorithms, budgets, lengths and cancels
#   C8  experiments D1, D2 on real selections, D5 to D8, D10 to D12
#   C10 time and memory of sparse indexes
# C2 and C5 to C7 go on where they were interrupted, and take --quick when run by themselves (tests/stress).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
PATH=$PATH:$HOME/.cargo/bin

binary=$ROOT/build/release/bin/spindle
results=$ROOT/build/accept

accept_A1() {
  "$ROOT/tools/setup.sh" --no-tests
  "$ROOT/tools/build.sh" release spindle
  "$ROOT/tools/fetch_model.sh" >/dev/null
  local started=$SECONDS log=$results/A1.serve.log
  "$ROOT/tools/serve.sh" --port 18000 --grpc-port 0 >"$log" 2>&1 &
  local server=$!
  trap 'kill $server 2>/dev/null || true' EXIT
  until curl -fsS http://127.0.0.1:18000/health >/dev/null 2>&1; do
    [ $((SECONDS - started)) -lt 60 ] || die "not ready after 60 s; see $log"
    sleep 0.1
  done
  say "serving after $((SECONDS - started)) s (bound 10 s)"
  curl -fsS http://127.0.0.1:18000/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model":"smollm2","max_tokens":16,"messages":[{"role":"user","content":"Hello"}]}'
  echo
  [ $((SECONDS - started)) -le 10 ]
}

accept_A2() { "$ROOT/tools/test.sh" --stage e2e; }

accept_A3() {
  "$ROOT/tools/build.sh" release
  (cd "$ROOT/build/release" && ctest --output-on-failure -R 'logits|text')
}

accept_A4() {
  "$ROOT/tools/build.sh" release spindle
  "$VENV/bin/python" "$ROOT/tests/stress/equality.py" --binary "$binary" --model "$SPINDLE_TEST_MODEL"
}

accept_A5() {
  "$ROOT/tools/build.sh" release engine_bench kernel_bench
  # shellcheck disable=SC2086 # a list of words
  "$VENV/bin/python" "$ROOT/tools/compare/compare.py" --spindle "$ROOT/build/release/bin" --model "$SPINDLE_TEST_MODEL" ${SPINDLE_COMPARE_ARGS:-}
}

accept_A6() {
  "$ROOT/tools/build.sh" release spindle
  "$VENV/bin/python" "$ROOT/tests/stress/memory.py" --binary "$binary" --model "$SPINDLE_TEST_MODEL"
}

accept_A7() {
  "$ROOT/tools/test.sh" --stage asan tsan
  SPINDLE_FUZZ_SECONDS=600 "$ROOT/tools/test.sh" --stage fuzz
}

accept_A8() {
  "$ROOT/tools/build.sh" release spindle
  "$VENV/bin/python" "$ROOT/tests/stress/load.py" --binary "$binary" --model "$SPINDLE_TEST_MODEL" --json "$results/A8.json"
}

accept_A9() {
  "$ROOT/tools/test.sh" --stage checks
  "$ROOT/tools/build.sh" release
  "$ROOT/tools/build.sh" asan
}

placement() {
  "$ROOT/tools/build.sh" release spindle
  "$VENV/bin/python" "$ROOT/tests/stress/placement.py" --binary "$binary" --model "$SPINDLE_TEST_MODEL" \
    --results "$results/placement.json" "$@"
}

accept_B1() {
  placement --only dense
  placement --only synthetic
}

accept_B2() { placement --only capacity; }

accept_B3() {
  "$ROOT/tools/build.sh" release spindle
  "$VENV/bin/python" "$ROOT/tests/stress/restarts.py" --binary "$binary" --model "$SPINDLE_TEST_MODEL"
}

accept_B5() {
  "$ROOT/tools/build.sh" release engine_fault_sweep_test spindle faulty_server
  "$ROOT/build/release/bin/engine_fault_sweep_test" --gtest_brief=1
  "$VENV/bin/python" "$ROOT/tests/stress/faults.py" --binary "$binary" --model "$SPINDLE_TEST_MODEL"
}

accept_B6() {
  "$ROOT/tools/build.sh" release spindle kv_sim_test kv_sim_slow_test kv_sim_bench
  (cd "$ROOT/build/release" && ctest --output-on-failure -R '^kv_sim_(slow_)?test$')
  "$VENV/bin/python" "$ROOT/tests/stress/lockstep.py" --binary "$binary" --model "$SPINDLE_TEST_MODEL" --bench "$ROOT/build/release/bin/kv_sim_bench"
}

accept_B11() {
  "$ROOT/tools/build.sh" release spindle
  "$VENV/bin/python" "$ROOT/tests/stress/memory_plan.py" --binary "$binary" --model "$SPINDLE_TEST_MODEL" --json "$results/B11.json"
  "$ROOT/tools/coverage.sh"
}

experiments() {
  "$VENV/bin/python" "$ROOT/tools/experiments/kv.py" "$@" --model "$SPINDLE_TEST_MODEL" --disk-folder "$results" --json "$results/$name.json"
}

accept_B7() {
  "$ROOT/tools/build.sh" release metadata_bench kv_bench kv_fast_test kv_fast_slow_test
  "$ROOT/build/release/bin/kv_fast_test" --gtest_filter='MetadataBytesTest.*:PageDirectoryTest.*Lines'
  "$ROOT/build/release/bin/kv_fast_slow_test" --gtest_filter='*Metadata*'
  experiments B7
}

accept_B8() {
  "$ROOT/tools/build.sh" release spindle kv_bench disk_bench engine_bench
  experiments B8
}

accept_B10() {
  "$ROOT/tools/build.sh" release spindle kv_bench kv_sim_bench metadata_bench
  experiments D2 D3 D4 D9
}

# A script of tests/stress that keeps its parts in $name.results and reports to $name.json.
stress() {
  local script=$1
  shift
  "$ROOT/tools/build.sh" release spindle
  "$VENV/bin/python" "$ROOT/tests/stress/$script.py" --binary "$binary" --model "$SPINDLE_TEST_MODEL" \
    --results "$results/$name.results" --json "$results/$name.json" "$@"
}

accept_C2() {
  "$ROOT/tools/build.sh" release sparse_runtime_test
  "$ROOT/build/release/bin/sparse_runtime_test" --gtest_brief=1 --gtest_filter='*EverythingSelectedEqualsDense*'
  stress full_budget
}

# In several runs, so that an interruption loses one of them at most; algorithms of a run share what dense attention and the bounds take. Quest
# with the weight of its bounds that docs/evaluation.md found.
accept_C3() {
  "$ROOT/tools/build.sh" release spindle
  local texts=() text context algorithm outcome failed=0 gates
  while IFS= read -r text; do texts+=(--text "$text"); done < <("$ROOT/tools/eval_texts.py")
  gates=$ROOT/configs/sparse/gates/$(basename "$SPINDLE_TEST_MODEL" .q4_1.gguf).gates.safetensors
  for context in 4096 7500; do
    for algorithm in ${SPINDLE_QUALITY_ALGORITHMS:-shadowkv,retroinfer quest:bound_weight=0.25,seer_r}; do
      local folder=$results/C3/$context-$algorithm
      case $(cat "$folder/outcome" 2>/dev/null) in
        "$commit passed") continue ;;
        "$commit failed") failed=1; continue ;;
      esac
      outcome=passed
      # shellcheck disable=SC2086 # a list of words
      "$binary" eval "$SPINDLE_TEST_MODEL" "${texts[@]}" --context "$context" --algorithms "$algorithm" --budgets 25%,12.5%,6% \
        --windows 32 --steps 256 --samples 100 --sparse-gates "$gates" --gates --output "$folder" ${SPINDLE_QUALITY_ARGS:-} || { outcome=failed; failed=1; }
      "$VENV/bin/python" "$ROOT/tools/experiments/quality.py" "$folder/report.json" "$folder/plots"
      echo "$commit $outcome" >"$folder/outcome"
    done
  done
  [ $failed = 0 ]
}

accept_C4() {
  "$ROOT/tools/build.sh" release spindle attention_bench
  experiments C4
}

accept_C5() {
  # shellcheck disable=SC2046,SC2086 # lists of words
  stress capacity --text $("$ROOT/tools/eval_texts.py") ${SPINDLE_CAPACITY_ARGS:-}
}

accept_C6() { stress sharing; }

accept_C7() { stress isolation; }

accept_C8() {
  "$ROOT/tools/build.sh" release spindle kv_bench memory_policy_bench
  experiments D1 D2R D5 D6 D7 D8 D10 D11 D12
}

accept_C10() {
  "$ROOT/tools/build.sh" release spindle
  experiments C10
}

name=${1:-}
declare -F "accept_$name" >/dev/null || die "unknown line '$name' (see the head of this script)"
mkdir -p "$results"
commit=$(git -C "$ROOT" rev-parse HEAD)
if [ "${2:-}" != --again ] && [ "$(cat "$results/$name.passed" 2>/dev/null)" = "$commit" ]; then
  say "$name has passed for this commit"
  exit 0
fi
"$ROOT/tools/setup.sh"
SPINDLE_TEST_MODEL=$("$ROOT/tools/fetch_model.sh")
export SPINDLE_TEST_MODEL
say "acceptance line $name"
"accept_$name"
echo "$commit" >"$results/$name.passed"
say "$name passed"
