"""D7: fast-tier budgets of requests: an equal share for each, as much as the largest needs for each, or sized by what they select while they run."""
import random
import statistics
import tempfile
import types

import charts
import load
import real
from common import Gate, Result, Table, at_least

SHARE, RATIO = 0.125, 5
METHOD = "shadowkv"
TTFT_LIMIT, TPOT_LIMIT = 3, 0.05  # of chat
LINK = ["--kv-mode", "emulated-link", "--sim-link-gbps", 0.38, "--sim-link-latency-us", 10]
MIN_GAIN, MAX_OFF = 1.10, 0.02
NAMES = ["equal share", "largest need", "dynamic"]

FULL = types.SimpleNamespace(fast_bytes=128 << 20, sequences=16, concurrency=16, requests=80, rounds=3,
                             long=(4864, 320), medium=(1024, 512), short=(256, 128), tiny=(64, 32))
QUICK = types.SimpleNamespace(fast_bytes=64 << 20, sequences=4, concurrency=4, requests=6, rounds=1,
                              long=(1024, 16), medium=(512, 16), short=(256, 8), tiny=(64, 8))


def mix_long(scale, rng):
    """(prompt, answer) tokens: mostly short jobs, and one in twenty that is long."""
    kinds = rng.choices([scale.tiny, scale.short, scale.medium, scale.long], [0.7 * 0.95, 0.2 * 0.95, 0.1 * 0.95, 0.05], k=scale.requests)
    kinds[rng.randrange(len(kinds))] = scale.long  # short runs, too, have one
    return kinds


def workloads(scale):
    return {"mix-long": mix_long(scale, random.Random(7)), "uniform": [scale.medium] * scale.requests}


def need_bytes(scale, kinds):
    """Frames that the largest request of a workload can use, with what is kept from earlier steps."""
    tokens = max(prompt + answer for prompt, answer in kinds)
    method = real.BY_NAME[METHOD]
    return int(min(tokens, method.attended_tokens(SHARE, tokens, tokens) * (1 + RATIO)) * real.TOKEN_BYTES)


def policy(name, scale, kinds):
    """(server arguments, `spindle.kv` of every request)"""
    arena = scale.fast_bytes * 9 // 10  # without rings
    if name == "equal share":
        return ["--max-num-seqs", scale.sequences], {"fast_tier_budget_bytes": arena // scale.sequences}
    if name == "largest need":
        need = min(need_bytes(scale, kinds), arena)
        return ["--max-num-seqs", max(1, arena // need)], {"fast_tier_budget_bytes": need}
    return ["--max-num-seqs", scale.sequences], None


def jain(values):
    """1: all alike; 1 / n: one has it all."""
    squares = sum(v * v for v in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def play(lab, scale, name, workload, kinds, turn):
    arguments, kv = policy(name, scale, kinds)
    with tempfile.TemporaryDirectory() as folder:
        arguments += ["--sparse-preset", real.preset(folder, real.BY_NAME[METHOD].sparse(SHARE))]
        server = real.serve(lab, 8192, *LINK, "--kv-fast-bytes", scale.fast_bytes, "--kv-buffer-ratio", RATIO, "--kv-host-bytes", "4GiB",
                    "--max-queue-size", 4 * scale.concurrency, *arguments)
    with server:
        longest = max(prompt for prompt, _ in kinds)
        pool = real.prompts(server, len(kinds), longest)
        plan = [load.Planned(0, tuple(p[:prompt]), answer) for p, (prompt, answer) in zip(pool, kinds)]
        lab.show(f"D7: {workload}, round {turn + 1} of {scale.rounds}, {name}")
        return load.closed_loop(server, plan, scale.concurrency, kv)


def run(lab, options):
    scale = QUICK if options.quick else FULL
    goodput, rows, data = {}, [], {}
    for workload, kinds in workloads(scale).items():
        outcomes = {name: [] for name in NAMES}
        for turn, name in real.turns(NAMES, scale.rounds):
            outcomes[name].append(play(lab, scale, name, workload, kinds, turn))
        for name, of in outcomes.items():
            goodput[workload, name] = [load.goodput(o, TTFT_LIMIT, TPOT_LIMIT) for o in of]
            everyone = [o for run_ in of for o in run_]
            rows.append([f"{workload}: {name}", f"{statistics.median(goodput[workload, name]):.3f}", f"{statistics.median(len(o) / load.window(o) for o in of):.3f}",
                         str(sum(o.preemptions for o in everyone)), f"{statistics.median(jain([o.tpot for o in run_]) for run_ in of):.2f}",
                         f"{1e3 * statistics.median(o.tpot for o in everyone):.0f}", str(sum(bool(o.failed) for o in everyone))])
            data[f"{workload}, {name}"] = [[vars(o) for o in run_] for run_ in of]
    checks = gates(goodput)
    failed = sum(bool(o["failed"]) for runs in data.values() for run_ in runs for o in run_)
    checks.append(Gate("failed requests", str(failed), "none", failed == 0))
    tables = [Table(f"{scale.requests} requests, {scale.concurrency} at a time, {scale.fast_bytes >> 20} MiB of fast tier over an **emulated link**, "
                    f"{METHOD}, {100 * SHARE:g} % selected, buffer ratio {RATIO}; medians of {scale.rounds} rounds. Goodput: requests with TTFT up to "
                    f"{TTFT_LIMIT} s and TPOT up to {1e3 * TPOT_LIMIT:.0f} ms. Jain's index of the requests' TPOT: 1 where all are slowed alike.",
                    ["workload: budgets", "goodput, requests/s", "requests/s", "preemptions", "Jain's index", "TPOT p50, ms", "failed"], rows)]

    def chart(figure):
        names = list(workloads(scale))
        charts.bars(figure, names, [(name, [statistics.median(goodput[w, name]) for w in names]) for name in NAMES], "goodput, requests/s", "Budgets of the fast tier")

    return Result("D7: budgets of the fast tier", tables, checks, data, chart)


def gates(goodput):
    """Against the better of the two fixed ways."""
    ratios = {}
    for workload in ("mix-long", "uniform"):
        fixed = max((goodput[workload, name] for name in NAMES[:2]), key=statistics.median)
        dynamic, best = statistics.median(goodput[workload, "dynamic"]), statistics.median(fixed)
        ratios[workload] = dynamic / best if best else float(dynamic > 0)
    return [at_least("mix-long: goodput of dynamic budgets over the better fixed ones", ratios["mix-long"], MIN_GAIN),
            at_least("uniform: goodput of dynamic budgets over the better fixed ones", ratios["uniform"], 1 - MAX_OFF)]
