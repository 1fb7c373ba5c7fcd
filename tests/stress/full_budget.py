#!/usr/bin/env python3
"""A token budget that covers the context gives dense attention, bit for bit, over HTTP.

Greedy text and the 20 best log-probabilities of every position under every algorithm with a full budget (as a share, as tokens, as
attention mass where that is offered, with kept choices, with every layer dense) are those of dense attention, at contexts above
`min_context`; one after the other and all together, in place, through a fast tier, over an emulated link. The same requests with a small
budget must differ and take sparse steps, or the comparison would show nothing.

That the sparse path itself does this, without the shortcut that a server takes when everything is selected, is a unit test
(EverythingSelectedEqualsDense in sparse_runtime_test) and the exactness gate of `spindle eval`.

use: full_budget.py --binary BIN --model GGUF [--lengths 4200 5000 6000 7000 7900] [--tokens 32] [--text FILE…] [--results FILE]
                    [--json FILE] [--quick]
"""
import argparse
import concurrent.futures
import pathlib
import random
import sys

from sparse_requests import ALGORITHMS, WITH_GATES, Documents, Texts, ask, finish  # finds harness
import harness
from progress import Progress
from results import Results

MODES = {
    "in place": [],
    "mirror": ["--kv-mode", "mirror", "--kv-fast-bytes", "128MiB"],
    "emulated link": ["--kv-mode", "emulated-link", "--sim-link-gbps", "20", "--kv-fast-bytes", "128MiB"],
}


def full_budgets(algorithm):
    forms = {"share 1": {"budget_fraction": 1}, "8192 tokens": {"budget_tokens": 8192},
             "all layers dense": {"budget_tokens": 16, "dense_layers": "first:30"}}
    if algorithm != "retroinfer":
        forms["share 1, kept"] = {"budget_fraction": 1, "reselect_interval": 9}
    if algorithm == "shadowkv":
        forms["mass 1"] = {"top_p_mass": 1}
    return {name: {"algorithm": algorithm, **form} for name, form in forms.items()}


def small_budget(algorithm):
    return {"algorithm": algorithm, "budget_fraction": 0.02}


def serve(mode, context, options):
    """Rows of one way to serve: per length and form, whether the answer is dense's, and its sparse steps."""
    rows, line = [], Progress()
    with harness.Server(*context, *MODES[mode], fixture=False) as server:
        documents = Documents(server, options.texts)
        for length in options.lengths:
            ids = documents.cut(f"of {length} tokens", length, random.Random(length))
            dense = ask(server, ids, options.tokens)
            forms = [("dense", "named", {"algorithm": "dense"}, True)]
            for algorithm in ALGORITHMS:
                forms += [(algorithm, name, sparse, True) for name, sparse in full_budgets(algorithm).items()]
                forms.append((algorithm, "share 0.02", small_budget(algorithm), False))
            for company in ("alone", "together"):
                with concurrent.futures.ThreadPoolExecutor(1 if company == "alone" else 16) as pool:
                    jobs = [pool.submit(ask, server, ids, options.tokens, form[2]) for form in forms]
                    for (algorithm, name, _, is_full), job in zip(forms, jobs):
                        answer = job.result()
                        rows.append({"mode": mode, "length": length, "company": company, "algorithm": algorithm, "form": name,
                                     "full": is_full, "equal": answer.digest == dense.digest, "steps": answer.sparse["decode_steps"],
                                     "sparse_steps": answer.sparse_steps, "named": answer.sparse["algorithm"]})
                        line.show(f"{mode}, {length} tokens, {company}: {algorithm}, {name}")
    line.end(f"{mode}: {len(rows)} answers")
    return rows


def judge(rows, failures):
    for row in rows:
        where = f"{row['mode']}, {row['length']} tokens, {row['company']}, {row['algorithm']}, {row['form']}"
        if row["full"] and not row["equal"]:
            failures.append(f"{where}: not dense's answer")
        if row["named"] != row["algorithm"]:
            failures.append(f"{where}: the statistics name {row['named']}")
        if not row["full"] and row["sparse_steps"] <= 0:
            failures.append(f"{where}: no sparse step")
    for algorithm in ALGORITHMS:
        if all(row["equal"] for row in rows if row["algorithm"] == algorithm and not row["full"]):
            failures.append(f"{algorithm}: a small budget changes nothing, so nothing is shown")


def print_table(rows):
    print(f"{'algorithm':<12}{'full budgets':>14}{'equal to dense':>16}{'small budgets':>15}{'equal':>7}{'sparse steps':>14}")
    for algorithm in ["dense", *ALGORITHMS]:
        full = [row for row in rows if row["algorithm"] == algorithm and row["full"]]
        small = [row for row in rows if row["algorithm"] == algorithm and not row["full"]]
        print(f"{algorithm:<12}{len(full):>14}{sum(row['equal'] for row in full):>16}{len(small):>15}{sum(row['equal'] for row in small):>7}"
              f"{sum(row['sparse_steps'] for row in small):>14}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--lengths", type=int, nargs="+")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--text", nargs="*", default=[], help="files to cut prompts from; default: the manuals of this repository")
    parser.add_argument("--threads", type=int, default=2, help="compute threads of the server")
    parser.add_argument("--results", type=pathlib.Path, help="file that keeps what was found, to go on after an interruption")
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true", help="one length, 8 tokens, without the emulated link")
    options = parser.parse_args()
    options.lengths = options.lengths or ([4200] if options.quick else [4200, 5000, 6000, 7000, 7900])
    options.tokens = options.tokens or (8 if options.quick else 32)
    harness.BINARY, harness.MODEL = options.binary, options.model
    options.texts = Texts(options.text)
    results = Results(options.results, options.binary)
    context = ["--max-model-len", "8192", "--max-num-seqs", "16", "--max-queue-size", "64", "--threads", str(options.threads), *WITH_GATES]
    failures, rows = [], []
    for mode in list(MODES)[:2 if options.quick else 3]:
        known = ["full budget", mode, options.lengths, options.tokens, options.texts.digest]
        rows += results.once(known, lambda m=mode: serve(m, context, options))
    judge(rows, failures)
    print_table(rows)
    return finish(failures, {"lengths": options.lengths, "tokens": options.tokens, "rows": rows}, options.json)


if __name__ == "__main__":
    sys.exit(main())
