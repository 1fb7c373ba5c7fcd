#!/usr/bin/env python3
"""Memory test of the start-up table: whatever is asked of a server, its resident size stays below the sum of the memory plan it printed.

Serves the model in several configurations under loads that fill what the plan names, samples the resident size from the start of the process
to its end, and compares the peak with the plan's total + 2 %. Counted is Rss of /proc/PID/smaps_rollup: pages of shared libraries and of the
mapped model file count in full, as in the table (Pss would divide them by the processes that map them). The kernel's own high-water mark
(VmHWM) is read as well, so that no peak hides between two samples.

Every load says what it has filled; a load that fills nothing fails the test.

use: memory_plan.py --binary BIN --model GGUF [--only NAME…] [--seconds 40] [--json FILE]
"""
import argparse
import concurrent.futures
import json
import pathlib
import random
import re
import socket
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

import harness  # noqa: E402
from progress import Progress  # noqa: E402

MIB = 1 << 20
TOLERANCE = 1.02
SAMPLE_SECONDS = 0.05
LARGEST_GAP = 0.1  # ten samples a second at least
VOCABULARY = 49152  # of the default model
PATIENCE = 6  # times its seconds, for a load that has not filled what it should on a busy machine


class Sampler:
    """Resident size of a process, from its start until stop()."""

    def __init__(self, pid):
        self.pid, self.peak, self.count, self.gap = pid, 0, 0, 0.0
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def read(self, name, pattern):
        text = pathlib.Path(f"/proc/{self.pid}/{name}").read_text()
        return int(re.search(pattern + r"\s+(\d+) kB", text).group(1)) * 1024

    def run(self):
        last = time.monotonic()
        while not self.stopping.is_set():
            try:
                self.peak = max(self.peak, self.read("smaps_rollup", "Rss:"))
            except (OSError, AttributeError):
                return  # the process has ended
            now = time.monotonic()
            self.gap, self.count, last = max(self.gap, now - last), self.count + 1, now
            self.stopping.wait(SAMPLE_SECONDS)

    def stop(self):
        """Includes the kernel's high-water mark. The process must still be there."""
        self.peak = max(self.peak, self.read("status", "VmHWM:"))
        self.stopping.set()
        self.thread.join()


class Load:
    """What is done to a server. Loads run in threads of their own and count what happened in `seen`; they end when their time is over and all that
    is `wanted` was seen, or at `limit`."""

    wanted = ()

    def __init__(self, server, rng, seconds):
        self.server, self.rng, self.seconds = server, rng, seconds
        self.end, self.limit = time.monotonic() + seconds, time.monotonic() + PATIENCE * seconds
        self.seen = {}
        self.lock = threading.Lock()
        self.context = server.request("GET", "/v1/models", key=None).json["data"][0]["max_model_len"]

    def count(self, what, by=1):
        with self.lock:
            self.seen[what] = self.seen.get(what, 0) + by

    def going(self):
        now = time.monotonic()
        return now < self.end or (now < self.limit and bool(self.problems()))

    def problems(self):
        """What is wrong with what was seen."""
        return [f"nothing was {what}" for what in self.wanted if not self.seen.get(what)]

    def post(self, path, body, **kwargs):
        """Counts the status; nothing when no answer came in twice the load's time: then the connection is closed, which cancels."""
        try:
            response = self.server.post(path, body, key=None, timeout=max(self.end - time.monotonic(), 0) + self.seconds, **kwargs)
        except OSError:
            self.count("given up")
            return None
        self.count(response.status)
        if response.status == 429:
            time.sleep(0.2)
        return response

    def prompt(self, length):
        return [self.rng.randrange(1000, 40000) for _ in range(length)]

    def repeat(self, threads, work):
        """`work` over and over in so many threads."""
        def loop():
            while self.going():
                work()
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            for job in [pool.submit(loop) for _ in range(threads)]:
                job.result()


class LongPrompts(Load):
    """Distinct long prompts with long answers, more than run at a time: KV is used to its last byte, sequences are preempted."""

    wanted, threads = (200, "KV filled"), 12

    def lengths(self):
        return self.context // 4, self.context - 80

    def run(self):
        def one():
            length = self.rng.randrange(*self.lengths())
            self.post("/v1/completions", {"model": "smol", "prompt": self.prompt(length), "ignore_eos": True, "temperature": 0,
                                          "presence_penalty": 0.1, "max_tokens": min(64, self.context - length)})
            tier = self.server.request("GET", "/admin/kv", key=None).json["tiers"]
            host = [each for each in tier if each["name"] == "host"][0]
            if host["free_bytes"] == 0:
                self.count("KV filled")
        self.repeat(self.threads, one)


class FewLongPrompts(LongPrompts):
    """The same beside other loads, or where memory is too large to be filled in a test."""

    wanted, threads = (200,), 4

    def lengths(self):
        return 64, min(self.context, 2048) - 80


class Bodies(Load):
    """The largest bodies that are taken, of kinds that take most memory to read, several at a time."""

    wanted, largest = (200, 400, "refused together"), 32 * MIB

    def bodies(self):
        room = self.largest - 4096
        head = b'{"model":"smol","max_tokens":1,'
        yield "/v1/completions", head + b'"prompt":[' + b"1," * (room // 2 - 100) + b"1]}"
        yield "/v1/completions", head + b'"prompt":"a","user_data":[' + b"[]," * (room // 3 - 100) + b"[]]}"
        text = "Once upon a time\\n" * (room // 18 - 100)
        yield "/v1/chat/completions", head + b'"messages":[{"role":"user","content":"' + text.encode() + b'"}]}'
        message = b'{"role":"user","content":"x"},'
        yield "/v1/chat/completions", head + b'"messages":[' + message * (room // len(message) - 10) + message[:-1] + b"]}"
        yield "/v1/chat/completions", (head + b'"messages":[' + message[:-1] + b'],"chat_template_kwargs":{"a":['
                                       + b"0," * (room // 2 - 200) + b"0]}}")
        yield "/v1/detokenize", b'{"tokens":[' + b"1," * (room // 2 - 100) + b"1]}"
        # What just fits.
        words = "hello " * (self.context * 8)
        yield "/v1/tokenize", json.dumps({"prompt": words, "return_token_strs": True}).encode()
        yield "/v1/chat/completions/render", json.dumps({"messages": [{"role": "user", "content": words}]}).encode()
        nodes = b"0," * min(100_000, room // 2 - 200)
        yield "/v1/chat/completions", head + b'"messages":[' + message[:-1] + b'],"chat_template_kwargs":{"a":[' + nodes + b"0]}}"

    def run(self):
        kinds = list(self.bodies())

        def one():
            path, body = self.rng.choice(kinds)
            response = self.post(path, body, headers={"Content-Type": "application/json"})
            if response is not None and b"too_many_large_bodies" in response.body:
                self.count("refused together")
        self.repeat(6, one)


class Answers(Load):
    """Answers with many choices and log-probabilities, whole, ranked, echoed and streamed."""

    wanted, choices = ("answer bytes",), 128

    def run(self):
        def one():
            kind = self.rng.choice(["whole", "best", "echo", "echo", "echo", "stream"])
            body = {"model": "smol", "prompt": self.prompt(20), "logprobs": 20, "ignore_eos": True, "max_tokens": 100,
                    "temperature": 1, "n": self.choices, "return_token_ids": True}
            if kind == "best":
                body.update(best_of=20, n=1)
            elif kind == "echo":
                body.update(prompt=self.prompt(self.context - 64), echo=True, max_tokens=1)
            elif kind == "stream":
                body.update(stream=True, max_tokens=16)
            response = self.post("/v1/completions", body)
            if response is not None and (b"answer_too_large" in response.body or b"memory_full" in response.body):
                self.count("refused for want of answer memory")
            elif response is not None:
                self.count("answer bytes", len(response.body))
        self.repeat(6, one)


class FullAnswerMemory(Answers):
    """The same where the memory of answers is small enough to be full."""

    wanted = ("answer bytes", "refused for want of answer memory")


class Parameters(Load):
    """Long lists of parameters, kept for as long as their requests wait and run."""

    wanted = (200,)

    def run(self):
        everything = list(range(VOCABULARY))

        def one():
            self.post("/v1/completions", {"model": "smol", "prompt": self.prompt(30), "max_tokens": 8, "n": 4,
                                          "logit_bias": {str(i): 1 for i in everything[::2]}, "allowed_token_ids": everything,
                                          "stop_token_ids": everything[1:40000] * 2})
        self.repeat(8, one)


class SlowReaders(Load):
    """Connections that take all they may and read nothing: streams, whole answers, pipelined requests, heads, bodies that never end."""

    wanted, connections = ("connections",), 500

    def connect(self):
        link = socket.socket()
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.connect(("127.0.0.1", self.server.port))
        link.settimeout(5)
        return link

    def request(self, method, path, body=b"", headers=b""):
        return (f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n").encode() \
            + headers + b"\r\n" + body

    def speak(self, link):
        header = b"x-a: " + b"y" * 500 + b"\r\n"
        kind = self.rng.randrange(5)
        if kind == 0:  # a stream
            body = {"model": "smol", "prompt": self.prompt(8), "stream": True, "max_tokens": self.context // 2, "ignore_eos": True, "logprobs": 20,
                    "n": 4}
            link.sendall(self.request("POST", "/v1/completions", json.dumps(body).encode(), header * 100))
        elif kind == 1:  # a whole answer
            body = {"model": "smol", "prompt": self.prompt(8), "max_tokens": 64, "ignore_eos": True, "logprobs": 20}
            link.sendall(self.request("POST", "/v1/completions", json.dumps(body).encode()))
        elif kind == 2:  # many requests, no reading
            link.sendall(self.request("GET", "/metrics") * 1500)
        elif kind == 3:  # a head of many short lines that never ends
            link.sendall(b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * 120 + b"x: " + b"y" * 60000)
        else:  # a body that never ends
            whole = self.request("POST", "/v1/completions", b"x" * 65000, header * 100)
            link.sendall(whole[:-100])

    def run(self):
        links = []
        while self.going() and len(links) < self.connections:
            try:
                link = self.connect()
                links.append(link)
                self.count("connections")
                self.speak(link)
            except OSError:
                self.count("closed")
        while self.going():
            time.sleep(0.1)
        for link in links:
            link.close()


class Sessions(Load):
    """Sessions under ever new names, restored and pinned now and then."""

    wanted = ("sessions saved", "bytes on disk")

    def run(self):
        def one():
            name = f"s{self.rng.randrange(10 ** 9)}"
            response = self.post("/v1/completions", {"model": "smol", "prompt": self.prompt(self.rng.randrange(70, self.context // 2)), "max_tokens": 4,
                                                     "spindle": {"kv": {"session": name, "retention_seconds": 3600}}})
            if response is not None and response.status == 200:
                self.count("sessions saved")
                self.count("bytes on disk", self.server.metric_sum("spindle_kv_move_bytes_total", to="disk"))
            listed = self.server.request("GET", "/admin/sessions", key=None)
            names = [each["id"] for each in listed.json["sessions"]]
            for other in self.rng.sample(names, min(4, len(names))):
                self.server.request("POST", f"/admin/sessions/{other}/{self.rng.choice(['restore', 'pin', 'unpin'])}", key=None)
        self.repeat(4, one)


class Grpc(Load):
    """Messages of the largest size and whole answers with log-probabilities over gRPC, and streams that nobody reads."""

    wanted = ("INVALID_ARGUMENT", "gRPC streams")

    def run(self):
        import grpc
        from stubs import pb, rpc
        limits = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        largest = 32 * MIB - 4096

        def one():
            with grpc.insecure_channel(f"127.0.0.1:{self.server.grpc_port}", options=limits) as channel:
                inference = rpc.InferenceStub(channel)
                kind = self.rng.randrange(4)
                try:
                    if kind == 0:
                        inference.GenerateUnary(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1] * (largest // 2))), timeout=120)
                    elif kind == 1:
                        body = '{"messages":[{"role":"user","content":"' + "hello " * (largest // 6 - 20) + '"}]}'
                        inference.GenerateUnary(pb.GenerateRequest(chat_json=body), timeout=120)
                    elif kind == 2:
                        inference.GenerateUnary(pb.GenerateRequest(
                            text="Hello", sampling=pb.Sampling(n=64, temperature=1), output=pb.OutputOptions(logprobs=True, top_logprobs=20),
                            stopping=pb.Stopping(max_tokens=self.context // 8, ignore_eos=True)), timeout=120)
                        self.count("gRPC answers")
                    else:
                        stream = inference.Generate(pb.GenerateRequest(
                            text="Hello", stopping=pb.Stopping(max_tokens=self.context // 4, ignore_eos=True),
                            output=pb.OutputOptions(logprobs=True, top_logprobs=20)), timeout=120)
                        next(stream)
                        time.sleep(1)
                        stream.cancel()
                        self.count("gRPC streams")
                except grpc.RpcError as error:
                    self.count(error.code().name)
        self.repeat(8, one)


class Scenario:
    def __init__(self, arguments, loads, grpc=False, disk=False):
        self.arguments, self.loads, self.grpc, self.disk = arguments, loads, grpc, disk


CONTEXT = ["--max-model-len", "2048", "--stream-stall-timeout", "600"]
# Two full sequences and a little: what runs is preempted for what is more urgent, and grows into the last byte.
TIGHT_KV = ["--kv-host-bytes", "100MiB"]
# Parts that a load leaves alone are small, so that the ratio speaks of those that it fills.
FEW_LINKS, SMALL_BODIES, SMALL_ANSWERS = ["--max-connections", "32"], ["--max-body-size", "1MiB"], ["--answer-memory", "1MiB"]
ONLY_KV = CONTEXT + TIGHT_KV + FEW_LINKS + SMALL_BODIES + SMALL_ANSWERS

SCENARIOS = {
    "defaults": Scenario([], [FewLongPrompts]),
    "last byte of KV": Scenario(ONLY_KV, [LongPrompts]),
    "mirror": Scenario(ONLY_KV + ["--kv-mode", "mirror", "--kv-fast-bytes", "16MiB"], [LongPrompts]),
    "emulated link": Scenario(ONLY_KV + ["--kv-mode", "emulated-link", "--kv-fast-bytes", "32MiB", "--sim-link-gbps", "5",
                                         "--kv-synthetic-selection", "medium"], [LongPrompts]),
    "disk and sessions": Scenario(ONLY_KV + ["--kv-disk-bytes", "2GiB", "--kv-max-sessions", "256"], [Sessions, FewLongPrompts], disk=True),
    "large bodies": Scenario(CONTEXT + TIGHT_KV + FEW_LINKS + SMALL_ANSWERS, [Bodies]),
    "many choices": Scenario(CONTEXT + TIGHT_KV + FEW_LINKS + SMALL_BODIES + ["--answer-memory", "48MiB"], [FullAnswerMemory]),
    "long parameters": Scenario(CONTEXT + TIGHT_KV + FEW_LINKS + ["--max-body-size", "4MiB", "--answer-memory", "32MiB"], [Parameters]),
    "slow readers": Scenario(CONTEXT + TIGHT_KV + SMALL_BODIES + ["--max-connections", "512", "--answer-memory", "32MiB"], [SlowReaders]),
    "gRPC": Scenario(CONTEXT + TIGHT_KV + FEW_LINKS + SMALL_BODIES + SMALL_ANSWERS, [Grpc], grpc=True),
    "everything": Scenario(CONTEXT + TIGHT_KV + ["--kv-mode", "mirror", "--kv-fast-bytes", "32MiB", "--kv-disk-bytes", "1GiB", "--max-connections", "512",
                                                 "--answer-memory", "64MiB"],
                           [FewLongPrompts, Bodies, Answers, Parameters, SlowReaders, Sessions, Grpc], grpc=True, disk=True),
}


def plan_bytes(server):
    """Total of the table, and the table, as the server printed it."""
    line = re.search(r"^.* memory_plan (.*)$", server.log_text(), re.M).group(1)
    total = int(re.search(r"total_bytes=(\d+)", line).group(1))
    parts = re.findall(r'(\w+)="([\d.]+ \w+)"', line)
    return total, [(name.replace("_", " "), size) for name, size in parts if name not in ("total", "limit")]


class Result:
    def __init__(self, name, plan, sampler, problems, seen):
        self.name, self.plan, self.peak, self.problems, self.seen = name, plan, sampler.peak, problems, seen
        self.samples, self.gap = sampler.count, sampler.gap

    @property
    def ratio(self):
        return self.peak / self.plan

    def row(self):
        return f"{self.name:<20}{self.plan / MIB:>10.1f}{self.peak / MIB:>10.1f}{self.ratio:>8.3f}{self.samples:>9}{self.gap * 1000:>8.0f}"


HEADER = f"{'configuration':<20}{'plan MiB':>10}{'peak MiB':>10}{'ratio':>8}{'samples':>9}{'gap ms':>8}"


def run_scenario(name, scenario, seconds, seed=1, line=None):
    """Serves, loads and samples. Returns a Result; its problems are empty when all is well."""
    folder = tempfile.TemporaryDirectory() if scenario.disk else None
    arguments = scenario.arguments + (["--kv-disk-path", folder.name] if folder else [])
    server = harness.Server(*arguments, fixture=False, wait=False, grpc=scenario.grpc)
    problems, loads = [], []
    try:
        sampler = Sampler(server.process.pid)
        server.wait_ready()
        plan, parts = plan_bytes(server)
        loads = [kind(server, random.Random(f"{seed}-{name}-{kind.__name__}"), seconds) for kind in scenario.loads]
        with concurrent.futures.ThreadPoolExecutor(len(loads)) as pool:
            jobs = [pool.submit(load.run) for load in loads]
            while not all(job.done() for job in jobs):
                if line is not None:
                    waits = [problem for load in loads for problem in load.problems()]
                    line.show(f"{name}: {seconds - max(load.end for load in loads) + time.monotonic():4.0f} s, peak {sampler.peak / MIB:.1f} of "
                              f"{plan / MIB:.1f} MiB {'; '.join(waits)}")
                time.sleep(0.2)
            for load, job in zip(loads, jobs):
                job.result()
                problems += [f"{type(load).__name__}: {problem}" for problem in load.problems()]
        sampler.stop()
        if server.process.poll() is not None:
            problems.append(f"the server ended with {server.process.returncode}")
    finally:
        server.stop(timeout=120)
        if folder:
            folder.cleanup()
    result = Result(name, plan, sampler, problems, {type(load).__name__: load.seen for load in loads})
    result.parts = parts
    if result.peak > plan * TOLERANCE:
        problems.append(f"{result.peak} bytes are resident, {plan} were planned")
    if line is not None:
        line.end(result.row() + "".join(f"\n  {problem}" for problem in problems))
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--only", nargs="*", choices=list(SCENARIOS))
    parser.add_argument("--seconds", type=float, default=40, help="of load per configuration")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--json")
    parser.add_argument("--verbose", action="store_true", help="tables and what the loads have seen")
    options = parser.parse_args()
    harness.BINARY, harness.MODEL = options.binary, options.model
    line = Progress()
    results = []
    for name, scenario in SCENARIOS.items():
        if options.only and name not in options.only:
            continue
        results.append(run_scenario(name, scenario, options.seconds, options.seed, line))
        if options.verbose:
            print(results[-1].parts, results[-1].seen, file=sys.stderr, flush=True)
    print(HEADER)
    for result in results:
        print(result.row())
    # On a busy machine the sampler may be late; the high-water mark does not miss a peak.
    late = [result.name for result in results if result.gap > LARGEST_GAP]
    if late:
        print(f"sampled less than ten times a second at times, the high-water mark counts: {', '.join(late)}")
    failed = [f"{result.name}: {problem}" for result in results for problem in result.problems]
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps([{"name": r.name, "plan": r.plan, "peak": r.peak, "ratio": round(r.ratio, 3),
                                                           "problems": r.problems} for r in results]))
    print("passed" if not failed else "FAILED: " + "; ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
