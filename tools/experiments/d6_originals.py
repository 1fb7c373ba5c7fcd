"""D6: one runtime for all algorithms beside small copies of each original's own memory policy, on the same recorded selections and with equal fast memory."""
import pathlib
import statistics
import tempfile
import types

import charts
import d2_recorded
import real
from common import Gate, Result, Table, at_least, at_most
from default_model import HEADS, LAYERS, PAGE_BYTES

ORIGINALS = {"shadowkv": "a buffer for one selection", "retroinfer": "cache of 5 % and execution buffer", "seer_r": "all KV in fast memory"}
LINK_GBPS = 0.38
MAX_RATIO, MIN_LOWER = 1.05, 2
KEPT_RATIO = 1  # what a running request is guaranteed, for capacity

FULL = types.SimpleNamespace(context=7000, steps=512, warmup=100, tokens=128, rounds=6)
QUICK = types.SimpleNamespace(context=1100, steps=40, warmup=8, tokens=12, rounds=2)


def computing_seconds(lab, scale):
    """{method: seconds of a step over KV that needs no copying}: what both memory policies come on top of."""
    seconds = {name: [] for name in ORIGINALS}
    with real.serve(lab, 8192, "--max-num-seqs", 1) as server:
        prompt = real.prompts(server, 1, real.whole_stripes(scale.context))[0]
        for name in ORIGINALS:
            real.ask(server, prompt, 2, real.BY_NAME[name].sparse(d2_recorded.SHARE))
        for i, name in real.turns(list(ORIGINALS), scale.rounds):
            lab.show(f"D6: computing, round {i + 1} of {scale.rounds}, {name}")
            seconds[name].append(real.step_seconds(server, [prompt], scale.tokens, real.BY_NAME[name].sparse(d2_recorded.SHARE)))
    return {name: statistics.median(of) for name, of in seconds.items()}


def replay(lab, name, scale):
    """{policy: its rounds} of memory_policy_bench over selections that a server makes now."""
    lab.show(f"D6: {name}, server")
    with tempfile.TemporaryDirectory() as folder:
        trace = d2_recorded.record(lab, real.BY_NAME[name], scale, folder)
        lab.show(f"D6: {name}, replay")
        lines = lab.json_lines("memory_policy_bench", trace, name, "--rounds", scale.rounds, "--warmup", scale.warmup)
    return {policy: [line for line in lines if line["policy"] == policy] for policy in ("original", "fast tier")}


def step_seconds(computing, found):
    """Modelled, in every round: computing, the policy's own work as measured on one thread, and its bytes over the link."""
    return [computing + f["step_us"] * 1e-6 + f["fetched_bytes_per_step"] / (LINK_GBPS * 1e9) for f in found]


def capacity(found, context):
    """Requests in the memory that one takes where all KV is fast: frames for what a step reads, as much again, and the index."""
    pages = found[0]["read_pages_per_step"] / (LAYERS * HEADS)
    all_pages = context / 16
    return all_pages / (pages * (1 + KEPT_RATIO) + real.BY_NAME["seer_r"].index_share() * all_pages)


def run(lab, options):
    scale = QUICK if options.quick else FULL
    computing = computing_seconds(lab, scale)
    rows, checks, data, ratios = [], [], {}, {}
    for name, policy in ORIGINALS.items():
        found = replay(lab, name, scale)
        times = {p: step_seconds(computing[name], of) for p, of in found.items()}
        ratios[name] = 1 / real.paired_ratio(times["original"], times["fast tier"])
        read = {f["read_pages_per_step"] for of in found.values() for f in of}
        wrong = sum(f["wrong_pages"] for of in found.values() for f in of)
        more = found["fast tier"][0]["fast_bytes"] - found["original"][0]["fast_bytes"]
        checks += [Gate(f"{name}: the same pages to attention under both", f"{len(read)} number(s) of pages, {wrong} wrong", "1 and 0", len(read) == 1 and not wrong),
                   Gate(f"{name}: fast memory beyond the original's", f"{more} bytes", "none", more <= 0),
                   at_most(f"{name}: time per token over the original's", ratios[name], MAX_RATIO, "{:.3f}")]
        for p, of in found.items():
            rows.append([f"{name}: {policy if p == 'original' else 'fast tier'}", f"{of[0]['fast_bytes'] / 1e6:.1f}", f"{of[0]['fetched_bytes_per_step'] / 1e6:.3f}",
                         f"{statistics.median(f['step_us'] for f in of):.0f}", f"{statistics.median(f['update_us'] for f in of):.0f}",
                         f"{1e3 * statistics.median(times[p]):.2f}"])
        data[name] = {"computing_seconds": computing[name], "replays": found, "ratio": ratios[name]}
    lower = sum(r < 1 for r in ratios.values())
    held = capacity(data["seer_r"]["replays"]["fast tier"], real.whole_stripes(scale.context))
    checks += [Gate("originals that take longer per token", str(lower), f"at least {MIN_LOWER} of {len(ORIGINALS)}", lower >= MIN_LOWER),
               at_least("seer_r: requests in the fast memory of one whose KV is all there", held, 1)]
    data["seer_r"]["capacity"] = held
    tables = [Table(f"The same recorded selections of real text ({real.whole_stripes(scale.context):,} tokens, {100 * d2_recorded.SHARE:g} % selected, "
                    f"{scale.steps - scale.warmup} steps) and the same fast memory, pages of {PAGE_BYTES:,} B. Work of the policy: measured, one thread, "
                    "copies included. Beside the next layer: not counted. Time per token: computing (measured on a server that copies nothing), work, and "
                    f"link bytes at {LINK_GBPS} GB/s (computed, **emulated link**). Where SeerAttention-R keeps all KV, the fast tier holds {held:.1f} "
                    "requests.",
                    ["method: policy", "fast MB", "link MB per token", "work, µs", "beside the next layer, µs", "time per token, ms"], rows)]

    def chart(figure):
        names = list(ORIGINALS)
        charts.bars(figure, names, [(p, [1e3 * statistics.median(step_seconds(computing[n], data[n]["replays"][p])) for n in names])
                                    for p in ("original", "fast tier")],
                    "time per token, ms", "Memory policies, equal fast memory")

    return Result("D6: one runtime beside the originals' own", tables, checks, data, chart)
