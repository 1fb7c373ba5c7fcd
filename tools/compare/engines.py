"""The engines that compare.py measures, each as measure(point) → tokens per second."""
import dataclasses
import json
import pathlib
import random
import shlex
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tests/e2e"))

import harness  # noqa: E402

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
    """A server of the given binary, driven over HTTP on this machine; it is started anew for every measurement."""

    name = "spindle"

    def __init__(self, binary, model, threads):
        harness.BINARY, harness.MODEL = binary, model
        self.threads = threads
        self.seed = 0

    def measure(self, point):
        self.seed += 1
        rng = random.Random(self.seed)
        prompts = [[rng.randrange(*VOCABULARY) for _ in range(point.context)] for _ in range(point.batch)]
        arguments = ["--threads", str(self.threads), "--max-num-seqs", str(max(point.batch, 1)),
                     "--max-model-len", str(point.context + GENERATED + 64), "--log-level", "warn"]
        with harness.Server(*arguments, fixture=False) as server:
            stream_times(server, prompts[0][:64], 8)
            if point.kind == "prefill":
                started, times = stream_times(server, prompts[0], 1)
                return point.context / (times[0] - started)
            for prompt in prompts:
                stream_times(server, prompt, 1)
            return decode_rate(server, prompts)

    def close(self):
        pass


def stream_times(server, prompt, tokens):
    """Start of the request, and when each token event arrived."""
    body = {"model": "smol", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True, "logprobs": 0}
    started = time.perf_counter()
    stream = server.stream("/v1/completions", body)
    times = []
    for event in stream.events():
        if event != "[DONE]":
            for choice in event["choices"]:
                logprobs = choice["logprobs"]
                times += [time.perf_counter()] * (len(logprobs["tokens"]) if logprobs else 0)
    stream.close()
    return started, times


def decode_rate(server, prompts):
    """Tokens of all sequences while all of them decode; their prompts are in the prefix cache."""
    results = []
    threads = [threading.Thread(target=lambda p=p: results.append(stream_times(server, p, GENERATED)[1])) for p in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    begin = max(times[0] for times in results)
    end = min(times[-1] for times in results)
    return sum(sum(begin < t <= end for t in times) for times in results) / (end - begin)


class LlamaBench:
    """llama-batched-bench of llama.cpp or ik_llama.cpp; one process per measurement."""

    def __init__(self, name, folder, model, threads, flags):
        self.name = name
        self.command = [str(pathlib.Path(folder) / "llama-batched-bench"), "-m", model, "-t", str(threads), "-tb", str(threads),
                        *shlex.split(flags)]

    def measure(self, point):
        context = point.batch * (point.context + GENERATED) + 256
        generated = GENERATED if point.kind == "decode" else 1
        run = subprocess.run([*self.command, "-c", str(context), "-npp", str(point.context), "-ntg", str(generated), "-npl", str(point.batch)],
                             capture_output=True, text=True, check=True)
        # | PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | …
        for line in run.stdout.splitlines():
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
