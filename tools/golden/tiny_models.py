"""Tiny random models of every supported architecture, as transformers objects."""

import torch
import transformers

HIDDEN = 64
HEAD_DIM = 64
VOCAB = 256

COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=HEAD_DIM,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
)

# K-quantised rows are whole blocks of 256.
WIDE = dict(COMMON, hidden_size=256, intermediate_size=256, num_hidden_layers=1, tie_word_embeddings=True)


def rope(kind, **fields):
    return dict(rope_type=kind, rope_theta=10000.0, **fields)


# name -> (config, torch type of the safetensors file, GGUF type of the matrices)
MODELS = {
    "llama": (transformers.LlamaConfig(**COMMON), torch.float32, "Q8_0"),
    "llama-rope-llama3": (
        transformers.LlamaConfig(
            **COMMON,
            rope_parameters=rope(
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=64,
            ),
        ),
        torch.bfloat16,
        "F16",
    ),
    "llama-rope-linear": (
        transformers.LlamaConfig(**COMMON, rope_parameters=rope("linear", factor=4.0)),
        torch.float16,
        "Q5_0",
    ),
    "llama-rope-yarn": (
        transformers.LlamaConfig(
            **dict(COMMON, tie_word_embeddings=True),
            rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=128),
        ),
        torch.bfloat16,
        "Q4_1",
    ),
    "mistral": (
        transformers.MistralConfig(**dict(COMMON, num_key_value_heads=1), sliding_window=70),
        torch.bfloat16,
        "Q4_0",
    ),
    "qwen2": (
        transformers.Qwen2Config(
            **{k: v for k, v in COMMON.items() if k != "head_dim"} | dict(num_attention_heads=1, num_key_value_heads=1),
            use_sliding_window=True,
            sliding_window=48,
            max_window_layers=1,
            layer_types=["full_attention", "sliding_attention"],
        ),
        torch.bfloat16,
        "Q5_1",
    ),
    "qwen3": (
        transformers.Qwen3Config(**dict(COMMON, tie_word_embeddings=True)),
        torch.bfloat16,
        "BF16",
    ),
    "llama-wide": (transformers.LlamaConfig(**WIDE), None, "K"),
}


def make(name, seed):
    """A model with weights that spread its logits and make attention pick; the default init does neither."""
    config = MODELS[name][0]
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if key.endswith("norm.weight"):
                weight.copy_(1.0 + 0.2 * torch.randn_like(weight))
            elif key.endswith("bias"):
                weight.copy_(0.3 * torch.randn_like(weight))
            elif "embed_tokens" in key:
                # A tied embedding is the head too: smaller, else every token predicts itself.
                weight.copy_((0.5 if config.tie_word_embeddings else 1.0) * torch.randn_like(weight))
            else:
                gain = 1.2 if ("q_proj" in key or "k_proj" in key) else 1.0
                weight.copy_(gain * torch.randn_like(weight) / weight.shape[1] ** 0.5)
    return model
