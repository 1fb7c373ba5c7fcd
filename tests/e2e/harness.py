"""Servers, raw HTTP and event streams for the end-to-end tests."""
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KEY = "k1"
ADMIN_KEY = "a1"

# Set by run.py.
BINARY = None
MODEL = None


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def clean_environment():
    """The caller's environment without options for the server."""
    return {k: v for k, v in os.environ.items() if not k.startswith("SPINDLE_")}


class Response:
    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self):
        return json.loads(self.body)


class Server:
    """A running `spindle serve`: small limits and two keys (FIXTURE) unless arguments say otherwise."""

    FIXTURE = ["--max-model-len", "2048", "--max-num-seqs", "4", "--max-queue-size", "2",
               "--api-key", KEY, "--admin-api-key", ADMIN_KEY]

    def __init__(self, *extra, fixture=True, model=None, wait=True, grpc=False, binary=None, environment=None):
        self.port = free_port()
        self.grpc_port = free_port() if grpc else 0
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False)
        arguments = [binary or BINARY, "serve", "--model", model or MODEL, "--served-model-name", "smol",
                     "--port", str(self.port), "--grpc-port", str(self.grpc_port)]
        arguments += (self.FIXTURE if fixture else []) + list(extra)
        self.process = subprocess.Popen(arguments, stderr=self.log, stdout=self.log,
                                        env={**clean_environment(), **(environment or {})})
        if wait:
            self.wait_ready()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def log_text(self):
        return pathlib.Path(self.log.name).read_text()

    def wait_ready(self, timeout=120):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"server ended with {self.process.returncode}:\n{self.log_text()}")
            try:
                if self.request("GET", "/health").status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"server not ready:\n{self.log_text()}")

    def stop(self, timeout=30):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"server did not stop:\n{self.log_text()}") from None
        self.log.close()
        os.unlink(self.log.name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def connection(self, timeout=120):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, key=KEY, headers=None, timeout=120):
        """One request on its own connection; `body` is JSON unless bytes."""
        send = dict(headers or {})
        if key is not None:
            send.setdefault("Authorization", f"Bearer {key}")
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            send.setdefault("Content-Type", "application/json")
        connection = self.connection(timeout)
        try:
            connection.request(method, path, body, send)
            answer = connection.getresponse()
            return Response(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def post(self, path, body, **kwargs):
        return self.request("POST", path, body, **kwargs)

    def chat(self, content="Say hello.", key=KEY, **fields):
        body = {"model": "smol", "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 8}
        body.update(fields)
        return self.post("/v1/chat/completions", {k: v for k, v in body.items() if v is not ...}, key=key)

    def complete(self, prompt="The capital of France is", **fields):
        body = {"model": "smol", "prompt": prompt, "temperature": 0, "max_tokens": 8}
        body.update(fields)
        return self.post("/v1/completions", {k: v for k, v in body.items() if v is not ...})

    def ask(self, prompt, tokens, sparse=None, status=200, spindle=None, **fields):
        """The JSON of a greedy completion with log-probabilities and, unless `spindle` says otherwise, statistics."""
        members = {"stats": "summary", **(spindle or {}), **({} if sparse is None else {"sparse": sparse})}
        response = self.complete(prompt, **{"max_tokens": tokens, "logprobs": 5, "ignore_eos": True, "spindle": members, **fields})
        if response.status != status:
            raise AssertionError(response.body)
        return response.json

    def stream(self, path, body, key=KEY):
        return EventStream(self, path, body, key)

    def metrics(self):
        """Samples of /metrics: {(name, frozenset(labels)): value}, and the set of family names."""
        samples, families = {}, {}
        for line in self.request("GET", "/metrics", key=None).body.decode().splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                families[name] = kind
            elif line and not line.startswith("#"):
                series, value = line.rsplit(" ", 1)
                samples[series] = float(value)
        return samples, families

    def metric_sum(self, name, **labels):
        """Sum over all series of a metric that carry the labels."""
        total = 0.0
        for series, value in self.metrics()[0].items():
            base, _, rest = series.partition("{")
            if base == name and all(f'{k}="{v}"' in rest for k, v in labels.items()):
                total += value
        return total

    def wait_for(self, condition, timeout=10, what="condition"):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if condition():
                return
            time.sleep(0.02)
        raise AssertionError(f"{what} did not come true in {timeout} s\n{self.log_text()[-3000:]}")


class EventStream:
    """A server-sent event stream read event by event."""

    def __init__(self, server, path, body, key):
        self.connection = server.connection()
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        self.connection.request("POST", path, json.dumps(body), headers)
        self.response = self.connection.getresponse()
        self.status = self.response.status
        self.headers = {k.lower(): v for k, v in self.response.getheaders()}

    def events(self):
        """Payloads of data lines, JSON decoded but for [DONE]; checks the framing."""
        while True:
            line = self.response.readline()
            if not line:
                return
            line = line.decode()
            if line == "\n" or line.startswith(":"):
                continue
            assert line.startswith("data: "), line
            assert self.response.readline() == b"\n"
            payload = line[len("data: "):].rstrip("\n")
            yield payload if payload == "[DONE]" else json.loads(payload)

    def all(self):
        events = list(self.events())
        self.close()
        return events

    def close(self):
        self.connection.close()


def text_of(events, index=0):
    """Concatenated text of a choice in chat or completion chunks."""
    text = ""
    for event in events:
        if event == "[DONE]":
            continue
        for choice in event["choices"]:
            if choice["index"] == index:
                text += choice["delta"].get("content", "") if "delta" in choice else choice["text"]
    return text


def assert_error(test, response, status, code, param=...):
    """An error of the API's shape: all four keys, always."""
    test.assertEqual(response.status, status, response.body)
    error = response.json["error"]
    for key in ("message", "type", "param", "code"):
        test.assertIn(key, error)
    test.assertEqual(error["code"], code, error)
    if param is not ...:
        test.assertEqual(error["param"], param, error)
    test.assertEqual(response.headers["content-type"].split(";")[0], "application/json")
    test.assertIn("x-request-id", response.headers)
    return error
