#!/usr/bin/env bash
# Texts that gates are distilled from and judged on, out of Debian packages that are free or in the public domain:
# FOLDER/train/*.txt and FOLDER/held_out/*.txt. No text is in both.
# use: tools/gates/texts.sh FOLDER
set -euo pipefail

# need COMMAND PACKAGE
need() {
  command -v "$1" >/dev/null || {
    echo "texts.sh: no command '$1': install the package $2" >&2
    exit 1
  }
}
need man man-db
need col bsdextrautils

folder=$(mkdir -p "$1" && cd "$1" && pwd)
mkdir -p "$folder/packages" "$folder/train" "$folder/held_out"
cd "$folder/packages"
apt-get download -qq bible-kjv bible-kjv-text debian-policy debian-reference-en manpages-dev r-cran-janeaustenr
for package in *.deb; do
  dpkg-deb -x "$package" files
done

files/usr/bin/bible -p files/usr/lib -f gen1:1-rev22:21 >"$folder/train/bible.txt"
zcat files/usr/share/doc/debian-policy/policy.txt.gz >"$folder/train/policy.txt"
zcat files/usr/share/debian-reference/debian-reference.en.txt.gz >"$folder/held_out/reference.txt"
for page in files/usr/share/man/man2/*.2.gz; do
  MANWIDTH=80 man -l "$page" 2>/dev/null | col -bx
done >"$folder/train/man2.txt"

# A database of R: records of a size (u32, big-endian) and a zlib stream, each with a vector of strings.
python3 - "$folder" files/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb <<'PY'
import pathlib, re, struct, sys, zlib

folder, path = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
data = path.read_bytes()
at = 0
while at + 4 < len(data):
    stream = zlib.decompressobj()
    book = stream.decompress(data[at + 4:])
    at = len(data) - len(stream.unused_data)
    lines = []
    for match in re.finditer(rb"\0\x04\0\t(....)", book, re.DOTALL):
        (size,) = struct.unpack(">i", match.group(1))
        lines.append(book[match.end():match.end() + max(size, 0)].decode("utf-8", "replace"))
    name = "_".join(lines[0].lower().split())
    part = "train" if name == "mansfield_park" else "held_out" if name == "emma" else None
    if part:
        (folder / part / f"{name}.txt").write_text("\n".join(lines))
PY
wc -c "$folder"/train/*.txt "$folder"/held_out/*.txt
