#!/usr/bin/env python3
"""Isolation: what else a server does changes no answer.

A fixed greedy request is asked again and again while twelve clients keep asking for other things: every algorithm, budgets, lengths,
priorities, kept choices, guards, log-probabilities, several choices; some leave while they wait, some in the middle of an answer, some
are cancelled by an administrator. Its text and its log-probabilities must be those it had alone. It takes every algorithm in turn, and
its prompt is computed anew or taken from the prefix cache by turns. All that in place, through a fast tier that is too small, in host
memory that is too small (preemptions), and in both with a disk tier (spills).

Every sparse request must have taken sparse steps, by its own statistics; those that left, together with all others, by the server's
counters.

use: isolation.py --binary BIN --model GGUF [--rounds 50] [--seed 1] [--only PART…] [--results FILE] [--json FILE] [--quick]
"""
import argparse
import json
import pathlib
import random
import sys
import tempfile
import threading
import time

from sparse_requests import (ALGORITHMS, WITH_GATES, Documents, Largest, Texts, ask, finish, request_body, running_requests,  # finds harness
                             sparse_steps, wait_until_idle)
import harness
from default_model import STRIPE_BYTES
from progress import Progress
from results import Results

COMPANY = 12
LEAST_PROMPT = 1100  # RetroInfer chooses in contexts of more than 1,088 tokens
FIXED = {
    "quest": {"algorithm": "quest", "budget_tokens": 160, "min_context": 0, "dense_layers": "first:2"},
    "shadowkv": {"algorithm": "shadowkv", "budget_tokens": 128, "min_context": 0, "params": {"outlier_chunks": 8}},
    "retroinfer": {"algorithm": "retroinfer", "budget_tokens": 128, "min_context": 0},
    "seer_r": {"algorithm": "seer_r", "budget_tokens": 192, "min_context": 0},
    "quest, kept": {"algorithm": "quest", "budget_tokens": 96, "min_context": 0, "reselect_interval": 7},
    "dense": None,
    "streaming": {"algorithm": "streaming", "budget_tokens": 128, "min_context": 0},
    "shadowkv, guarded": {"algorithm": "shadowkv", "top_p_mass": 0.8, "min_context": 0, "fallback": "dense", "min_mass": 0.4},
}


class Size:
    def __init__(self, quick):
        self.fixed_prompt, self.fixed_tokens = (1200, 16) if quick else (1600, 64)
        # Of the others, who share some documents.
        self.documents = 8 if quick else 48
        self.prompts = (1120, 1400) if quick else (1150, 6000)
        self.tokens = (8, 30) if quick else (16, 160)
        # In host memory for four of the others. Admission sets 256 tokens aside for an answer while answers are short on average: long ones
        # outgrow that, and if several do, somebody has to give way.
        self.tight_prompts, self.long_tokens, self.long_share = (1120, 1400), (300, 500 if quick else 900), 0.7
        self.tight_stripes = 4 * 26 + 6


class Company:
    """Twelve clients that ask without a pause until they are told to stop."""

    def __init__(self, server, documents, size, seed, is_tight):
        self.server, self.size, self.seed, self.is_tight = server, size, seed, is_tight
        self.lock = threading.Lock()
        self.finished = self.sparse_finished = self.left = self.refused = 0
        self.least_steps = {}  # algorithm: sparse steps that it must have made
        self.problems = []
        self.must_end = threading.Event()
        rng, lengths = random.Random(seed), size.tight_prompts if is_tight else size.prompts
        self.prompts = [documents.cut(f"{i} of company {seed}", rng.randrange(*lengths), rng) for i in range(size.documents)]
        self.threads = [threading.Thread(target=self.work, args=(i,)) for i in range(COMPANY)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.must_end.set()
        for thread in self.threads:
            thread.join()

    def work(self, number):
        rng = random.Random(f"{self.seed}-{number}")
        while not self.must_end.is_set():
            try:
                self.one(rng)
            except Exception as error:  # whatever it is, the run has failed, and says so
                with self.lock:
                    self.problems.append(f"client {number}: {error!r}")
                return

    def settings(self, rng):
        algorithm = rng.choice(ALGORITHMS + ["dense"])
        if algorithm == "dense":
            return None
        sparse = {"algorithm": algorithm, "min_context": 0}
        if algorithm == "shadowkv":
            # Far from the 384 tokens that are attended in any case by default.
            sparse["params"] = {"outlier_chunks": rng.choice([0, 4, 16])}
            if rng.random() < 0.3:
                return {**sparse, "top_p_mass": rng.choice([0.5, 0.9]), "fallback": "dense", "min_mass": rng.choice([0.1, 0.3])}
        if algorithm != "retroinfer" and rng.random() < 0.3:
            sparse["reselect_interval"] = rng.randrange(2, 65)
        if rng.random() < 0.5:
            sparse["budget_fraction"] = rng.choice([0.015, 0.06, 0.25])
        else:
            sparse["budget_tokens"] = rng.choice([0, 16, 100, 256])
        if rng.random() < 0.3:
            sparse["dense_layers"] = rng.choice(["first:2", "last:1", [3, 17]])
        return sparse

    def one(self, rng):
        sparse = self.settings(rng)
        # Often the same documents under other settings, sometimes only the beginning of one.
        ids = rng.choice(self.prompts)
        if rng.random() < 0.2:
            ids = ids[:rng.randrange(LEAST_PROMPT, len(ids))]
        is_long = self.is_tight and rng.random() < self.size.long_share
        tokens = rng.randrange(*(self.size.long_tokens if is_long else self.size.tokens))
        fields = {"priority": rng.choice([0, 0, 0, 5, -5]), "cache_prompt": rng.random() < 0.5}
        if rng.random() < 0.15:
            fields.update(n=2, temperature=0.8, seed=rng.randrange(1000))
        body = request_body(ids, tokens, sparse, logprobs=rng.choice([None, None, 5]), stream=True,
                            stream_options={"include_usage": True}, **fields)
        way = rng.choices(["stay", "leave early", "leave", "cancelled"], [0.6, 0.13, 0.17, 0.1])[0]
        if way == "leave early":
            self.leave_early(body, rng)
        else:
            self.read(body, sparse, rng.randrange(2, tokens) if way != "stay" else None, way == "cancelled")

    def leave_early(self, body, rng):
        connection = self.server.connection()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        time.sleep(rng.uniform(0, 1.5))
        connection.close()
        with self.lock:
            self.left += 1

    def read(self, body, sparse, leave_after, as_administrator):
        stream = harness.EventStream(self.server, "/v1/completions", body, None)
        if stream.status == 429:
            stream.close()
            with self.lock:
                self.refused += 1
            time.sleep(0.2)
            return
        if stream.status != 200:
            raise AssertionError(f"status {stream.status}: {stream.response.read()[:300]}")
        tokens, stats, finish_reason = [0] * body.get("n", 1), None, None
        is_cancelled = False
        for event in stream.events():
            if event == "[DONE]":
                break
            if "error" in event:
                if is_cancelled:
                    break
                raise AssertionError(event["error"])
            for choice in event["choices"]:
                tokens[choice["index"]] += len(choice.get("token_ids") or [])
                finish_reason = choice.get("finish_reason") or finish_reason
            stats = event.get("spindle", {}).get("sparse") or stats
            if leave_after is not None and max(tokens) >= leave_after and not is_cancelled:
                if not as_administrator:
                    break
                self.server.post(f"/admin/requests/{stream.headers['x-request-id']}/cancel", {}, key=None)
                is_cancelled = True
        stream.close()
        self.count(body, sparse, tokens, stats, leave_after is None)

    def count(self, body, sparse, tokens, stats, stayed):
        with self.lock:
            if stayed:
                self.finished += 1
                if min(tokens) < body["max_tokens"]:
                    self.problems.append(f"{min(tokens)} of {body['max_tokens']} tokens came")
            else:
                self.left += 1
            if sparse is None:
                return
            if stayed:
                self.sparse_finished += 1
                if stats is None or sparse_steps(stats) <= 0:
                    self.problems.append(f"no sparse step under {sparse} with {len(body['prompt'])} tokens: {stats}")
            # The first token comes from the prompt's last row. Those beyond what arrived are not known.
            at_least = sum(max(0, count - 1) for count in tokens)
            self.least_steps[sparse["algorithm"]] = self.least_steps.get(sparse["algorithm"], 0) + at_least


def counted_steps(server):
    return {name: sum(server.metric_sum("spindle_sparse_steps_total", algorithm=name, kind=kind) for kind in ("sparse", "fallback"))
            for name in ALGORITHMS}


def fixed_ones(documents, size):
    """(name, prompt, settings) of the fixed request in each form."""
    rng = random.Random(7)
    ids = documents.cut("fixed", size.fixed_prompt, rng)
    return [(name, ids, sparse) for name, sparse in FIXED.items()]


def alone(arguments, size, options):
    """Answers of the fixed request on a server that does nothing else."""
    with harness.Server(*arguments, fixture=False) as server:
        documents = Documents(server, options.texts)
        found = {name: ask(server, ids, size.fixed_tokens, sparse, cache_prompt=False) for name, ids, sparse in fixed_ones(documents, size)}
    return {name: {"text": a.text, "digest": a.digest, "sparse_steps": a.sparse_steps} for name, a in found.items()}


def run_part(label, arguments, size, reference, options, rounds):
    """One way to serve: the fixed request in company, `rounds` times."""
    line, started = Progress(), time.monotonic()
    row = {"part": label, "rounds": 0, "same_text": 0, "same_logprobs": 0, "company_min": None, "without_sparse_steps": 0, "cached": 0,
           "preempted": 0}
    with harness.Server(*arguments, fixture=False) as server:
        documents = Documents(server, options.texts)
        fixed = fixed_ones(documents, size)
        before = counted_steps(server)
        own = dict.fromkeys(ALGORITHMS, 0)
        with Company(server, documents, size, f"{options.seed}-{label}", "tight" in label) as company:
            server.wait_for(lambda: server.metric_sum("spindle_running_requests") > 0 or company.problems, 60, "company")
            time.sleep(2)
            for number in range(rounds):
                name, ids, sparse = fixed[number % len(fixed)]
                with Largest(lambda: running_requests(server)) as watch:
                    answer = ask(server, ids, size.fixed_tokens, sparse, cache_prompt=number // len(fixed) % 2 == 0, logprobs=20)
                row["rounds"] += 1
                row["same_text"] += answer.text == reference[name]["text"]
                row["same_logprobs"] += answer.digest == reference[name]["digest"]
                row["cached"] += answer.cached > 0
                row["preempted"] += answer.preemptions > 0
                row["company_min"] = min(watch.most, row["company_min"] or watch.most)
                if sparse is not None:
                    row["without_sparse_steps"] += answer.sparse_steps <= 0
                    own[sparse["algorithm"]] += size.fixed_tokens - 1
                line.show(f"{label}: {row['rounds']}/{rounds}, {row['same_text']} unchanged, {company.finished} others finished, "
                          f"{company.left} left, {len(company.problems)} problems")
                if company.problems:
                    break
        wait_until_idle(server)
        counted = counted_steps(server)
        row.update(others=company.finished, sparse_others=company.sparse_finished, left=company.left, refused=company.refused,
                   problems=company.problems[:5], preemptions=server.metric_sum("vllm:num_preemptions_total"),
                   spilled=server.metric_sum("spindle_kv_spills_total"), misses=server.metric_sum("spindle_kv_page_misses_total"),
                   pages_left=server.metric_sum("spindle_kv_tier_pages", tier="host", state="committed"))
        row["uncounted"] = [name for name in ALGORITHMS
                            if counted[name] - before[name] < own[name] + company.least_steps.get(name, 0)]
        row["algorithms_of_others"] = len(company.least_steps)
    line.end(f"{label}: {row['rounds']}/{rounds} in {time.monotonic() - started:.0f} s")
    return row


def judge(row, rounds, is_quick, failures):
    def expect(condition, text):
        if not condition:
            failures.append(f"{row['part']}: {text}")

    expect(row["rounds"] == row["same_text"] == rounds, f"text unchanged in {row['same_text']} of {rounds}")
    expect(row["same_logprobs"] == row["rounds"], f"log-probabilities unchanged in {row['same_logprobs']} of {row['rounds']}")
    expect(not row["problems"], "; ".join(row["problems"]))
    expect(row["without_sparse_steps"] == 0, f"{row['without_sparse_steps']} fixed requests took no sparse step")
    expect(not row["uncounted"], f"fewer sparse steps counted than tokens came, of {row['uncounted']}")
    expect(row["pages_left"] == 0, f"{row['pages_left']:.0f} pages left")
    expect(row["left"] > 0, "nobody left")
    expect(row["sparse_others"] > 0, "no other sparse request was finished")
    expect(0 < row["cached"] < row["rounds"] or rounds <= len(FIXED), "the prompt was not both computed and found in the cache")
    if row["part"] == "in place":
        expect(row["company_min"] >= 1 + COMPANY // 2, f"only {row['company_min']:.0f} requests ran beside it at some time")
    else:
        expect(row["company_min"] >= 2, "it was alone at some time")
    if "mirror" in row["part"]:
        expect(row["misses"] > 0, "no page was moved")
    if "tight" in row["part"]:
        expect(row["preemptions"] > 0 or is_quick, "no preemption")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, help="in place: 50; elsewhere a quarter of them")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", nargs="*", help="parts: 'in place', 'mirror', 'tight host', 'tight mirror and disk'")
    parser.add_argument("--results", type=pathlib.Path, help="file that keeps what was found, to go on after an interruption")
    parser.add_argument("--json")
    parser.add_argument("--threads", type=int, default=2, help="compute threads of the server")
    parser.add_argument("--quick", action="store_true", help="short prompts and answers, 4 rounds; preemptions are not asked for")
    options = parser.parse_args()
    options.rounds = options.rounds or (4 if options.quick else 50)
    harness.BINARY, harness.MODEL = options.binary, options.model
    options.texts = Texts()
    size, results = Size(options.quick), Results(options.results, options.binary)
    context = ["--max-model-len", "8192", "--max-num-seqs", "16", "--max-queue-size", "32", "--threads", str(options.threads), *WITH_GATES]
    tight = ["--kv-host-bytes", str(size.tight_stripes * STRIPE_BYTES)]
    with tempfile.TemporaryDirectory() as folder:
        parts = {
            "in place": [],
            "mirror": ["--kv-mode", "mirror", "--kv-fast-bytes", "96MiB", "--kv-buffer-ratio", "1"],
            "tight host": tight,
            "tight mirror and disk": [*tight, "--kv-mode", "mirror", "--kv-fast-bytes", "64MiB", "--kv-disk-path", folder],
        }
        chosen = {name: part for name, part in parts.items() if not options.only or name in options.only}
        if not chosen:
            parser.error(f"--only: there are {', '.join(parts)}")
        known = [size.__dict__, FIXED, options.texts.digest, options.seed, options.rounds]
        reference = results.once(["isolation, alone", *known], lambda: alone(context, size, options))
        failures, rows = [], []
        for name, form in reference.items():
            if FIXED[name] is not None and form["sparse_steps"] <= 0:
                failures.append(f"alone: no sparse step under {name}")
        if len({form["digest"] for form in reference.values()}) < len(reference):
            failures.append("alone: two forms of the fixed request have the same answer")
        for label, arguments in chosen.items():
            rounds = options.rounds if label == "in place" else max(options.rounds // 4, min(options.rounds, 4))
            row = results.once(["isolation", label, *known],
                               lambda a=arguments, n=label, r=rounds: run_part(n, context + a, size, reference, options, r))
            judge(row, rounds, options.quick, failures)
            rows.append(row)
    print(f"{'part':<24}{'same text':>11}{'logprobs':>10}{'others':>8}{'sparse':>8}{'left':>6}{'running ≥':>11}{'cached':>8}{'preempt.':>10}"
          f"{'spills':>8}{'moves':>10}")
    for row in rows:
        print(f"{row['part']:<24}{row['same_text']:>8}/{row['rounds']}{row['same_logprobs']:>10}{row['others']:>8}{row['sparse_others']:>8}"
              f"{row['left']:>6}{row['company_min']:>11.0f}{row['cached']:>8}{row['preemptions']:>10.0f}{row['spilled']:>8.0f}{row['misses']:>10.0f}")
    return finish(failures, {"rounds": options.rounds, "parts": rows}, options.json)


if __name__ == "__main__":
    sys.exit(main())
