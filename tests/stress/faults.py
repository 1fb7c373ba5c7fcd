#!/usr/bin/env python3
"""Faults of the disk tier: whatever the disk does, the answers are those of a server without it.

Short prompts with shared beginnings, in passes over a host tier that holds few of them, so that the others come back from disk. For every kind
of fault: text and log-probabilities as without a disk tier, hits on disk, and every injected fault in the server's counters (one for one, where
one fault is one failed call; see tests/e2e/faulty.py). Then a device that is full for a while: stores stop, loads go on, stores come back. Then
one that fails altogether for a while: the tier switches itself off, and on again.

use: faults.py --binary BIN --model GGUF [--prompts 200] [--tokens 8] [--folder DIR]      faulty_server must be built beside BIN
"""
import argparse
import concurrent.futures
import contextlib
import pathlib
import random
import shutil
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

import harness  # noqa: E402
from default_model import STRIPE_BYTES  # noqa: E402
from equality import answer  # noqa: E402
from faulty import FaultyServer  # noqa: E402
from progress import Progress  # noqa: E402
from restarts import token_prompt  # noqa: E402

HEAD, END = 192, 40  # tokens of a shared beginning, and at most behind it
PROMPTS_PER_HEAD = 4
HOST_STRIPES = 40
CLIENTS = 4
MAX_PASSES, MAX_STORES = 8, 6  # for faults that are rare
CONTEXT = ["--max-model-len", "512", "--max-num-seqs", str(CLIENTS), "--max-logprobs", "20"]
SMALL_HOST = ["--kv-host-bytes", str(HOST_STRIPES * STRIPE_BYTES)]

# Rates of one kind each, and what must have been injected at least once.
KINDS = {
    "read errors 1/32": ({"read_error": 1 / 32}, ["read_errors"]),
    "read errors 1/1000": ({"read_error": 1 / 1000}, ["read_errors"]),
    "write errors 1/128": ({"write_error": 1 / 128}, ["write_errors"]),
    "write errors 1/1000": ({"write_error": 1 / 1000}, []),
    "short transfers": ({"short_read": 1 / 20, "short_write": 1 / 20}, ["short_reads", "short_writes"]),
    "stalls of 500 ms": ({"read_stall": 1 / 30, "write_stall": 1 / 30, "stall_ms": 500}, ["read_stalls", "write_stalls"]),
    "flips": ({"flip": 1 / 20}, ["read_flips", "write_flips"]),
    "all of them": ({"read_error": 1 / 1000, "write_error": 1 / 1000, "short_read": 1 / 20, "short_write": 1 / 20, "flip": 1 / 50,
                     "read_stall": 1 / 200, "write_stall": 1 / 200, "no_space": 1 / 1000, "sync_error": 1 / 1000},
                    ["short_reads", "read_flips"]),
}


def make_prompts(count):
    rng = random.Random(14)
    heads = [token_prompt(rng, HEAD) for _ in range(-(-count // PROMPTS_PER_HEAD))]
    prompts = [heads[i // PROMPTS_PER_HEAD] + token_prompt(rng, rng.randrange(1, END)) for i in range(count)]
    rng.shuffle(prompts)
    return prompts


class Asker:
    """Asks prompts, compares the answers with those of a server without a disk tier, and counts."""

    def __init__(self, prompts, tokens):
        self.prompts, self.tokens = prompts, tokens
        self.wrong = self.answers = 0
        with harness.Server(*CONTEXT, fixture=False) as server:
            self.reference = self.digests(server, "without a disk tier", range(len(prompts)))

    def digests(self, server, label, order):
        line, order, started = Progress(), list(order), time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            jobs = [pool.submit(answer, server, self.prompts[i], self.tokens) for i in order]
            results = []
            for job in jobs:
                results.append(job.result()[0])
                line.show(f"{label}: {len(results)}/{len(order)}")
        line.end(f"{label}: {len(order)}/{len(order)} in {time.monotonic() - started:.0f} s")
        return dict(zip(order, results))

    def ask(self, server, label, order):
        for i, digest in self.digests(server, label, order).items():
            self.wrong += digest != self.reference[i]
            self.answers += 1


@contextlib.contextmanager
def faulty(folder, **plan):
    path = tempfile.mkdtemp(prefix="spindle-kv-", dir=folder)
    try:
        with FaultyServer(path, *CONTEXT, *SMALL_HOST, fixture=False, **plan) as server:
            yield server
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Table:
    """What was seen, and what was wrong with it."""

    def __init__(self):
        self.failures = []
        print(f"{'faults':<22}{'answers':>8}{'wrong':>7}{'from disk':>11}{'injected':>10}{'outages':>9}  faults and what else was counted")

    def add(self, label, server, asker, complaints, notes=""):
        complaints = complaints + server.uncounted()
        report = server.report()
        faults = {}
        for counts in (report["segments"], report["probe"]):
            for name, count in counts.items():
                if count and name != "damaged_reads":
                    faults[name] = faults.get(name, 0) + count
        hits = server.disk_hits()
        if asker.wrong:
            complaints.append(f"{asker.wrong} answers differ")
        if hits == 0:
            complaints.append("no stripe came from disk")
        injected = sum(faults.values())
        if injected == 0:
            notes += " (none was injected)"
        outages = server.metric_sum("spindle_kv_disk_outages_total")
        print(f"{label:<22}{asker.answers:>8}{asker.wrong:>7}{hits:>11.0f}{injected:>10}{outages:>9.0f}  "
              f"{', '.join(f'{name} {count}' for name, count in faults.items())}{notes}", flush=True)
        self.failures += [f"{label}: {complaint}" for complaint in complaints]
        asker.wrong = asker.answers = 0


def one_kind(label, rates, wanted, asker, table, folder):
    """One store after the other, each with faults of its own, until everything that is wanted has been injected."""
    missing = set(wanted)
    for seed in range(1, MAX_STORES + 1):
        missing -= one_store(label if seed == 1 else f"{label}, {seed}", seed, rates, missing, asker, table, folder)
        if not missing:
            return
    table.failures += [f"{label}: no {name} injected" for name in sorted(missing)]


def one_store(label, seed, rates, wanted, asker, table, folder):
    """The kinds of faults that were injected."""
    with faulty(folder, rates=rates, seed=seed) as server:
        for number in range(1, MAX_PASSES + 1):
            asker.ask(server, f"{label}, pass {number}", range(len(asker.prompts)))
            segments = server.report()["segments"]
            # Nearly all that is written comes with the first pass.
            if number >= 2 and all(segments[name] or "write" in name for name in wanted):
                break
        complaints, notes = [], ""
        if segments["damaged_reads"]:
            notes += f", {segments['damaged_reads']} damaged reads"
        late = server.metric_sum("spindle_kv_load_failures_total", cause="deadline")
        if late:
            notes += f", {late:.0f} records late"
        elif segments["read_stalls"]:
            complaints.append("no load was late")
        table.add(label, server, asker, complaints, notes)
    return {name for name, count in segments.items() if count}


def wait_for_state(server, state, timeout):
    started = time.monotonic()
    server.wait_for(lambda: server.state() == state, timeout, f"state {state}")
    return time.monotonic() - started


def stored(server):
    return server.metric_sum("spindle_kv_move_bytes_total", to="disk")


def full_device(asker, table, folder):
    """The first half of the prompts is stored, then there is no space while the second half comes."""
    half = len(asker.prompts) // 2
    old, new = range(half), range(half, len(asker.prompts))
    complaints = []
    with faulty(folder) as server:
        for number in (1, 2):
            asker.ask(server, f"before the device is full, pass {number}", old)
        server.settle()
        server.set_rates(no_space=1)
        before, hits = stored(server), server.disk_hits()
        for number in (1, 2):
            asker.ask(server, f"full device, new prompts, pass {number}", new)
        server.settle()
        if server.state() != "readonly":
            complaints.append(f"state {server.state()} on a full device")
        if stored(server) != before:
            complaints.append("a full device stored something")
        asker.ask(server, "full device, old prompts", old)
        if server.disk_hits() == hits:
            complaints.append("a full device gave nothing back")
        if server.metric_sum("spindle_kv_disk_errors_total", op="read"):
            complaints.append("reads of a full device failed")
        server.set_rates()
        waited = wait_for_state(server, "ok", 120)
        asker.ask(server, "space again, new prompts", new)
        server.settle()
        if stored(server) == before:
            complaints.append("nothing was stored when there was space again")
        table.add("full device", server, asker, complaints, f", stores again after {waited:.0f} s")


def outage(asker, table, folder):
    """Nothing can be read or written for a while."""
    complaints = []
    some = range(len(asker.prompts) // 2)
    with faulty(folder) as server:
        for number in (1, 2):
            asker.ask(server, f"before the outage, pass {number}", some)
        server.settle()
        server.set_rates(read_error=1, write_error=1)
        asker.ask(server, "outage", some)
        server.settle()
        if server.state() != "degraded":
            complaints.append(f"state {server.state()} when everything fails")
        before = server.disk_hits()
        server.set_rates()
        # The wait between two probes has doubled meanwhile, to ten minutes at most.
        waited = wait_for_state(server, "ok", 700)
        asker.ask(server, "after the outage", some)
        if server.disk_hits() == before:
            complaints.append("nothing came from disk after the outage")
        if server.metric_sum("spindle_kv_disk_recoveries_total") != 1:
            complaints.append("the outage did not end once")
        table.add("outage", server, asker, complaints, f", on again after {waited:.0f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--folder", help="where the stores go; default: temporary folders")
    options = parser.parse_args()
    harness.BINARY, harness.MODEL = options.binary, options.model
    asker = Asker(make_prompts(options.prompts), options.tokens)
    table = Table()
    for label, (rates, wanted) in KINDS.items():
        one_kind(label, rates, wanted, asker, table, options.folder)
    full_device(asker, table, options.folder)
    outage(asker, table, options.folder)
    print("passed" if not table.failures else "FAILED: " + "; ".join(table.failures))
    return 1 if table.failures else 0


if __name__ == "__main__":
    sys.exit(main())
