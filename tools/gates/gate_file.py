"""Gate files: safetensors with the names and shapes of SeerAttention-R's gates, their settings as metadata.

Per layer i, under model.layers.{i}.self_attn.attn_gate: attngate_linear_q.weight [kv_heads, group, head_dim, width],
attngate_linear_k.weight [kv_heads, 3 * head_dim, width], and attngate_qnorm.weight, attngate_knorm.weight [width] with
seerattn_use_qk_norm. Channels of a head are in Hugging Face's order: rotation pairs (i, i + head_dim / 2).
"""

import hashlib
import pathlib

import gguf
import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

FORMAT = "spindle-gates-1"
PARTS = {"q": "attngate_linear_q", "k": "attngate_linear_k", "qnorm": "attngate_qnorm", "knorm": "attngate_knorm"}


def tensor_name(layer, part):
    return f"model.layers.{layer}.self_attn.attn_gate.{PARTS[part]}.weight"


def model_digest(path):
    """SHA-256 of the final norm's weights in fp32: the same for every quantisation of a model, another for others."""
    path = pathlib.Path(path)
    if path.suffix == ".gguf":
        tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == "output_norm.weight")
        weights = gguf.dequantize(tensor.data, tensor.tensor_type)
        return hashlib.sha256(np.asarray(weights, dtype="<f4").tobytes()).hexdigest()
    for part in sorted(path.glob("*.safetensors")):
        with safe_open(part, "pt") as file:
            if "model.norm.weight" in file.keys():
                return hashlib.sha256(file.get_tensor("model.norm.weight").float().numpy().tobytes()).hexdigest()
    raise SystemExit(f"{path}: neither a GGUF file nor a folder with model.norm.weight")


def metadata(*, width, theta, block=64, use_rope=True, qk_norm=False, base_model="", digest=""):
    """The settings that a gate file carries; `digest` empty: any model of the same shape."""
    return {"format": FORMAT,
            "seerattn_gate_block_size": str(block),
            "seerattn_gate_hidden_size": str(width),
            "seerattn_use_rope": str(use_rope).lower(),
            "seerattn_use_qk_norm": str(qk_norm).lower(),
            "rope_theta": repr(float(theta)),
            "base_model": base_model,
            "model_digest": digest}


def save(path, layers, settings):
    """layers: per layer a dict of PARTS."""
    tensors = {tensor_name(i, part): weight.to(torch.bfloat16).contiguous()
               for i, layer in enumerate(layers) for part, weight in layer.items()}
    save_file(tensors, path, metadata=settings)
