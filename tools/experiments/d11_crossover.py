"""D11: from which context on choosing costs less than it saves, and what the switch of a preset that was calibrated here loses against the better of both."""
import pathlib
import re
import statistics
import tempfile
import types

import charts
import real
from common import ROOT, Gate, Result, Table, at_most

SHARE = 0.125
MAX_LOSS = 1.02
PRESET = ROOT / "configs" / "sparse" / "smollm2-135m-instruct.yaml"

FULL = types.SimpleNamespace(contexts=[256, 512, 1024, 2048, 3072, 4096, 6144, 7500], tokens=64, rounds=6, calibration=[])
QUICK = types.SimpleNamespace(contexts=[256, 1024], tokens=8, rounds=1, calibration=["--context", "256,1024", "--steps", "4", "--rounds", "1"])


def measure(lab, server, prompt, scale, variants):
    """{variant: seconds of a step in every round}; the prompt and its indexes are there before."""
    seconds = {name: [] for name in variants}
    for sparse in variants.values():
        real.ask(server, prompt, 2, sparse)
    for i, name in real.turns(list(variants), scale.rounds):
        lab.show(f"D11: context of {len(prompt)}, round {i + 1} of {scale.rounds}, {name}")
        seconds[name].append(real.step_seconds(server, [prompt], scale.tokens, variants[name]))
    return seconds


def calibrate(lab, scale, folder):
    """The preset with the `min_context` that `spindle calibrate` finds on this machine, and its text."""
    lab.show("D11: calibrating")
    path = pathlib.Path(folder) / PRESET.name
    lab.run("spindle", "calibrate", lab.need_model(), "--sparse-preset", PRESET, "--threads", real.THREADS, "--output", path, *scale.calibration)
    return path, path.read_text(encoding="utf-8")


def crossover(contexts, ratios):
    """The shortest context from which on sparse steps are never slower; None if there is none."""
    found = None
    for context, ratio in sorted(zip(contexts, ratios), reverse=True):
        if ratio < 1:
            break
        found = context
    return found


def run(lab, options):
    scale = QUICK if options.quick else FULL
    # `auto` is the preset's algorithm with the preset's budget; `forced` the same at every length.
    variants = {"dense": {"algorithm": "dense"}, **{m.name: m.sparse(SHARE) for m in real.METHODS},
                "preset, forced": {"algorithm": "auto", "min_context": 0}, "preset": {"algorithm": "auto"}}
    points = {}
    with tempfile.TemporaryDirectory() as folder:
        preset, text = calibrate(lab, scale, folder)
        with real.serve(lab, 8192, "--max-num-seqs", 1, "--kv-host-bytes", "1GiB", "--sparse-preset", preset) as server:
            longest = real.prompts(server, 1, max(scale.contexts))[0]
            for context in scale.contexts:
                points[context] = measure(lab, server, longest[:real.whole_stripes(context)], scale, variants)
    begin = re.search(r"^min_context: (\d+)", text, re.MULTILINE)
    contexts = list(points)
    ratios = {name: [real.paired_ratio(points[c]["dense"], points[c][name]) for c in contexts] for name in variants}
    checks, losses = [], {}
    for i, context in enumerate(contexts):
        better = max(1, ratios["preset, forced"][i])
        losses[context] = better / ratios["preset"][i]
        checks.append(at_most(f"context of {context}: the preset's step beside the better of dense and sparse", losses[context], MAX_LOSS))
    first = {name: crossover(contexts, ratios[name]) for name in variants if name not in ("dense", "preset")}
    checks.append(Gate("somewhere the preset's algorithm is quicker than dense", str(first["preset, forced"]), "a context", first["preset, forced"] is not None))
    rows = [[f"{context:,}", f"{1e3 * statistics.median(points[context]['dense']):.2f}"] + [f"{ratios[name][i]:.2f}" for name in variants if name != "dense"]
            for i, context in enumerate(contexts)]
    names = [name for name in variants if name != "dense"]
    tables = [Table(f"A step of decoding, B = 1, times dense (median over rounds in which all took turns); {100 * SHARE:g} % selected, the preset: "
                    f"`{PRESET.name}` with what `spindle calibrate` measured: {begin[0] if begin else 'dense at any length'}.",
                    ["context", "dense, ms"] + names, rows),
              Table("The shortest measured context from which on choosing never costs more than it saves.", ["method", "tokens"],
                    [[name, f"{at:,}" if at else "none"] for name, at in first.items()])]

    def chart(figure):
        charts.lines(figure, [(name, contexts, ratios[name]) for name in names], "context, tokens", "times dense", "Cost of choosing", log=True)

    return Result("D11: index cost over the context", tables, checks, {"points": points, "ratios": ratios, "losses": losses, "crossovers": first, "preset": text}, chart)
