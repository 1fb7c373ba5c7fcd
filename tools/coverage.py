#!/usr/bin/env python3
"""Line coverage of a source folder from gcov's counters: a table per file and the total. Exit code 1 below --min.

use: coverage.py --build DIR --source DIR [--min 90] [--lines FILE…]
"""
import argparse
import collections
import json
import pathlib
import subprocess
import sys


def counts(build, source):
    """{file: {line: times executed}} over all objects; a line of a template or a header counts once, with all its instances."""
    found = collections.defaultdict(lambda: collections.defaultdict(int))
    for notes in sorted(build.rglob("*.gcno")):
        answer = subprocess.run(["gcov", "--json-format", "--stdout", notes.name], cwd=notes.parent, check=True, capture_output=True, text=True)
        for line in answer.stdout.splitlines():
            report = json.loads(line)
            for entry in report["files"]:
                path = (pathlib.Path(report["current_working_directory"]) / entry["file"]).resolve()
                if path.is_relative_to(source):
                    for each in entry["lines"]:
                        found[path.relative_to(source)][each["line_number"]] += each["count"]
    return found


def ranges(numbers):
    """"3-5, 9"."""
    parts, begin = [], None
    for number in numbers + [None]:
        if begin is not None and number != last + 1:
            parts.append(str(begin) if begin == last else f"{begin}-{last}")
            begin = None
        begin = number if begin is None else begin
        last = number
    return ", ".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("--source", required=True, type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("--min", type=float, default=90.0)
    parser.add_argument("--lines", nargs="*", default=[], metavar="FILE")
    options = parser.parse_args()
    found = counts(options.build, options.source)
    # A file that no test is linked with would be missing, not uncovered.
    missing = [path for path in options.source.rglob("*.cc") if path.relative_to(options.source) not in found]
    if missing:
        print("no counters for: " + ", ".join(map(str, missing)), file=sys.stderr)
        return 1
    total_hit = total = 0
    print(f"{'file':<40}{'lines':>7}{'hit':>7}{'%':>8}")
    for path, lines in sorted(found.items()):
        hit = sum(count > 0 for count in lines.values())
        total_hit, total = total_hit + hit, total + len(lines)
        print(f"{str(path):<40}{len(lines):>7}{hit:>7}{100 * hit / len(lines):>8.1f}")
        if str(path) in options.lines:
            print("    not reached: " + ranges(sorted(number for number, count in lines.items() if count == 0)))
    percent = 100 * total_hit / total
    print(f"{'total':<40}{total:>7}{total_hit:>7}{percent:>8.1f}")
    if percent < options.min:
        print(f"coverage of {options.source.name} is {percent:.1f} %, below {options.min:.0f} %", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
