"""C10: what indexes cost: time beside the prefill of the same prompt, memory beside its KV, and whether the fast tier's budgets count them."""
import pathlib
import statistics
import types

import charts
import real
from common import Gate, Result, Table, at_most, percent

MAX_TIME = 0.10
# Of KV bytes, with bf16 and with int8.
MAX_SHARE = {"bf16": 0.065, "int8": 0.035}
MAX_SEGMENT_SHARE = {"bf16": 0.075, "int8": 0.045}
BUDGET_SHARE = 0.125
# Memory is touched in huge pages, so the resident size is that much too large at most.
HUGE_PAGE = 2 << 20
LEAST_OF_LAYOUT = 0.8

FULL = types.SimpleNamespace(context=7500, prompts=8, again=2)
QUICK = types.SimpleNamespace(context=1400, prompts=2, again=1)


def resident_bytes(server):
    """Anonymous memory that the server has touched."""
    for line in pathlib.Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("/proc tells no RssAnon")


class Found:
    """Of one method and element type, an entry per prompt."""

    def __init__(self):
        self.prefill, self.build, self.bytes = [], [], []

    def add(self, prefill, build, grown):
        self.prefill.append(prefill)
        self.build.append(build)
        self.bytes.append(grown)


def prefill_seconds(server, prompt, method):
    return real.ask(server, prompt, 1, method.sparse(BUDGET_SHARE))["timing"]["prefill_ms"] / 1000


def index(lab, scale, dtype, arguments):
    """{method: Found}. All KV of a prompt is there after the dense request; the first request of a method then differs from its next ones by building the index."""
    found = {m.name: Found() for m in real.METHODS}
    host = (scale.prompts + 2) * (scale.context + 1024) * real.TOKEN_BYTES
    with real.serve(lab, 8192, "--kv-host-bytes", host, "--max-num-seqs", 1, *arguments) as server:
        for i, prompt in enumerate(real.prompts(server, scale.prompts, real.whole_stripes(scale.context))):
            lab.show(f"C10: {dtype}, prompt {i + 1} of {scale.prompts}")
            dense = prefill_seconds(server, prompt, real.DENSE)
            for _, method in real.turns(real.METHODS[i % len(real.METHODS):] + real.METHODS[:i % len(real.METHODS)], 1):
                before = resident_bytes(server)
                first = prefill_seconds(server, prompt, method)
                grown = resident_bytes(server) - before
                later = statistics.median(prefill_seconds(server, prompt, method) for _ in range(scale.again))
                if i > 0:  # buffers of workers grow with the first prompt
                    found[method.name].add(dense, first - later, grown)
    return found


def least_budget(lab, context):
    """{method: (bytes that a request's fast budget must have at least, bytes of its index)}"""
    found = {}
    with real.serve(lab, 8192, "--kv-mode", "mirror", "--kv-fast-bytes", "512MiB", "--max-num-seqs", 1) as server:
        prompt = real.prompts(server, 1, real.whole_stripes(context))[0]
        for method in real.METHODS:
            try:
                real.ask(server, prompt, 1, method.sparse(BUDGET_SHARE), kv={"fast_tier_budget_bytes": 1})
            except real.Refused as refused:
                least = refused.error["min_bytes"]
            else:
                raise SystemExit("a fast budget of one byte was taken")
            found[method.name] = (least, method.index_share() * method.indexed_tokens(len(prompt)) * real.TOKEN_BYTES)
    return found


def dtypes(lab):
    """{element type: arguments} that the build knows."""
    known = {"bf16": []}
    if "--sparse-index-dtype" in lab.run("spindle", "serve", "--help"):
        known["int8"] = ["--sparse-index-dtype", "int8"]
    return known


def bytes_gate(what, measured, kv_bytes, by_layout, limit):
    """Within the limit; and not so much less than the layout says that something else was measured (an open segment has no index)."""
    least, most = LEAST_OF_LAYOUT * by_layout * kv_bytes - HUGE_PAGE, limit * kv_bytes + HUGE_PAGE
    return Gate(f"{what}: index, measured", f"{measured / 1e6:.2f} MB", f"{max(0, least) / 1e6:.2f} to {most / 1e6:.2f} MB", least <= measured <= most)


def run(lab, options):
    scale = QUICK if options.quick else FULL
    prompt_bytes = real.whole_stripes(scale.context) * real.TOKEN_BYTES
    rows, checks, data = [], [], {}
    known = dtypes(lab)
    if "int8" not in known:
        checks.append(Gate("indexes in int8", "not in this build", "there", False))
    for dtype, arguments in known.items():
        for name, found in index(lab, scale, dtype, arguments).items():
            kv_bytes = len(found.bytes) * prompt_bytes
            method = real.BY_NAME[name]
            time = statistics.median(b / p for b, p in zip(found.build, found.prefill))
            # Together: what one prompt's index leaves of a huge page the next one's takes.
            share = sum(found.bytes) / kv_bytes
            limit = (MAX_SEGMENT_SHARE if name == "retroinfer" else MAX_SHARE)[dtype]
            checks += [at_most(f"{name}, {dtype}: time of the index, of the prefill's", time, MAX_TIME, "{:.3f}"),
                       bytes_gate(f"{name}, {dtype}", sum(found.bytes), kv_bytes, method.index_share(dtype == "int8"), limit),
                       at_most(f"{name}, {dtype}: index, of the KV bytes, by its layout", method.index_share(dtype == "int8"), limit, "{:.4f}")]
            rows.append([f"{name}, {dtype}", f"{1e3 * statistics.median(found.build):.0f}", percent(time), f"{sum(found.bytes) / len(found.bytes) / 1e6:.2f}",
                         f"{100 * share:.2f}", f"{100 * method.index_share(dtype == 'int8'):.2f}"])
            data[f"{name}, {dtype}"] = {**vars(found), "time_share": time, "byte_share": share}
    lab.show("C10: fast budgets")
    for name, (least, asked) in least_budget(lab, scale.context).items():
        checks.append(Gate(f"{name}: the smallest fast budget of a request holds its index", f"{least / 1e6:.2f} MB",
                           f"at least {asked / 1e6:.2f} MB", least >= asked))
    tables = [Table(f"Index of a prompt of {real.whole_stripes(scale.context):,} tokens ({prompt_bytes / 1e6:.0f} MB of KV), medians over "
                    f"{scale.prompts - 1} prompts. Time: the first request of a method over KV that is there already, less the next ones. Memory: what the "
                    "server's resident size grew by.",
                    ["method", "build, ms", "of prefill, %", "MB", "of KV, %", "by its layout, %"], rows)]

    def chart(figure):
        names = list(data)
        charts.bars(figure, names, [("time, % of prefill", [100 * data[n]["time_share"] for n in names]),
                                    ("memory, % of KV", [100 * data[n]["byte_share"] for n in names])], "%", "Indexes")

    return Result("C10: indexes", tables, checks, data, chart)
