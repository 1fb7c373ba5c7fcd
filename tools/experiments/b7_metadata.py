"""B7: metadata of the fast tier against the formula and flat tables, and a look-up beside a flat array's."""
from common import Result, Table, at_least, at_most, median_of

MIB = 1 << 20
# A 70B model with 32 requests of 128K: 80 layers × 8 KV heads, pages of 8 tokens, 256 selected at ratio 5; the default model with 16 of 8K.
LARGE, SMALL = "80:8:8:32:131072:1534", "30:3:16:16:8192:192"
NAMES = {LARGE: "70B, 32 requests of 128K", SMALL: "135M, 16 requests of 8K"}
SHAPES = {"16384/1534/640": "128K, 640 groups, 1,534 resident pages each", "512/192/90": "8K, 90 groups, 192 resident pages each"}


def run(lab, options):
    lab.show("B7: tables")
    found = [f for maps in ([], ["--no-refault-maps"]) for f in lab.json_lines("metadata_bench", *maps, LARGE, SMALL)]
    lab.show("B7: look-ups")
    ns = {name: 1e9 * median_of(entries, "lookup") for name, entries in lab.bench("kv_bench", "^Lookup<", options.rounds).items()}
    rows, checks = [], []
    for f in found:
        name = NAMES[f["point"]] + ("" if f["refault_maps"] else ", no refault maps")
        over, worst, tight = (f["fast_bytes"] / f["formula_bytes"], f["flat_worst_bytes"] / f["fast_bytes"], f["flat_tight_bytes"] / f["fast_bytes"])
        rows.append([name, f"{f['fast_bytes'] / MIB:.1f}", f"{over:.2f}", f"{worst:.0f}", f"{tight:.1f}"])
        checks.append(at_most(f"{name}: measured over the formula", over, 1.05))
        if f["point"] == LARGE:
            checks.append(at_least(f"{name}: times below flat tables of one-token partitions", worst, 200, "{:.0f}"))
            checks.append(at_least(f"{name}: times below flat tables of pages", tight, 20, "{:.1f}"))
    pairs = {text: (ns[f"Lookup<TwoLevel>/{shape}"], ns[f"Lookup<Flat>/{shape}"]) for shape, text in SHAPES.items()}
    checks += [at_most(f"look-up, {text}, ns", two, 15, "{:.1f}") for text, (two, _) in pairs.items()]
    tables = [Table("Metadata in fast memory, measured.", ["case", "MiB", "of the formula", "times below flat, one-token partitions", "times below flat, pages"], rows),
              Table("Look-up: two cache lines, that of the entry and that of the slot.", ["case", "two-level, ns", "flat, ns"],
                    [[text, f"{two:.1f}", f"{flat:.1f}"] for text, (two, flat) in pairs.items()])]
    return Result("B7: metadata", tables, checks, {"tables": found, "look_ups_ns": ns})
