#!/usr/bin/env bash
# One command from a bare Debian 12 machine to a served model: installs what is missing, builds, fetches the default model
# and serves it. Arguments are passed on to `spindle serve`.
# use: tools/serve.sh [spindle serve options]
set -euo pipefail
. "$(dirname "$0")/lib.sh"

"$ROOT/tools/setup.sh" --no-tests
"$ROOT/tools/build.sh" release spindle
model=$("$ROOT/tools/fetch_model.sh")

host=127.0.0.1
port=8000
other_model=
previous=
for arg in "$@"; do
  case $previous in
    --port) port=$arg ;;
    --host) host=$arg ;;
  esac
  case $arg in
    --port=*) port=${arg#*=} ;;
    --host=*) host=${arg#*=} ;;
    --model | --model=* | -m* | --config | --config=*) other_model=1 ;;
  esac
  previous=$arg
done

say "serving $(basename "$model") at http://$host:$port/v1 - try:"
cat >&2 <<EOF

  curl http://$host:$port/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model": "smollm2", "messages": [{"role": "user", "content": "What is a spindle?"}]}'

EOF
# What the model's authors advise; flags win.
export SPINDLE_TEMPERATURE=${SPINDLE_TEMPERATURE:-0.2} SPINDLE_TOP_P=${SPINDLE_TOP_P:-0.9}
# Gates of that model; another one, or one that a configuration file may name, is not served with them.
gates=$ROOT/configs/sparse/gates/smollm2-135m-instruct.gates.safetensors
if [ -z "$other_model" ] && [ -z "${SPINDLE_CONFIG:-}" ]; then
  export SPINDLE_SPARSE_GATES=${SPINDLE_SPARSE_GATES:-$gates}
fi
exec "$ROOT/build/release/bin/spindle" serve --model "$model" --served-model-name smollm2 "$@"
