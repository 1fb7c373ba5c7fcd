"""Writes a transformers model of the Llama or Qwen family as a GGUF file, and reads one back as fp32 tensors."""

import math

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type

LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
# Which K type each matrix of the K-quantised model has.
K_TYPES = {"attn_q": Type.Q4_K, "attn_k": Type.Q5_K, "attn_v": Type.Q6_K, "attn_output": Type.Q5_K,
           "ffn_gate": Type.Q4_K, "ffn_up": Type.Q6_K, "ffn_down": Type.Q4_K, "token_embd": Type.Q6_K}


def gguf_name(key):
    stem, suffix = key.rsplit(".", 1)
    if stem in TOP_NAMES:
        return f"{TOP_NAMES[stem]}.{suffix}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[rest]}.{suffix}"


def to_pairs(weight, num_heads):
    """Rows of q or k: half-split pairs (i, i + d/2) become adjacent ones (2i, 2i + 1)."""
    shape = weight.shape
    return weight.reshape(num_heads, 2, shape[0] // num_heads // 2, -1).swapaxes(1, 2).reshape(shape)


def from_pairs(weight, num_heads):
    shape = weight.shape
    return weight.reshape(num_heads, shape[0] // num_heads // 2, 2, -1).swapaxes(1, 2).reshape(shape)


def random_k_blocks(shape, kind, rng):
    """Blocks with random codes; the fp16 scales make the values about as large as a normal init."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (shape[0], shape[1] // block, size), dtype=np.uint8)
    spread = 1.0 / math.sqrt(shape[1])

    def put(offset, low, high):
        values = rng.uniform(low, high, blocks.shape[:2]).astype("<f2")
        blocks[:, :, offset:offset + 2] = values[..., None].view(np.uint8).reshape(*blocks.shape[:2], 2)

    if kind == Type.Q6_K:
        put(208, 0.0006 * spread, 0.0009 * spread)  # codes are centred, scales signed
    else:
        top = 15 if kind == Type.Q4_K else 31
        scale = spread / 200.0 * (15 / top)  # sub-scales average 31
        put(0, 0.9 * scale, 1.1 * scale)
        put(2, 0.9 * scale * top / 2, 1.1 * scale * top / 2)  # the minimum centres the codes
    return blocks.reshape(shape[0], -1)


def quantise(weight, kind):
    if kind in (Type.F32, Type.F16):
        return weight.astype(np.float32 if kind == Type.F32 else np.float16)
    return gguf.quants.quantize(weight, kind)


def llama3_factors(config):
    p = config.rope_parameters
    head_dim = config.head_dim
    frequencies = 1.0 / p["rope_theta"] ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
    wavelengths = 2 * math.pi / frequencies
    context, low, high = p["original_max_position_embeddings"], p["low_freq_factor"], p["high_freq_factor"]
    smooth = (context / wavelengths - low) / (high - low)
    factors = 1.0 / ((1 - smooth) / p["factor"] + smooth)
    factors = np.where(wavelengths < context / high, 1.0, factors)
    return np.where(wavelengths > context / low, p["factor"], factors).astype(np.float32)


def write(path, model, architecture, matrix_type, seed):
    config = model.config
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_name(path.stem)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    p = config.rope_parameters
    writer.add_rope_freq_base(p["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    if p["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(p["rope_type"]))
        writer.add_rope_scaling_factor(p["factor"])
        if p["rope_type"] == "yarn":
            writer.add_rope_scaling_orig_ctx_len(p["original_max_position_embeddings"])
    elif p["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config))
    rng = np.random.default_rng(seed)
    for key, tensor in model.state_dict().items():
        name = gguf_name(key)
        weight = tensor.float().numpy()
        if name == "output.weight" and config.tie_word_embeddings:
            continue
        if architecture == "llama" and (".attn_q." in name or ".attn_k." in name):
            heads = config.num_attention_heads if ".attn_q." in name else config.num_key_value_heads
            weight = to_pairs(weight, heads)
        if weight.ndim == 1:
            writer.add_tensor(name, weight.astype(np.float32))
        elif matrix_type == "K":
            kind = K_TYPES[name.split(".")[-2]]
            writer.add_tensor(name, random_k_blocks(weight.shape, kind, rng), raw_dtype=kind)
        else:
            kind = Type[matrix_type]
            raw = None if kind in (Type.F32, Type.F16) else kind
            writer.add_tensor(name, quantise(np.ascontiguousarray(weight), kind), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load_into(path, model):
    """Replaces the weights of `model` by the dequantised tensors of a GGUF file."""
    reader = gguf.GGUFReader(str(path))
    config = model.config
    llama = reader.get_field("general.architecture").contents() == "llama"
    tensors = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        tensors[tensor.name] = values.reshape([int(n) for n in reversed(tensor.shape)])
    state = {}
    for key in model.state_dict():
        name = gguf_name(key)
        if name == "output.weight" and name not in tensors:
            name = "token_embd.weight"
        weight = tensors[name]
        if llama and (".attn_q." in name or ".attn_k." in name):
            heads = config.num_attention_heads if ".attn_q." in name else config.num_key_value_heads
            weight = from_pairs(weight, heads)
        state[key] = torch.from_numpy(np.ascontiguousarray(weight))
    model.load_state_dict(state)
