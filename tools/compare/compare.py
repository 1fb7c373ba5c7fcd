#!/usr/bin/env python3
"""Prefill and decode rates of Spindle beside other engines on one GGUF; see README.md.

use: compare.py --spindle DIR --model GGUF [--llama DIR] [--ik-llama DIR] [--openvino PYTHON] [--sparse A:P] [--rounds 6] [--points P…] [--json FILE]
     points: decode:B:T and prefill:T
"""
import argparse
import json
import pathlib
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import engines  # noqa: E402
import floors  # noqa: E402

DEFAULT_POINTS = ["decode:1:1024", "decode:4:1024", "decode:16:1024", "decode:1:4096", "prefill:2048", "prefill:6144"]


def parse_point(text):
    kind, *numbers = text.split(":")
    if kind == "decode" and len(numbers) == 2:
        return engines.Point(kind, int(numbers[0]), int(numbers[1]))
    if kind == "prefill" and len(numbers) == 1:
        return engines.Point(kind, 1, int(numbers[0]))
    raise argparse.ArgumentTypeError(f"'{text}' is neither decode:B:T nor prefill:T")


def measure(systems, points, rounds):
    """{point: {system: [rates]}}; systems take turns, and the order turns with the round."""
    rates = {point: {s.name: [] for s in systems} for point in points}
    for point in points:
        for round_number in range(rounds):
            shift = round_number % len(systems)
            for system in systems[shift:] + systems[:shift]:
                rate = system.measure(point)
                rates[point][system.name].append(rate)
                print(f"{point} round {round_number + 1}/{rounds} {system.name}: {rate:.1f} tok/s", file=sys.stderr)
    return rates


def table(rates, systems, machine):
    names = [s.name for s in systems]
    lines = ["| point | " + " | ".join(names) + " | our best over the best other | floor tok/s | fraction of the floor |",
             "|---" * (len(names) + 4) + "|"]
    for point, by_system in rates.items():
        medians = {n: statistics.median(by_system[n]) for n in names}
        ours = max(medians[s.name] for s in systems if isinstance(s, engines.Spindle))
        others = [medians[s.name] for s in systems if not isinstance(s, engines.Spindle)]
        ratio = f"{ours / max(others):.2f}" if others else "–"
        floor = floors.rate(point, machine)
        lines.append(f"| {point} | " + " | ".join(f"{medians[n]:.0f}" for n in names)
                     + f" | {ratio} | {floor:.0f} | {medians[names[0]] / floor:.2f} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spindle", required=True, help="folder with engine_bench and kernel_bench (build/release/bin)")
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sparse", action="append", default=[], metavar="ALGORITHM:PERCENT", help="Spindle once more, decoding sparsely; repeatable")
    parser.add_argument("--llama", help="folder with llama.cpp's llama-batched-bench")
    parser.add_argument("--llama-flags", default="-fa on -b 2048 -ub 512")
    parser.add_argument("--ik-llama", help="folder with ik_llama.cpp's llama-batched-bench")
    parser.add_argument("--ik-llama-flags", default="-fa on -rtr -b 2048 -ub 512")
    parser.add_argument("--openvino", help="Python with openvino-genai")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--points", nargs="*", type=parse_point, default=[parse_point(p) for p in DEFAULT_POINTS])
    parser.add_argument("--json")
    options = parser.parse_args()
    systems = [engines.Spindle(options.spindle, options.model, options.threads, sparse) for sparse in ["", *options.sparse]]
    if options.llama:
        systems.append(engines.LlamaBench("llama.cpp", options.llama, options.model, options.threads, options.llama_flags))
    if options.ik_llama:
        systems.append(engines.LlamaBench("ik_llama.cpp", options.ik_llama, options.model, options.threads, options.ik_llama_flags))
    if options.openvino:
        systems.append(engines.OpenVino(options.openvino, options.model, options.threads))
    before = floors.measure_roofs(options.spindle)
    try:
        rates = measure(systems, options.points, options.rounds)
    finally:
        for system in systems:
            system.close()
    after = floors.measure_roofs(options.spindle)
    machine = {key: max(before[key], after[key]) for key in before}
    print(table(rates, systems, machine))
    print(f"\nRoofs: {machine['bandwidth'] / 1e9:.1f} GB/s, {machine['bf16'] / 1e9:.0f} GFLOP/s bf16 (before and after: "
          + ", ".join(f"{before[k] / 1e9:.4g} and {after[k] / 1e9:.4g}" for k in before) + ")")
    if options.json:
        record = {"roofs_before": before, "roofs_after": after, "rates": {str(p): r for p, r in rates.items()}}
        pathlib.Path(options.json).write_text(json.dumps(record, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
