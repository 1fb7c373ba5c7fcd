"""D4: bytes of page tables, two-level beside flat, and what a look-up costs."""
import charts
from common import Gate, Result, Table, at_least, at_most, median_of
from default_model import HEADS, LAYERS

CONTEXTS = [8192 << i for i in range(8)]  # 8K … 1M
SLOTS = [1, 4, 16, 64]
PAGE_TOKENS = [8, 16, 64]
WORKING_SET = 50  # one page in so many is resident: 2 %
KIB, MIB = 1 << 10, 1 << 20
LOOKUP_PAGE_TOKENS = 8


def context_name(tokens):
    return f"{tokens // MIB}M" if tokens >= MIB else f"{tokens // KIB}K"


def measure(lab):
    """{(context, slots, page tokens): figures}"""
    points = {}
    for tokens in CONTEXTS:
        for slots in SLOTS:
            for page_tokens in PAGE_TOKENS:
                resident = max(1, tokens // page_tokens // WORKING_SET)
                points[f"{LAYERS}:{HEADS}:{page_tokens}:{slots}:{tokens}:{resident}"] = (tokens, slots, page_tokens)
    lab.show(f"D4: tables of {len(points)} shapes")
    return {points[figures["point"]]: figures for figures in lab.json_lines("metadata_bench", *points)}


def look_ups(lab, rounds):
    """{pages: (two-level ns, flat ns)} of 90 groups with 2 % of their pages resident."""
    lab.show("D4: look-ups")
    cases = lab.bench("kv_bench", f"^Lookup<.*/{LAYERS * HEADS}$", rounds)
    ns = {}
    for name, entries in cases.items():
        table, pages, resident, _ = name.split("/")
        if int(resident) == int(pages) // WORKING_SET:
            ns.setdefault(int(pages), {})[table] = 1e9 * median_of(entries, "lookup")
    return {pages: (of["Lookup<TwoLevel>"], of["Lookup<Flat>"]) for pages, of in sorted(ns.items())}


def mib(size):
    return f"{size / MIB:,.2f}" if size < 100 * MIB else f"{size / MIB:,.0f}"


def row(label, figures):
    fast, tight = figures["fast_bytes"], figures["flat_tight_bytes"]
    return [label, mib(tight), mib(fast), f"{tight / fast:.1f}", f"{figures['flat_worst_bytes'] / fast:.0f}", f"{figures['host_bytes'] / KIB:,.0f}"]


HEADER = ["flat, fast MiB", "two-level, fast MiB", "times less", "times less than one-token partitions", "two-level, host KiB"]


def run(lab, options):
    found = measure(lab)
    ns = look_ups(lab, options.rounds)
    checks = []
    for page_tokens in PAGE_TOKENS:
        figures = found[131072, 16, page_tokens]
        checks.append(at_least(f"flat over two-level at 128K, 2 % resident, pages of {page_tokens} tokens",
                               figures["flat_tight_bytes"] / figures["fast_bytes"], 40, "{:.1f}"))
    wrong = [key for key, f in found.items() if f["flat_allocated_bytes"] not in (0, f["flat_tight_bytes"])]
    checks.append(Gate("flat tables that did not take what they were computed to", len(wrong), "none", not wrong))
    checks.append(at_most("two-level look-up over flat at 128K", ns[131072 // LOOKUP_PAGE_TOKENS][0] / ns[131072 // LOOKUP_PAGE_TOKENS][1], 1.5))
    caption = (f"Bytes really taken by the tables of {LAYERS} layers × {HEADS} KV heads, every slot with a request of the whole context, 2 % of its pages "
               "resident, refault maps on. Flat: four tables of 8 bytes per page, for the longest context; above 1 GiB computed (allocated below, "
               "where both agree).")
    tables = [
        Table(f"{caption} By context, 16 slots, pages of 8 tokens:", ["context"] + HEADER, [row(context_name(c), found[c, 16, 8]) for c in CONTEXTS]),
        Table("By slots, 128K, pages of 8 tokens:", ["slots"] + HEADER, [row(str(s), found[131072, s, 8]) for s in SLOTS]),
        Table("By page size, 128K, 16 slots:", ["tokens per page"] + HEADER, [row(str(p), found[131072, 16, p]) for p in PAGE_TOKENS]),
        Table(f"Look-up, pages of {LOOKUP_PAGE_TOKENS} tokens, {LAYERS * HEADS} groups in turn, 95 % of the pages resident:",
              ["context", "two-level, ns", "flat, ns", "ratio"],
              [[context_name(p * LOOKUP_PAGE_TOKENS), f"{two:.1f}", f"{flat:.1f}", f"{two / flat:.2f}"] for p, (two, flat) in ns.items()])]

    def chart(figure):
        series = [(f"flat, pages of {p} tokens", CONTEXTS, [found[c, 16, p]["flat_tight_bytes"] / MIB for c in CONTEXTS]) for p in PAGE_TOKENS]
        series += [(f"two-level, pages of {p} tokens", CONTEXTS, [found[c, 16, p]["fast_bytes"] / MIB for c in CONTEXTS]) for p in PAGE_TOKENS]
        charts.lines(figure, series, "context, tokens", "fast-tier metadata, MiB", "16 slots, 2 % of the pages resident", log=True)

    data = {"tables": list(found.values()), "look_ups_ns": {str(p * LOOKUP_PAGE_TOKENS): of for p, of in ns.items()}}
    return Result("D4: metadata", tables, checks, data, chart)
