"""Published gates (attn_gate_weights.pth beside a config.json) to a gate file. Runs offline; nothing in the pickle is
executed."""

import json
import pathlib

import torch

import gate_file

# Settings whose other values mean another gate.
EXPECTED = {"seerattn_q_head_pooling_type": "Qproj", "seerattn_k_seq_pooling_type": "Kmaxminavg"}


def setting(config, key):
    if key not in config:
        raise SystemExit(f"config: '{key}' is missing")
    return config[key]


def convert(args):
    config = json.loads(pathlib.Path(args.config).read_text())
    for key, wanted in EXPECTED.items():
        if setting(config, key) != wanted:
            raise SystemExit(f"config: '{key}' must be {wanted}, got {config[key]}")
    if config.get("rope_scaling"):
        raise SystemExit("config: gates of models with rope_scaling are not supported")
    state = torch.load(args.weights, map_location="cpu", weights_only=True)
    qk_norm = setting(config, "seerattn_use_qk_norm")
    parts = ("q", "k", "qnorm", "knorm") if qk_norm else ("q", "k")
    layers = []
    for layer in range(setting(config, "num_hidden_layers")):
        names = {part: gate_file.tensor_name(layer, part) for part in parts}
        missing = [name for name in names.values() if name not in state]
        if missing:
            raise SystemExit(f"{args.weights}: '{missing[0]}' is missing")
        layers.append({part: state[name] for part, name in names.items()})
    if len(state) != len(layers) * len(parts):
        raise SystemExit(f"{args.weights}: {len(state)} tensors, {len(layers) * len(parts)} were expected")
    settings = gate_file.metadata(width=setting(config, "seerattn_gate_hidden_size"),
                                  theta=setting(config, "rope_theta"),
                                  block=setting(config, "seerattn_gate_block_size"),
                                  use_rope=setting(config, "seerattn_use_rope"),
                                  qk_norm=qk_norm,
                                  base_model=config.get("base_model", ""),
                                  digest=gate_file.model_digest(args.model) if args.model else "")
    gate_file.save(args.out, layers, settings)
