"""D5: batches at a fixed size of fast memory: dense decoding holds whole contexts there and ends at its memory wall, sparse decoding keeps what it selects."""
import contextlib
import threading
import time
import types

import charts
import real
from common import Gate, Result, Table
from default_model import HEADS, LAYERS

SHARE, RATIO = 0.03, 1
PAGE_TOKENS = 16
MIB = 1 << 20
MIN_OF_FORMULA = 0.8
OUTLIER_CHUNKS, TAIL_TOKENS = 48, 1088
HOST_BYTES = "6GiB"

FULL = types.SimpleNamespace(context=7500, fast_mib=[256, 512, 1024], batches=[1, 2, 4, 8, 16, 32, 64], tokens=64)
QUICK = types.SimpleNamespace(context=700, fast_mib=[48], batches=[1, 4], tokens=12)


class Watch:
    """The most requests that a server runs at a time, without those that wait for frames."""

    def __init__(self, server):
        self.server, self.most, self.ends = server, 0, threading.Event()
        self.thread = threading.Thread(target=self.look)

    def look(self):
        while not self.ends.wait(0.1):
            found = real.counters(self.server, running="spindle_running_requests", paused="spindle_kv_paused_sequences")
            self.most = max(self.most, int(found["running"] - found["paused"]))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join()


def together(server, prompts, tokens, sparse):
    """Tokens per second of requests that are sent at once, to the last answer; the most that ran, and preemptions."""
    before = server.metric_sum("vllm:num_preemptions_total")
    with Watch(server) as watch:
        started = time.monotonic()
        real.send_together(server, prompts, tokens, sparse)
        seconds = time.monotonic() - started
    return {"rate": len(prompts) * tokens / seconds, "running": watch.most,
            "preemptions": server.metric_sum("vllm:num_preemptions_total") - before}


def dense(lab, scale, prompt_tokens, fast_bytes):
    """All KV in a host tier of that size: what a server without slower tiers does. Prompts are all different, so that nothing is shared."""
    fits = max(1, int(fast_bytes / (real.TOKEN_BYTES * (prompt_tokens + scale.tokens + real.STRIPE) * 1.05)))
    points = {}
    with real.serve(lab, 8192, "--kv-host-bytes", fast_bytes, "--max-num-seqs", max(scale.batches), "--max-queue-size", 2 * max(scale.batches)) as server:
        prompts = real.prompts(server, fits + 2, prompt_tokens)
        for prompt in prompts[:fits]:  # to the prefix cache
            real.ask(server, prompt, 1, {"algorithm": "dense"})
        for batch in [b for b in scale.batches if b <= fits]:
            points[batch] = together(server, prompts[:batch], scale.tokens, {"algorithm": "dense"})
        lab.show(f"D5: dense in {fast_bytes // MIB} MiB, {fits + 2} requests")
        wall = together(server, prompts, scale.tokens, {"algorithm": "dense"})
    return points, wall


@contextlib.contextmanager
def tiered(lab, scale, prompt_tokens, fast_bytes):
    """A server with a fast tier of that size, and its prompt. Requests share the prompt's host pages; frames of the fast tier are each one's own."""
    arguments = ["--kv-mode", "mirror", "--kv-fast-bytes", fast_bytes, "--kv-buffer-ratio", RATIO, "--kv-host-bytes", HOST_BYTES,
                 "--max-num-seqs", max(scale.batches), "--max-queue-size", 2 * max(scale.batches)]
    with real.serve(lab, 8192, *arguments) as server:
        prompt = real.prompts(server, 1, prompt_tokens)[0]
        real.ask(server, prompt, 1, {"algorithm": "dense"})
        yield server, prompt


def sparse_points(lab, scale, server, prompt, method, fast_bytes):
    sparse, points = method.sparse(SHARE), {}
    before = real.counters(server, **real.PAGES)
    real.send_together(server, [prompt], scale.tokens, sparse)
    after = real.counters(server, **real.PAGES)
    pages = (after["hits"] - before["hits"] + after["misses"] - before["misses"]) / (scale.tokens - 1)
    for batch in scale.batches:
        lab.show(f"D5: {method.name} in {fast_bytes // MIB} MiB, B = {batch}")
        points[batch] = together(server, [prompt] * batch, scale.tokens, sparse)
    return points, pages


def formula(method, context, pages):
    """Capacity over dense: 1 / [(1 − δ)(selected pages · (1 + r) + what is always there + index) + δ], as shares of the
    context's pages; `pages` of a step, measured."""
    all_pages = context / PAGE_TOKENS
    in_choosing = (pages - method.dense_layers * HEADS * all_pages) / ((LAYERS - method.dense_layers) * HEADS)
    always = 1 + -(-real.RECENT // PAGE_TOKENS)
    always += {"shadowkv": OUTLIER_CHUNKS, "retroinfer": TAIL_TOKENS / PAGE_TOKENS}.get(method.name, 0)
    selected = max(0, in_choosing - always)
    delta = method.dense_layers / LAYERS
    need = (1 - delta) * ((selected * (1 + RATIO) + always) / all_pages + method.index_share()) + delta
    return 1 / need


def run(lab, options):
    scale = QUICK if options.quick else FULL
    prompt_tokens = real.whole_stripes(scale.context)
    rows, checks, data, series = [], [], {}, []
    for mib in scale.fast_mib:
        points, wall = dense(lab, scale, prompt_tokens, mib * MIB)
        data[f"{mib} MiB, dense"] = {"points": points, "wall": wall}
        series.append((f"dense, {mib} MiB", list(points), [p["rate"] for p in points.values()]))
        rows.append([f"{mib} MiB: dense", str(wall["running"]), "1.00", "", f"{wall['preemptions']:.0f}"] + [rate_cell(points, b) for b in scale.batches])
        with tiered(lab, scale, prompt_tokens, mib * MIB) as (server, prompt):
            for method in real.METHODS:
                found, pages = sparse_points(lab, scale, server, prompt, method, mib * MIB)
                held = max(p["running"] for p in found.values())
                expected = formula(method, prompt_tokens, pages)
                ratio = held / wall["running"] if wall["running"] else 0
                preempted = sum(p["preemptions"] for p in found.values())
                data[f"{mib} MiB, {method.name}"] = {"points": found, "pages": pages, "ratio": ratio, "formula": expected}
                series.append((f"{method.name}, {mib} MiB", list(found), [p["rate"] for p in found.values()]))
                rows.append([f"{mib} MiB: {method.name}", str(held), f"{ratio:.2f}", f"{expected:.2f}", f"{preempted:.0f}"]
                            + [rate_cell(found, b) for b in scale.batches])
                checks.append(capacity_gate(f"{mib} MiB: {method.name}, capacity over dense", held == max(scale.batches), ratio, expected))
                checks.append(Gate(f"{mib} MiB: {method.name}, preemptions", f"{preempted:.0f}", "none", preempted == 0))
    tables = [Table(f"Requests of {prompt_tokens:,} tokens that run at a time, and tokens per second by batch. Dense: all KV in memory of that size, "
                    f"different prompts. Sparse: a fast tier of that size before a host tier, {100 * SHARE:g} % selected, buffer ratio {RATIO}; copies are "
                    "memory copies, no link. Requests share the prompt's host pages, not their frames. Formula: what selection, what is always attended, "
                    "index and dense layers leave.",
                    ["fast memory, method", "at a time", "times dense", "formula", "preemptions"] + [f"tokens/s, B = {b}" for b in scale.batches], rows)]

    def chart(figure):
        charts.lines(figure, [s for s in series if s[1]], "requests", "tokens/s", "Batch at a fixed size of fast memory", log=True)

    return Result("D5: batch at fixed fast memory", tables, checks, data, chart)


def capacity_gate(what, all_ran, ratio, expected):
    """Where the largest batch fits as a whole, nothing more can be asked for."""
    return Gate(what, f"{ratio:.2f}" + (", the largest batch as a whole" if all_ran else ""), f"at least {MIN_OF_FORMULA} of {expected:.2f}",
                all_ran or ratio >= MIN_OF_FORMULA * expected)


def rate_cell(points, batch):
    return f"{points[batch]['rate']:.0f}" if batch in points else "–"
