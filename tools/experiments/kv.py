#!/usr/bin/env python3
"""Experiments on the tiered KV: tables, plots and gates. See README.md.

use: kv.py D2|D3|D4|D9|B7|B8… [--bin DIR] [--model GGUF] [--json FILE] [--plot DIR] [--docs]

Prints the tables as they stand in docs/benchmarks.md, then a line per gate; exits with 1 when one is missed.
"""
import argparse
import importlib
import json
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import charts  # noqa: E402
import common  # noqa: E402

MODULES = {"D2": "d2_ratio", "D3": "d3_policy", "D4": "d4_metadata", "D9": "d9_overlap", "B7": "b7_metadata", "B8": "b8_rates",
           # Sparse attention over real text.
           "C4": "c4_speed", "C10": "c10_index", "D1": "d1_buffering", "D2R": "d2_recorded", "D5": "d5_batch",
           "D6": "d6_originals", "D7": "d7_budgets", "D8": "d8_copies", "D10": "d10_partitions", "D11": "d11_crossover", "D12": "d12_load"}
DOCS = common.ROOT / "docs" / "benchmarks.md"
PLOTS = common.ROOT / "docs" / "plots"


def plot_name(name):
    return f"kv_{MODULES[name]}.svg"


def update_docs(name, text):
    """Puts the text where docs/benchmarks.md has the experiment's marks."""
    begin, end = f"<!-- {name}: made by tools/experiments/kv.py -->\n", f"<!-- end of {name} -->\n"
    before, found, rest = DOCS.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{DOCS}: no place marked for {name}")
    DOCS.write_text(before + begin + text + "\n" + end + after)


def run(name, lab, options):
    started, state = time.monotonic(), common.machine()
    result = importlib.import_module(MODULES[name]).run(lab, options)
    lab.line.end(f"{name}: done in {time.monotonic() - started:.0f} s")
    text = f"{state}.\n\n{result.markdown()}"
    if result.chart:
        if options.plot:
            charts.save(result.chart, pathlib.Path(options.plot) / plot_name(name))
        if options.docs:
            charts.save(result.chart, PLOTS / plot_name(name))
            text += f"\n\n![{result.title}](plots/{plot_name(name)})"
    if options.docs:
        update_docs(name, text)
    print(f"## {result.title}\n\n{text}\n")
    for gate in result.gates:
        print(gate.line())
    print(f"{name} {'passed' if result.passed else 'FAILED'}\n", flush=True)
    return {"machine": state, "data": result.data, "passed": result.passed, "gates": [vars(gate) for gate in result.gates]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=MODULES, metavar="|".join(MODULES))
    parser.add_argument("--bin", default=common.ROOT / "build" / "release" / "bin", help="folder of the binaries")
    parser.add_argument("--model", help="GGUF of the default model, for what runs a server")
    parser.add_argument("--trace", action="append", default=[], help="D2: a page-access trace that a server recorded; repeatable")
    parser.add_argument("--no-server", action="store_true", help="D2, D9: only the simulator")
    parser.add_argument("--disk-folder", default=".", help="B8: a folder on the device to measure; C4: keeps the KV of long prompts there")
    parser.add_argument("--quick", action="store_true", help="those over real text: short contexts and few rounds, to see that they work")
    parser.add_argument("--rounds", type=int, default=5, help="of each timed case; the median counts")
    parser.add_argument("--json", help="file for all figures")
    parser.add_argument("--plot", help="folder for plots (SVG)")
    parser.add_argument("--docs", action="store_true", help="write tables and plots into docs/")
    options = parser.parse_args()
    lab = common.Lab(options.bin, options.model, options.disk_folder)
    record = {name: run(name, lab, options) for name in options.names}
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(record, indent=2))
    return 0 if all(r["passed"] for r in record.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
