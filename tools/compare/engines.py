"""The engines that compare.py measures, each as measure(point) → tokens per second."""
import dataclasses
import json
import pathlib
import shlex
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

GENERATED = 128
VOCABULARY = (1000, 40000)  # ordinary tokens of the default model


@dataclasses.dataclass(frozen=True)
class Point:
    kind: str  # "decode" or "prefill"
    batch: int
    context: int

    def __str__(self):
        return f"decode B={self.batch} at {self.context}" if self.kind == "decode" else f"prefill {self.context}"


class Spindle:
    """engine_bench of the given folder: the whole engine in process, as the other engines are measured; one process per measurement."""

    def __init__(self, folder, model, threads, sparse=""):
        """`sparse`: ALGORITHM:PERCENT of the context that decoding selects; "": dense."""
        self.name = "spindle" if not sparse else f"spindle, {sparse.replace(':', ' ')} %"
        self.sparse = sparse
        self.command = [str(pathlib.Path(folder) / "engine_bench"), model, "--threads", str(threads), "--generated", str(GENERATED)]

    def measure(self, point):
        name = f"decode:{point.batch}:{point.context}" if point.kind == "decode" else f"prefill:{point.context}"
        if self.sparse and point.kind == "decode":
            name += f":{self.sparse}"
        run = subprocess.run([*self.command, name], capture_output=True, text=True, check=True)
        return json.loads(run.stdout)["tokens_per_s"]

    def close(self):
        pass


class LlamaBench:
    """llama-batched-bench of llama.cpp or ik_llama.cpp; one process per measurement."""

    def __init__(self, name, folder, model, threads, flags):
        self.name = name
        self.command = [str(pathlib.Path(folder).resolve() / "llama-batched-bench"), "-m", str(pathlib.Path(model).resolve()), "-t", str(threads), "-tb", str(threads),
                        *shlex.split(flags)]

    def measure(self, point):
        context = point.batch * (point.context + GENERATED) + 256
        generated = GENERATED if point.kind == "decode" else 1
        with tempfile.TemporaryDirectory() as folder:  # it writes a log where it runs
            run = subprocess.run([*self.command, "-c", str(context), "-npp", str(point.context), "-ntg", str(generated), "-npl", str(point.batch)],
                                 capture_output=True, text=True, check=True, cwd=folder)
        # | PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | …
        for line in (run.stdout + run.stderr).splitlines():
            cells = [c.strip() for c in line.strip().strip("|").split("|")]
            if len(cells) >= 8 and cells[0] == str(point.context):
                return float(cells[7] if point.kind == "decode" else cells[5])
        raise RuntimeError(f"{self.name}: no row in\n{run.stdout}\n{run.stderr[-2000:]}")

    def close(self):
        pass


class OpenVino:
    """OpenVINO GenAI in its own Python; one process for all measurements, since it compiles the model at start."""

    name = "OpenVINO GenAI"

    def __init__(self, python, model, threads):
        self.process = subprocess.Popen([python, str(HERE / "openvino_worker.py"), model, str(threads)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def measure(self, point):
        request = {"kind": point.kind, "batch": point.batch, "context": point.context, "generated": GENERATED, "vocabulary": VOCABULARY}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        while line := self.process.stdout.readline():
            if line.startswith("rate "):
                return float(line.split()[1])
        raise RuntimeError("the OpenVINO worker ended")

    def close(self):
        self.process.stdin.close()
        self.process.wait()
