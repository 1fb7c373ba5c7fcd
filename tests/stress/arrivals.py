"""Frozen arrivals: times and lengths of requests, the same for every system that is compared.

A file holds {"made_by", "unit_times", "prompt_tokens", "output_tokens"}; unit times are Poisson arrivals at rate 1 whose last is the number
of requests, and are divided by the rate that is asked for. `lgb_60.arrivals.json` is the long-answer workload at a context of 8K: 4,608
tokens ± 10 % in, 3,072 out.
"""
import hashlib
import json
import pathlib
import random

LGB = pathlib.Path(__file__).resolve().parent / "lgb_60.arrivals.json"


def draw(count, prompt, spread, output, seed):
    """How the frozen file was made."""
    rng = random.Random(seed)
    times, now = [], 0.0
    for _ in range(count):
        now += rng.expovariate(1)
        times.append(now)
    return {"made_by": f"arrivals.draw({count}, {prompt}, {spread}, {output}, {seed})",
            "unit_times": [round(time * count / now, 6) for time in times],
            "prompt_tokens": [round(prompt * rng.uniform(1 - spread, 1 + spread)) for _ in range(count)],
            "output_tokens": [output] * count}


def load(path):
    """The file's contents and the SHA-256 of its bytes."""
    data = pathlib.Path(path).read_bytes()
    return json.loads(data), hashlib.sha256(data).hexdigest()
