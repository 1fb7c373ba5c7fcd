#!/usr/bin/env python3
"""Prefix sharing under sparse attention, and conversations that change their algorithm.

Two questions about one document, asked together, under each algorithm: they share the document's KV (cached tokens, bytes that live in
host memory) and its index (tokens that were indexed) and select what they select when each computes everything itself, step by step, layer
by layer, KV head by KV head; text and log-probabilities too. The pages come from --kv-trace.

A conversation over the document whose turns are dense or under one algorithm each: every turn takes from the prefix cache exactly the
stripes that are known densely, which are those of all prompts and of what dense turns generated, so that a change of algorithm costs no
prefill; every answer is that of a server that computes the whole history anew. So is the last turn, which is dense.

use: sharing.py --binary BIN --model GGUF [--document 6000] [--tokens 24] [--only shared turns] [--text FILE…] [--results FILE]
                [--json FILE] [--quick]
"""
import argparse
import concurrent.futures
import pathlib
import random
import sys
import tempfile

from sparse_requests import ALGORITHMS, STRIPE, WITH_GATES, Documents, Largest, Texts, ask, finish, wait_until_idle  # finds harness
import harness
from default_model import GROUPS, STRIPE_BYTES
from page_trace import decode_selections
from progress import Progress
from results import Results

SEGMENT = 1024  # what RetroInfer indexes at a time
QUESTION = 40  # tokens of a question
SETTINGS = {
    "streaming": {"budget_tokens": 192},
    "quest": {"budget_tokens": 192, "dense_layers": "first:2"},
    "shadowkv": {"budget_tokens": 192, "params": {"outlier_chunks": 8}},
    "retroinfer": {"budget_tokens": 192},
    "seer_r": {"budget_tokens": 256},
}


def settings(algorithm):
    return None if algorithm == "dense" else {"algorithm": algorithm, "min_context": 0, **SETTINGS[algorithm]}


def live_bytes(server, needed):
    """Bytes of KV that running requests hold in host memory; 0 unless `needed` run."""
    samples, _ = server.metrics()
    running = sum(value for name, value in samples.items() if name.startswith("spindle_running_requests"))
    return sum(value for name, value in samples.items()
               if name.startswith("spindle_kv_used_bytes") and 'tier="host"' in name and 'state="live"' in name and running == needed)


def traced(folder):
    found = list(pathlib.Path(folder).glob("*-pages.trace"))
    if len(found) != 1:
        raise AssertionError(f"{len(found)} traces in {folder}")
    return decode_selections(found[0])


def two_questions(documents, options):
    rng = random.Random(11)
    document = documents.cut("with two readers", options.document, rng)
    return document, [document + documents.cut(f"question {i}", QUESTION, rng) for i in range(2)]


def by_steps(traces, tokens):
    """Traces of the requests of those answers; the first decode step computes the second token."""
    found = {len(trace) + 1: trace for trace in traces}
    return [found.get(count) for count in tokens]


def summary(answer):
    return {"digest": answer.digest, "cached": answer.cached, "sparse_steps": answer.sparse_steps}


def ask_together(server, prompts, tokens, sparse):
    with Largest(lambda: live_bytes(server, len(prompts))) as live, concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        jobs = [pool.submit(ask, server, ids, count, sparse) for ids, count in zip(prompts, tokens)]
        answers = [job.result() for job in jobs]
    return answers, live.most


def shared(algorithm, options, context):
    """Both questions on one server with a prefix cache; then each on one without."""
    tokens = [options.tokens, options.tokens + 4]  # tells the traces apart
    mirror = ["--kv-mode", "mirror", "--kv-fast-bytes", "192MiB"]
    row = {"algorithm": algorithm}
    with tempfile.TemporaryDirectory() as folder:
        with harness.Server(*context, *mirror, "--kv-trace", folder, fixture=False) as server:
            document, prompts = two_questions(Documents(server, options.texts), options)
            answers, row["live_bytes"] = ask_together(server, prompts, tokens, settings(algorithm))
            wait_until_idle(server)
            row["indexed"] = server.metric_sum("spindle_sparse_indexed_tokens_total")
        with_cache = by_steps(traced(folder), tokens)
    with tempfile.TemporaryDirectory() as folder:
        with harness.Server(*context, *mirror, "--no-enable-prefix-caching", "--kv-trace", folder, fixture=False) as server:
            alone = [ask(server, ids, count, settings(algorithm)) for ids, count in zip(prompts, tokens)]
            wait_until_idle(server)
            row["indexed_unshared"] = server.metric_sum("spindle_sparse_indexed_tokens_total")
        without = by_steps(traced(folder), tokens)
    row["shared"], row["unshared"] = [summary(a) for a in answers], [summary(a) for a in alone]
    row["selections"] = [sum(map(len, trace or [])) for trace in without]
    row["differing"] = [sum(a != b for a, b in zip(x or [], y or [])) + abs(len(x or []) - len(y or [])) for x, y in zip(with_cache, without)]
    row["pages"] = [sum(len(ids) for step in trace or [] for ids in step.values()) for trace in without]
    row["document_stripes"] = len(document) // STRIPE
    shared_tokens = max(a.cached for a in answers)
    row["unshared_bytes"] = sum(-(-(len(p) + t) // STRIPE) for p, t in zip(prompts, tokens)) * STRIPE_BYTES
    row["expected_bytes"] = row["unshared_bytes"] - shared_tokens // STRIPE * STRIPE_BYTES
    row["steps"] = [t - 1 for t in tokens]
    # The last generated token has no KV.
    with_kv = [len(p) + t - 1 for p, t in zip(prompts, tokens)]
    unit = 0 if algorithm in ("dense", "streaming") else SEGMENT if algorithm == "retroinfer" else 1
    indexable = [n // unit * unit if unit else 0 for n in [*with_kv, shared_tokens]]
    row["expected_unshared_indexed"] = sum(indexable[:-1])
    row["expected_indexed"] = sum(indexable[:-1]) - indexable[-1]
    return row


def judge_shared(row, failures):
    def expect(condition, text):
        if not condition:
            failures.append(f"{row['algorithm']}, two questions: {text}")

    expect([a["digest"] for a in row["shared"]] == [a["digest"] for a in row["unshared"]], "answers differ from unshared ones")
    # Who lacks one stripe only does not wait for the other to compute it.
    expect(0 <= row["document_stripes"] - max(a["cached"] for a in row["shared"]) / STRIPE <= 1,
           f"{[a['cached'] for a in row['shared']]} tokens cached of a document of {row['document_stripes']} stripes")
    expect(all(a["cached"] == 0 for a in row["unshared"]), "the server without a cache found something in it")
    expect(0 < row["live_bytes"] <= row["expected_bytes"], f"{row['live_bytes']:.0f} bytes live, {row['expected_bytes']} expected")
    expect(row["indexed"] == row["expected_indexed"], f"{row['indexed']:.0f} tokens indexed, {row['expected_indexed']} expected")
    expect(row["indexed_unshared"] == row["expected_unshared_indexed"],
           f"{row['indexed_unshared']:.0f} tokens indexed without a cache, {row['expected_unshared_indexed']} expected")
    expect(row["selections"] == [steps * GROUPS for steps in row["steps"]], f"{row['selections']} selections traced")
    expect(row["differing"] == [0, 0], f"the selections of {row['differing']} steps differ")
    if row["algorithm"] != "dense":
        expect(all(a["sparse_steps"] > 0 for a in row["shared"]), "no sparse step")


def conversation(options):
    """(algorithm, tokens) of the turns; the last is dense. Dense turns generate whole stripes."""
    quick = [("dense", 140), ("quest", 70), ("retroinfer", 40), ("dense", 24)]
    full = [("dense", 150), ("quest", 100), ("shadowkv", 100), ("dense", 200), ("retroinfer", 100), ("seer_r", 130), ("streaming", 64),
            ("dense", 100)]
    return quick if options.quick else full


def turns(options, context):
    """The conversation on one server, then each of its turns on a server that keeps nothing."""
    rows, histories, line = [], [], Progress()
    plan = conversation(options)
    with harness.Server(*context, fixture=False) as server:
        documents, rng = Documents(server, options.texts), random.Random(12)
        history = documents.cut("of a conversation", options.document, rng)
        known = 0  # tokens in whole stripes that are known densely
        for number, (algorithm, tokens) in enumerate(plan):
            history = history + documents.cut(f"turn {number}", QUESTION, rng)
            answer = ask(server, history, tokens, settings(algorithm))
            # The last generated token has no KV yet.
            dense_tokens = len(history) + (tokens - 1 if algorithm == "dense" else 0)
            rows.append({"turn": number + 1, "algorithm": algorithm, "prompt": len(history), "cached": answer.cached, "expected": known,
                         "digest": answer.digest, "sparse_steps": answer.sparse_steps})
            histories.append((history, tokens, algorithm))
            known = dense_tokens // STRIPE * STRIPE
            history = history + answer.token_ids
            line.show(f"turn {number + 1}/{len(plan)}: {algorithm}")
    with harness.Server(*context, "--no-enable-prefix-caching", fixture=False) as server:
        for row, (ids, tokens, algorithm) in zip(rows, histories):
            line.show(f"turn {row['turn']}/{len(plan)}: {algorithm}, anew")
            anew = ask(server, ids, tokens, settings(algorithm))
            row["equal"], row["cached_anew"] = anew.digest == row["digest"], anew.cached
    line.end(f"{len(plan)} turns")
    return rows


def judge_turns(rows, failures):
    for row in rows:
        where = f"turn {row['turn']}, {row['algorithm']}"
        if not row["equal"] or row["cached_anew"]:
            failures.append(f"{where}: not the answer of a server that computes all of it")
        if row["cached"] != row["expected"]:
            failures.append(f"{where}: {row['cached']} tokens from the cache, {row['expected']} are known densely")
        if row["algorithm"] != "dense" and row["sparse_steps"] <= 0:
            failures.append(f"{where}: no sparse step")
    if rows[-1]["algorithm"] != "dense" or all(row["algorithm"] == "dense" for row in rows):
        failures.append("the conversation does not end dense after sparse turns")


def print_tables(pairs, conversation_rows):
    if pairs:
        print(f"{'two questions':<14}{'cached':>8}{'live MiB':>10}{'unshared':>10}{'indexed':>9}{'unshared':>10}"
              f"{'selections':>12}{'pages':>10}{'steps that differ':>19}")
    for row in pairs:
        print(f"{row['algorithm']:<14}{max(a['cached'] for a in row['shared']):>8}{row['live_bytes'] / 2 ** 20:>10.0f}"
              f"{row['unshared_bytes'] / 2 ** 20:>10.0f}{row['indexed']:>9.0f}{row['indexed_unshared']:>10.0f}"
              f"{sum(row['selections']):>12}{sum(row['pages']):>10}{sum(row['differing']):>19}")
    if conversation_rows:
        print(f"{'turn':<6}{'algorithm':<12}{'prompt':>8}{'cached':>8}{'expected':>10}{'sparse steps':>14}  as computed anew")
    for row in conversation_rows:
        print(f"{row['turn']:<6}{row['algorithm']:<12}{row['prompt']:>8}{row['cached']:>8}{row['expected']:>10}{row['sparse_steps']:>14}"
              f"  {'yes' if row['equal'] else 'NO'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--document", type=int)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--only", choices=["shared", "turns"])
    parser.add_argument("--text", nargs="*", default=[], help="files to cut documents from; default: the manuals of this repository")
    parser.add_argument("--threads", type=int, default=2, help="compute threads of the server")
    parser.add_argument("--results", type=pathlib.Path, help="file that keeps what was found, to go on after an interruption")
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true", help="a short document, three algorithms, four turns")
    options = parser.parse_args()
    options.document = options.document or (1300 if options.quick else 6000)
    options.tokens = options.tokens or (8 if options.quick else 24)
    harness.BINARY, harness.MODEL = options.binary, options.model
    options.texts = Texts(options.text)
    results = Results(options.results, options.binary)
    context = ["--max-model-len", "8192", "--max-num-seqs", "4", "--threads", str(options.threads), *WITH_GATES]
    known = [options.document, options.tokens, options.texts.digest, options.quick]
    failures, pairs, rows = [], [], []
    if options.only != "turns":
        for algorithm in ["quest", "retroinfer", "seer_r"] if options.quick else ["dense", *ALGORITHMS]:
            print(f"two questions, {algorithm}", file=sys.stderr, flush=True)
            pairs.append(results.once(["two questions", algorithm, *known], lambda a=algorithm: shared(a, options, context)))
            judge_shared(pairs[-1], failures)
    if options.only != "shared":
        rows = results.once(["turns", *known], lambda: turns(options, context))
        judge_turns(rows, failures)
    print_tables(pairs, rows)
    return finish(failures, {"document": options.document, "pairs": pairs, "turns": rows}, options.json)


if __name__ == "__main__":
    sys.exit(main())
