#!/usr/bin/env bash
# Writes the licences of what the binary contains, so that packages can carry them: Spindle itself, the Rust crates linked into it
# and the header-only C++ libraries compiled into it. Needs the crates' sources, which building leaves in cargo's cache.
# use: tools/packaging/licences.sh FILE
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

[ $# = 1 ] || die "use: tools/packaging/licences.sh FILE"
cargo=${CARGO:-$(command -v cargo || echo "$HOME/.cargo/bin/cargo")}
header_only=(nlohmann-json3-dev libcli11-dev)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cd "$ROOT/src/text/ffi"
"$cargo" tree --offline --locked -e normal,no-proc-macro --target x86_64-unknown-linux-gnu --prefix none -f '{p}' |
  awk '{print $1, substr($2, 2)}' | sort -u >"$scratch/crates"
"$cargo" metadata --offline --locked --format-version 1 >"$scratch/metadata.json"
{
  cat <<'TEXT'
Spindle is distributed under the Apache License, version 2.0; its text is in the package's file LICENSE and, on Debian, in
/usr/share/common-licenses/Apache-2.0. The binary contains the libraries below.
TEXT
  python3 - "$scratch" <<'PY'
"""The crates with their licences, then each distinct licence text with the crates it belongs to."""
import json, pathlib, sys

scratch = pathlib.Path(sys.argv[1])
linked = {tuple(line.split()) for line in (scratch / "crates").read_text().splitlines()}
packages = json.loads((scratch / "metadata.json").read_text())["packages"]
crates = [p for p in packages if (p["name"], p["version"]) in linked and p["source"] is not None]
if len(crates) + 1 != len(linked):  # the crate of Spindle itself has no source
    sys.exit("fatal: cargo tree and cargo metadata disagree about the crates")

print("\n== Rust crates (crates.io)\n")
texts = {}
for crate in crates:
    name = f"{crate['name']} {crate['version']}"
    print(f"{name}: {crate['license']}")
    files = [
        f
        for f in sorted(pathlib.Path(crate["manifest_path"]).parent.iterdir())
        if f.is_file() and f.name.upper().startswith(("LICEN", "COPYING", "UNLICENSE", "NOTICE"))
    ]
    if not files:
        sys.exit(f"fatal: {name} has no licence file")
    # Where MIT may be chosen, its text is enough.
    chosen = [f for f in files if "MIT" in f.name.upper()] or files
    for file in chosen:
        text = file.read_text(errors="replace").strip()
        texts.setdefault(" ".join(text.split()), (text, []))[1].append(name)
for text, names in texts.values():
    print(f"\n-- {', '.join(names)}\n\n{text}")
PY
  printf '\n== Rust standard library\n\nMIT OR Apache-2.0, copyright the Rust project contributors\n'
  printf '\n== Boost (headers)\n\nBoost Software License 1.0, https://www.boost.org/LICENSE_1_0.txt\n'
  for package in "${header_only[@]}"; do
    printf '\n== %s\n\n' "$package"
    cat "/usr/share/doc/$package/copyright"
  done
} >"$scratch/copyright"
cp "$scratch/copyright" "$1"
