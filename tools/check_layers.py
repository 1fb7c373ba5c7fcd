#!/usr/bin/env python3
"""Checks the rules of the house that a text search can check: the dependency table, cycles, file sizes, headers.

Reads tools/layers.txt. Prints one line per violation and exits 1 if there is any.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
MAX_LINES = {".h": 300, ".cc": 600, ".rs": 400, ".py": 600}
MAX_TEST_LINES = 800
# What only one place may do: pattern, where it is allowed, the rule.
RESTRICTED = [
    (re.compile(r"\bgetenv\s*\("), ("src/config/", "tests/"), "getenv belongs to config"),
    (re.compile(r"\brandom_device\b"), ("src/serving/", "src/server/"), "random_device makes runs unrepeatable"),
    (re.compile(r"\bsleep_for\s*\("), (), "no sleep-polling: wait on a condition"),
    (re.compile(r"\b(TODO|FIXME|XXX)\b"), (), "finish it or file it"),
    (re.compile(r"spdlog/"), ("src/base/log.cc",), "log through base/log.h"),
]


def read_table():
    table = {}
    for line in (ROOT / "tools/layers.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            module, _, allowed = line.partition(":")
            table[module] = allowed.split()
    return table


def module_of(path):
    """Module of a path relative to the root, or of an include as it is written."""
    parts = pathlib.PurePosixPath(path).parts
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    if parts[0] in ("kernels",):
        return "kernels"
    if parts[0] in ("include", "spindle", "proto"):
        return "base"
    return parts[0]


def sources(*folders):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in MAX_LINES and "target" not in path.parts and path.is_file():
                yield path


def check_includes(table, problems):
    for path in sources("src", "kernels", "include"):
        if path.suffix == ".rs":
            continue
        name = path.relative_to(ROOT).as_posix()
        module = module_of(name)
        if module not in table:
            problems.append(f"{name}: module '{module}' is not in tools/layers.txt")
            continue
        for include in INCLUDE.findall(path.read_text()):
            if "/" not in include:
                continue  # generated or same-folder header
            target = module_of(include)
            if target in table and target != module and target not in table[module]:
                problems.append(f'{name}: "{include}": {module} may not use {target}')


def check_order(table, problems):
    """The table lists modules bottom up, so an edge to a later line is a cycle or an upward edge."""
    seen = set()
    for module, allowed in table.items():
        seen.add(module)
        problems += [f"tools/layers.txt: {module} uses {dep}, which is not below it" for dep in allowed if dep not in seen]


def check_files(problems):
    for path in sources("src", "kernels", "include", "tests", "tools"):
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text()
        lines = text.count("\n")
        limit = MAX_TEST_LINES if name.startswith("tests/") else MAX_LINES[path.suffix]
        if lines > limit:
            problems.append(f"{name}: {lines} lines, at most {limit}")
        if path.suffix == ".h" and "#pragma once" not in text:
            problems.append(f"{name}: no #pragma once")
        if name == "tools/check_layers.py":
            continue
        for pattern, allowed, rule in RESTRICTED:
            if pattern.search(text) and not name.startswith(allowed or "\0"):
                problems.append(f"{name}: {pattern.search(text).group(0)}: {rule}")


def main():
    table = read_table()
    problems = []
    check_order(table, problems)
    check_includes(table, problems)
    check_files(problems)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
