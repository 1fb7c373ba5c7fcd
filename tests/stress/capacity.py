#!/usr/bin/env python3
"""What sparse attention gains where fast memory is short: requests held, decode throughput, end-to-end throughput, time to the first token.

Both sides get the same bytes of fast memory. Dense keeps all KV of its requests there (an in-place server whose only memory for KV it is:
a request waits until all of its KV fits). Sparse requests, 3 % of the context and a buffer ratio of 1, keep their KV in host memory and
what they use in the fast tier, which charges them for their indexes. No statistics are asked for: they cost time in every step.

parts
  capacity  --kv-mode mirror: requests of 7,000 tokens that decode together, none preempted, paused or left out of a step
  decode    **emulated link**: tokens per second while all of them decode, contexts already stored; every algorithm once, the best in pairs
            that take turns (dense, sparse, sparse, dense, …)
  lgb       **emulated link**: 16 requests of 4,608 tokens in and 3,072 out, all at once; tokens per second from the first request to the last token
  ttft      **emulated link**: 60 arrivals of a frozen file (arrivals.py) at 1.2 times what dense completes per second in lgb; median time from
            when a request should be sent to its first text

The link has the rate at which an H200 would see its host, scaled to this kind of machine. Ratios are of one machine in one session.

use: capacity.py --binary BIN --model GGUF [--only PART…] [--algorithms NAME…] [--best NAME] [--pairs 6] [--lgb-pairs 6] [--text FILE…]
                 [--results FILE] [--json FILE] [--quick]
"""
import argparse
import contextlib
import os
import pathlib
import random
import statistics
import sys

from sparse_requests import (ALGORITHMS, STRIPE, WITH_GATES, Documents, Largest, Texts, ask, finish, request_body, running_requests,  # finds harness
                             wait_until_idle)
import arrivals
import harness
import streams
from default_model import STRIPE_BYTES
from progress import Progress
from results import Results

PARTS = ["capacity", "decode", "lgb", "ttft"]
LINK = ["--kv-mode", "emulated-link", "--sim-link-gbps", "0.38", "--sim-link-latency-us", "10"]
MIRROR = ["--kv-mode", "mirror"]
BEST_CAPACITY, EACH_CAPACITY, DECODE_GAIN, LGB_GAIN, TTFT_SHARE = 4, 2.5, 3, 1.66, 1 / 7
OVER_KNEE = 1.2
COUNTERS = {"preemptions": "vllm:num_preemptions_total", "pauses": "spindle_kv_pauses_total", "skipped": "spindle_kv_skipped_sequences_total",
            "hits": "spindle_kv_page_hits_total", "misses": "spindle_kv_page_misses_total", "stall_s": "spindle_kv_fetch_stall_seconds_total"}
SPARSE_STEPS = ["spindle_sparse_steps_total", {"kind": "sparse"}]


class Size:
    def __init__(self, quick):
        self.fast_bytes = (48 if quick else 512) * 2 ** 20
        self.prompt, self.tokens = (1300, 48) if quick else (7000, 200)
        self.lgb = {"count": 4, "prompt": 1152, "tokens": 64} if quick else {"count": 16, "prompt": 4608, "tokens": 3072}
        self.arrivals = 6 if quick else 60
        self.scale = 4 if quick else 1  # of the lengths of arrivals: a divisor
        self.min_context = 0 if quick else 4096
        self.context = 2048 if quick else 8192
        self.most_running = 24

    def request_bytes(self, tokens):
        return -(-tokens // STRIPE) * STRIPE_BYTES


class Lab:
    """Starts servers and makes requests."""

    def __init__(self, options):
        self.options, self.size, self.line = options, Size(options.quick), Progress()

    def arguments(self):
        return ["--max-model-len", str(self.size.context), "--max-num-seqs", str(self.size.most_running), "--max-queue-size", "128",
                "--max-queue-tokens", "1000000", "--threads", str(self.options.threads), *WITH_GATES]

    def dense_server(self):
        return harness.Server(*self.arguments(), "--kv-host-bytes", str(self.size.fast_bytes), fixture=False)

    def sparse_server(self, mode, tokens_each):
        """With host memory for as many as may run."""
        host = int(self.size.most_running * self.size.request_bytes(tokens_each) * 1.1)
        return harness.Server(*self.arguments(), *mode, "--kv-fast-bytes", str(self.size.fast_bytes), "--kv-host-bytes", str(host),
                              "--kv-buffer-ratio", "1", fixture=False)

    def settings(self, algorithm):
        if algorithm is None:
            return None
        return {"algorithm": algorithm, "budget_fraction": 0.03, "min_context": self.size.min_context}

    def body(self, ids, tokens, algorithm):
        return request_body(ids, tokens, self.settings(algorithm), logprobs=None, stream=True, stream_options={"include_usage": True},
                            spindle={"stats": "none"})

    def prompts(self, server, name, lengths):
        documents = Documents(server, self.options.texts)
        return [documents.cut(f"{name} {i}", length, random.Random(f"{name} {i}")) for i, length in enumerate(lengths)]

    def show(self, text):
        self.line.show(text)


def counters(server):
    name, labels = SPARSE_STEPS
    return {**{name: server.metric_sum(metric) for name, metric in COUNTERS.items()}, "sparse_steps": server.metric_sum(name, **labels)}


def store(lab, server, prompts, label):
    """Computes the prompts once, so that they are in the store."""
    for i, ids in enumerate(prompts):
        lab.show(f"{label}: storing contexts, {i}/{len(prompts)}")
        ask(server, ids, 1, logprobs=None)
    wait_until_idle(server)


def burst(lab, server, prompts, tokens, algorithm, label):
    """All at once over stored contexts: how many decoded together, tokens per second meanwhile, what was counted."""
    before = counters(server)
    done = streams.replay(server.port, [lab.body(ids, tokens, algorithm) for ids in prompts], [0] * len(prompts),
                          lambda n: lab.show(f"{label}: {n}/{len(prompts)} answers"))
    wait_until_idle(server)
    found = {name: after - before[name] for name, after in counters(server).items()}
    found.update(offered=len(prompts), problems=streams.problems(done), load_average=os.getloadavg()[0])
    if not found["problems"]:
        found.update(together=streams.most_together(done), tokens_per_second=streams.steady_throughput(done),
                     decode_throughput=streams.decode_throughput(done), cached=min(s.cached for s in done))
    return found


def dense_capacity(lab):
    """Requests that are fully resident at once, decoding or computing their prompts."""
    size = lab.size
    offered = size.fast_bytes // size.request_bytes(size.prompt + size.tokens) + 2
    with lab.dense_server() as server:
        prompts = lab.prompts(server, "capacity", [size.prompt] * offered)
        with Largest(lambda: running_requests(server)) as peak:
            found = burst(lab, server, prompts, size.tokens, None, "dense, resident")
    return {**found, "held": int(peak.most)}


def sparse_capacity(lab, algorithm, wanted):
    """Trials with the numbers in `wanted`, the largest first, until one is held."""
    size, trials = lab.size, []
    with lab.sparse_server(MIRROR, size.prompt + size.tokens) as server:
        prompts = lab.prompts(server, "capacity", [size.prompt] * max(wanted))
        store(lab, server, prompts, algorithm)
        for number in sorted(wanted, reverse=True):
            found = burst(lab, server, prompts[:number], size.tokens, algorithm, f"{algorithm}, {number} together")
            found["held"] = number if holds(found, size.tokens) else 0
            trials.append(found)
            if found["held"]:
                break
    return trials


def all_sparse(found, tokens):
    """Every request decoded all of its tokens but the first sparsely."""
    return found["sparse_steps"] >= found["offered"] * (tokens - 1)


def holds(found, tokens):
    return (not found["problems"] and found["together"] == found["offered"] and all_sparse(found, tokens)
            and found["preemptions"] == found["pauses"] == found["skipped"] == 0)


def capacity(lab, results, failures, report):
    dense = results.once(["capacity", "dense", *lab.known], lambda: dense_capacity(lab))
    if dense["problems"] or dense["preemptions"] or not dense["held"]:
        failures.append(f"capacity, dense: {dense}")
        return
    most, least = (-(-int(10 * f * dense["held"]) // 10) for f in (BEST_CAPACITY, EACH_CAPACITY))
    between = sorted({least, (least + most) // 2, most})
    print(f"{'capacity':<14}{'together':>10}{'of dense':>10}{'preempted':>11}{'left out':>10}{'hit ratio':>11}")
    print(f"{'dense, resident':<15}{dense['held']:>9}")
    report["capacity"] = {"dense": dense}
    held = {}
    for algorithm in lab.options.algorithms:
        trials = results.once(["capacity", algorithm, between, *lab.known], lambda a=algorithm: sparse_capacity(lab, a, between))
        report["capacity"][algorithm] = trials
        last = trials[-1]
        held[algorithm] = last["held"]
        at_bound = "≥ " if last["held"] == most else ""
        print(f"{algorithm:<14}{at_bound + str(last['held']):>10}{last['held'] / dense['held']:>9.2f}x{last['preemptions']:>11.0f}"
              f"{last['skipped'] + last['pauses']:>10.0f}{last['hits'] / max(1, last['hits'] + last['misses']):>11.3f}", flush=True)
        if last["held"] < least:
            failures.append(f"capacity, {algorithm}: does not hold {least}, {EACH_CAPACITY} times dense's: {trials}")
    if max(held.values()) < most:
        failures.append(f"capacity: no algorithm holds {most}, {BEST_CAPACITY} times dense's")


def interval(ratios):
    """The median and its 95 % interval over resampled pairs."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(10000))
    return statistics.median(ratios), medians[250], medians[9750]


def decode_pairs(lab, algorithm, pairs):
    """[(dense's, sparse's burst)]: both servers are there, and work by turns."""
    size = lab.size
    count = max(1, size.fast_bytes // size.request_bytes(size.prompt + size.tokens))
    with contextlib.ExitStack() as stack:
        dense = stack.enter_context(lab.dense_server())
        sparse = stack.enter_context(lab.sparse_server(LINK, size.prompt + size.tokens))
        prompts = lab.prompts(dense, "decode", [size.prompt] * lab.options.sequences)
        store(lab, sparse, prompts, algorithm)
        store(lab, dense, prompts[:count], "dense")
        burst(lab, sparse, prompts, size.tokens // 4, algorithm, f"{algorithm}, warm-up")
        found = []
        for pair in range(pairs):
            blocks = {}
            for side in ("dense", "sparse") if pair % 2 == 0 else ("sparse", "dense"):
                label = f"decode, pair {pair + 1}/{pairs}: {algorithm if side == 'sparse' else 'dense'}"
                blocks[side] = (burst(lab, dense, prompts[:count], size.tokens, None, label) if side == "dense"
                                else burst(lab, sparse, prompts, size.tokens, algorithm, label))
            found.append(blocks)
    return found


def decode(lab, results, failures, report):
    """Returns the best algorithm."""
    report["decode"], gains = {}, {}
    print(f"{'decode (emulated link)':<24}{'dense tok/s':>12}{'together':>10}{'sparse tok/s':>14}{'together':>10}{'ratio':>8}  hit ratio, stall s")

    def measure(algorithm, pairs):
        blocks = results.once(["decode", algorithm, pairs, lab.options.sequences, *lab.known], lambda: decode_pairs(lab, algorithm, pairs))
        report["decode"][f"{algorithm}, {pairs} pairs"] = blocks
        bad = [b[side]["problems"] or "a request was preempted" for b in blocks for side in b if b[side]["problems"] or b[side]["preemptions"]]
        if bad:
            failures.append(f"decode, {algorithm}: {bad[0]}")
            return None
        if not all(all_sparse(b["sparse"], lab.size.tokens) for b in blocks):
            failures.append(f"decode, {algorithm}: not every step was sparse")
        if any(b[side]["together"] < b[side]["offered"] for b in blocks for side in b):
            failures.append(f"decode, {algorithm}: not all requests decoded together")
        ratios = [b["sparse"]["tokens_per_second"] / b["dense"]["tokens_per_second"] for b in blocks]
        for b, ratio in zip(blocks, ratios):
            d, s = b["dense"], b["sparse"]
            print(f"{algorithm:<24}{d['tokens_per_second']:>12.1f}{d['together']:>10}{s['tokens_per_second']:>14.1f}{s['together']:>10}{ratio:>7.2f}x"
                  f"  {s['hits'] / max(1, s['hits'] + s['misses']):.3f}, {s['stall_s']:.1f}", flush=True)
        return ratios

    for algorithm in lab.options.algorithms:
        ratios = measure(algorithm, 1)
        if ratios:
            gains[algorithm] = ratios[0]
    if not gains:
        return None
    best = lab.options.best or max(gains, key=gains.get)
    ratios = measure(best, lab.options.pairs) if lab.options.pairs > 1 else [gains[best]]
    if ratios:
        median, low, high = interval(ratios)
        print(f"decode: {best} {median:.2f} times dense, 95 % interval {low:.2f} to {high:.2f}, {len(ratios)} pairs, emulated link")
        report["decode"]["gain"] = {"algorithm": best, "median": median, "interval": [low, high], "pairs": len(ratios)}
        if median < DECODE_GAIN:
            failures.append(f"decode: {median:.2f} times dense, not {DECODE_GAIN}")
    return best


def open_run(lab, algorithm, label, name, lengths, answers, times):
    """A fresh server, prompts of its own, requests at their times."""
    context = max(length + count for length, count in zip(lengths, answers))
    server_of = lab.dense_server if algorithm is None else lambda: lab.sparse_server(LINK, context)
    with server_of() as server:
        prompts = lab.prompts(server, name, lengths)
        before = counters(server)
        with Largest(lambda: running_requests(server)) as peak:
            done = streams.replay(server.port, [lab.body(*each, algorithm) for each in zip(prompts, answers)], times,
                                  lambda n: lab.show(f"{label}: {n}/{len(prompts)} answers"))
        wait_until_idle(server)
        found = {key: after - before[key] for key, after in counters(server).items()}
    found.update(decoded=sum(answers) - len(answers), problems=streams.problems(done), most_running=peak.most, load_average=os.getloadavg()[0])
    if not found["problems"]:
        found.update(tokens_per_second=streams.output_throughput(done), seconds=streams.seconds(done), median_ttft=streams.median_ttft(done),
                     ttft=[s.ttft for s in done])
    return found


def judge_run(found, what, is_sparse, failures):
    if found["problems"]:
        failures.append(f"{what}: {found['problems'][0]}")
    elif is_sparse and found["sparse_steps"] < found["decoded"]:
        failures.append(f"{what}: {found['sparse_steps']:.0f} sparse steps, {found['decoded']} tokens were decoded")
    else:
        return True
    return False


def lgb(lab, best, results, failures, report):
    """Returns what dense completes per second."""
    size, pairs, rates = lab.size.lgb, [], []
    report["lgb"] = pairs
    print(f"{'lgb (emulated link)':<24}{'dense tok/s':>12}{'running ≤':>11}{best + ' tok/s':>18}{'running ≤':>11}{'ratio':>8}")
    for pair in range(lab.options.lgb_pairs):
        blocks = {}
        for side in ("dense", best) if pair % 2 == 0 else (best, "dense"):
            blocks[side] = results.once(["lgb", side, pair, *lab.known], lambda s=side: open_run(
                lab, None if s == "dense" else s, f"lgb, pair {pair + 1}: {s}", f"lgb {pair}", [size["prompt"]] * size["count"],
                [size["tokens"]] * size["count"], [0] * size["count"]))
        if not all([judge_run(found, f"lgb, {side}", side != "dense", failures) for side, found in blocks.items()]):
            return None
        d, s = blocks["dense"], blocks[best]
        pairs.append(blocks)
        rates.append(size["count"] / d["seconds"])
        print(f"{'':<24}{d['tokens_per_second']:>12.1f}{d['most_running']:>11.0f}{s['tokens_per_second']:>18.1f}{s['most_running']:>11.0f}"
              f"{s['tokens_per_second'] / d['tokens_per_second']:>7.2f}x", flush=True)
    median, low, high = interval([b[best]["tokens_per_second"] / b["dense"]["tokens_per_second"] for b in pairs])
    print(f"lgb: {best} {median:.2f} times dense end to end, 95 % interval {low:.2f} to {high:.2f}, {len(pairs)} pairs, emulated link")
    if median < LGB_GAIN:
        failures.append(f"lgb: {median:.2f} times dense, not {LGB_GAIN}")
    return statistics.median(rates)


def ttft(lab, best, knee, results, failures, report):
    frozen, digest = arrivals.load(arrivals.LGB)
    count, scale = lab.size.arrivals, lab.size.scale
    rate = OVER_KNEE * knee
    times = [t / rate for t in frozen["unit_times"][:count]]
    lengths = [n // scale for n in frozen["prompt_tokens"][:count]]
    answers = [lab.size.lgb["tokens"]] * count if scale > 1 else frozen["output_tokens"][:count]
    found = {}
    print(f"ttft (emulated link): {count} arrivals at {rate:.4f} per second, 1.2 times dense's knee; arrivals file {digest[:12]}")
    for side in ("dense", best):
        found[side] = results.once(["ttft", side, rate, digest, *lab.known], lambda s=side: open_run(
            lab, None if s == "dense" else s, f"ttft: {s}", "ttft", lengths, answers, times))
        if not judge_run(found[side], f"ttft, {side}", side != "dense", failures):
            return
        print(f"{side:<14} p50 {found[side]['median_ttft']:.2f} s, longest {max(found[side]['ttft']):.2f} s, at most "
              f"{found[side]['most_running']:.0f} running, {found[side]['preemptions']:.0f} preemptions", flush=True)
    share = found[best]["median_ttft"] / found["dense"]["median_ttft"]
    report["ttft"] = {**found, "rate": rate, "share": share, "arrivals_sha256": digest}
    print(f"ttft: {best} 1 / {1 / share:.1f} of dense's median, emulated link")
    if share > TTFT_SHARE:
        failures.append(f"ttft: 1 / {1 / share:.1f} of dense's, not 1 / 7")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="lgb needs the best algorithm, from decode or --best; ttft needs lgb")
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS)
    parser.add_argument("--best", choices=ALGORITHMS, help="the algorithm of pairs, lgb and ttft; default: the one that decodes fastest")
    parser.add_argument("--sequences", type=int, help="sparse requests that decode together in the part decode")
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--lgb-pairs", type=int)
    parser.add_argument("--text", nargs="*", default=[], help="files to cut prompts from; default: the manuals of this repository")
    parser.add_argument("--threads", type=int, default=2, help="compute threads of the servers")
    parser.add_argument("--results", type=pathlib.Path, help="file that keeps what was found, to go on after an interruption")
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true", help="short prompts and answers, one algorithm, one pair: shows that the script works")
    options = parser.parse_args()
    options.algorithms = options.algorithms or (["quest"] if options.quick else ["quest", "shadowkv", "retroinfer", "seer_r"])
    options.pairs = options.pairs or (1 if options.quick else 6)
    options.lgb_pairs = options.lgb_pairs or (1 if options.quick else 6)
    options.sequences = options.sequences or (4 if options.quick else 12)
    harness.BINARY, harness.MODEL = options.binary, options.model
    options.texts = Texts(options.text)
    lab, results = Lab(options), Results(options.results, options.binary)
    lab.known = [lab.size.__dict__, options.threads, options.texts.digest]
    failures, report, best = [], {"link": "emulated", "fast_bytes": lab.size.fast_bytes}, options.best
    if "capacity" in options.only:
        capacity(lab, results, failures, report)
    if "decode" in options.only:
        best = decode(lab, results, failures, report)
    if "lgb" in options.only or "ttft" in options.only:
        if best is None:
            parser.error("lgb and ttft need an algorithm: --best, or the part decode")
        knee = lgb(lab, best, results, failures, report)
        if "ttft" in options.only and knee is not None:
            ttft(lab, best, knee, results, failures, report)
    return finish(failures, report, options.json)


if __name__ == "__main__":
    sys.exit(main())
