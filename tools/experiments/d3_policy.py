"""D3: replacement policies: hit ratio and cost."""
import charts
from common import PROFILES, Result, Table, at_most, median_of
from lockstep import GATED_SHAPE, MAX_BOOKKEEPING_SHARE

POLICIES = ["lru", "bucketed", "bucketed:16", "bucketed:8", "bucketed:4", "clock", "fifo", "random", "belady"]
RATIOS = [1, 3, 5]
SEEDS = 24
SHAPES = {"90/192/32/512": "8K, 90 groups of 192 frames", "90/192/32/2048": "32K, 90 groups of 192 frames",
          "640/1536/256/16384": "128K, 640 groups of 1,536 frames"}
NAMES = {"lru": "exact LRU", "bucketed": "bucketed LRU, 64 buckets", "bucketed:16": "bucketed LRU, 16 buckets", "bucketed:8": "bucketed LRU, 8 buckets",
         "bucketed:4": "bucketed LRU, 4 buckets", "clock": "CLOCK", "fifo": "FIFO", "random": "random", "belady": "Belady"}


def hit_ratios(lab):
    """{policy: {(profile, ratio): hit ratio}}"""
    hits = {policy: {} for policy in POLICIES}
    for profile in PROFILES:
        lab.show(f"D3: {profile} selections")
        report = lab.simulate("--synthetic", profile, "--seeds", SEEDS, "--policy", ",".join(POLICIES), "--ratio", ",".join(map(str, RATIOS)))
        results = iter(report["results"])
        for policy in POLICIES:
            for ratio in RATIOS:
                hits[policy][profile, ratio] = next(results)["hit_ratio"]
    return hits


def costs(lab, rounds):
    """{policy: ns per simulated access}, {(policy, shape): µs of bookkeeping per step}"""
    lab.show("D3: cost of an access")
    accesses = {name.split("/")[1]: 1e9 / median_of(entries, "items_per_second")
                for name, entries in lab.bench("kv_sim_bench", "^Simulate/", rounds).items()}
    lab.show("D3: cost of recency")
    steps = {}
    for name, entries in lab.bench("kv_sim_bench", "^Bookkeeping/", rounds).items():
        _, policy, shape = name.split("/", 2)
        steps[policy, shape] = median_of(entries, "cpu_time")
    return accesses, steps


def run(lab, options):
    hits = hit_ratios(lab)
    accesses, steps = costs(lab, options.rounds)
    header = ["policy"] + [f"{profile}, ratio {ratio}" for profile in PROFILES for ratio in RATIOS] + ["ns per access"]
    rows = [[NAMES[policy]] + [f"{100 * h:.1f}" for h in hits[policy].values()] + [f"{accesses[policy]:.1f}"] for policy in POLICIES]
    kept = [policy for policy in POLICIES if (policy, next(iter(SHAPES))) in steps]
    step_rows = [[NAMES[policy]] + [f"{steps[policy, shape]:.1f} ({steps[policy, shape] / steps['lru', shape]:.2f})" for shape in SHAPES]
                 for policy in kept]

    def distance(policy):
        return 100 * max(abs(hits[policy][point] - hits["lru"][point]) for point in hits["lru"])

    checks = [at_most("bucketed LRU against exact LRU, largest difference in points", distance("bucketed"), 1)]
    checks.append(at_most(f"recency of bucketed over exact LRU, {SHAPES[GATED_SHAPE]}", steps["bucketed", GATED_SHAPE] / steps["lru", GATED_SHAPE],
                          MAX_BOOKKEEPING_SHARE))
    checks.append(at_most("policies that beat Belady", sum(
        hits[policy][point] > hits["belady"][point] + 1e-12 for policy in POLICIES for point in hits["lru"]), 0, "{:d}"))
    tables = [Table(f"Hit ratio in % on **synthetic selections** (32 of 2,048 pages, {SEEDS} seeds), and time per access in the simulator, look-ups included "
                    "(medium selections, 192 frames).", header, rows),
              Table("Recency alone, without look-ups: µs per step of all groups, and the share of exact LRU's.", ["policy"] + list(SHAPES.values()), step_rows)]
    data = {"hits": {policy: {f"{p}/{r}": h for (p, r), h in of.items()} for policy, of in hits.items()}, "ns_per_access": accesses,
            "bookkeeping_us": {f"{p}/{s}": t for (p, s), t in steps.items()}, "points_from_exact": {p: distance(p) for p in POLICIES}}

    def chart(figure):
        charts.bars(figure, [NAMES[p] for p in POLICIES],
                    [(f"{profile}, ratio 3", [100 - 100 * hits[p][profile, 3] for p in POLICIES]) for profile in PROFILES],
                    "miss ratio, %", "Synthetic selections, simulated")

    return Result("D3: replacement policies", tables, checks, data, chart)
