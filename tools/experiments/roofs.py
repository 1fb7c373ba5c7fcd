"""What this machine reads per second, as the benches measure it when they start."""
import re

GATHER = re.compile(r"gather roof\s+(\d+) B\s+([0-9.]+) GB/s")
STREAM = re.compile(r"streaming reads\s+([0-9.]+) GB/s")


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
    out = lab.run("attention_bench", "--benchmark_filter=^$")
    stream = STREAM.search(out)
    gathers = {int(size): float(rate) * 1e9 for size, rate in GATHER.findall(out)}
    if not stream or not gathers:
        raise SystemExit(f"attention_bench printed no roofs:\n{out}")
    return Roofs(float(stream[1]) * 1e9, gathers)


def best(before, after):
    """Neighbours only ever make a measurement slower."""
    return Roofs(max(before.stream, after.stream), {size: max(rate, after.gathers[size]) for size, rate in before.gathers.items()})
