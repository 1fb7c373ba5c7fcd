"""Writes tests/golden/gates: small random gates, queries and keys in Hugging Face's order of channels, and the gate logits
that torch computes for them. use: tools/golden/gates.py, with the packages of tools/gates/requirements.txt"""

import hashlib
import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/gates"))
import gate_file  # noqa: E402
import gate_math  # noqa: E402

KV_HEADS, GROUP, HEAD_DIM, WIDTH, BLOCK, BLOCKS, ROWS, THETA = 2, 3, 32, 16, 64, 9, 24, 10000.0


def main():
    generator = torch.Generator().manual_seed(20260)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    gate = {"q": normal(KV_HEADS, GROUP, HEAD_DIM, WIDTH) * 0.2, "k": normal(KV_HEADS, 3 * HEAD_DIM, WIDTH) * 0.2,
            "qnorm": 1 + 0.2 * normal(WIDTH), "knorm": 1 + 0.2 * normal(WIDTH)}
    gate = {name: weight.bfloat16().float() for name, weight in gate.items()}
    # Blocks lean in directions of their own, so that logits differ by more than roundings.
    lean = normal(BLOCKS, 1, KV_HEADS, HEAD_DIM).expand(-1, BLOCK, -1, -1).reshape(-1, KV_HEADS, HEAD_DIM)
    keys = normal(BLOCKS * BLOCK, KV_HEADS, HEAD_DIM) + 2 * lean
    queries = normal(ROWS, KV_HEADS, GROUP, HEAD_DIM)
    position = torch.full((ROWS,), BLOCKS * BLOCK - 1)
    logits = gate_math.logits(gate, queries, position, gate_math.pool(keys, BLOCK), BLOCK, THETA)

    folder = ROOT / "tests/golden/gates"
    folder.mkdir(parents=True, exist_ok=True)
    norm = np.arange(1, 33, dtype="<f4")
    settings = gate_file.metadata(width=WIDTH, theta=THETA, qk_norm=True, base_model="golden",
                                  digest=hashlib.sha256(norm.tobytes()).hexdigest())
    gate_file.save(folder / "gates.safetensors", [gate], settings)
    save_file({"keys": keys, "queries": queries, "logits": logits[..., :BLOCKS].contiguous()},
              folder / "expected.safetensors")


if __name__ == "__main__":
    main()
