"""D8: the copy path, by page size: one copy per page beside the batched gather, and several threads."""
import charts
from common import Result, Table, at_least, median_of

SIZES = [4096, 16384, 65536, 262144]
# The link of a CPU host is its memory: what one core copies in order.
COPIES = {"GatherPages": "gather", "MemcpyScattered": "one memcpy per page", "MemcpyInOrder": "memcpy in order"}
GATE_SIZE, MIN_SHARE = 16384, 0.8
THREADS = [1, 2]


def run(lab, options):
    lab.show("D8: copies")
    rounds = 2 if options.quick else max(5, options.rounds)
    cases = lab.bench("kv_bench", f"^({'|'.join(COPIES)})/[0-9]+(/real_time/threads:2)?$", rounds)

    def case(name, size, threads):
        return cases[f"{name}/{size}" + ("" if threads == 1 else f"/real_time/threads:{threads}")]

    keys = [(name, size, threads) for name in COPIES for size in SIZES for threads in THREADS]
    busy = {key: median_of(case(*key), "cpu_time") / median_of(case(*key), "real_time") for key in keys}
    # The bench counts one thread's bytes by its CPU time, those of several by the clock.
    rates = {key: median_of(case(*key), "bytes_per_second") * (busy[key] if key[2] == 1 else 1) for key in keys}
    rows = [[f"{size // 1024} KiB, {threads} {'thread' if threads == 1 else 'threads'}"] + [f"{rates[name, size, threads] / 1e9:.2f}" for name in COPIES]
            + [f"{rates['GatherPages', size, threads] / rates['MemcpyInOrder', size, threads]:.2f}", f"{busy['GatherPages', size, threads]:.2f}"]
            for threads in THREADS for size in SIZES]
    checks = [at_least(f"gather of {GATE_SIZE // 1024} KiB pages, {threads} thread(s), of memcpy in order",
                       rates["GatherPages", GATE_SIZE, threads] / rates["MemcpyInOrder", GATE_SIZE, threads], MIN_SHARE) for threads in THREADS]
    tables = [Table("Copies between host memory and the fast tier, GB/s. The link of a CPU host is its memory: what memcpy moves in order, on as many threads.",
                    ["pages", *COPIES.values(), "gather ÷ in order", "CPU time ÷ time of a gather, per thread"], rows)]

    def chart(figure):
        charts.lines(figure, [(f"{text}, {threads} thread(s)", [size / 1024 for size in SIZES], [rates[name, size, threads] / 1e9 for size in SIZES])
                              for name, text in COPIES.items() for threads in THREADS], "page, KiB", "GB/s", "Copy path", log=True)

    return Result("D8: copy path", tables, checks, {"bytes_per_second": {"/".join(map(str, key)): rate for key, rate in rates.items()}}, chart)
