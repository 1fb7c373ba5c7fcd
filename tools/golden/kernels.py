"""Dequantised blocks of every storage type as the Python package gguf computes them.

One line per type in tests/golden/kernels/dequantize.txt: name, bytes of two blocks, bits of their elements as fp32.
Usage: kernels.py OUTPUT_FOLDER
"""

import pathlib
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

TYPES = [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q4_K, Type.Q5_K,
         Type.Q6_K]
# Byte offsets of the fp16 fields of a block; they get moderate values, everything else is random.
HALF_FIELDS = {Type.Q8_0: [0], Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q4_K: [0, 2],
               Type.Q5_K: [0, 2], Type.Q6_K: [208]}
NUM_BLOCKS = 2
SEED = 20240901


def random_blocks(rng, kind):
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    if elements == 1:
        values = rng.standard_normal(32).astype(np.float32)
        if kind == Type.F32:
            return values.view(np.uint8)
        if kind == Type.F16:
            return values.astype(np.float16).view(np.uint8)
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    blocks = rng.integers(0, 256, (NUM_BLOCKS, size), dtype=np.uint8)
    for offset in HALF_FIELDS[kind]:
        halves = (rng.standard_normal(NUM_BLOCKS) * 0.05).astype(np.float16)
        blocks[:, offset:offset + 2] = halves.view(np.uint8).reshape(NUM_BLOCKS, 2)
    return blocks.reshape(-1)


def main():
    folder = pathlib.Path(sys.argv[1])
    rng = np.random.default_rng(SEED)
    lines = []
    for kind in TYPES:
        data = random_blocks(rng, kind)
        values = np.ascontiguousarray(gguf.quants.dequantize(data, kind), dtype=np.float32).reshape(-1)
        bits = " ".join(f"{word:08x}" for word in values.view(np.uint32))
        lines.append(f"{kind.name} {data.tobytes().hex()} {values.size} {bits}\n")
    (folder / "dequantize.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
