#!/usr/bin/env bash
# Builds the Debian package into build/release.
# use: tools/packaging/deb.sh
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

"$ROOT/tools/setup.sh" --packaging
"$ROOT/tools/build.sh" release spindle
cd "$ROOT/build/release"
say "packing"
cpack -G DEB >/dev/null
ls -1 "$ROOT"/build/release/spindle_*.deb
