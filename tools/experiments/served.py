"""Decoding on a server whose fast tier lies behind an emulated link, over drawn page selections.

Every figure made here is emulated (link) and synthetic (selections). Two requests with the same prompt differ only in how many tokens they generate,
so that the difference of their counters is that of the later steps alone.
"""
import harness
from default_model import HEADS, LAYERS, PAGE_BYTES, fast_bytes

MAX_MODEL_LEN = 8192
PROMPT_TOKENS = 7900
SELECTED = 32  # drawn pages per step, layer and head
ALWAYS = 5  # the first page, and the tile of the row
WARMUP_STEPS = 100
STEPS = 256  # the schedule begins anew behind them
THREADS = 2
RUN_FRAMES = 8
# Fast bandwidth over link of an H200-like host on this kind of machine, and a PCIe round trip.
LINK_GBPS = 0.38
LINK_LATENCY_US = 10


def frames_for(ratio):
    """Frames of a group at so many buffering pages per mandatory page."""
    pages = (SELECTED + ALWAYS) * (1 + ratio)
    return min(-(-pages // RUN_FRAMES) * RUN_FRAMES, MAX_MODEL_LEN // 16)


class Decoding:
    """Steps WARMUP_STEPS … STEPS − 1 of one request."""

    def __init__(self, counters, seconds):
        steps = STEPS - WARMUP_STEPS
        self.hits, self.misses, self.stall_seconds = counters
        self.hit_ratio = self.hits / max(1, self.hits + self.misses)
        self.tokens_per_second = steps / seconds
        self.step_seconds = seconds / steps
        self.link_bytes_per_token = self.misses * PAGE_BYTES / steps
        self.stall_share = self.stall_seconds / (THREADS * seconds)


def counters(server):
    names = ("spindle_kv_page_hits_total", "spindle_kv_page_misses_total", "spindle_kv_fetch_stall_seconds_total")
    return [server.metric_sum(name) for name in names]


def request(server, tokens):
    """Counters and decoding seconds of one request."""
    before = counters(server)
    answer = server.post("/v1/completions", {
        "model": "smol", "prompt": [i * 31 % 40000 + 100 for i in range(PROMPT_TOKENS)], "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
        "spindle": {"stats": "summary"}}, timeout=1200)
    if answer.status != 200:
        raise SystemExit(f"the server answered {answer.status}: {answer.body}")
    after = counters(server)
    return [b - a for a, b in zip(before, after)], answer.json["spindle"]["timing"]["decode_ms"] / 1000


def decode(lab, profile, ratio=5.0, mode="emulated-link", link_gbps=LINK_GBPS):
    """Decodes at a buffer ratio; with exactly the frames that it asks for, so that the budget has nothing to decide."""
    harness.BINARY, harness.MODEL = str(lab.bin / "spindle"), lab.need_model()
    arguments = ["--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", "1", "--threads", str(THREADS),
                 "--kv-synthetic-selection", profile, "--kv-synthetic-pages", str(SELECTED), "--kv-mode", mode]
    if mode != "in-place":
        frames = int(frames_for(ratio))
        arguments += ["--kv-fast-bytes", str(fast_bytes(frames, THREADS)), "--kv-buffer-ratio", str(min(ratio, 15))]
    if mode == "emulated-link":
        arguments += ["--sim-link-gbps", str(link_gbps), "--sim-link-latency-us", str(LINK_LATENCY_US)]
    with harness.Server(*arguments, fixture=False) as server:
        request(server, 1)  # the prompt goes to the prefix cache
        first, first_seconds = request(server, WARMUP_STEPS + 1)
        both, both_seconds = request(server, STEPS + 1)
    return Decoding([b - a for a, b in zip(first, both)], both_seconds - first_seconds)


def simulated_hit_ratio(lab, profile, ratio):
    """The same selections and frames in the simulator."""
    report = lab.simulate("--synthetic", profile, "--seeds", 1, "--layers", LAYERS, "--heads", HEADS, "--pages", MAX_MODEL_LEN // 16,
                          "--selected", SELECTED, "--steps", STEPS, "--warmup", WARMUP_STEPS, "--served-prompt", PROMPT_TOKENS,
                          "--policy", "bucketed", "--capacity", int(frames_for(ratio)))
    return report["results"][0]["hit_ratio"]
