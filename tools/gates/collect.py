"""What gates learn from: pre-RoPE queries, pooled keys and where attention really goes, of windows of text."""

import hashlib
import json
import pathlib

import torch
from safetensors.torch import save_file
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

import gate_file
import gate_math
from cache_settings import keep_settings


def load(path):
    path = pathlib.Path(path)
    if path.suffix == ".gguf":
        source = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    else:
        source = {"pretrained_model_name_or_path": path}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(**source)


def rope_theta(config):
    """The base of a plain rotation. Scaled ones would need their own frequencies in the gate."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default":
        raise SystemExit(f"rotation of type {rope['rope_type']} is not supported, only the plain one")
    return float(rope.get("rope_theta") or config.rope_theta)


def windows(tokenizer, texts, lengths, count, generator):
    """`count` windows: lengths in rotation, texts in rotation, at random places."""
    tokens = [torch.tensor(tokenizer.encode(path.read_text(errors="replace"), add_special_tokens=False))
              for path in texts]
    tokens = [t for t in tokens if len(t) > max(lengths)]
    if not tokens:
        raise SystemExit(f"no text has more than {max(lengths)} tokens")
    for i in range(count):
        text = tokens[i % len(tokens)]
        length = lengths[(i // len(tokens)) % len(lengths)]
        begin = int(torch.randint(len(text) - length, (), generator=generator))
        yield text[begin:begin + length]


class Capture:
    """Hooks the products of q and k of every layer and reduces them to what training needs."""

    def __init__(self, model, block, num_rows):
        config = model.config
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.group = self.heads // self.kv_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.theta = rope_theta(config)
        self.block = block
        self.num_rows = num_rows
        self.rows = self.keys = None
        self.queries, self.features, self.labels, self.mass = [], [], [], []
        for layer in model.model.layers:
            attention = layer.self_attn
            q_module = getattr(attention, "q_norm", None) or attention.q_proj
            k_module = getattr(attention, "k_norm", None) or attention.k_proj
            q_module.register_forward_hook(self._on_queries)
            k_module.register_forward_hook(self._on_keys)

    def begin(self, length, generator):
        for part in (self.queries, self.features, self.labels, self.mass):
            part.clear()
        order = torch.randperm(length - length // 2, generator=generator)[:self.num_rows]
        self.positions = (length // 2 + order).sort().values

    def _on_queries(self, module, inputs, output):
        q = output.float().view(-1, self.kv_heads, self.group, self.head_dim)
        self.rows = q[self.positions]
        self._reduce_if_complete()

    def _on_keys(self, module, inputs, output):
        self.keys = output.float().view(-1, self.kv_heads, self.head_dim)
        self._reduce_if_complete()

    def _reduce_if_complete(self):
        if self.rows is None or self.keys is None:
            return
        with torch.autocast("cpu", enabled=False):
            labels, mass = self._targets()
        self.queries.append(self.rows.half())
        self.features.append(gate_math.pool(self.keys, self.block).float())
        self.labels.append(labels.half())
        self.mass.append(mass.half())
        self.rows = self.keys = None

    def _targets(self):
        """Block maxima of the softmax rows, the largest over the group, summing to 1; and block sums, the mean over
        the group: both [rows, kv_heads, blocks], the last block perhaps incomplete."""
        length = self.keys.shape[0]
        q = gate_math.rotate(self.rows, self.positions, self.theta)
        k = gate_math.rotate(self.keys, torch.arange(length), self.theta)
        future = torch.arange(length)[None, :] > self.positions[:, None]
        pad = -length % self.block
        labels, mass = [], []
        for head in range(self.kv_heads):
            scores = torch.einsum("rgd,td->grt", q[:, head], k[:, head]) * self.head_dim ** -0.5
            p = scores.masked_fill_(future, -torch.inf).softmax(-1)
            p = torch.nn.functional.pad(p, (0, pad)).view(*p.shape[:2], -1, self.block)
            labels.append(p.amax(-1).amax(0))
            mass.append(p.sum(-1).mean(0))
        labels = torch.stack(labels, 1)
        return labels / labels.sum(-1, keepdim=True), torch.stack(mass, 1)

    def tensors(self):
        return {"positions": self.positions, "queries": torch.stack(self.queries), "features": torch.stack(self.features),
                "labels": torch.stack(self.labels), "mass": torch.stack(self.mass)}


def text_digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(pathlib.Path(folder).glob("*.txt"))}


@torch.inference_mode()
def collect(args):
    """Writes args.cache/{train,held_out}-NNNN.safetensors; what is there already stays, if it was made with the same settings."""
    cache = pathlib.Path(args.cache)
    cache.mkdir(parents=True, exist_ok=True)
    model, tokenizer = load(args.model)
    capture = Capture(model, args.block, args.rows)
    facts = {"num_layers": model.config.num_hidden_layers, "kv_heads": capture.kv_heads, "group": capture.group,
             "head_dim": capture.head_dim, "rope_theta": capture.theta, "base_model": pathlib.Path(args.model).name,
             "model_digest": gate_file.model_digest(args.model)}
    settings = {"model_digest": facts["model_digest"], "train": text_digests(args.train), "held_out": text_digests(args.held_out),
                "num_train": args.num_train, "num_held_out": args.num_held_out, "lengths": args.lengths, "rows": args.rows,
                "block": args.block, "seed": args.seed}
    keep_settings(cache / "collect.json", settings, cache.glob("*-[0-9][0-9][0-9][0-9].safetensors"))
    (cache / "model.json").write_text(json.dumps(facts))
    for part, folder, count in (("held_out", args.held_out, args.num_held_out), ("train", args.train, args.num_train)):
        generator = torch.Generator().manual_seed(args.seed)
        texts = sorted(pathlib.Path(folder).glob("*.txt"))
        for i, tokens in enumerate(tqdm(windows(tokenizer, texts, args.lengths, count, generator), part, count)):
            path = cache / f"{part}-{i:04}.safetensors"
            if path.exists():
                continue
            # Rows depend on the window alone, so that an interrupted run goes on as if it had not been.
            capture.begin(len(tokens), torch.Generator().manual_seed(args.seed * 1_000_003 + i))
            # Products in bf16, as the server has them.
            with torch.autocast("cpu", torch.bfloat16):
                model.model(tokens[None], use_cache=False)
            partial = path.with_suffix(".part")
            save_file(capture.tensors(), partial)
            partial.rename(path)
