"""Open and closed loops of requests with a plan: arrival times, prompts, lengths; and what came of them. The attention is the server's own."""
import concurrent.futures
import dataclasses
import random
import time

import real


@dataclasses.dataclass(frozen=True)
class Planned:
    at: float  # seconds from the start; 0 in closed loops
    prompt: tuple
    tokens: int


@dataclasses.dataclass
class Outcome:
    """Seconds. TTFT from the scheduled time, so that a late sender hides nothing; the server's clock from the request's arrival on."""

    ttft: float
    tpot: float
    end: float
    tokens: int
    preemptions: int
    failed: str = ""

    def meets(self, ttft, tpot):
        return not self.failed and self.ttft <= ttft and self.tpot <= tpot


def poisson(rate, count, seed):
    """Arrival times with exponential gaps, scaled so that the last one is at count / rate."""
    rng = random.Random(seed)
    times, now = [], 0.0
    for _ in range(count):
        now += rng.expovariate(1)
        times.append(now)
    return [t * count / rate / now for t in times]


def send(server, planned, kv, started):
    sent = time.monotonic() - started
    try:
        answer = real.ask(server, list(planned.prompt), planned.tokens, kv=kv)
    except (real.Refused, OSError) as failure:
        return Outcome(0, 0, time.monotonic() - started, 0, 0, str(failure))
    timing = answer["timing"]
    # One token has no time per further token.
    return Outcome(max(0.0, sent - planned.at) + timing["ttft_ms"] / 1000, (timing["tpot_ms_mean"] or 0) / 1000, time.monotonic() - started,
                   planned.tokens, timing["preemptions"])


def open_loop(server, plan, kv=None, show=None):
    """Sends every request at its time, whatever became of the others."""
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(plan)) as pool:
        jobs = []
        for planned in plan:
            time.sleep(max(0.0, planned.at - (time.monotonic() - started)))
            jobs.append(pool.submit(send, server, planned, kv, started))
            if show:
                show(f"{len(jobs)} of {len(plan)} sent")
        return [job.result() for job in jobs]


def closed_loop(server, plan, concurrency, kv=None):
    """`concurrency` workers; each sends the next request when its last one has ended, so TTFT counts from when it was sent."""
    started = time.monotonic()

    def one(planned):
        return send(server, dataclasses.replace(planned, at=time.monotonic() - started), kv, started)

    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(one, plan))


def window(outcomes):
    return max(o.end for o in outcomes)


def goodput(outcomes, ttft, tpot):
    """Requests per second that keep both limits."""
    return sum(o.meets(ttft, tpot) for o in outcomes) / window(outcomes)


def attainment(outcomes, ttft, tpot):
    return sum(o.meets(ttft, tpot) for o in outcomes) / len(outcomes)


def percentile(values, share):
    """By linear interpolation between closest ranks."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])
