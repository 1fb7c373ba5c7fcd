#!/usr/bin/env python3
"""Makes tests/golden/kv/page_selections.txt: the selection generator of docs/kv-simulator.md, written a second time on
numpy's PCG64, vector by vector.

Usage: python3 -m venv .venv && .venv/bin/pip install numpy==2.4.6
       .venv/bin/python tools/golden/page_selections.py

Lines: "pcg SEED STREAM" and six outputs in hex; or "PROFILE SEED STREAM PAGES SELECTED GROWN STEP" and the pages selected
in that step. GROWN is the number of pages from step 3 on.
"""

import pathlib

import numpy as np

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "kv" / "page_selections.txt"
MASK = (1 << 128) - 1
MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
PROFILES = {  # a, b, c, correlation, probability of a shift
    "sticky": (1.2, 0.8, 0.25, 0.97, 0.02),
    "medium": (0.9, 0.9, 0.40, 0.95, 0.03),
    "loose": (0.6, 0.8, 0.70, 0.93, 0.05),
}
GROW_AT = 3


class Random:
    def __init__(self, seed, stream):
        increment = (stream << 1 | 1) & MASK
        state = (increment + seed) & MASK  # one step from state 0, then the seed
        state = (state * MULTIPLIER + increment) & MASK
        self.bits = np.random.PCG64()
        self.bits.state = dict(bit_generator="PCG64", state=dict(state=state, inc=increment), has_uint32=0, uinteger=0)
        self.spare = np.empty(0)

    def uniform(self, count):
        return (self.bits.random_raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def below(self, bound):
        return int(self.bits.random_raw()) * bound >> 64

    def normal(self, count):
        pairs = (count - len(self.spare) + 1) // 2
        uniform = self.uniform(2 * pairs)
        radius = np.sqrt(-2.0 * np.log(1.0 - uniform[0::2]))
        angle = 2.0 * np.pi * uniform[1::2]
        both = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).ravel()
        ready = np.concatenate([self.spare, both])
        self.spare = ready[count:]
        return ready[:count]


def selections(profile, seed, stream, pages, selected, grown, steps):
    a, b, c, correlation, shift = PROFILES[profile]
    random = Random(seed, stream)

    def fixed(count):
        return a * np.abs(random.normal(count)) ** 1.5

    base = fixed(pages)
    drift = random.normal(pages)
    for step in range(steps):
        if step == GROW_AT and grown > pages:
            base = np.concatenate([base, fixed(grown - pages)])
            drift = np.concatenate([drift, random.normal(grown - pages)])
        count = len(base)
        drift = correlation * drift + np.sqrt(1 - correlation**2) * random.normal(count)
        if random.uniform(1)[0] < shift:
            span = max(1, count // 16)
            begin = random.below(count - span + 1)
            drift[begin:begin + span] = random.normal(span)
            run = min(32, count)
            begin = random.below(count - run + 1)
            drift[begin:begin + run] += 2.0
        score = base + b * drift + c * random.normal(count)
        yield np.sort(np.argsort(-score, kind="stable")[:selected])


def main():
    lines = []
    for seed, stream in ((42, 54), (0, 0), (2**64 - 1, 2**63 + 5)):
        outputs = Random(seed, stream).bits.random_raw(6)
        lines.append(f"pcg {seed} {stream}: " + " ".join(f"{int(value):016x}" for value in outputs))
    cases = [(profile, seed, 0, 2048, 32, 2048) for profile in PROFILES for seed in (0, 2)]
    cases.append(("loose", 7, 5, 100, 8, 130))
    for case in cases:
        for step, pages in enumerate(selections(*case, steps=400)):
            if step in (0, 1, GROW_AT, 57, 399):
                lines.append(" ".join(map(str, case)) + f" {step}: " + " ".join(map(str, pages)))
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
