"""D9: time that computing waits for copies, by how far ahead they are issued."""
import charts
import served
from common import Gate, Result, Table, percent

DEPTHS = [0, 1, 2]
# Link rates, GB/s: link time from a small part of the time of computing to twice as much.
LINK_GBPS = [2.4, 1.2, 0.8, 0.6, 0.45, 0.38, 0.32, 0.25, 0.18, 0.12]
SERVER_LINK_GBPS = [1, 0.38, 0.2, 0.1]
# Short prompts and long answers: nearly all steps decode, so that prefill does not hide copies.
SERVE = ["--synthetic", "medium", "--serve", "0.5", "--serve-time", "60s", "--max-prompt-tokens", "1024", "--max-output-tokens", "4096",
         "--serve-ratio", "1", "--kv-fast-bytes", "256MiB"]
MAX_RATIO, MAX_STALL = 0.8, 0.10


def simulate(lab, gbps, depth, is_async):
    report = lab.simulate(*SERVE, "--link-gbps", gbps, "--prefetch-depth", depth, "--async-copies" if is_async else "--no-async-copies")
    return {"gbps": gbps, "depth": depth, "async": is_async, "ratio": report["link_seconds"] / report["compute_seconds"],
            "stall_share": report["stall_share"]}


def run(lab, options):
    points = []
    for gbps in LINK_GBPS:
        for is_async in (False, True):
            for depth in DEPTHS:
                lab.show(f"D9: link of {gbps} GB/s, depth {depth}, {'asynchronous' if is_async else 'synchronous'}")
                points.append(simulate(lab, gbps, depth, is_async))
    held = [p for p in points if p["async"] and p["depth"] >= 1 and p["ratio"] <= MAX_RATIO]
    worst = max(held, key=lambda p: p["stall_share"])
    checks = [Gate(f"largest stall of {len(held)} runs with depth 1 or 2 and link time up to {MAX_RATIO} of computing", f"{percent(worst['stall_share'])} %",
                   f"at most {percent(MAX_STALL)} %", worst["stall_share"] <= MAX_STALL),
              Gate("largest link time among them, of computing", f"{max(p['ratio'] for p in held):.2f}", "at least 0.70",
                   max(p["ratio"] for p in held) >= 0.7)]

    def of(gbps, depth, is_async):
        return next(p for p in points if (p["gbps"], p["depth"], p["async"]) == (gbps, depth, is_async))

    rows = []
    for gbps in LINK_GBPS:
        rows.append([f"{gbps:g}", f"{of(gbps, 1, True)['ratio']:.2f}"] + [percent(of(gbps, d, False)["stall_share"]) for d in DEPTHS]
                    + [percent(of(gbps, d, True)["stall_share"]) for d in DEPTHS])
    tables = [Table("Simulated on a virtual clock, **synthetic selections** (medium, ratio 1), all times modelled: stall in % of the time of steps. Synchronous: "
                    "whoever computes copies. Asynchronous: copies run beside computing, a layer's from the moment its pages are known, which is "
                    "`depth` layers ahead; at depth 0 that is when the layer begins, so there is nothing to run beside. The layers of "
                    "the model are alike: depth 2 hides what depth 1 does.",
                    ["link, GB/s", "link time / computing"] + [f"synchronous, depth {d}" for d in DEPTHS] + [f"asynchronous, depth {d}" for d in DEPTHS], rows)]
    data = {"simulated": points}
    if not options.no_server:
        server_rows, data["server"] = on_server(lab)
        tables.append(Table("Server, **emulated link** and **synthetic selections** (medium, ratio 1; one request, 8K): its copies are depth 0 and synchronous. "
                            "Computing is the step without a link (`--kv-mode mirror`), C; L is bytes over rate, without latency.",
                            ["link, GB/s", "L / C", "step, ms", "stall: 1 − C / step, %", "modelled: L / (C + L), %", "workers' waits, % of their time"],
                            server_rows))

    def chart(figure):
        series = [("synchronous, or depth 0", *curve(points, 0, True))]
        series += [(f"asynchronous, depth {d}", *curve(points, d, True)) for d in DEPTHS[1:]]
        charts.lines(figure, series, "link time / computing", "stall, % of step time", "Modelled, synthetic selections")

    return Result("D9: overlap of copies and computing", tables, checks, data, chart)


def curve(points, depth, is_async):
    chosen = sorted((p["ratio"], 100 * p["stall_share"]) for p in points if (p["depth"], p["async"]) == (depth, is_async))
    return [x for x, _ in chosen], [y for _, y in chosen]


def on_server(lab):
    lab.show("D9: server without a link")
    computing = served.decode(lab, "medium", 1, mode="mirror").step_seconds
    rows, data = [], [{"gbps": None, "step_seconds": computing}]
    for gbps in SERVER_LINK_GBPS:
        lab.show(f"D9: server, link of {gbps} GB/s")
        found = served.decode(lab, "medium", 1, link_gbps=gbps)
        ratio = found.link_bytes_per_token / (gbps * 1e9) / computing
        rows.append([f"{gbps:g}", f"{ratio:.2f}", f"{1e3 * found.step_seconds:.1f}", percent(1 - computing / found.step_seconds),
                     percent(ratio / (1 + ratio)), percent(found.stall_share)])
        data.append({"gbps": gbps, "ratio": ratio, **vars(found)})
    return rows, data
