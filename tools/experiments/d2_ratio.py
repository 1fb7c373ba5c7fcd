"""D2: hit ratio of the fast tier by buffering pages per mandatory page."""
import math

import charts
import served
from common import PROFILES, Result, Table, at_most, percent
from default_model import LAYERS

RATIOS = [0, 0.5, 1, 2, 3, 4, 5, 6, 8, 12, math.inf]
SERVER_RATIOS = [0, 1, 3, 5, 8]
SEEDS = 3
PAGES, SELECTED = 2048, 32
MAX_RATIO = PAGES // SELECTED - 1  # a frame for every page
RECORDED_MAX_RATIO = 1000


def label(ratio):
    return "∞" if ratio == math.inf else f"{ratio:g}"


def by_ratio(lab, largest, *arguments):
    """Hit ratio and those of the layers, in the order of RATIOS."""
    ratios = ",".join(str(largest if r == math.inf else r) for r in RATIOS)
    return lab.simulate(*arguments, "--policy", "bucketed", "--ratio", ratios)


def gates(name, hits):
    """That more frames help, and that the help ends at a ratio of 4 or 5."""
    at = dict(zip(RATIOS, hits))
    fall = max(0.0, max(a - b for a, b in zip(hits, hits[1:])))
    return [at_most(f"{name}: points gained from ratio 4 to 5", 100 * (at[5] - at[4]), 1),
            at_most(f"{name}: points gained from ratio 5 to 12", 100 * (at[12] - at[5]), 2),
            at_most(f"{name}: largest fall from one ratio to the next, points", 100 * fall, 0.5)]


def falls(name, hits):
    return gates(name, hits)[2:]


def rows_of(name, hits, layers):
    rows = [[name] + [percent(h) for h in hits]]
    if layers:
        rows.append([f"{name}, layer with the fewest hits"] + [percent(min(of)) for of in layers])
        rows.append([f"{name}, layer with the most hits"] + [percent(max(of)) for of in layers])
    return rows


def simulated(lab, traces):
    """Rows, gates, and {name: {"hits", "layers"}} of the profiles and of recorded traces."""
    found, rows, checks = {}, [], []
    for profile in PROFILES:
        lab.show(f"D2: {profile} selections")
        report = by_ratio(lab, MAX_RATIO, "--synthetic", profile, "--seeds", SEEDS, "--layers", LAYERS, "--pages", PAGES, "--selected", SELECTED)
        found[profile] = report["results"]
        hits = [r["hit_ratio"] for r in report["results"]]
        checks += gates(profile, hits) if profile == "sticky" else falls(profile, hits)
    for trace in traces:
        lab.show(f"D2: {trace}")
        report = by_ratio(lab, RECORDED_MAX_RATIO, trace)
        found[report["title"]] = report["results"]
        checks += gates(report["title"], [r["hit_ratio"] for r in report["results"]])
    for name, results in found.items():
        layers = [[h for h in r["layer_hit_ratios"] if h is not None] for r in results if "layer_hit_ratios" in r]
        rows += rows_of(name, [r["hit_ratio"] for r in results], layers)
    return found, rows, checks


def on_server(lab):
    rows, checks, data = [], [], []
    for profile in PROFILES:
        for ratio in SERVER_RATIOS:
            lab.show(f"D2: server, {profile} selections, ratio {ratio}")
            run = served.decode(lab, profile, ratio)
            expected = served.simulated_hit_ratio(lab, profile, ratio)
            rows.append([profile, str(ratio), str(int(served.frames_for(ratio))), f"{100 * run.hit_ratio:.2f}", f"{100 * expected:.2f}",
                         f"{run.link_bytes_per_token / 1e6:.2f}", f"{run.tokens_per_second:.1f}", percent(run.stall_share)])
            data.append({"profile": profile, "ratio": ratio, "simulated_hit_ratio": expected, **vars(run)})
    worst = max(100 * abs(d["hit_ratio"] - d["simulated_hit_ratio"]) for d in data)
    checks.append(at_most("server against simulator, largest difference in points", worst, 0.5))
    return rows, checks, data


def run(lab, options):
    found, rows, checks = simulated(lab, options.trace)
    header = ["hit ratio, % at ratio"] + [label(r) for r in RATIOS]
    tables = [Table(f"Simulated, synthetic selections and recorded ones where given: {SELECTED} of {PAGES:,} pages per step and group, {LAYERS} layers with a "
                    f"stream of random numbers each, {SEEDS} seeds, 400 steps of which 100 are not counted, bucketed LRU. Pages have one size, so "
                    "byte and page hit ratios are the same.", header, rows)]
    data = {"ratios": [label(r) for r in RATIOS], "simulated": found}
    if not options.no_server:
        server_rows, server_checks, data["server"] = on_server(lab)
        checks += server_checks
        tables.append(Table(
            f"Server, **emulated link** ({served.LINK_GBPS} GB/s, {served.LINK_LATENCY_US} µs) and **synthetic selections**: one request of "
            f"{served.PROMPT_TOKENS:,} tokens, {served.SELECTED} drawn pages and up to {served.ALWAYS} fixed ones of 512 per step and group, steps "
            f"{served.WARMUP_STEPS} to {served.STEPS - 1}; the simulator has the same selections and frames. Drawn pages are "
            "stretched over the context and so move while it grows, which costs hits that the table above does not lack.",
            ["selection", "ratio", "frames per group", "server hits, %", "simulated hits, %", "link MB per token", "tokens/s", "stall, %"],
            server_rows))

    def chart(figure):
        charts.lines(figure, [(name, RATIOS[:-1], [100 * r["hit_ratio"] for r in results[:-1]]) for name, results in found.items()],
                     "buffering pages per mandatory page", "hit ratio, %", "Synthetic selections, simulated")

    return Result("D2: hit ratio by buffer ratio", tables, checks, data, chart)
