"""Requests with sparse attention, and documents to ask about, for the acceptance scripts that drive a server."""
import hashlib
import json
import pathlib
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "e2e"))

GATES = ROOT / "configs" / "sparse" / "gates" / "smollm2-135m-instruct.gates.safetensors"
ALGORITHMS = ["streaming", "quest", "shadowkv", "retroinfer", "seer_r"]
WITH_GATES = ["--sparse-gates", str(GATES)]
STRIPE = 64


class Texts:
    """Real text, read once, so that all servers of a run see the same; `digest` tells whether another run did.

    `paths`: files; without them the manuals of this repository.
    """

    def __init__(self, paths=()):
        files = paths or sorted((ROOT / "docs").glob("*.md"))
        self.contents = [pathlib.Path(path).read_text(errors="replace")[:400_000] for path in files]
        self.digest = hashlib.sha256(json.dumps(self.contents).encode()).hexdigest()


class Documents:
    """Token-id prompts of exact lengths, cut from texts; each begins with a line of its own, so that no two share a prefix by chance."""

    def __init__(self, server, texts):
        # In pieces: a request has a bound.
        self.ids = [token for text in texts.contents for begin in range(0, len(text), 8000)
                    for token in tokenize(server, text[begin:begin + 8000])]
        self.server = server

    def cut(self, name, length, rng):
        """`length` tokens from a place that `rng` chooses, behind a line with `name`."""
        line = tokenize(self.server, f"Document {name}.\n")
        begin = rng.randrange(max(1, len(self.ids) - length))
        ids = line + self.ids[begin:begin + length]
        if len(ids) < length:
            raise SystemExit(f"the texts have {len(self.ids)} tokens, {length} are needed: give longer ones")
        return ids[:length]


def tokenize(server, text):
    response = server.post("/tokenize", {"model": "smol", "prompt": text})
    if response.status != 200:
        raise AssertionError(response.body)
    return response.json["tokens"]


def request_body(ids, tokens, sparse=None, logprobs=20, **fields):
    """A greedy completion; `sparse` None: dense. `fields` may bring members of `spindle`, too."""
    spindle = {"stats": "summary", **({"sparse": sparse} if sparse else {}), **fields.pop("spindle", {})}
    body = {"model": "smol", "prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True,
            "spindle": spindle, **fields}
    if logprobs:
        body["logprobs"] = logprobs
    return body


class Answer:
    """Of a finished request: its tokens, a digest of text and log-probabilities as printed, cached tokens, statistics."""

    def __init__(self, message):
        choice = message["choices"][0]
        self.text, self.token_ids = choice["text"], choice["token_ids"]
        self.digest = hashlib.sha256(json.dumps([choice["text"], choice["logprobs"]]).encode()).hexdigest()
        self.cached = message["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.sparse = message["spindle"]["sparse"]
        self.preemptions = message["spindle"]["timing"]["preemptions"]

    @property
    def sparse_steps(self):
        return sparse_steps(self.sparse)


def sparse_steps(stats):
    """Steps in which the algorithm chose, by the statistics of a request."""
    return stats["decode_steps"] - stats["dense_steps"]


def ask(server, ids, tokens, sparse=None, **fields):
    """An answer that is not streamed; waits where the server says that it is full."""
    body = request_body(ids, tokens, sparse, **fields)
    while True:
        response = server.post("/v1/completions", body, timeout=1800)
        if response.status != 429:
            break
        time.sleep(float(response.headers["retry-after-ms"]) / 1000)
    if response.status != 200:
        raise AssertionError(response.body)
    return Answer(response.json)


class Largest:
    """The largest value of something, sampled until the block ends."""

    def __init__(self, read):
        self.read, self.most, self.ends = read, 0, threading.Event()
        self.thread = threading.Thread(target=self.work)

    def work(self):
        while not self.ends.wait(0.03):
            self.most = max(self.most, self.read())

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join()


def running_requests(server):
    return server.metric_sum("spindle_running_requests")


def wait_until_idle(server):
    """No request, and the counters of the last step are published."""
    server.wait_for(lambda: running_requests(server) == 0, 60, "an idle engine")
    server.wait_for(lambda: server.request("GET", "/admin/requests", key=None).json == [], 60, "an idle server")


def finish(failures, report, path):
    """Prints the verdict, writes the report; the exit code."""
    report["failures"], report["passed"] = failures, not failures
    if path:
        pathlib.Path(path).write_text(json.dumps(report, indent=1))
    print("passed" if not failures else "FAILED: " + "; ".join(failures))
    return 1 if failures else 0
