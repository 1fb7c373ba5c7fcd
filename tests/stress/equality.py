#!/usr/bin/env python3
"""Bit-equality: greedy tokens and log-probabilities of many prompts are the same however they are served.

Serves the same prompts alone, in a batch, with other prefill chunks, another thread count, cold and warm prefix cache, over generated tokens of
an earlier turn, and under preemption; compares token ids and the 20 best log-probabilities of every position as they are printed (shortest
form that round-trips, so equal text means equal bits).

use: equality.py --binary BIN --model GGUF [--prompts 64] [--longest 7900] [--tokens 24]
"""
import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import random
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

import harness  # noqa: E402
from default_model import STRIPE_BYTES  # noqa: E402
from progress import Progress  # noqa: E402

SHORTEST = 97
WORDS = ("river stone light garden winter number music window paper silver ocean letter forest bridge candle 17 2048 if else return "
         "zwölf été 日本 The quick, (brown) fox; jumps -- over? \"lazy\" dogs!").split()


def make_prompts(server, count, longest):
    """Token-id prompts of lengths spread evenly on a log scale; every fourth shares its beginning with the one before."""
    rng = random.Random(2026)
    prompts = []
    for i in range(count):
        length = round(SHORTEST * (longest / SHORTEST) ** (i / max(count - 1, 1)))
        text = " ".join(rng.choice(WORDS) for _ in range(length))
        ids = server.post("/tokenize", {"model": "smol", "prompt": text}).json["tokens"]
        ids = (ids * (length // len(ids) + 1))[:length]
        if i % 4 == 3:
            keep = len(prompts[-1]) // 2
            ids = (prompts[-1][:keep] + ids)[:length]
        prompts.append(ids)
    return prompts


def answer(server, ids, tokens, **fields):
    body = {"model": "smol", "prompt": ids, "max_tokens": tokens, "temperature": 0, "logprobs": 20, "ignore_eos": True,
            "return_token_ids": True, **fields}
    while True:
        response = server.post("/v1/completions", body, timeout=3600)
        if response.status != 429:
            break
        time.sleep(float(response.headers["retry-after-ms"]) / 1000)
    if response.status != 200:
        raise AssertionError(response.body)
    choice = response.json["choices"][0]
    digest = hashlib.sha256(json.dumps([choice["text"], choice["logprobs"]]).encode()).hexdigest()
    return digest, response.json["usage"]["prompt_tokens_details"]["cached_tokens"], choice


def run(label, arguments, prompts, tokens, concurrency, **fields):
    started = time.monotonic()
    with harness.Server(*arguments, fixture=False) as server:
        with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
            jobs = [pool.submit(answer, server, ids, tokens, **fields) for ids in prompts]
            answers = []
            line = Progress()
            for i, job in enumerate(jobs):
                answers.append(job.result())
                line.show(f"{label}: {i + 1}/{len(jobs)}")
        preemptions = server.metric_sum("vllm:num_preemptions_total")
        again = [answer(server, ids, tokens, **fields) for ids in prompts] if "warm" in label else None
    line.end(f"{label}: {len(jobs)}/{len(jobs)} in {time.monotonic() - started:.0f} s")
    return answers, preemptions, again


def turns(prompts, tokens, arguments):
    """Second turns whose prompt holds the generated tokens of the first, against the same prompts served cold."""
    with harness.Server(*arguments, fixture=False) as server:
        followed = []
        for ids in prompts:
            _, _, first = answer(server, ids, tokens)
            generated = first["token_ids"]
            followed.append(ids + generated + ids[:40])
        warm = [answer(server, ids, tokens) for ids in followed]
    with harness.Server(*arguments, fixture=False) as server:
        cold = [answer(server, ids, tokens, cache_prompt=False) for ids in followed]
    reused = sum(w[1] > len(p) for w, p in zip(warm, prompts))
    return [w[0] for w in warm] == [c[0] for c in cold], reused


def preempted(prompts, context):
    """Long answers of short prompts with memory for what admission asks (256 tokens of output each and a watermark) but not for all of it, so that
    growth must preempt; against the same without pressure."""
    shortest = sorted(prompts, key=len)[:8]
    output = 500
    stripes = sum((len(p) + 256) // 64 + 1 for p in shortest)
    arguments = context + ["--kv-host-bytes", str((stripes * 108 // 100 + 2) * STRIPE_BYTES)]
    plain, _, _ = run("unpressured", context, shortest, output, 8, cache_prompt=False)
    tight, preemptions, _ = run("preempted", arguments, shortest, output, 8, cache_prompt=False)
    return [p[0] for p in plain] == [t[0] for t in tight], preemptions


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--longest", type=int, default=7900)
    parser.add_argument("--tokens", type=int, default=24)
    options = parser.parse_args()
    harness.BINARY, harness.MODEL = options.binary, options.model
    max_model_len = max(options.longest + 4 * options.tokens + 80, 1000)
    context = ["--max-model-len", str(max_model_len), "--max-logprobs", "20", "--max-num-seqs", "16"]
    with harness.Server(*context, fixture=False) as server:
        prompts = make_prompts(server, options.prompts, options.longest)
    no_cache = {"cache_prompt": False}
    chunk = "--max-num-batched-tokens"
    variants = {
        "alone": ([chunk, "256", "--threads", "2"], 1, no_cache),
        "batch of 16": ([chunk, "256", "--threads", "2"], 16, no_cache),
        "chunks of 64": ([chunk, "64"], 16, no_cache),
        "chunks of 2048": ([chunk, "2048"], 16, no_cache),
        "one thread": ([chunk, "256", "--threads", "1"], 4, no_cache),
        "cold then warm": ([chunk, "256"], 16, {}),
    }
    failures = []
    reference = None
    for label, (arguments, concurrency, fields) in variants.items():
        answers, _, again = run(label, context + arguments, prompts, options.tokens, concurrency, **fields)
        digests = [a[0] for a in answers]
        reference = reference or digests
        wrong = [len(p) for p, a, b in zip(prompts, digests, reference) if a != b]
        note = f"{label}: {len(digests) - len(wrong)}/{len(digests)} equal"
        if again is not None:
            hits = sum(a[1] >= len(p) // 64 * 64 - 64 for a, p in zip(again, prompts))
            wrong += [len(p) for p, a, b in zip(prompts, again, reference) if a[0] != b]
            note += f", warm: {hits} answered from the cache"
            if hits < len(prompts) // 2:
                failures.append(f"{label}: only {hits} prompts hit the cache")
        if wrong:
            failures.append(f"{label}: prompts of lengths {wrong} differ")
        print(note)
    equal, preemptions = preempted(prompts, context)
    print(f"preempted: {'equal' if equal else 'DIFFER'}, {preemptions:.0f} preemptions")
    if not equal or preemptions == 0:
        failures.append("preempted")
    spread = [p for p in prompts[:: max(1, len(prompts) // 8)] if len(p) + 2 * 80 + 40 <= max_model_len]
    equal, reused = turns(spread, 80, context)
    print(f"second turns: {'equal' if equal else 'DIFFER'}, {reused} reused generated tokens")
    if not equal or reused == 0:
        failures.append("second turns")
    print("passed" if not failures else "FAILED: " + "; ".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
