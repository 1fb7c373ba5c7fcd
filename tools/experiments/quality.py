#!/usr/bin/env python3
"""Plots of a report of `spindle eval`, as SVG.

use: tools/experiments/quality.py REPORT.json FOLDER
"""
import json
import pathlib
import sys

import charts

MEASURES = [("kl_mean", "KL from dense, nats", None, True), ("top1", "same most likely token, share of steps", 1, False),
            ("mass_median", "attention mass, median head", 1, False), ("overlap", "selected again, share", None, False)]


def by_budget(policies, field):
    """[(name, budgets in per cent, values)] of policies that have a budget, oracles and algorithms apart."""
    series = {}
    for policy in policies:
        if policy["budget"] > 0:
            name = policy["policy"].split("@")[0]
            series.setdefault(name, []).append((100 * policy["budget"], policy[field]))
    return [(name, *map(list, zip(*sorted(points)))) for name, points in series.items()]


def draw_forced(run, folder):
    context = run["context_tokens"]
    for field, label, level, log_y in MEASURES:
        series = by_budget(run["policies"], field)
        charts.save(lambda figure: charts.curves(figure, series, level, "dense", "selected, % of the context", label,
                                                 f"{run['windows'] * run['steps']} steps at {context} tokens", log_y),
                    folder / f"{field}_{context}.svg")
    for name in sorted({p["algorithm"] for p in run["policies"] if p["role"] == "algorithm"}):
        maps = [(p["policy"], [[None if cell < 0 else cell for cell in row] for row in p["head_mass"]])
                for p in run["policies"] if p["role"] == "algorithm" and p["algorithm"] == name]
        charts.save(lambda figure: charts.heat_maps(figure, maps, "KV head", "layer", f"attention mass on what is attended, {context} tokens"),
                    folder / f"heads_{name}_{context}.svg")


def draw_task(task, folder):
    for field, label in (("retention", "retention"), ("string_score", "right answers, share")):
        series = by_budget(task["policies"], field)
        dense = next(p[field] for p in task["policies"] if p["role"] == "dense")
        note = "" if task["admissible"] else ", not solved by dense"
        charts.save(lambda figure: charts.curves(figure, series, dense, "dense", "selected, % of the context", label,
                                                 f"{task['family']} at {task['context_tokens']} tokens, {task['samples']} samples{note}"),
                    folder / f"{task['family']}_{field}_{task['context_tokens']}.svg")


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    report, folder = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")), pathlib.Path(sys.argv[2])
    for run in report["forced"]:
        draw_forced(run, folder)
    for task in report["tasks"]:
        draw_task(task, folder)


if __name__ == "__main__":
    main()
