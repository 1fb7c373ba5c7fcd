#!/usr/bin/env bash
# Formats all C++ files in place, or with --check reports the first differences and fails.
# use: tools/format.sh [--check]
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.h' '*.cc')
if [ "${1:-}" = --check ]; then
  clang-format-14 --dry-run --Werror --ferror-limit=5 "${files[@]}"
else
  clang-format-14 -i "${files[@]}"
fi
