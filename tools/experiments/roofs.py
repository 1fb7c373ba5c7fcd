"""What this machine reads per second, as the benches measure it when they start.

Two figures: the best of short windows, each thread's own, and what all threads together kept up for a second. On a shared machine they can differ
by a factor of two, and the second one drifts: a floor for work that lasts takes sustained rates, measured beside that work.
"""
import re
import statistics

GATHER = re.compile(r"gather roof\s+(\d+) B\s+([0-9.]+) GB/s, ([0-9.]+) sustained")
STREAM = re.compile(r"streaming reads\s+([0-9.]+) GB/s from memory, ([0-9.]+) sustained")


class Roofs:
    """Bytes per second: reads in order, and random reads by the size of what lies together."""

    def __init__(self, stream, gathers):
        self.stream, self.gathers = stream, gathers

    def gather(self, granule):
        """The largest measured size that is no larger; reads in order where nothing is gathered."""
        sizes = [size for size in self.gathers if size <= granule]
        return self.gathers[max(sizes)] if sizes else self.stream

    def seconds(self, in_order, gathered, granule):
        """A floor: both kinds of reads, one after the other."""
        return in_order / self.stream + gathered / self.gather(granule)


def measure(lab):
    """(best windows, sustained)"""
    out = lab.run("attention_bench", "--benchmark_filter=^$")
    stream, gathers = STREAM.search(out), GATHER.findall(out)
    if not stream or not gathers:
        raise SystemExit(f"attention_bench printed no roofs:\n{out}")
    return tuple(Roofs(float(stream[kind]) * 1e9, {int(row[0]): float(row[kind]) * 1e9 for row in gathers}) for kind in (1, 2))


def over(machines, choose):
    """Of several measurements, each figure by itself: `choose` max, statistics.median or the like."""
    return Roofs(choose([m.stream for m in machines]), {size: choose([m.gathers[size] for m in machines]) for size in machines[0].gathers})


def best(machines):
    """Neighbours only ever make a window slower."""
    return over(machines, max)


def median(machines):
    return over(machines, statistics.median)
