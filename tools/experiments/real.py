"""Requests over real text, decoded by the sparse algorithms: servers, prompts, variants that take turns, and the bytes that a step has to read.

Prompts are pieces of novels (tools/eval_texts.py), cut to exact lengths. A length of 64 k + 1 leaves one row to compute when the prompt is in the
prefix cache, so that requests which are sent together also begin to decode together.
"""
import concurrent.futures
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys

import harness
from common import ROOT
from default_model import HEADS, LAYERS

THREADS = 2
STRIPE, SEGMENT = 64, 1024
ROW_BYTES = 256  # K and V of a token, layer and KV head
TOKEN_BYTES = LAYERS * HEADS * ROW_BYTES
WEIGHT_BYTES = 96.6e6  # of a step, tools/compare/floors.py
SINK, RECENT = 4, 64
OUTLIER_TOKENS = 48 * 8
RETRO_SINK, RETRO_TAIL_DELAY = 16, 64
ESTIMATED = 0.232
CHARACTERS_PER_TOKEN = 7  # more than English has
NOVELS, TECHNICAL = "austen.txt", "technical.txt"
GATES = ROOT / "configs" / "sparse" / "gates" / "smollm2-135m-instruct.gates.safetensors"


@dataclasses.dataclass(frozen=True)
class Method:
    """An algorithm as it is measured here. `granule`: bytes that lie together where it gathers; `vector_rows`: tokens per index vector."""

    name: str
    granule: int = 0
    unit: int = 1  # tokens of a partition
    dense_layers: int = 0
    always: int = SINK + RECENT  # tokens attended at any budget, without the open unit

    def sparse(self, share, min_context=0):
        """Member `spindle.sparse` of a request that selects a share of the context."""
        if self.name == "dense":
            return {"algorithm": "dense"}
        fields = {"algorithm": self.name, "budget_fraction": share, "min_context": min_context, "sink_tokens": SINK, "recent_tokens": RECENT, "fallback": "none"}
        if self.dense_layers:
            fields["dense_layers"] = f"first:{self.dense_layers}"
        return fields

    def stripe_index_bytes(self, is_int8=False):
        """Of a stripe (retroinfer: its share of a segment), layer and KV head of 64 elements."""
        vectors, extra = {"quest": (8, 0), "shadowkv": (8, 16), "retroinfer": (8, (144 + 2 * SEGMENT) / 16), "seer_r": (1, 0)}.get(self.name, (0, 0))
        is_int8 = is_int8 and self.name != "seer_r"
        return vectors * (64 + 2 if is_int8 else 128) + extra

    def index_share(self, is_int8=False):
        return self.stripe_index_bytes(is_int8) / (STRIPE * ROW_BYTES)

    def indexed_tokens(self, prompt):
        """Of a prompt: all, or those of its segments that lie far enough back."""
        return max(0, prompt - RETRO_TAIL_DELAY) // SEGMENT * SEGMENT if self.name == "retroinfer" else prompt

    def attended_tokens(self, share, context, prompt):
        """What a step attends to by its budget: selected units, what is always attended, and what is not indexed yet."""
        selected = -(-share * context // self.unit) * self.unit
        if self.name == "retroinfer":
            tail = context - self.indexed_tokens(prompt)
            return min(context, share * context + RETRO_SINK + tail)
        return min(context, selected + self.always + (self.unit - 1) / 2)

    def index_read_bytes(self, context):
        """Of a step: all that scoring reads, and what estimates read."""
        stripes = context / STRIPE * (LAYERS - self.dense_layers) * HEADS
        if self.name == "retroinfer":  # all mean keys, the sums of values that are estimated with, and where members begin
            return stripes * (4 * 128 * (1 + ESTIMATED) + 9)
        return stripes * self.stripe_index_bytes()

    def gathered_bytes(self, tokens):
        return tokens * (LAYERS - self.dense_layers) * HEADS * ROW_BYTES

    def read_bytes(self, tokens, context):
        """(bytes in order, gathered bytes) of KV and index in a step that attends to so many tokens in the layers that select."""
        if self.name == "dense":
            return context * TOKEN_BYTES, 0
        return self.index_read_bytes(context) + self.dense_layers * HEADS * ROW_BYTES * context, self.gathered_bytes(tokens)


DENSE = Method("dense")
METHODS = [
    # K and V of a page of 16 tokens lie together. Its authors keep the first two layers dense.
    Method("quest", granule=4096, unit=16, dense_layers=2),
    Method("shadowkv", granule=1024, unit=8, always=SINK + RECENT + OUTLIER_TOKENS),
    Method("retroinfer", granule=128),
    Method("seer_r", granule=4096, unit=64),
]
BY_NAME = {m.name: m for m in [DENSE, *METHODS]}


def serve(lab, context, *arguments):
    """A server for contexts up to `context`, with the gates of seer_r."""
    harness.BINARY, harness.MODEL = str(lab.bin / "spindle"), lab.need_model()
    return harness.Server("--max-model-len", str(context), "--threads", str(THREADS), "--sparse-gates", str(GATES), *map(str, arguments), fixture=False)


def text_of(name):
    found = subprocess.run([sys.executable, str(ROOT / "tools" / "eval_texts.py")], capture_output=True, text=True, check=True).stdout.split()
    with open(next(f for f in found if f.endswith(name)), encoding="utf-8") as file:
        return file.read()


def prompts(server, count, tokens, name=NOVELS):
    """Token ids of pieces of a text, equally far apart (many long ones overlap), all different from the first token on."""
    text = text_of(name)
    length = tokens * CHARACTERS_PER_TOKEN
    if length > len(text):
        raise SystemExit(f"a prompt of {tokens} tokens needs {length} characters, {name} has {len(text)}")
    result = []
    for i in range(count):
        begin = (len(text) - length) // count * i
        piece = f"{i}. " + text[text.find(" ", begin) + 1:begin + length]
        ids = server.post("/v1/tokenize", {"model": "smol", "prompt": piece}, timeout=600).json["tokens"]
        if len(ids) < tokens:
            raise SystemExit(f"piece {i} of {name} has {len(ids)} tokens, needed {tokens}")
        result.append(ids[:tokens])
    return result


def whole_stripes(tokens):
    """The nearest length of 64 k + 1 below."""
    return max(1, (tokens - 1) // STRIPE) * STRIPE + 1


def send(server, prompt, tokens, spindle, **fields):
    body = {"model": "smol", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "spindle": spindle, **fields}
    answer = server.post("/v1/completions", body, timeout=3600)
    if answer.status != 200:
        raise Refused(answer)
    return answer.json


def wishes(sparse, kv):
    return {key: value for key, value in (("sparse", sparse), ("kv", kv)) if value}


def ask(server, prompt, tokens, sparse=None, kv=None, **fields):
    """The answer's `spindle` object, with `usage` beside. With `sparse`, statistics cost an estimate of attention mass per step: not for timing steps."""
    answer = send(server, prompt, tokens, {"stats": "summary", **wishes(sparse, kv)}, **fields)
    return {**answer["spindle"], "usage": answer["usage"]}


class Refused(Exception):
    """An answer that is no 200."""

    def __init__(self, answer):
        error = answer.json.get("error", {})
        super().__init__(f"the server answered {answer.status}: {error.get('message')}")
        self.status, self.error = answer.status, error


def send_together(server, batch, tokens, sparse, kv=None):
    """One request per prompt, all at once, without statistics."""
    with concurrent.futures.ThreadPoolExecutor(len(batch)) as pool:
        list(pool.map(lambda prompt: send(server, prompt, tokens, wishes(sparse, kv)), batch))


def step_seconds(server, batch, tokens, sparse, kv=None):
    """Time per further token of requests that are sent together, a mean, by the server's clock: from the first to the last token."""
    before = counters(server, **DECODING)
    send_together(server, batch, tokens + 1, sparse, kv)
    after = counters(server, **DECODING)
    requests = after["requests"] - before["requests"]
    if requests != len(batch):
        raise SystemExit(f"{len(batch)} requests were sent, the server counts {requests:.0f}")
    return (after["seconds"] - before["seconds"]) / requests / tokens


def preset(folder, sparse):
    """A file for --sparse-preset: defaults of the server, which statistics make no dearer."""
    path = pathlib.Path(folder) / "preset.yaml"
    path.write_text(json.dumps(sparse), encoding="utf-8")  # JSON is YAML
    return path


def turns(variants, rounds):
    """(round, variant) in the order A B C, C B A, A B C …"""
    for i in range(rounds):
        for variant in variants if i % 2 == 0 else reversed(variants):
            yield i, variant


def paired_ratio(base, other):
    """Median over rounds of base ÷ other: above 1 where the other is quicker."""
    return statistics.median(b / o for b, o in zip(base, other))


def counters(server, **names):
    """{key: sum of the metric} of key=name pairs."""
    return {key: server.metric_sum(name) for key, name in names.items()}


DECODING = {"seconds": "vllm:request_decode_time_seconds_sum", "requests": "vllm:request_decode_time_seconds_count"}
PAGES = {"hits": "spindle_kv_page_hits_total", "misses": "spindle_kv_page_misses_total", "stall": "spindle_kv_fetch_stall_seconds_total"}
