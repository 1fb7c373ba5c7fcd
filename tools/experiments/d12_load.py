"""D12: load above what fits: Poisson arrivals on a dense server whose KV has only the fast memory, and on a sparse one that has it before a host tier."""
import tempfile
import types

import charts
import load
import real
from common import Gate, Result, Table, at_least, percent

SHARE, METHOD = 0.125, "shadowkv"
TTFT_LIMIT, TPOT_LIMIT, ATTAINED = 60, 0.1, 0.9  # the limits of long requests, fixed before anything was measured
MIN_KNEES = 1.5
SEQUENCES = 16

# Prompts and half-way long answers of 8K workloads. Rates are multiples of what the dense server completes in a closed loop.
FULL = types.SimpleNamespace(context=4608, tokens=512, requests=40, fast_bytes=512 << 20, rates=[0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3])
QUICK = types.SimpleNamespace(context=640, tokens=24, requests=5, fast_bytes=40 << 20, rates=[0.5, 2])


def systems(lab, scale, folder):
    """{name: server} of both, the same fast memory."""
    queue = ["--max-num-seqs", SEQUENCES, "--max-queue-size", 4 * scale.requests, "--max-queue-tokens", 1 << 24]
    tiers = ["--kv-mode", "mirror", "--kv-fast-bytes", scale.fast_bytes, "--kv-buffer-ratio", 1, "--kv-host-bytes", "4GiB"]
    sparse = ["--sparse-preset", real.preset(folder, real.BY_NAME[METHOD].sparse(SHARE))]
    return {"dense": real.serve(lab, 8192, "--kv-host-bytes", scale.fast_bytes, *queue), METHOD: real.serve(lab, 8192, *tiers, *queue, *sparse)}


def knee(points):
    """The largest rate at which enough requests kept the limits, and at every lower one."""
    best = 0.0
    for rate, outcomes in points:
        if load.attainment(outcomes, TTFT_LIMIT, TPOT_LIMIT) < ATTAINED:
            break
        best = rate
    return best


def row(name, rate, outcomes):
    good = [o for o in outcomes if not o.failed] or outcomes
    tail = max(o.ttft for o in good)
    return [f"{name}, {rate:.3f} requests/s", f"{load.percentile([o.ttft for o in good], 0.5):.1f}", f"{tail:.1f}",
            f"{1e3 * load.percentile([o.tpot for o in good], 0.5):.0f}", f"{sum(o.tokens for o in good) / load.window(outcomes):.1f}",
            percent(load.attainment(outcomes, TTFT_LIMIT, TPOT_LIMIT)), str(sum(o.preemptions for o in good)), str(sum(bool(o.failed) for o in outcomes))]


def run(lab, options):
    scale = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        servers = systems(lab, scale, folder)
    points = {name: [] for name in servers}
    try:
        # Different beginnings: no prefix is shared. Each rate has prompts of its own, so that nothing is left in a cache.
        first = servers["dense"]
        pool = real.prompts(first, scale.requests, scale.context)
        plan = [load.Planned(0, tuple(p), scale.tokens) for p in pool]
        lab.show("D12: dense in a closed loop")
        closed = load.closed_loop(first, plan[:max(2, scale.requests // 3)], SEQUENCES)
        capacity = len(closed) / load.window(closed)
        for turn, factor in enumerate(scale.rates):
            rate = factor * capacity
            times = load.poisson(rate, scale.requests, seed=turn)
            for name, server in servers.items():
                if points[name] and load.attainment(points[name][-1][1], TTFT_LIMIT, TPOT_LIMIT) < 0.5:
                    continue  # far beyond its knee already
                plan = [load.Planned(at, (turn + 1000, *p[1:]), scale.tokens) for at, p in zip(times, pool)]
                outcomes = load.open_loop(server, plan, show=lambda text: lab.show(f"D12: {name} at {factor:g} of capacity, {text}"))
                points[name].append((rate, outcomes))
    finally:
        for server in servers.values():
            server.stop()
    knees = {name: knee(of) for name, of in points.items()}
    failed = sum(bool(o.failed) for of in points.values() for _, outcomes in of for o in outcomes)
    checks = [Gate("knee of dense", f"{knees['dense']:.3f} requests/s", "above 0", knees["dense"] > 0),
              at_least(f"knee of {METHOD} over that of dense", knees[METHOD] / knees["dense"] if knees["dense"] else 0, MIN_KNEES),
              Gate("failed requests", str(failed), "none", failed == 0)]
    tables = [Table(f"{scale.requests} requests of {scale.context:,} tokens in and {scale.tokens} out per rate, Poisson, the same arrivals for both; "
                    f"{scale.fast_bytes >> 20} MiB of fast memory. Dense: all its KV there. {METHOD}: {100 * SHARE:g} % selected, a host tier behind it "
                    f"(memory copies, no link). Limits: TTFT {TTFT_LIMIT} s from the scheduled time, TPOT {1e3 * TPOT_LIMIT:.0f} ms. Dense completes "
                    f"{capacity:.3f} requests/s in a closed loop.",
                    ["system", "TTFT p50, s", "TTFT max, s", "TPOT p50, ms", "tokens/s", "kept both limits, %", "preemptions", "failed"],
                    [row(name, rate, outcomes) for name, of in points.items() for rate, outcomes in of])]
    data = {"capacity": capacity, "knees": knees, "points": {name: [{"rate": rate, "outcomes": [vars(o) for o in outcomes]} for rate, outcomes in of]
                                                           for name, of in points.items()}}

    def chart(figure):
        charts.lines(figure, [(name, [rate for rate, _ in of], [load.percentile([o.ttft for o in outcomes], 0.5) for _, outcomes in of])
                              for name, of in points.items()],
                     "requests/s", "median TTFT, s", "Load above what fits", log=True)

    return Result("D12: load", tables, checks, data, chart)
