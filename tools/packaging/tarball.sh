#!/usr/bin/env bash
# Builds a relocatable tarball into build/release: the stripped binary, the shared libraries it needs (glibc's own excepted) beside it,
# found by a relative run path, and the licences of all. It runs on x86-64 distributions whose glibc is at least Debian 12's (2.36).
# use: tools/packaging/tarball.sh
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

"$ROOT/tools/setup.sh" --packaging
"$ROOT/tools/build.sh" release spindle
version=$(sed -n 's/^project(spindle VERSION \([0-9.]*\).*/\1/p' "$ROOT/CMakeLists.txt")
name=spindle-$version-linux-x86_64
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/$name/bin" "$stage/$name/lib" "$stage/$name/share"
install -m 755 -s "$ROOT/build/release/bin/spindle" "$stage/$name/bin/spindle"
mkdir "$stage/$name/share/docs" "$stage/$name/share/licences"
cp "$ROOT/README.md" "$ROOT/LICENSE" "$stage/$name/share/"
cp "$ROOT/docs/http-api.md" "$ROOT/docs/configuration.md" "$stage/$name/share/docs/"
"$ROOT/tools/packaging/licences.sh" "$stage/$name/share/licences/spindle.txt"
cp -r "$ROOT/configs/serve" "$stage/$name/share/examples"
cp -r "$ROOT/configs/sparse" "$stage/$name/share/sparse"

# The Debian package that a library comes from; on systems with a merged /usr it may be listed under /lib.
package_of() {
  local path
  path=$(readlink -f "$1")
  { dpkg-query -S "$path" 2>/dev/null || dpkg-query -S "${path#/usr}" 2>/dev/null; } | head -n 1 | cut -d: -f1
}

# glibc must be the target's own: it belongs to its kernel, resolver and loader.
glibc='^(libc|libm|libdl|librt|libpthread|libresolv|ld-linux-x86-64)\.so'
ldd "$ROOT/build/release/bin/spindle" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' | while read -r soname path; do
  if ! [[ $soname =~ $glibc ]]; then
    cp -L "$path" "$stage/$name/lib/$soname"
    patchelf --set-rpath '$ORIGIN' "$stage/$name/lib/$soname"
    package=$(package_of "$path") || true
    [ -n "$package" ] || die "no package owns $path: its licence is not known"
    cp "/usr/share/doc/$package/copyright" "$stage/$name/share/licences/$package.txt"
  fi
done
# Debian's copyright files point at the texts of common licences.
mkdir "$stage/$name/share/licences/common-licenses"
{ grep -oh '/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]' "$stage/$name/share/licences/"*.txt || true; } | sort -u | while read -r text; do
  [ ! -f "$text" ] || cp -L "$text" "$stage/$name/share/licences/common-licenses/"
done
patchelf --set-rpath '$ORIGIN/../lib' "$stage/$name/bin/spindle"
tar -C "$stage" --owner=0 --group=0 --sort=name -czf "$ROOT/build/release/$name.tar.gz" "$name"
ls -1 "$ROOT/build/release/$name.tar.gz"
