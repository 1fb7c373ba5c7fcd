"""D2 on real selections: hit ratio by buffering pages per mandatory page, of selections that a server recorded while it decoded real text."""
import itertools
import math
import pathlib
import tempfile
import types

import charts
import real
from common import Gate, Result, Table
from d2_ratio import RATIOS, by_ratio, gates, label, rows_of

SHARE = 0.0625
SERVED_RATIO = 3
TEXTS = {real.NOVELS: "novel", real.TECHNICAL: "manual"}
MAX_RATIO = 100  # frames for all pages of a context, and more

FULL = types.SimpleNamespace(context=7000, steps=512, warmup=100)
QUICK = types.SimpleNamespace(context=1100, steps=40, warmup=8)


def record(lab, method, scale, folder, text=real.NOVELS):
    """The trace of one request, with the method's name in its head."""
    arguments = ["--kv-mode", "mirror", "--kv-fast-bytes", "512MiB", "--kv-buffer-ratio", SERVED_RATIO, "--kv-trace", folder, "--max-num-seqs", 1,
                 "--sparse-algorithm", method.name]
    with real.serve(lab, 8192, *arguments) as server:
        prompt = real.prompts(server, 1, real.whole_stripes(scale.context), text)[0]
        real.ask(server, prompt, scale.steps + 1, method.sparse(SHARE))
    return next(pathlib.Path(folder).glob("*-pages.trace"))


def run(lab, options):
    scale = QUICK if options.quick else FULL
    found, rows, checks = {}, [], []
    for method, text in itertools.product(real.METHODS, TEXTS):
        name = f"{method.name}, {TEXTS[text]}"
        lab.show(f"D2R: {name}, server")
        with tempfile.TemporaryDirectory() as folder:
            trace = record(lab, method, scale, folder, text)
            lab.show(f"D2R: {name}, simulator")
            replayed = lab.simulate(str(trace), "--capacity", "recorded")
            results = by_ratio(lab, MAX_RATIO, str(trace), "--warmup", scale.warmup)["results"]
        differences = replayed["recorded"]["differences"]
        checks.append(Gate(f"{name}: pages whose hit or miss differs between server and simulator", str(differences), "none", differences == 0))
        hits = [r["hit_ratio"] for r in results]
        checks += gates(name, hits)
        rows += rows_of(name, hits, [[h for h in r["layer_hit_ratios"] if h is not None] for r in results])
        found[name] = {"replayed": replayed["recorded"], "results": results}
    tables = [Table(f"Selections of real text, recorded by a server (one request of {real.whole_stripes(scale.context):,} tokens, {100 * SHARE:g} % "
                    f"selected, {scale.steps} steps of which {scale.warmup} are not counted) and simulated at every ratio with bucketed LRU. Pages have one "
                    "size, so byte and page hit ratios are the same.",
                    ["hit ratio, % at ratio"] + [label(r) for r in RATIOS], rows)]

    def chart(figure):
        finite = [i for i, r in enumerate(RATIOS) if r != math.inf]
        charts.lines(figure, [(name, [RATIOS[i] for i in finite], [100 * of["results"][i]["hit_ratio"] for i in finite]) for name, of in found.items()],
                     "buffering pages per mandatory page", "hit ratio, %", "Selections of real text, simulated")

    return Result("D2 on real selections", tables, checks, {"ratios": [label(r) for r in RATIOS], "selections": found}, chart)
