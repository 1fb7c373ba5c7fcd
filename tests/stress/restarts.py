#!/usr/bin/env python3
"""Restart test of the disk tier: a long prompt answers from disk after `kill -9`, and no kill at any moment leads to wrong text.

1. A 6K prompt is computed, the server killed and started again: cached share, disk reads and time to first token against the cold run.
2. `--kills` times: clients ask prompts with shared beginnings, the server is killed at a random moment; then `spindle kv fsck` must find the
   store clean, and the next server must be ready in time and answer every prompt as a server without disk does.

use: restarts.py --binary BIN --model GGUF [--kills 50] [--folder DIR]
"""
import argparse
import concurrent.futures
import http.client
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

import harness  # noqa: E402
from progress import Progress  # noqa: E402

LONG = 6000
PAGES_PER_STRIPE = 360  # of the default model
READY_SECONDS = 3.0


def token_prompt(rng, length):
    return [rng.randrange(1000, 40000) for _ in range(length)]


def ask(server, prompt, tokens=8):
    """Text, log-probabilities, cached tokens and time to the first token, or nothing when the server died meanwhile."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    body = {"model": "smol", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 3, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}
    started = time.monotonic()
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        first, parts, cached, done = None, [], None, False
        for line in response:
            if line.startswith(b"data: [DONE]"):
                done = True
            elif line.startswith(b"data: "):
                chunk = json.loads(line[6:])
                if chunk.get("usage"):
                    cached = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
                for choice in chunk["choices"]:
                    first = first or time.monotonic() - started
                    parts.append((choice["text"], json.dumps(choice["logprobs"])))
        return (parts, cached, first) if done else None
    except (OSError, http.client.HTTPException):
        return None


def moved(server, **labels):
    return server.metric_sum("spindle_kv_moves_total", **labels)


def start(folder, *extra):
    disk = ["--kv-disk-path", folder, "--kv-disk-bytes", "4GiB", "--kv-disk-min-free", "1MiB"] if folder else []
    return harness.Server("--max-num-seqs", "4", *disk, *extra, fixture=False)


def long_prompt(folder, failures):
    prompt = token_prompt(random.Random(1), LONG)
    with start(folder) as server:
        text, cached, cold = ask(server, prompt)
        assert cached == 0, cached
        deadline = time.monotonic() + 60
        while moved(server, **{"from": "host", "to": "disk"}) < LONG // 64 * PAGES_PER_STRIPE and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        server.process.kill()
        server.process.wait()
    with start(folder) as server:
        again, cached, warm = ask(server, prompt)
        read = server.metric_sum("spindle_kv_move_bytes_total", **{"from": "disk", "to": "host"})
    print(f"6K prompt: cold {cold * 1000:.0f} ms, after kill -9 and restart {warm * 1000:.0f} ms ({warm / cold:.3f} x, bound 0.15), "
          f"cached {cached}/{LONG} ({cached / LONG:.1%}, bound 95 %), {read / 1e6:.0f} MB read")
    if again != text:
        failures.append("6K prompt: the text differs")
    if cached < 0.95 * LONG or read == 0 or warm > 0.15 * cold:
        failures.append("6K prompt: a bound is missed")


def kills(folder, count, failures):
    rng = random.Random(2)
    heads = [token_prompt(rng, 1100) for _ in range(3)]
    prompts = [heads[i % 3] + token_prompt(rng, 100 + 150 * i) for i in range(9)]
    with start(None) as server:
        wanted = [ask(server, p)[0] for p in prompts]
    line = Progress()
    answered, loaded, slowest, wrong, unclean = 0, 0, 0.0, 0, 0
    for i in range(count):
        line.show(f"kill {i + 1}/{count}")
        began = time.monotonic()
        with start(folder) as server:
            slowest = max(slowest, time.monotonic() - began)
            lifetime = rng.uniform(0.1, 6.0)
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                order = [rng.randrange(len(prompts)) for _ in range(12)]
                jobs = [(n, pool.submit(ask, server, prompts[n])) for n in order]
                time.sleep(lifetime)
                try:
                    loaded += moved(server, **{"from": "disk", "to": "host"})
                except OSError:
                    pass
                server.process.kill()
                server.process.wait()
                for n, job in jobs:
                    result = job.result()
                    if result is not None:
                        answered += 1
                        wrong += result[0] != wanted[n]
        check = subprocess.run([harness.BINARY, "kv", "fsck", folder], capture_output=True, text=True, timeout=120)
        if check.returncode != 0:
            unclean += 1
            failures.append(f"kill {i + 1}: fsck says {check.stdout[-300:]}{check.stderr[-300:]}")
    with start(folder) as server:
        last = [ask(server, p) for p in prompts]
        wrong += sum(a[0] != w for a, w in zip(last, wanted))
        from_disk = moved(server, **{"from": "disk", "to": "host"})
    line.end(f"{count} kills: {answered} answers before them, {wrong} wrong, fsck unclean {unclean} times, "
             f"slowest start {slowest:.2f} s (bound {READY_SECONDS:.0f}), {(loaded + from_disk) / PAGES_PER_STRIPE:.0f} stripes from disk")
    if wrong or slowest > READY_SECONDS or answered == 0 or loaded + from_disk == 0:
        failures.append("kills")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--folder", help="where the store goes; default: a temporary folder")
    options = parser.parse_args()
    harness.BINARY, harness.MODEL = options.binary, options.model
    failures = []
    for job in (lambda folder: long_prompt(folder, failures), lambda folder: kills(folder, options.kills, failures)):
        folder = tempfile.mkdtemp(prefix="spindle-kv-", dir=options.folder)
        try:
            job(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    print("passed" if not failures else "FAILED: " + "; ".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
