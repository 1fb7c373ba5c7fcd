#!/usr/bin/env python3
"""Makes tests/golden: tiny random models in both file formats and reference logits from transformers.

Usage: python3 -m venv .venv && .venv/bin/pip install -r tools/golden/requirements.txt
       .venv/bin/python tools/golden/make.py --smollm2 PATH_TO_GGUF

References are fp32 on the dequantised weights, eager attention, one pass per prompt. Files are never edited by hand.
"""

import argparse
import hashlib
import pathlib
import shutil
import sys

import gguf
import numpy as np
import torch
import transformers

import gguf_export
import golden_file
import tiny_models

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parents[1] / "tests" / "golden"
SEED = 20260
TINY_PROMPTS = (300, 17, 1)  # tokens; beyond every window and original context of the tiny models


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def provenance(model_path, **more):
    return dict(model=model_path.name, model_sha256=sha256(model_path), seed=SEED, torch=torch.__version__,
                transformers=transformers.__version__, numpy=np.__version__, **more)


def logits_of(model, prompts):
    with torch.no_grad():
        return [(tokens, model(torch.tensor([tokens])).logits[0].float().numpy()) for tokens in prompts]


def make_tiny(name):
    config, file_type, gguf_type = tiny_models.MODELS[name]
    model = tiny_models.make(name, SEED)
    rng = np.random.default_rng(SEED)
    prompts = [rng.integers(0, config.vocab_size, n).tolist() for n in TINY_PROMPTS]
    if file_type is not None:
        folder = GOLDEN / "models" / name
        shutil.rmtree(folder, ignore_errors=True)
        model.to(file_type).save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager").eval()
        path = folder / "model.safetensors"
        golden_file.write(GOLDEN / "logits" / f"{name}.safetensors.golden", provenance(path),
                          logits_of(loaded, prompts))
    model.float()
    architecture = config.model_type if config.model_type.startswith("qwen") else "llama"
    path = GOLDEN / "models" / f"{name}.gguf"
    gguf_export.write(path, model, architecture, gguf_type, SEED)
    if getattr(config, "sliding_window", None):
        # GGUF files of these models carry no window: converters do not write one.
        config = type(config)(**dict(config.to_dict(), sliding_window=None, use_sliding_window=False,
                                     layer_types=None))
    # A fresh object: the conversion of `model` to the file's type has rounded its rotation frequencies too.
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    gguf_export.load_into(path, model)
    golden_file.write(GOLDEN / "logits" / f"{name}.gguf.golden", provenance(path), logits_of(model, prompts))
    for written in [path, *(GOLDEN / "models" / name).glob("*")]:
        assert written.stat().st_size <= golden_file.MAX_BYTES, written
    print(f"{name}: {gguf_type} {path.stat().st_size} bytes", flush=True)


def make_smollm2(path):
    reader = gguf.GGUFReader(str(path))

    def field(key):
        return reader.get_field(key).contents()

    config = transformers.LlamaConfig(
        vocab_size=field("llama.vocab_size"), hidden_size=field("llama.embedding_length"),
        intermediate_size=field("llama.feed_forward_length"), num_hidden_layers=field("llama.block_count"),
        num_attention_heads=field("llama.attention.head_count"),
        num_key_value_heads=field("llama.attention.head_count_kv"),
        max_position_embeddings=field("llama.context_length"),
        rms_norm_eps=field("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters=tiny_models.rope("default") | dict(rope_theta=field("llama.rope.freq_base")),
        tie_word_embeddings=True)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    gguf_export.load_into(path, model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    prompts = []
    for text in sorted((HERE / "prompts").glob("*.txt")):
        tokens = tokenizer(text.read_text(), add_special_tokens=False)["input_ids"]
        assert len(tokens) >= 700, (text, len(tokens))
        prompts.append(tokens)
    lengths = [len(tokens) for tokens in prompts]
    golden_file.write(GOLDEN / "logits" / "smollm2-135m-instruct.q4_1.gguf.golden",
                      provenance(path, prompt_tokens=lengths), logits_of(model, prompts))
    print(f"smollm2: prompts of {lengths} tokens", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", type=pathlib.Path, help="the default model's GGUF file")
    parser.add_argument("--only", help="make one tiny model only")
    args = parser.parse_args()
    (GOLDEN / "models").mkdir(parents=True, exist_ok=True)
    (GOLDEN / "logits").mkdir(exist_ok=True)
    for name in tiny_models.MODELS:
        if args.only in (None, name):
            make_tiny(name)
    if args.smollm2:
        make_smollm2(args.smollm2)


if __name__ == "__main__":
    sys.exit(main())
