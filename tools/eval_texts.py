#!/usr/bin/env python3
"""Texts for `spindle eval`, out of Debian packages: six novels of Jane Austen, the Debian Reference. Nothing is installed.

use: tools/eval_texts.py [FOLDER]      default: .cache/texts. Prints the files of the reporting set, one per line.

Settings are tuned on the first three novels (tuning.txt); reports are about everything else. No reporting text is one that gates are
trained on (tools/gates/texts.sh): that takes one of the first three novels, the Bible, and other manuals.
"""
import gzip
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ["r-cran-janeaustenr", "debian-reference-en"]
TUNING, REPORTING = ["tuning.txt"], ["austen.txt", "technical.txt"]
STRING_VECTOR, STRING = 16, 9  # types of R's serialisation


def number(data, at):
    return struct.unpack_from(">i", data, at)[0]


def string_vector(data):
    """Lines of a vector of strings in R's binary (XDR) serialisation, version 3."""
    assert data[:2] == b"X\n", "not in XDR format"
    at = 18 + number(data, 14)  # behind versions and the name of the encoding
    assert number(data, at) & 0xFF == STRING_VECTOR, "not a vector of strings"
    count, at = number(data, at + 4), at + 8
    lines = []
    for _ in range(count):
        assert number(data, at) & 0xFF == STRING, "not a string"
        length = max(0, number(data, at + 4))  # -1: missing
        lines.append(data[at + 8:at + 8 + length].decode("utf-8"))
        at += 8 + length
    return lines


def records(data):
    """Of an R database: each a big-endian length and a zlib stream."""
    at = 0
    while at < len(data):
        stream = zlib.decompressobj()
        yield stream.decompress(data[at + 4:])
        at = len(data) - len(stream.unused_data)


def paragraphs(lines):
    """Wrapped lines joined, paragraphs apart."""
    text, paragraph = [], []
    for line in lines + [""]:
        if line.strip():
            paragraph.append(line.strip())
        elif paragraph:
            text.append(" ".join(paragraph))
            paragraph = []
    return "\n\n".join(text) + "\n"


def unpack(folder):
    subprocess.run(["apt-get", "download", "-q", *PACKAGES], cwd=folder, check=True, stdout=sys.stderr)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, folder / "root"], check=True)
    return folder / "root" / "usr"


def austen(usr):
    """Novels in the alphabetical order of their titles, which is that of the database."""
    data = (usr / "lib/R/site-library/janeaustenr/data/Rdata.rdb").read_bytes()
    return [paragraphs(string_vector(record)) for record in records(data)]


def technical(usr):
    path = next(usr.glob("share/debian-reference/*.en.txt.gz"))
    return gzip.decompress(path.read_bytes()).decode("utf-8")


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(os.environ.get("SPINDLE_CACHE", ROOT / ".cache")) / "texts"
    if not all((folder / name).exists() for name in TUNING + REPORTING):
        folder.mkdir(parents=True, exist_ok=True)
        scratch = pathlib.Path(tempfile.mkdtemp(dir=folder))
        try:
            usr = unpack(scratch)
            novels = austen(usr)
            assert len(novels) == 6, f"{len(novels)} novels"
            (folder / "tuning.txt").write_text("\n".join(novels[:3]), encoding="utf-8")
            (folder / "austen.txt").write_text("\n".join(novels[3:]), encoding="utf-8")
            (folder / "technical.txt").write_text(technical(usr), encoding="utf-8")
        finally:
            shutil.rmtree(scratch)
    for name in REPORTING:
        print(folder / name)


if __name__ == "__main__":
    main()
