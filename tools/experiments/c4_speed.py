"""C4: decoding sparsely beside decoding densely, in one run; bytes of a step against the budget's, and the step against the floor of those bytes.

Measured: times, attended tokens, pages of the memory trace, roofs. Computed: bytes of weights and indexes, what the budget asks for, floors.
"""
import pathlib
import statistics
import tempfile
import types

import charts
import real
import roofs
import traces
from common import Gate, Result, Table, at_least, at_most
from default_model import HEADS, LAYERS

CONTEXT, SHARE = 7500, 0.125
LONG_CONTEXT, LONG_SHARE = 32000, 0.0625
# Of the two batches, in their order.
BEST_BARS, EACH_BARS, LONG_BAR = [1.7, 3.0], [1.4, 2.2], 3.0
FLOOR_SHARE, SLOW_GATHER, CEILING_SHARE = 0.7, 15e9, 0.75
BYTES_OFF, PREFILL_BAR = 0.05, 1.3
YARN = ["--rope-scaling", "yarn", "--rope-scale", "4", "--yarn-orig-ctx", "8192"]
PAGE_TOKENS = 16

FULL = types.SimpleNamespace(context=CONTEXT, batches=[1, 8], tokens=128, rounds=6, prefill_rounds=6, long_context=LONG_CONTEXT, long_tokens=128)
QUICK = types.SimpleNamespace(context=1600, batches=[1, 2], tokens=16, rounds=2, prefill_rounds=1, long_context=2200, long_tokens=16)


class Point:
    """One batch at one context: seconds per step of every method in every round, and what a step attended to."""

    def __init__(self, batch, prompt, tokens, share):
        self.batch, self.prompt, self.tokens, self.share = batch, prompt, tokens, share
        self.context = prompt + tokens / 2
        self.seconds, self.attended = {}, {}
        self.best_windows, self.sustained = [], []  # what the machine read, before every round

    def add(self, method, seconds):
        self.seconds.setdefault(method.name, []).append(seconds)

    def ratio(self, method):
        return real.paired_ratio(self.seconds["dense"], self.seconds[method.name])

    def bytes_of(self, method, tokens=None):
        """(in order, gathered) of a step of the whole batch; weights count once."""
        in_order, gathered = method.read_bytes(self.attended[method.name] if tokens is None else tokens, self.context)
        return real.WEIGHT_BYTES + self.batch * in_order, self.batch * gathered

    def floor(self, method, machine):
        return machine.seconds(*self.bytes_of(method), method.granule)

    def of_floor(self, method, machines):
        """The floor's share of a step's time, median over rounds, each with its own measurement of the machine."""
        return statistics.median(self.floor(method, m) / s for m, s in zip(machines, self.seconds[method.name], strict=True))


def decode(lab, server, point, prompts, rounds, what):
    """Prompts go to the prefix cache and every method indexes them; then the methods take turns."""
    for i, prompt in enumerate(prompts):
        lab.show(f"C4: {what}, prompt {i + 1} of {len(prompts)}")
        for method in (real.DENSE, *real.METHODS):
            answer = real.ask(server, prompt, point.tokens, method.sparse(point.share))
            point.attended[method.name] = answer["sparse"]["attended_fraction_mean"] * point.context
    for i, method in real.turns([real.DENSE, *real.METHODS], rounds):
        if i == len(point.sustained):
            lab.show(f"C4: {what}, round {i + 1} of {rounds}, reads of the machine")
            for kept, found in zip((point.best_windows, point.sustained), roofs.measure(lab)):
                kept.append(found)
        lab.show(f"C4: {what}, round {i + 1} of {rounds}, {method.name}")
        point.add(method, real.step_seconds(server, prompts, point.tokens, method.sparse(point.share)))
    return point


def short_points(lab, scale):
    """Batches at the model's own context; and prefill."""
    prompt = real.whole_stripes(scale.context)
    largest = max(scale.batches)
    host = (largest + 2) * (prompt + 1024) * real.TOKEN_BYTES
    with real.serve(lab, 8192, "--kv-host-bytes", host, "--max-num-seqs", largest) as server:
        prompts = real.prompts(server, largest, prompt)
        points = [decode(lab, server, Point(b, prompt, scale.tokens, SHARE), prompts[:b], scale.rounds, f"B = {b} at {prompt}") for b in scale.batches]
        return points, prefill(lab, server, prompts[0], scale.prefill_rounds)


def prefill(lab, server, prompt, rounds):
    """{dense, xattention: seconds in every round} of prompts that are in no cache; None where the build has no sparse prefill."""
    seconds = {"dense": [], "xattention": []}
    for i, name in real.turns(["dense", "xattention"], rounds):
        lab.show(f"C4: prefill, round {i + 1} of {rounds}, {name}")
        sparse = {"algorithm": "dense", "prefill": name}
        try:
            answer = real.ask(server, prompt, 1, sparse, cache_prompt=False)
        except real.Refused as refused:
            if refused.error.get("code") == "unsupported_parameter":
                return None
            raise
        if answer["sparse"].get("prefill", "dense") != name:
            raise SystemExit(f"a prompt was computed as {answer['sparse'].get('prefill')}, not {name}")
        seconds[name].append(answer["timing"]["prefill_ms"] / 1000)
    return seconds


def long_point(lab, scale, store):
    """B = 1 at four times the model's context. The prompt is computed once and comes from the disk tier's store ever after."""
    prompt = real.whole_stripes(scale.long_context)
    arguments = [*YARN, "--kv-disk-path", store, "--kv-host-bytes", 2 * (prompt + 4096) * real.TOKEN_BYTES, "--max-num-seqs", 1,
                 "--max-num-batched-tokens", 2048]
    with real.serve(lab, 32768, *arguments) as server:
        text = real.prompts(server, 1, prompt)[0]
        lab.show(f"C4: prompt of {prompt}; from the store in {store} if it is there")
        first = real.ask(server, text, 1, {"algorithm": "dense"})
        stored = first["usage"]["prompt_tokens_details"]["spindle_cached"]["disk"]
        point = decode(lab, server, Point(1, prompt, scale.long_tokens, LONG_SHARE), [text], scale.rounds, f"B = 1 at {prompt}")
    return point, stored


def traced_tokens(lab, prompt_tokens):
    """{method: tokens in the pages that one decode step read, mean over layers that select}, out of a page-access trace.

    A server records pages only where it has a fast tier, so this one has; a selection does not depend on that.
    """
    found = {}
    for method in real.METHODS:
        lab.show(f"C4: memory trace, {method.name}")
        with tempfile.TemporaryDirectory() as folder:
            with real.serve(lab, 8192, "--kv-mode", "mirror", "--kv-fast-bytes", "512MiB", "--kv-trace", folder, "--max-num-seqs", 1) as server:
                real.ask(server, real.prompts(server, 1, prompt_tokens)[0], 3, method.sparse(SHARE))
            layers = traces.pages_by_layer(next(pathlib.Path(folder).glob("*-pages.trace")), LAYERS * HEADS)
        found[method.name] = statistics.mean(pages for layer, pages in layers.items() if layer >= method.dense_layers) * PAGE_TOKENS / HEADS
    return found


def whole_pages(method, point):
    """Tokens of the pages that a step of the point reads by the budget, where partitions are whole pages."""
    selected = -(-SHARE * point.context // method.unit) * method.unit
    return PAGE_TOKENS + selected + real.RECENT + (method.unit - 1) / 2 + PAGE_TOKENS / 2


def byte_gates(points, traced):
    checks = []
    point = points[-1]  # where KV outweighs the weights most
    for method in real.METHODS:
        asked = point.bytes_of(method, method.attended_tokens(SHARE, point.context, point.prompt))
        read = point.bytes_of(method)
        off = abs(sum(read) / sum(asked) - 1)
        checks.append(Gate(f"{method.name}: bytes of a step by attended tokens, beside the budget's", f"{100 * off:.1f} % off", f"at most {100 * BYTES_OFF:.0f} %",
                           off <= BYTES_OFF))
        if method.unit % PAGE_TOKENS == 0:
            trace_off = abs(sum(point.bytes_of(method, traced[method.name])) / sum(point.bytes_of(method, whole_pages(method, point))) - 1)
            checks.append(Gate(f"{method.name}: bytes of a step by the memory trace, beside the budget's pages", f"{100 * trace_off:.1f} % off",
                               f"at most {100 * BYTES_OFF:.0f} %", trace_off <= BYTES_OFF))
    return checks


def bar(method, point, plain):
    """The bound of a method's ratio: the line's, or a share of what its slow gathers leave of it."""
    machine = roofs.median(point.sustained)
    if machine.gather(method.granule) >= SLOW_GATHER:
        return plain
    return CEILING_SHARE * point.floor(real.DENSE, machine) / point.floor(method, machine)


def speed_gates(points):
    checks = []
    for point, each, best in ((p, *bars) for p, bars in zip(points, zip(EACH_BARS, BEST_BARS))):
        name = f"B = {point.batch} at {point.prompt}"
        ratios = {m.name: point.ratio(m) for m in real.METHODS}
        winner = max(ratios, key=ratios.get)
        checks.append(at_least(f"{name}: best, {winner}, times dense", ratios[winner], best))
        for method in real.METHODS:
            checks.append(at_least(f"{name}: {method.name}, times dense", ratios[method.name], bar(method, point, each)))
            checks.append(at_least(f"{name}: {method.name}, of the byte floor's rate", point.of_floor(method, point.sustained), FLOOR_SHARE))
    return checks


def long_gate(point):
    ratios = {m.name: point.ratio(m) for m in real.METHODS}
    winner = max(ratios, key=ratios.get)
    return at_least(f"B = 1 at {point.prompt}: best, {winner}, times dense", ratios[winner], LONG_BAR)


def prefill_gate(seconds):
    what = "xattention prefill, times dense prefill"
    if seconds is None:
        return Gate(what, "not in this build", f"at least {PREFILL_BAR}", False)
    return at_least(what, real.paired_ratio(seconds["dense"], seconds["xattention"]), PREFILL_BAR)


def rows_of(point):
    rows, machine = [], roofs.median(point.sustained)
    for method in (real.DENSE, *real.METHODS):
        seconds, (in_order, gathered) = statistics.median(point.seconds[method.name]), point.bytes_of(method)
        rows.append([f"B = {point.batch} at {point.prompt:,}, {100 * point.share:g} %: {method.name}", f"{1e3 * seconds:.2f}", f"{point.ratio(method):.2f}",
                     f"{point.attended[method.name]:.0f}", f"{(in_order + gathered) / 1e6:.1f}", f"{gathered / 1e6:.1f}",
                     f"{1e3 * point.floor(method, machine):.2f}", f"{point.of_floor(method, point.sustained):.2f}",
                     f"{point.of_floor(method, point.best_windows):.2f}"])
    return rows


def reads_table(points):
    """Of all rounds of all points."""
    sustained = [m for p in points for m in p.sustained]
    windows = roofs.best([m for p in points for m in p.best_windows])
    middle, least, most = roofs.median(sustained), roofs.over(sustained, min), roofs.over(sustained, max)

    def row(what, rate_of):
        return [what, *(f"{rate_of(m) / 1e9:.1f}" for m in (middle, least, most, windows))]

    return Table("Reads of this machine with both threads, GB/s, a second of each kind before every round; sustained: bytes over time, best window: the sum of "
                 "each thread's best half of a millisecond, which both need not have had at a time.", ["what", "sustained, median", "least", "most", "best window"],
                 [row("in order", lambda m: m.stream)] + [row(f"at random, {size:,} B", lambda m, size=size: m.gathers[size]) for size in windows.gathers])


def tables_of(points, traced, seconds, stored):
    tables = [Table(f"A step of decoding, {real.THREADS} threads, medians; times of dense: median over rounds in which the methods took turns. Tokens: "
                    "attended per layer and KV head where a layer selects, measured. MB: computed from them, with index and weights; floor: those bytes at "
                    "the rates below, gathered ones at the gather rate of what lies together; its share of the step: median over rounds, with the rates "
                    "measured in the round.",
                    ["point", "ms", "times dense", "tokens", "MB", "of them gathered", "floor, ms", "of the floor's rate", "with best windows"],
                    [row for point in points for row in rows_of(point)]),
              reads_table(points),
              Table(f"Tokens in the pages that one step read (memory trace, B = 1 at {points[0].prompt:,}), beside those attended. Clusters and "
                    "chunks fill no pages: a copy of pages moves more than attention reads in place.", ["method", "in pages", "attended", "ratio"],
                    [[name, f"{tokens:.0f}", f"{points[0].attended[name]:.0f}", f"{tokens / points[0].attended[name]:.2f}"] for name, tokens in traced.items()])]
    if seconds:
        tables.append(Table(f"Prefill of {points[0].prompt:,} tokens, no cache.", ["method", "s", "times dense"],
                            [[name, f"{statistics.median(of):.2f}", f"{real.paired_ratio(seconds['dense'], of):.2f}"] for name, of in seconds.items()]))
    tables[0].caption += f" The long prompt came from the store on disk in part: {stored:,} tokens." if stored else " The long prompt was computed in this run."
    return tables


def run(lab, options):
    scale = QUICK if options.quick else FULL
    points, seconds = short_points(lab, scale)
    long, stored = long_point(lab, scale, pathlib.Path(options.disk_folder) / "long_prompts")
    traced = traced_tokens(lab, points[0].prompt)
    checks = [*speed_gates(points), *byte_gates(points, traced), long_gate(long), prefill_gate(seconds)]
    data = {"points": [{**vars(p), **{kind: [vars(m) for m in getattr(p, kind)] for kind in ("best_windows", "sustained")}} for p in (*points, long)],
            "traced_tokens": traced, "prefill_seconds": seconds, "stored_tokens": stored}

    def chart(figure):
        names = [m.name for m in real.METHODS]
        charts.bars(figure, names, [(f"B = {p.batch} at {p.prompt:,}", [p.ratio(real.BY_NAME[n]) for n in names]) for p in (*points, long)],
                    "times dense", "Decoding sparsely")

    return Result("C4: speed of sparse decoding", tables_of([*points, long], traced, seconds, stored), checks, data, chart)
