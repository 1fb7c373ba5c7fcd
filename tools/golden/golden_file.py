"""Writes golden logits: the top 32 of every position, small enough to commit.

Layout, little-endian: 8 bytes "SPGOLD01", u32 length of a JSON text, the JSON text (provenance), u32 number of
prompts, and per prompt: u32 n, i32 tokens[n], i32 ids[n][32] in descending order of the fp32 logits, fp16
logits[n][32], fp16 log_sum_exp[n].
"""

import json
import struct

import numpy as np

MAGIC = b"SPGOLD01"
TOP = 32
MAX_BYTES = 1 << 20


def write(path, provenance, prompts):
    """prompts: list of (token ids [n], logits [n, vocab] fp32)."""
    text = json.dumps(provenance, indent=1, sort_keys=True).encode()
    parts = [MAGIC, struct.pack("<I", len(text)), text, struct.pack("<I", len(prompts))]
    for tokens, logits in prompts:
        logits = np.asarray(logits, dtype=np.float64)
        order = np.argsort(-logits, axis=1, kind="stable")[:, :TOP]
        top = np.take_along_axis(logits, order, axis=1)
        peak = top[:, :1]
        log_sum_exp = peak[:, 0] + np.log(np.exp(logits - peak).sum(axis=1))
        parts.append(struct.pack("<I", len(tokens)))
        parts.append(np.asarray(tokens, dtype="<i4").tobytes())
        parts.append(order.astype("<i4").tobytes())
        parts.append(top.astype("<f2").tobytes())
        parts.append(log_sum_exp.astype("<f2").tobytes())
    data = b"".join(parts)
    assert len(data) <= MAX_BYTES, f"{path}: {len(data)} bytes"
    path.write_bytes(data)
