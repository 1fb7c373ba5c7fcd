"""D1: what keeping pages brings on real selections: every page fetched in every step; only those that the
last step did not have; those of earlier steps kept, too."""
import statistics
import types

import charts
import real
from common import Gate, Result, Table, at_least, percent
from default_model import HEADS, LAYERS, PAGE_BYTES

SHARE = 0.125
LINK_GBPS, LINK_LATENCY_US = 0.38, 10
KEPT_RATIO = 5
RUN_FRAMES = 8
MAX_OFF = 0.20
NAMES = ["base", "+mandatory", "+buffering"]

FULL = types.SimpleNamespace(context=7000, steps=256, rounds=5)
QUICK = types.SimpleNamespace(context=1100, steps=24, rounds=1)


class Decoding:
    """One way to keep pages: a step's seconds over a link and without one, in every round, and the pages that it moved."""

    def __init__(self):
        self.linked, self.plain, self.misses, self.pages, self.stall = [], [], 0, 0, 0

    @property
    def link_bytes(self):
        return self.misses * PAGE_BYTES

    @property
    def hit_ratio(self):
        return 1 - self.misses / self.pages

    @property
    def step(self):
        return statistics.median(self.linked)

    @property
    def predicted(self):
        """Copies here are synchronous: a step computes, and waits for all of its bytes."""
        return statistics.median(self.plain) + self.link_bytes / (LINK_GBPS * 1e9)


def least_budget(server, prompt, method):
    """Bytes with which nothing stays from step to step: one tile per KV head of a layer."""
    try:
        real.ask(server, prompt, 1, method.sparse(SHARE), kv={"fast_tier_budget_bytes": 1})
    except real.Refused as refused:
        return refused.error["min_bytes"]
    raise SystemExit("a fast budget of one byte was taken")


def steps(server, prompt, method, kv, scale):
    """(seconds of a step, counters of a step). What the prompt's last row does, which reads everything, is counted apart and taken off."""
    sparse = method.sparse(SHARE)
    begin = real.counters(server, **real.PAGES)
    real.send_together(server, [prompt], 1, sparse, kv)
    middle = real.counters(server, **real.PAGES)
    seconds = real.step_seconds(server, [prompt], scale.steps, sparse, kv)
    end = real.counters(server, **real.PAGES)
    return seconds, {key: (end[key] - 2 * middle[key] + begin[key]) / scale.steps for key in end}


def frames_for(pages, ratio):
    """Bytes of exactly the frames for so many pages of a group and what is kept beside them: without a cap a request alone gets more than it asks for."""
    return -(-int(pages * (1 + ratio)) // RUN_FRAMES) * RUN_FRAMES * LAYERS * HEADS * PAGE_BYTES


def caps(server, prompt, method, scale):
    """{name: `spindle.kv`}; pages of a step are those that the base fetches."""
    base = {"fast_tier_budget_bytes": least_budget(server, prompt, method)}
    moved = steps(server, prompt, method, base, scale)[1]
    pages = (moved["hits"] + moved["misses"]) / (LAYERS * HEADS)
    return {"base": base, "+mandatory": {"buffer_ratio": 0, "fast_tier_budget_bytes": frames_for(pages, 0)},
            "+buffering": {"buffer_ratio": KEPT_RATIO, "fast_tier_budget_bytes": frames_for(pages, KEPT_RATIO)}}


def measure(lab, method, linked, plain, prompt, scale):
    ways = {name: Decoding() for name in NAMES}
    lab.show(f"D1: {method.name}, pages of a step")
    kv = caps(linked, prompt, method, scale)
    for i, name in real.turns(NAMES, scale.rounds):
        lab.show(f"D1: {method.name}, round {i + 1} of {scale.rounds}, {name}")
        way = ways[name]
        seconds, moved = steps(linked, prompt, method, kv[name], scale)
        way.linked.append(seconds)
        way.misses, way.pages, way.stall = moved["misses"], moved["hits"] + moved["misses"], moved["stall"]
        way.plain.append(steps(plain, prompt, method, kv[name], scale)[0])
    return ways


def gates(name, ways):
    checks = [at_least(f"{name}: {after} over {before}, steps per second", ways[before].step / ways[after].step, 1)
              for before, after in zip(NAMES, NAMES[1:])]
    gain, predicted = ways["base"].step / ways["+buffering"].step, ways["base"].predicted / ways["+buffering"].predicted
    checks.append(Gate(f"{name}: gain over base, beside the one of computing and link bytes", f"{gain:.2f}, predicted {predicted:.2f}",
                       f"at most {100 * MAX_OFF:.0f} % off", abs(gain / predicted - 1) <= MAX_OFF))
    return checks


def run(lab, options):
    scale = QUICK if options.quick else FULL
    common = ["--kv-fast-bytes", "512MiB", "--max-num-seqs", 1]
    link = ["--kv-mode", "emulated-link", "--sim-link-gbps", LINK_GBPS, "--sim-link-latency-us", LINK_LATENCY_US]
    found, rows, checks = {}, [], []
    with real.serve(lab, 8192, *common, *link) as linked, real.serve(lab, 8192, *common, "--kv-mode", "mirror") as plain:
        prompt = real.prompts(linked, 1, real.whole_stripes(scale.context))[0]
        for server in (linked, plain):
            lab.show("D1: prefill")
            real.ask(server, prompt, 1, {"algorithm": "dense"})
        for method in real.METHODS:
            ways = measure(lab, method, linked, plain, prompt, scale)
            found[method.name] = ways
            checks += gates(method.name, ways)
            for name, way in ways.items():
                rows.append([f"{method.name}: {name}", f"{1 / way.step:.1f}", percent(way.hit_ratio), f"{way.link_bytes / 1e6:.2f}",
                             f"{1e3 * way.stall / real.THREADS:.1f}", f"{1e3 * way.step:.1f}", f"{1e3 * way.predicted:.1f}"])
    tables = [Table(f"Server, **emulated link** ({LINK_GBPS} GB/s, {LINK_LATENCY_US} µs), selections of real text: one request of "
                    f"{real.whole_stripes(scale.context):,} tokens, {100 * SHARE:g} % selected, {scale.steps} steps. Base: the smallest fast budget, so "
                    f"that nothing stays; +mandatory: frames for the pages of a step; +buffering: {KEPT_RATIO} times as many more. Modelled: the same step "
                    "without a link, and link bytes over its rate. Decoding never waits for a disk, so there is no such row.",
                    ["method", "tokens/s", "hits, %", "link MB per token", "waits, ms per step and worker", "step, ms", "modelled, ms"], rows)]
    data = {name: {way: vars(d) for way, d in ways.items()} for name, ways in found.items()}

    def chart(figure):
        charts.bars(figure, list(found), [(name, [1 / found[m][name].step for m in found]) for name in NAMES],
                    "tokens/s, emulated link", "Keeping pages, real selections")

    return Result("D1: buffering on real selections", tables, checks, data, chart)
