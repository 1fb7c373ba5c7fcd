#!/usr/bin/env python3
"""Simulator and server agree: what a server records with --kv-trace, `spindle kv sim` replays without a difference.

Serves long requests together through a fast tier that holds a part of their pages, with drawn page selections and densely, with several choices, and
with a host tier so small that sequences are preempted; over an emulated link so slow that sequences are paused. Stops each server and replays its
page-access trace with the recorded sizes: every page of every step must be a hit or a miss as it was, and the totals those of the server's
counters. The request traces must read back with the lengths and the shared beginnings of the prompts.

With --bench it also compares what bucketed LRU costs beside exact LRU (kv_sim_bench): at most half.

use: lockstep.py --binary BIN --model GGUF [--bench BIN] [--requests 8] [--prompt 4000] [--tokens 96]
"""
import argparse
import concurrent.futures
import glob
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

import harness  # noqa: E402
from default_model import STRIPE_BYTES, fast_bytes  # noqa: E402
from equality import answer  # noqa: E402
from progress import Progress  # noqa: E402

MIN_COMPARED = 10000
MAX_BOOKKEEPING_SHARE = 0.5
# Where recency costs something. Groups of 192 frames take microseconds a step, and lists of so few lie in the first cache: the shares there depend on
# the processor.
GATED_SHAPE = "640/1536/256/16384"
BENCH_REPETITIONS = 5
UNIT_TOKENS = 512
LINK_RATES = ("0.01", "0.004", "0.0015")
LONG_ANSWER = 500  # tokens: more than admission sets memory aside for


def make_prompts(count, length):
    """Every second prompt begins with the first half of the one before."""
    prompts = [[(i * 7919 + j * 31) % 40000 + 100 for j in range(length + 37 * i)] for i in range(count)]
    for i in range(1, count, 2):
        half = length // 2
        prompts[i][:half] = prompts[i - 1][:half]
    return prompts


def mirror(frames_per_group):
    return ["--kv-mode", "mirror", "--kv-fast-bytes", str(fast_bytes(frames_per_group))]


def simulate(path, *options):
    result = subprocess.run([harness.BINARY, "kv", "sim", path, "--json", *options], capture_output=True, text=True, env=harness.clean_environment())
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    return json.loads(result.stdout)


class Recording:
    """One way to serve the prompts, its counters and its traces."""

    COUNTERS = {"hits": "spindle_kv_page_hits_total", "misses": "spindle_kv_page_misses_total", "streams": "spindle_kv_page_streams_total",
                "refaults": "spindle_kv_refaults_total", "pauses": "spindle_kv_pauses_total", "preemptions": "vllm:num_preemptions_total"}

    def __init__(self, label, folder, arguments, prompts, tokens, **fields):
        started = time.monotonic()
        self.label = label
        with harness.Server("--threads", "2", "--max-num-seqs", "16", "--max-logprobs", "20", "--kv-trace", folder, "--kv-trace-bytes", "1GiB",
                            *arguments, fixture=False) as server:
            with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
                jobs = [pool.submit(answer, server, ids, tokens, **fields) for ids in prompts]
                line = Progress()
                for i, job in enumerate(jobs):
                    job.result()
                    line.show(f"{label}: {i + 1}/{len(jobs)}")
            # The step that gave the last token publishes its counters a little later.
            server.wait_for(lambda: server.metric_sum("spindle_running_requests") == 0, what="an idle engine")
            for name, metric in self.COUNTERS.items():
                setattr(self, name, int(server.metric_sum(metric)))
        line.end(f"{label}: {len(jobs)}/{len(jobs)} in {time.monotonic() - started:.0f} s")
        self.pages = glob.glob(folder + "/*-pages.trace")[0]
        self.requests = glob.glob(folder + "/*-requests.jsonl")[0]


def check_pages(run, failures):
    started = time.monotonic()
    report = simulate(run.pages, "--capacity", "recorded")
    recorded, accesses = report["recorded"], report["results"][0]["accesses"]
    size = pathlib.Path(run.pages).stat().st_size
    print(f"{run.label}: {recorded['differences']} differences in {recorded['compared_pages']} pages, hit ratio "
          f"{100 * report['results'][0]['hit_ratio']:.2f} % of {accesses} ({run.hits} hits, {run.misses} misses, {run.streams} streamed, {run.refaults} refaults, "
          f"{run.pauses} pauses, {run.preemptions} preemptions in the server); trace of {size / 2 ** 20:.1f} MiB, "
          f"{report['trace']['trace']}; replayed in {time.monotonic() - started:.1f} s", flush=True)
    if recorded["differences"] or recorded["compared_pages"] < MIN_COMPARED:
        failures.append(f"{run.label}: {recorded}")
    if (report["results"][0]["hits"], accesses) != (run.hits, run.hits + run.misses):
        failures.append(f"{run.label}: the replay counts other hits than the server")
    if report["trace"]["trace"] != "whole":
        failures.append(f"{run.label}: the trace is not whole")


def check_requests(run, prompts, output_tokens, cached, failures):
    lines = [json.loads(line) for line in pathlib.Path(run.requests).read_text().splitlines()]
    found = {line["input_length"]: line for line in lines}
    if sorted(found) != sorted(map(len, prompts)) or any(line["output_length"] != output_tokens for line in lines):
        failures.append(f"{run.label}: the request trace has other lengths")
        return
    for i in range(1, len(prompts), 2):
        ids, others = (found[len(p)]["hash_ids"] for p in (prompts[i], prompts[i - 1]))
        shared = sum(a == b for a, b in zip(ids, others))
        if shared != (len(os.path.commonprefix([prompts[i], prompts[i - 1]])) // UNIT_TOKENS if cached else 0):
            failures.append(f"{run.label}: request {i} shares {shared} units")
    report = simulate(run.requests, "--capacity", "10000")
    print(f"{run.label}: request trace of {report['trace']['requests']} requests, {100 * report['trace']['unbounded_hit_ratio']:.1f} % of units seen before")


def record_and_replay(label, arguments, prompts, tokens, failures, **fields):
    with tempfile.TemporaryDirectory() as folder:
        run = Recording(label, folder, arguments, prompts, tokens, **fields)
        check_pages(run, failures)
        check_requests(run, prompts, tokens * fields.get("n", 1), fields.get("cache_prompt", True), failures)
    return run


def compare_bookkeeping(bench, failures):
    out = subprocess.run([bench, "--benchmark_filter=^Bookkeeping/(lru|bucketed)/", "--benchmark_format=json",
                          f"--benchmark_repetitions={BENCH_REPETITIONS}", "--benchmark_enable_random_interleaving=true"],
                         capture_output=True, text=True, check=True).stdout
    times = {}
    for result in json.loads(out)["benchmarks"]:
        if result.get("aggregate_name") == "median":
            _, policy, shape = result["run_name"].split("/", 2)
            times.setdefault(shape, {})[policy] = result["cpu_time"]
    for shape, of in times.items():
        share = of["bucketed"] / of["lru"]
        bound = f"bound {MAX_BOOKKEEPING_SHARE}" if shape == GATED_SHAPE else "no bound: lists of so few frames lie in the first cache"
        print(f"bookkeeping of {shape} (groups/frames/selected/pages): exact LRU {of['lru']:.1f} us, bucketed {of['bucketed']:.1f} us, "
              f"share {share:.2f} ({bound})", flush=True)
        if shape == GATED_SHAPE and share > MAX_BOOKKEEPING_SHARE:
            failures.append(f"bookkeeping of {shape}: share {share:.2f}")
    if len(times) < 3:
        failures.append("bookkeeping: not all shapes were measured")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--bench", help="kv_sim_bench; without it nothing is timed")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=4000, help="tokens of the shortest prompt")
    parser.add_argument("--tokens", type=int, default=96)
    options = parser.parse_args()
    harness.BINARY, harness.MODEL = options.binary, options.model
    failures = []
    if options.bench:
        compare_bookkeeping(options.bench, failures)
    prompts = make_prompts(options.requests, options.prompt)
    context = ["--max-model-len", str(len(prompts[-1]) + max(options.tokens, LONG_ANSWER) + 100)]
    drawn = [*context, "--kv-synthetic-selection", "medium", "--kv-synthetic-pages", "32"]
    # Frames of a group for all requests: ratio 2 for each of them, and a quarter of their pages.
    some, quarter = options.requests * 111, sum(map(len, prompts)) // 16 // 4
    record_and_replay("synthetic selection", [*drawn, *mirror(some)], prompts, options.tokens, failures)
    record_and_replay("dense, two choices", [*context, *mirror(quarter)], prompts, options.tokens // 2, failures,
                      n=2, temperature=1, logprobs=None)
    short = [p[:600 + 37 * i] for i, p in enumerate(prompts[:4])]
    stripes = sum((len(p) + 256) // 64 + 1 for p in short)
    tight = ["--kv-host-bytes", str((stripes * 108 // 100 + 2) * STRIPE_BYTES)]
    run = record_and_replay("synthetic selection, preempted", [*drawn, *tight, *mirror(some)], short, LONG_ANSWER,
                            failures, cache_prompt=False)
    if run.preemptions == 0:
        failures.append("preempted: no preemption")
    # No more frames than a step needs, so that pages only go back and forth, over a link that is slower than this machine computes.
    loose = [*context, "--kv-synthetic-selection", "loose", "--kv-synthetic-pages", "16", "--kv-buffer-ratio", "0", "--kv-fast-bytes", str(fast_bytes(48))]
    for rate in LINK_RATES:
        run = record_and_replay(f"synthetic selection, link of {rate} GB/s", [*loose, "--kv-mode", "emulated-link", "--sim-link-gbps", rate],
                                [prompts[0][:1500], prompts[2][:1540]], 100, failures)
        if run.pauses:
            break
    else:
        failures.append("paused: no pause over any link")
    print("passed" if not failures else "FAILED: " + "; ".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
