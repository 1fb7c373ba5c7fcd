"""A server whose disk misbehaves: `faulty_server`, built beside the binary under test, with the plan that it follows."""
import json
import pathlib
import shutil
import signal
import tempfile
import time

import harness

# Faults of segment files that the server must count one for one: the fault's name in the report, and the counter.
COUNTED = {
    "read_errors": ("spindle_kv_disk_errors_total", {"op": "read", "cause": "io"}),
    "write_errors": ("spindle_kv_disk_errors_total", {"op": "write", "cause": "io"}),
    "no_space": ("spindle_kv_disk_errors_total", {"op": "write", "cause": "nospace"}),
    "short_reads": ("spindle_kv_disk_short_transfers_total", {"op": "read"}),
    "short_writes": ("spindle_kv_disk_short_transfers_total", {"op": "write"}),
    "sync_errors": ("spindle_kv_disk_errors_total", {"op": "sync", "cause": "io"}),
    "unlink_errors": ("spindle_kv_disk_errors_total", {"op": "unlink", "cause": "io"}),
}
# A transfer that stays short after it was continued three times is an error, too.
MAX_SHORT = {"read_errors": "short_reads", "write_errors": "short_writes"}
# Stalls are no errors: they show as loads that were late. Flips count when they are read, so what is compared is the number of reads that
# brought a wrong bit. One read counts once here; a transfer that came in several parts may bring two such reads, or fail after the first.
DAMAGE = ("spindle_kv_disk_errors_total", {"op": "read", "cause": "damage"})


def binary():
    return pathlib.Path(harness.BINARY).with_name("faulty_server")


class FaultyServer(harness.Server):
    """Stores below `folder`. `disk`: what no option of the server sets, see tests/stress/faulty_server.cc."""

    def __init__(self, folder, *extra, rates=None, disk=None, seed=1, **kwargs):
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="spindle-faults-"))
        self.plan = {"report": str(self.scratch / "report.json"), "seed": seed, "rates": rates or {}, "disk": disk or {}}
        self.reports = 0
        self.write_plan()
        super().__init__("--kv-disk-path", folder, "--kv-disk-bytes", "4GiB", "--kv-disk-min-free", "1MiB", *extra,
                         binary=str(binary()), environment={"FAULT_PLAN": str(self.scratch / "plan.json")}, **kwargs)

    def write_plan(self):
        (self.scratch / "plan.json").write_text(json.dumps(self.plan))

    def stop(self, timeout=30):
        super().stop(timeout)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def report(self):
        """The faults so far, by class of file."""
        path = pathlib.Path(self.plan["report"])
        self.reports += 1
        self.process.send_signal(signal.SIGUSR1)
        self.wait_for(lambda: path.exists() and json.loads(path.read_text())["number"] >= self.reports, what="the report of faults")
        report = json.loads(path.read_text())
        assert "error" not in report, report
        return report

    def set_rates(self, **rates):
        """Returns the report: no fault of the old rates begins afterwards."""
        self.plan["rates"] = rates
        self.write_plan()
        return self.report()

    def settle(self, timeout=60):
        """Until nothing runs, no transfer is under way, and the counters say so."""
        def idle():
            return (self.metric_sum("spindle_running_requests") == 0
                    and self.metric_sum("spindle_kv_used_bytes", state="inflight") == 0)
        self.wait_for(lambda: idle() and idle(), timeout, "an idle disk")

    def state(self):
        samples = self.metrics()[0]
        return next(state for state in ("ok", "readonly", "degraded", "off")
                    if any(f'state="{state}"' in series and value for series, value in samples.items()
                           if series.startswith("spindle_kv_disk_state{")))

    def disk_hits(self):
        """Stripes that came from disk for requests."""
        return self.metric_sum("spindle_kv_prefix_hits_total", tier="disk", unit="stripes")

    def uncounted(self):
        """What the server's counters do not say of the injected faults: a list of complaints."""
        self.settle()
        deadline = time.monotonic() + 5
        while (complaints := self.compare_counts()) and time.monotonic() < deadline:
            time.sleep(0.2)  # a group commit is under way
        return complaints

    def compare_counts(self):
        segments = self.report()["segments"]
        complaints = []
        for fault, (name, labels) in COUNTED.items():
            counted = self.metric_sum(name, **labels)
            most = segments[fault] + (segments[MAX_SHORT[fault]] // 4 if fault in MAX_SHORT else 0)
            if not segments[fault] <= counted <= most:
                complaints.append(f"{segments[fault]} {fault} injected, {counted:.0f} counted")
        damaged, counted = segments["damaged_reads"], self.metric_sum(DAMAGE[0], **DAMAGE[1])
        if not damaged - segments["short_reads"] <= counted <= damaged:
            complaints.append(f"{damaged} reads brought wrong bits, {counted:.0f} were noticed")
        return complaints
