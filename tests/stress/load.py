#!/usr/bin/env python3
"""Load test: many concurrent streaming clients, some of which cancel or read slowly.

First measures the capacity (well-behaved clients, as many as sequences decode together), then runs the load and checks: tokens delivered per
second ≥ 80 % of the capacity, no failure but planned 429s that carry Retry-After, and every page free afterwards.

use: load.py --binary BIN --model GGUF [--clients 64] [--seconds 180] [--capacity-seconds 30] [--seed 1] [--json FILE]
"""
import argparse
import asyncio
import json
import pathlib
import random
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

import harness  # noqa: E402
from progress import Progress  # noqa: E402

WORDS = "river stone light garden winter number music window paper silver ocean letter forest bridge candle".split()
SEQUENCES = 16
CONTEXT = 2048


class Tally:
    """What happened to the requests of a phase."""

    def __init__(self):
        self.completed = self.cancelled = self.refused = self.tokens = 0
        self.problems = []

    def problem(self, text):
        self.problems.append(text)


def prompt(rng):
    """20 to 400 words; a third share one long beginning, so that the prefix cache works too."""
    shared = "The library keeps these rules. " * 30 if rng.random() < 0.33 else ""
    return shared + " ".join(rng.choice(WORDS) for _ in range(rng.randrange(20, 400)))


async def read_head(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    lines = head.split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
    return int(lines[0].split(" ")[1]), headers


async def read_body(reader, headers):
    return await reader.readexactly(int(headers.get("content-length", 0)))


async def read_stream(reader, tally, rng, behaviour):
    """Consumes chunks until [DONE]; returns the completion tokens, or None when the client left on purpose."""
    leave_after = rng.randrange(1, 60) if behaviour == "cancel" else None
    events = 0
    usage = None
    buffer = b""
    while True:
        size = int((await reader.readline()).strip() or b"0", 16)
        if size == 0:
            tally.problem("a stream ended without [DONE]")
            return 0
        buffer += await reader.readexactly(size)
        await reader.readexactly(2)
        if behaviour == "slow":
            await asyncio.sleep(0.05)
        while b"\n\n" in buffer:
            event, buffer = buffer.split(b"\n\n", 1)
            if event.startswith(b":"):
                continue
            payload = event[len(b"data: "):]
            if payload == b"[DONE]":
                return usage["completion_tokens"]
            message = json.loads(payload)
            if "error" in message:
                tally.problem(f"error event: {message['error']}")
                return 0
            usage = message.get("usage") or usage
            events += 1
            if leave_after is not None and events >= leave_after:
                return None


async def one_request(port, tally, rng, behaviour):
    """Returns seconds to wait before the next request."""
    body = json.dumps({
        "model": "smol", "messages": [{"role": "user", "content": prompt(rng)}], "max_tokens": rng.randrange(8, 128),
        "temperature": rng.choice([0, 0.8]), "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
    }).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                     % len(body) + body)
        await writer.drain()
        status, headers = await read_head(reader)
        if status == 429:
            tally.refused += 1
            if int(headers.get("retry-after", 0)) < 1:
                tally.problem("429 without Retry-After")
            await read_body(reader, headers)
            return rng.uniform(0.1, 0.5)
        if status != 200:
            tally.problem(f"status {status}: {(await read_body(reader, headers))[:300]}")
            return 0.2
        tokens = await read_stream(reader, tally, rng, behaviour)
        if tokens is None:
            tally.cancelled += 1
        else:
            tally.completed += 1
            tally.tokens += tokens
        return 0.0
    except (OSError, asyncio.IncompleteReadError) as error:
        tally.problem(f"connection: {error!r}")
        return 0.2
    finally:
        writer.close()


async def client(port, tally, rng, stop_at, well_behaved):
    while time.monotonic() < stop_at:
        behaviour = "plain" if well_behaved else rng.choices(["plain", "cancel", "slow"], [0.7, 0.2, 0.1])[0]
        await asyncio.sleep(await one_request(port, tally, rng, behaviour))


async def phase(port, clients, seconds, seed, well_behaved, label):
    tally = Tally()
    started = time.monotonic()
    tasks = [asyncio.create_task(client(port, tally, random.Random(f"{seed}-{label}-{i}"), started + seconds, well_behaved))
             for i in range(clients)]
    line = Progress()

    def state():
        done = min(time.monotonic() - started, seconds)
        return (f"{label}: {done:5.0f}/{seconds} s, {tally.completed} completed, {tally.cancelled} cancelled, {tally.refused} refused, "
                f"{len(tally.problems)} problems")

    while any(not t.done() for t in tasks):
        await asyncio.sleep(0.5)
        line.show(state())
    line.end(state())
    for task in tasks:
        task.result()
    return tally, tally.tokens / (time.monotonic() - started)


def pages_in_use(server):
    return server.metric_sum("spindle_kv_tier_pages", tier="host", state="committed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("--capacity-seconds", type=int, default=30)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    harness.BINARY, harness.MODEL = arguments.binary, arguments.model
    with harness.Server("--max-model-len", str(CONTEXT), "--max-num-seqs", str(SEQUENCES), "--max-queue-size", "40",
                        "--stream-stall-timeout", "60", fixture=False) as server:
        asyncio.run(phase(server.port, SEQUENCES, 5, arguments.seed, True, "warm-up"))
        _, capacity = asyncio.run(phase(server.port, SEQUENCES, arguments.capacity_seconds, arguments.seed, True, "capacity"))
        tally, rate = asyncio.run(phase(server.port, arguments.clients, arguments.seconds, arguments.seed, False, "load"))
        server.wait_for(lambda: server.request("GET", "/admin/requests", key=None).json == [], what="no active request")
        left = pages_in_use(server)
    result = {"clients": arguments.clients, "seconds": arguments.seconds, "capacity_tokens_per_s": round(capacity, 1),
              "completed_tokens_per_s": round(rate, 1), "ratio": round(rate / capacity, 3), "completed": tally.completed,
              "cancelled": tally.cancelled, "refused_429": tally.refused, "problems": tally.problems[:10], "pages_left": left}
    print(json.dumps(result, indent=2))
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(result))
    passed = (not tally.problems and left == 0 and tally.cancelled > 0 and rate >= 0.8 * capacity)
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
