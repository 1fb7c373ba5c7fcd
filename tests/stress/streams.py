"""A streaming client that notes when tokens arrive, and the figures that follow from that.

Times are seconds of the monotonic clock. Answers are kept as they come and parsed when the run is over, so that the client takes little
of the processor.
"""
import asyncio
import json
import statistics
import time


class Stream:
    """One request: when it should be sent and was, and what came back when."""

    def __init__(self, scheduled):
        self.scheduled, self.sent, self.status = scheduled, None, None
        self.raw = []  # (time, bytes)
        self.tokens = []  # (time, number of tokens), after parse
        self.first_text = self.stats = self.cached = self.problem = None

    @property
    def count(self):
        return sum(count for _, count in self.tokens)

    @property
    def first(self):
        return self.tokens[0][0]

    @property
    def last(self):
        return self.tokens[-1][0]

    @property
    def ttft(self):
        """From the time it should have been sent to the first text."""
        return self.first_text - self.scheduled

    def parse(self, wanted):
        """Events out of the chunks; a problem if not all tokens came."""
        buffer, is_done = b"", False
        for when, data in self.raw:
            buffer += data
            while b"\n\n" in buffer:
                event, buffer = buffer.split(b"\n\n", 1)
                if not event.startswith(b"data: "):
                    continue
                if event == b"data: [DONE]":
                    is_done = True
                    continue
                self.take(when, json.loads(event[6:]))
        self.raw = []
        if self.problem is None and (not is_done or self.count != wanted or self.first_text is None):
            self.problem = f"{self.count} of {wanted} tokens"

    def take(self, when, message):
        if "error" in message:
            self.problem = str(message["error"])
            return
        for choice in message["choices"]:
            count = len(choice.get("token_ids") or [])
            if count:
                self.tokens.append((when, count))
            if choice["text"] and self.first_text is None:
                self.first_text = when
        self.stats = message.get("spindle") or self.stats
        if message.get("usage"):
            self.cached = message["usage"]["prompt_tokens_details"]["cached_tokens"]


async def send(port, stream, body):
    delay = stream.scheduled - time.monotonic()
    if delay > 0:
        await asyncio.sleep(delay)
    data = json.dumps(body).encode()
    stream.sent = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2 ** 20)
    try:
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                     % len(data) + data)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        stream.status = int(head.split(b" ", 2)[1])
        if stream.status != 200:
            stream.problem = f"status {stream.status}: {(await reader.read(500)).decode(errors='replace')}"
            return
        while True:
            size = int(await reader.readline(), 16)
            if size == 0:
                return
            stream.raw.append((time.monotonic(), await reader.readexactly(size)))
            await reader.readexactly(2)
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        stream.problem = f"connection: {error!r}"
    finally:
        writer.close()


def replay(port, bodies, times, on_progress=lambda done: None):
    """Sends each body at its time (seconds from now), whatever the others do. Returns the streams."""
    async def run():
        start = time.monotonic() + 0.1
        streams = [Stream(start + at) for at in times]
        tasks = [asyncio.create_task(send(port, stream, body)) for stream, body in zip(streams, bodies)]
        while any(not task.done() for task in tasks):
            await asyncio.wait(tasks, timeout=1)
            on_progress(sum(task.done() for task in tasks))
        return streams
    streams = asyncio.run(run())
    for stream, body in zip(streams, bodies):
        stream.parse(body["max_tokens"])
    return streams


def problems(streams):
    return [stream.problem for stream in streams if stream.problem]


def most_together(streams):
    """Most streams between their first and their last token at one time."""
    edges = sorted([(s.first, 1) for s in streams] + [(s.last, -1) for s in streams])
    now = most = 0
    for _, change in edges:
        now += change
        most = max(most, now)
    return most


def decoding_seconds(streams):
    """Time in which at least one stream was between its first and its last token."""
    total, end = 0.0, float("-inf")
    for first, last in sorted((s.first, s.last) for s in streams):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


def decode_throughput(streams):
    """Tokens per second: Σ (tokens − 1) over the time with at least one request decoding."""
    return sum(s.count - 1 for s in streams) / decoding_seconds(streams)


def steady_throughput(streams):
    """Tokens per second while all of them decode; 0 if they never do at once."""
    begin, end = max(s.first for s in streams), min(s.last for s in streams)
    return sum(count for s in streams for when, count in s.tokens if begin < when <= end) / (end - begin) if end > begin else 0.0


def seconds(streams):
    """From the first request to the last token of all."""
    return max(s.last for s in streams) - min(s.scheduled for s in streams)


def output_throughput(streams):
    """Tokens per second from the first request to the last token of all."""
    return sum(s.count for s in streams) / seconds(streams)


def median_ttft(streams):
    return statistics.median(s.ttft for s in streams)
