"""What the experiments share: results with tables and gates, runs of the simulator and of benches, the state of the machine."""
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "e2e"), str(ROOT / "tests" / "stress")]

from progress import Progress  # noqa: E402

PROFILES = ["sticky", "medium", "loose"]


class Table:
    """A Markdown table. Cells are text; the first column is a label, the others numbers."""

    def __init__(self, caption, header, rows):
        self.caption, self.header, self.rows = caption, header, rows

    def markdown(self):
        lines = ["| " + " | ".join(self.header) + " |", "|---" + "|---:" * (len(self.header) - 1) + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return f"{self.caption}\n\n" + "\n".join(lines)


class Gate:
    """A figure and the bound that it has to keep."""

    def __init__(self, what, value, bound, passed):
        self.what, self.value, self.bound, self.passed = what, value, bound, bool(passed)

    def line(self):
        return f"{'PASS' if self.passed else 'FAIL'}  {self.what}: {self.value} ({self.bound})"


def at_most(what, value, bound, form="{:.2f}"):
    return Gate(what, form.format(value), "at most " + form.format(bound), value <= bound)


def at_least(what, value, bound, form="{:.2f}"):
    return Gate(what, form.format(value), "at least " + form.format(bound), value >= bound)


class Result:
    """What an experiment found. `data`: all figures, for JSON; `chart`: draws them into a matplotlib figure."""

    def __init__(self, title, tables, gates, data, chart=None):
        self.title, self.tables, self.gates, self.data, self.chart = title, tables, gates, data, chart

    @property
    def passed(self):
        return all(gate.passed for gate in self.gates)

    def markdown(self):
        return "\n\n".join(table.markdown() for table in self.tables)


class Lab:
    """Where binaries and the model are, and how progress is shown."""

    def __init__(self, bin_folder, model, disk_folder):
        self.bin, self.model, self.disk_folder = pathlib.Path(bin_folder).resolve(), model, disk_folder
        self.line = Progress()

    def show(self, text):
        self.line.show(text)

    def need_model(self):
        if not self.model:
            raise SystemExit("this experiment runs a server: give --model (tools/fetch_model.sh prints where it is)")
        return self.model

    def run(self, name, *arguments):
        """Standard output of a binary. Its progress goes where ours does."""
        path = self.bin / name
        if not path.exists():
            raise SystemExit(f"{path} is missing: tools/build.sh release {name}")
        process = subprocess.run([path, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if process.returncode != 0:
            raise SystemExit(f"{name} {' '.join(map(str, arguments))} ended with {process.returncode}:\n{process.stderr}{process.stdout}")
        return process.stdout

    def simulate(self, *arguments):
        """The report of `spindle kv sim`."""
        return json.loads(self.run("spindle", "kv", "sim", "--json", *arguments))

    def bench(self, name, pattern, rounds, *arguments):
        """{case: [entries of its rounds]} of a Google Benchmark binary; the cases take turns."""
        out = self.run(name, *arguments, "--benchmark_format=json", f"--benchmark_filter={pattern}", f"--benchmark_repetitions={rounds}",
                       "--benchmark_enable_random_interleaving=true", "--benchmark_min_time=0.1")
        return by_case(out)

    def json_lines(self, name, *arguments):
        return [json.loads(line) for line in self.run(name, *arguments).splitlines()]


def by_case(out):
    """Rounds of each case in a Google Benchmark report, without its own aggregates."""
    cases = {}
    for entry in json.loads(out)["benchmarks"]:
        if entry["run_type"] == "iteration":
            cases.setdefault(entry["run_name"], []).append(entry)
    return cases


def median_of(entries, key):
    return statistics.median(entry[key] for entry in entries)


def percent(part):
    return f"{100 * part:.1f}"


def machine():
    """The day, the processor and how busy it was: what a time figure has to be read with."""
    model = "unknown processor"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    today = datetime.date.today()
    return f"{today.day} {today:%B %Y}, {os.cpu_count()} cores of {model}, load average {os.getloadavg()[0]:.1f} at the start"
