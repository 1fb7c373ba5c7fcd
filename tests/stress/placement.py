#!/usr/bin/env python3
"""Placement is invisible: greedy tokens and log-probabilities are the same wherever the pages of KV are.

Serves the same prompts in place, through a fast tier of several sizes and over an emulated link, with a disk tier, under preemption; densely, and
with synthetic page selections at several buffer ratios; compares text and the 20 best log-probabilities of every position as they are printed.
Then capacity: with a fast tier of an eighth of the KV of eight long requests, all of them decode together, and what the host tier cannot hold is
refused with the numbers.

use: placement.py --binary BIN --model GGUF [--prompts 64] [--longest 7900] [--tokens 24] [--long 7000] [--results FILE]

With --results, every way of serving is kept in FILE as soon as it is done, and is not run again for the same binary and arguments.
"""
import argparse
import concurrent.futures
import pathlib
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

import harness  # noqa: E402
from default_model import STRIPE_BYTES, fast_bytes  # noqa: E402
from equality import answer, make_prompts  # noqa: E402
from progress import Progress  # noqa: E402
from results import Results  # noqa: E402

MIN_MOVES = 1000
LONG_ANSWER = 500
TOGETHER_ANSWER = 256  # tokens: more steps than the other seven prompts take


RESULTS = None  # set by main


class Run:
    """One way to serve the prompts, and what its counters say."""

    def __init__(self, label, arguments, prompts, tokens, concurrency=16, **fields):
        # A folder of the disk tier has another name each time.
        known = [a for i, a in enumerate(arguments) if i == 0 or arguments[i - 1] != "--kv-disk-path"]
        key = RESULTS.key(label, known, prompts, tokens, concurrency, fields)
        if key in RESULTS.runs:
            self.__dict__.update(RESULTS.runs[key])
            print(f"{label}: known, {self.moves:.0f} page moves, {self.preemptions:.0f} preemptions")
            return
        self.serve(label, arguments, prompts, tokens, concurrency, fields)
        RESULTS.keep(key, self.__dict__)

    def serve(self, label, arguments, prompts, tokens, concurrency, fields):
        started = time.monotonic()
        with harness.Server(*arguments, fixture=False) as server:
            with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
                jobs = [pool.submit(answer, server, ids, tokens, **fields) for ids in prompts]
                line = Progress()
                self.digests = []
                for i, job in enumerate(jobs):
                    self.digests.append(job.result()[0])
                    line.show(f"{label}: {i + 1}/{len(jobs)}")
            self.moves = server.metric_sum("spindle_kv_page_misses_total")
            self.hits = server.metric_sum("spindle_kv_page_hits_total")
            self.passes = server.metric_sum("spindle_kv_multi_pass_total")
            self.preemptions = server.metric_sum("vllm:num_preemptions_total")
            self.stored = server.metric_sum("spindle_kv_move_bytes_total", to="disk")
            self.spills = server.metric_sum("spindle_kv_spills_total")
        line.end(f"{label}: {len(jobs)}/{len(jobs)} in {time.monotonic() - started:.0f} s, {self.moves:.0f} page moves, "
                 f"{self.hits:.0f} hits, {self.passes:.0f} with several passes, {self.preemptions:.0f} preemptions")


def compare(label, run, reference, failures, min_moves=MIN_MOVES):
    wrong = sum(a != b for a, b in zip(run.digests, reference.digests))
    if wrong:
        failures.append(f"{label}: {wrong} of {len(run.digests)} answers differ")
    if run.moves < min_moves:
        failures.append(f"{label}: only {run.moves:.0f} page moves")


def tight_host(prompts):
    """Host memory for what admission asks of the prompts and a watermark, so that growth must preempt."""
    stripes = sum((len(p) + 256) // 64 + 1 for p in prompts)
    return ["--kv-host-bytes", str((stripes * 108 // 100 + 2) * STRIPE_BYTES)]


def short_ones(prompts, context):
    """Eight prompts that leave room for long answers."""
    return [p for p in sorted(prompts, key=len) if len(p) + LONG_ANSWER <= int(context[1])][:8]


def dense(context, prompts, tokens, failures):
    kv_bytes = sum(len(p) + tokens for p in sorted(prompts, key=len)[-16:]) * STRIPE_BYTES // 64
    least = fast_bytes(0)
    fast = {"at the hard minimum": least, "a quarter of the KV": kv_bytes // 4, "unbounded": 2 * kv_bytes}
    reference = Run("in place", context, prompts, tokens, cache_prompt=False)
    for name, size in fast.items():
        label = f"mirror, fast tier {name}"
        run = Run(label, context + ["--kv-mode", "mirror", "--kv-fast-bytes", str(size)], prompts, tokens, cache_prompt=False)
        compare(label, run, reference, failures)
    link = ["--kv-mode", "emulated-link", "--sim-link-gbps", "20", "--kv-fast-bytes", str(kv_bytes // 4)]
    run = Run("emulated link", context + link, prompts, tokens, cache_prompt=False)
    compare("emulated link", run, reference, failures)
    with tempfile.TemporaryDirectory() as folder:
        disk = ["--kv-mode", "mirror", "--kv-fast-bytes", str(kv_bytes // 4), "--kv-disk-path", folder]
        run = Run("mirror with a disk tier", context + disk, prompts, tokens)
        compare("mirror with a disk tier", run, reference, failures)
        if run.stored == 0:
            failures.append("mirror with a disk tier: nothing was stored")
    shortest = short_ones(prompts, context)
    plain = Run("in place, long answers", context, shortest, LONG_ANSWER, 8, cache_prompt=False)
    pressed = context + tight_host(shortest) + ["--kv-mode", "mirror", "--kv-fast-bytes", str(fast_bytes(16 * 4))]
    run = Run("mirror, preempted", pressed, shortest, LONG_ANSWER, 8, cache_prompt=False)
    compare("mirror, preempted", run, plain, failures)
    if run.preemptions == 0:
        failures.append("mirror, preempted: no preemption")
    with tempfile.TemporaryDirectory() as folder:
        label = "mirror, preempted, with a disk tier"
        run = Run(label, [*pressed, "--kv-disk-path", folder], shortest, LONG_ANSWER, 8)  # what may not be cached is not spilled
        compare(label, run, plain, failures)
        if run.spills == 0:
            failures.append(f"{label}: nothing was spilled")


def synthetic(context, prompts, tokens, failures):
    """The same with drawn page selections: "synthetic selection"."""
    selection = ["--kv-synthetic-selection", "medium", "--kv-synthetic-pages", "16"]
    reference = Run("synthetic selection, in place", context + selection, prompts, tokens, cache_prompt=False)
    for ratio in ("0", "2.7", "5", "9"):
        size = fast_bytes(16 * 21 * (1 + float(ratio)))
        label = f"synthetic selection, mirror, buffer ratio {ratio}"
        run = Run(label, context + selection + ["--kv-mode", "mirror", "--kv-buffer-ratio", ratio, "--kv-fast-bytes", str(size)],
                  prompts, tokens, cache_prompt=False)
        compare(label, run, reference, failures)
    label = "synthetic selection, mirror at half the floors"
    size = fast_bytes(16 * 24)
    run = Run(label, context + selection + ["--kv-mode", "mirror", "--kv-fast-bytes", str(size)], prompts, tokens, cache_prompt=False)
    compare(label, run, reference, failures)
    link = ["--kv-mode", "emulated-link", "--sim-link-gbps", "20", "--kv-fast-bytes", str(int(64 * 2 ** 20))]
    label = "synthetic selection, emulated link"
    run = Run(label, context + selection + link, prompts, tokens, cache_prompt=False)
    compare(label, run, reference, failures)
    shortest = short_ones(prompts, context)
    plain = Run("synthetic selection, in place, long answers", context + selection, shortest, LONG_ANSWER, 8, cache_prompt=False)
    label = "synthetic selection, mirror, preempted"
    pressed = context + selection + tight_host(shortest) + ["--kv-mode", "mirror", "--kv-fast-bytes", str(2 ** 28)]
    run = Run(label, pressed, shortest, LONG_ANSWER, 8, cache_prompt=False)
    compare(label, run, plain, failures)
    if run.preemptions == 0:
        failures.append(f"{label}: no preemption")


def capacity(context, long, failures):
    """Eight long requests with an eighth of their KV in the fast tier; then a host tier that holds fewer."""
    kv_bytes = 8 * (long + 64) // 64 * STRIPE_BYTES
    with harness.Server(*context, "--kv-mode", "mirror", "--kv-fast-bytes", str(kv_bytes // 8), "--kv-host-bytes", str(2 * kv_bytes),
                        fixture=False) as server:
        prompts = [[(i * 7919 + j * 31) % 40000 + 100 for j in range(long)] for i in range(8)]
        most = 0
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(answer, server, ids, TOGETHER_ANSWER, cache_prompt=False) for ids in prompts]
            while not all(job.done() for job in jobs):
                most = max(most, server.metric_sum("spindle_running_requests"))
                time.sleep(0.1)
            for job in jobs:
                job.result()
        preemptions = server.metric_sum("vllm:num_preemptions_total")
        fast = server.metric_sum("spindle_kv_tier_bytes", tier="fast", state="capacity")
    print(f"capacity: {most:.0f} of 8 requests of {long} tokens at once over {fast / 2 ** 20:.0f} MiB of fast memory "
          f"({kv_bytes / 2 ** 20:.0f} MiB of KV), {preemptions:.0f} preemptions")
    if most < 8 or preemptions:
        failures.append("capacity: not all requests ran together")
    with harness.Server(*context, "--kv-mode", "mirror", "--kv-fast-bytes", str(kv_bytes // 8),
                        "--kv-host-bytes", str(kv_bytes // 16), fixture=False) as server:
        body = {"model": "smol", "prompt": prompts[0], "max_tokens": 8}
        refusal = server.post("/v1/completions", body)
        print(f"host tier too small: {refusal.status} {refusal.body}")
        if refusal.status != 400 or not any(c.isdigit() for c in refusal.json["error"]["message"]):
            failures.append("capacity: no refusal with numbers")
        if server.post("/v1/completions", {"model": "smol", "prompt": prompts[0][:100], "max_tokens": 8}).status != 200:
            failures.append("capacity: a short request failed after the refusal")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--longest", type=int, default=7900)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--long", type=int, default=7000, help="tokens of the capacity test's prompts")
    parser.add_argument("--results", type=pathlib.Path, help="file that keeps what was found, to go on after an interruption")
    parser.add_argument("--only", choices=["dense", "synthetic", "capacity"])
    options = parser.parse_args()
    harness.BINARY, harness.MODEL = options.binary, options.model
    global RESULTS
    RESULTS = Results(options.results, options.binary)
    longest = max(options.longest, options.long if options.only in (None, "capacity") else 0)
    context = ["--max-model-len", str(max(longest + options.tokens + 100, 1000)), "--max-logprobs", "20", "--max-num-seqs", "16"]
    failures = []
    if options.only != "capacity":
        with harness.Server(*context, fixture=False) as server:
            prompts = make_prompts(server, options.prompts, options.longest)
    if options.only in (None, "dense"):
        dense(context, prompts, options.tokens, failures)
    if options.only in (None, "synthetic"):
        synthetic(context, prompts, options.tokens, failures)
    if options.only in (None, "capacity"):
        capacity(context, options.long, failures)
    print("passed" if not failures else "FAILED: " + "; ".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
