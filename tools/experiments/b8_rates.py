"""B8: gather and disk loads beside what the machine gives, and bookkeeping beside a decode step."""
import statistics

import served
from common import Gate, Result, Table, at_least, by_case, median_of, percent

DISK_CASES = {"store_loads_depth_16": "store, depth 16", "plain_reads_depth_16": "plain reads, 16 threads", "store_loads_threads": "store without io_uring"}
COPIES = {"GatherPages": "gather", "MemcpyScattered": "memcpy at the same places", "MemcpyInOrder": "memcpy in order"}
STEP_POINTS = ["decode:1:8000", "decode:1:1024"]
BOOKKEEPING = {"DecodeStep/8192/32/10": "10 % of the pages new", "DecodeStep/8192/32/30": "30 % of the pages new"}
STEP_ROUNDS = 3
MAX_SHARE = 0.02


def copies(lab, rounds):
    """Bytes per second: the tier's gather; memcpy at the same places; memcpy in order."""
    lab.show("B8: gather")
    cases = lab.bench("kv_bench", f"^({'|'.join(COPIES)})/4096$", rounds)
    return {name: median_of(cases[f"{name}/4096"], "bytes_per_second") for name in COPIES}


def disk(lab):
    lab.show("B8: disk loads, about a minute")
    out = lab.run("disk_bench", lab.disk_folder, "--benchmark_format=json", "--benchmark_enable_random_interleaving=true")
    cases = {name.split("/")[0]: entries for name, entries in by_case(out).items()}
    is_direct = all(entry["direct"] == 1 for entry in cases["store_loads_depth_16"])
    return {name: median_of(entries, "bytes_per_second") for name, entries in cases.items()}, is_direct


def steps(lab):
    """{what: seconds of a decode step}"""
    lab.show("B8: decode steps")
    rates = {point: [] for point in STEP_POINTS}
    for found in lab.json_lines("engine_bench", lab.need_model(), "--rounds", STEP_ROUNDS, *STEP_POINTS):
        rates[found["point"]].append(found["tokens_per_s"])
    seconds = {f"dense, context of {point.split(':')[2]}": 1 / statistics.median(of) for point, of in rates.items()}
    lab.show("B8: decode step with selected pages")
    seconds["32 pages of 8K selected (synthetic), read in place"] = served.decode(lab, "medium", mode="in-place").step_seconds
    return seconds


def run(lab, options):
    rates = copies(lab, options.rounds)
    loads, is_direct = disk(lab)
    lab.show("B8: bookkeeping")
    work = {name: median_of(entries, "real_time") * 1e-6 for name, entries in lab.bench("kv_bench", "^DecodeStep/8192", options.rounds).items()}
    seconds = steps(lab)
    checks = [at_least("gather of 4 KiB pages over memcpy of 4 KiB at random places", rates["GatherPages"] / rates["MemcpyScattered"], 0.8),
              at_least("disk loads at depth 16 over plain reads", loads["store_loads_depth_16"] / loads["plain_reads_depth_16"], 0.8),
              Gate("the store reads past the page cache", "yes" if is_direct else "no", "yes", is_direct)]
    rows = []
    for name, text in BOOKKEEPING.items():
        for what, step in seconds.items():
            rows.append([f"{text}; {what}", f"{1e6 * work[name]:.0f}", f"{1e3 * step:.2f}", f"{100 * work[name] / step:.2f}"])
    share = max(work.values()) / min(seconds.values())
    checks.append(Gate("bookkeeping of a decode step, largest part of any step", f"{100 * share:.2f} %", f"at most {percent(MAX_SHARE)} %",
                       share <= MAX_SHARE))
    tables = [Table("Copies and loads, GB/s.", ["what", "GB/s"],
                    [[f"4 KiB, one core: {text}", f"{rates[name] / 1e9:.2f}"] for name, text in COPIES.items()]
                    + [[f"disk: {text}", f"{loads[name] / 1e9:.2f}"] for name, text in DISK_CASES.items()]),
              Table("Metadata and LRU work of a decode step (90 groups, 8K, 32 pages each at ratio 5, one core) beside the step (two cores).",
                    ["work; step", "work, µs", "step, ms", "share, %"], rows)]
    return Result("B8: rates", tables, checks, {"copies": rates, "disk": loads, "bookkeeping_seconds": work, "step_seconds": seconds})
