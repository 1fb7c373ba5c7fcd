"""D10: partitions of 8, 16 and 64 tokens and clusters, at an equal budget: what is lost, read, remembered, and how fast it is."""
import json
import pathlib
import statistics
import tempfile
import types

import charts
import real
from common import Gate, Result, Table, percent
from default_model import PAGE_BYTES

SHARE = 0.06
# Runs that differ by less say nothing about an order.
NOISE = 1.05
SIZES = {"shadowkv": "chunks of 8", "quest": "pages of 16", "seer_r": "blocks of 64", "retroinfer": "clusters of about 16"}
FIXED = ["shadowkv", "quest", "seer_r"]  # by size

FULL = types.SimpleNamespace(context=4096, windows=16, steps=128, speed_context=7500, tokens=64, rounds=6)
QUICK = types.SimpleNamespace(context=600, windows=1, steps=12, speed_context=1000, tokens=12, rounds=1)


def quality(lab, scale):
    """{policy: figures} of `spindle eval`, algorithms and oracles of their partitions."""
    lab.show("D10: quality")
    with tempfile.TemporaryDirectory() as folder:
        lab.run("spindle", "eval", lab.need_model(), "--text", "stories", "--context", scale.context, "--windows", scale.windows, "--steps", scale.steps,
                "--algorithms", ",".join(SIZES), "--budgets", f"{100 * SHARE:g}%", "--tasks", "none", "--sparse-gates", real.GATES, "--threads", real.THREADS,
                "--output", folder)
        report = json.loads((pathlib.Path(folder) / "report.json").read_text(encoding="utf-8"))
    return {p["policy"].split("@")[0]: p for p in report["forced"][0]["policies"]}


def read_bytes(lab, scale):
    """{method: bytes of the pages that a step reads: what a link carries where nothing is kept}"""
    found = {}
    with real.serve(lab, 8192, "--kv-mode", "mirror", "--kv-fast-bytes", "512MiB", "--max-num-seqs", 1) as server:
        prompt = real.prompts(server, 1, real.whole_stripes(scale.speed_context))[0]
        real.ask(server, prompt, 1, {"algorithm": "dense"})
        for name in SIZES:
            lab.show(f"D10: pages, {name}")
            before = real.counters(server, **real.PAGES)
            real.ask(server, prompt, scale.tokens + 1, real.BY_NAME[name].sparse(SHARE))
            after = real.counters(server, **real.PAGES)
            found[name] = (after["hits"] - before["hits"] + after["misses"] - before["misses"]) * PAGE_BYTES / scale.tokens
    return found


def speeds(lab, scale):
    """{method: seconds of a step in every round}"""
    seconds = {name: [] for name in SIZES}
    with real.serve(lab, 8192, "--max-num-seqs", 1) as server:
        prompt = real.prompts(server, 1, real.whole_stripes(scale.speed_context))[0]
        for name in SIZES:
            real.ask(server, prompt, 2, real.BY_NAME[name].sparse(SHARE))
        for i, name in real.turns(list(SIZES), scale.rounds):
            lab.show(f"D10: steps, round {i + 1} of {scale.rounds}, {name}")
            seconds[name].append(real.step_seconds(server, [prompt], scale.tokens, real.BY_NAME[name].sparse(SHARE)))
    return seconds


def run(lab, options):
    scale = QUICK if options.quick else FULL
    policies, pages, seconds = quality(lab, scale), read_bytes(lab, scale), speeds(lab, scale)
    rows = []
    for name, size in SIZES.items():
        own, oracle = policies[name], policies[f"oracle({name})"]
        rows.append([f"{size}: {name}", f"{oracle['kl_mean']:.4f}", f"{own['kl_mean']:.4f}", percent(own["attended_share"]), f"{pages[name] / 1e6:.2f}",
                     f"{100 * real.BY_NAME[name].index_share():.2f}", f"{1 / statistics.median(seconds[name]):.1f}"])
    kl = [policies[f"oracle({name})"]["kl_mean"] for name in FIXED]
    checks = [Gate("KL of the best choice grows with the partition (chunks of 8 have outliers on top)", " ≤ ".join(f"{k:.4f}" for k in kl), "in this order",
                   all(a <= NOISE * b for a, b in zip(kl, kl[1:])))]
    tables = [Table(f"{100 * SHARE:g} % selected. KL from dense: made-up text, {scale.windows} windows of {scale.steps} steps at {scale.context:,} tokens; "
                    f"best choice: of the same partitions by their true attention mass. Rest: at {real.whole_stripes(scale.speed_context):,} tokens. MB of "
                    "pages: what a link carries where nothing is kept. No algorithm has partitions of 32.",
                    ["partitions", "KL of the best choice", "KL", "attended, %", "MB of pages per token", "index, % of KV", "tokens/s"], rows)]

    def chart(figure):
        charts.lines(figure, [(f"{size}: {name}", [pages[name] / 1e6], [policies[name]["kl_mean"]]) for name, size in SIZES.items()],
                     "MB of pages per token", "KL from dense, nats",
                     "Partitions at an equal budget", log=True)

    data = {"policies": {name: policies[name] for name in policies}, "read_bytes": pages, "seconds": seconds}
    return Result("D10: size of partitions", tables, checks, data, chart)
