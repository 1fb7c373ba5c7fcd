#!/usr/bin/env bash
# Runs clang-tidy over the sources changed since a commit (default: the last one), or over all with --all.
# use: tools/tidy.sh [--all | BASE]
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
[ -f build/clang/compile_commands.json ] || cmake --preset clang >/dev/null
if [ "${1:-}" = --all ]; then
  mapfile -t files < <(git ls-files 'src/*.cc' 'kernels/*.cc')
else
  mapfile -t files < <(git diff --name-only --diff-filter=d "${1:-HEAD~1}" -- 'src/*.cc' 'kernels/*.cc')
fi
[ ${#files[@]} = 0 ] && { say "nothing to check"; exit 0; }
say "clang-tidy on ${#files[@]} files"
printf '%s\n' "${files[@]}" | xargs -P "$(jobs_count)" -n 4 clang-tidy-14 -p build/clang --quiet
