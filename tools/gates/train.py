"""Fits gates to what collect.py has written, layer by layer, and judges them on windows that they have not seen."""

import json
import math
import pathlib

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tqdm import tqdm

import gate_file
import gate_math
from cache_settings import keep_settings

BUDGET = 0.125  # of the context, in the report
RECENT = 64     # tokens that the server attends to in any case, as it does to block 0
LOSS_SCALE = 10
WARM_UP_STEPS = 20
LEARNING_RATES = (1e-3, 1e-5)


def layer_of(path, layer):
    with safe_open(path, "pt") as file:
        window = {name: file.get_slice(name)[layer].float() for name in ("queries", "features", "labels", "mass")}
        window["positions"] = file.get_tensor("positions")
    return window


def targets(window, blocks):
    """Labels on the columns of gate_math.logits: complete blocks, then the row's own incomplete one."""
    labels, positions = window["labels"], window["positions"]
    own = (positions // blocks)[:, None, None].expand(-1, labels.shape[1], 1)
    is_open = ((positions + 1) % blocks != 0)[:, None, None]
    last = torch.where(is_open, labels.gather(-1, own), 0.0)
    complete = ((positions + 1) // blocks)[:, None, None]
    count = window["features"].shape[0]
    earlier = torch.where(torch.arange(count) < complete, labels[..., :count], 0.0)
    both = torch.cat((earlier, last), -1)
    return both / both.sum(-1, keepdim=True)


def loss_of(gate, window, block, theta):
    """Mean KL of the gate's distribution from the target's, over rows and KV heads."""
    scores = gate_math.logits(gate, window["queries"], window["positions"], window["features"], block, theta)
    wanted = targets(window, block)
    log_p = scores.log_softmax(-1).masked_fill(scores == -math.inf, 0.0)
    return (torch.xlogy(wanted, wanted) - wanted * log_p).sum(-1).mean()


def fit(windows, shape, args, theta, layer, bar):
    generator = torch.Generator().manual_seed(args.seed + layer)
    kv_heads, group, d = shape
    gate = gate_math.mean_key_gate(kv_heads, group, d)
    if args.width != d:
        gate = {"q": torch.randn(kv_heads, group, d, args.width, generator=generator) / math.sqrt(d * group),
                "k": torch.randn(kv_heads, 3 * d, args.width, generator=generator) / math.sqrt(3 * d)}
    gate = {name: weight.requires_grad_() for name, weight in gate.items()}
    if args.qk_norm:
        gate |= {name: torch.ones(args.width, requires_grad=True) for name in ("qnorm", "knorm")}
    high, low = LEARNING_RATES
    optimiser = torch.optim.AdamW(gate.values(), lr=high, weight_decay=0.0)
    for step in range(args.steps):
        progress = max(0, step - WARM_UP_STEPS) / max(1, args.steps - WARM_UP_STEPS)
        rate = low + (high - low) * (1 + math.cos(math.pi * progress)) / 2
        optimiser.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / WARM_UP_STEPS)
        optimiser.zero_grad()
        for i in torch.randint(len(windows), (args.batch,), generator=generator):
            (loss_of(gate, windows[i], args.block, theta) * (LOSS_SCALE / args.batch)).backward()
        optimiser.step()
        bar.update()
    return {name: weight.detach() for name, weight in gate.items()}


@torch.inference_mode()
def judge(gate, windows, block, theta):
    """KL; share of the oracle's blocks that the gate finds; attention mass of always-on and found blocks."""
    sums = {"kl": 0.0, "recall": 0.0, "mass": 0.0, "oracle_mass": 0.0}
    count = 0
    for window in windows:
        sums["kl"] += loss_of(gate, window, block, theta).item()
        scores = gate_math.logits(gate, window["queries"], window["positions"], window["features"], block, theta)
        for row, position in enumerate(window["positions"].tolist()):
            tokens = position + 1
            end = min(tokens // block, -(-(tokens - RECENT) // block))  # behind it everything is attended
            wanted = min(math.ceil(BUDGET * tokens / block), end - 1)
            found = scores[row, :, 1:end].topk(wanted).indices + 1
            oracle = window["labels"][row, :, 1:end].topk(wanted).indices + 1
            mass = window["mass"][row]
            always = mass[:, 0] + mass[:, end:].sum(-1)
            hits = (found[:, :, None] == oracle[:, None, :]).any(-1).float().mean(-1)
            sums["recall"] += hits.mean().item() / len(window["positions"])
            sums["mass"] += (always + mass.gather(1, found).sum(-1)).mean().item() / len(window["positions"])
            sums["oracle_mass"] += (always + mass.gather(1, oracle).sum(-1)).mean().item() / len(window["positions"])
        count += 1
    return {name: value / count for name, value in sums.items()}


def train(args):
    """Writes args.cache/layer-NN.{safetensors,json} as layers are done, then args.out and args.report."""
    cache = pathlib.Path(args.cache)
    paths = {part: sorted(cache.glob(f"{part}-*.safetensors")) for part in ("train", "held_out")}
    if not paths["train"] or not paths["held_out"]:
        raise SystemExit(f"{cache}: no windows; run collect first")
    facts = json.loads((cache / "model.json").read_text())
    num_layers, theta = facts["num_layers"], facts["rope_theta"]
    shape = facts["kv_heads"], facts["group"], facts["head_dim"]
    if not (cache / "collect.json").exists():
        raise SystemExit(f"{cache}/collect.json: missing; collect again into an empty folder")
    collected = json.loads((cache / "collect.json").read_text())
    if collected["block"] != args.block:
        raise SystemExit(f"--block {args.block}: the windows were collected with blocks of {collected['block']}")
    windows = {part: len(found) for part, found in paths.items()}
    expected = {"train": collected["num_train"], "held_out": collected["num_held_out"]}
    if windows != expected:
        raise SystemExit(f"{cache}: windows {windows} of {expected}; run collect to its end first")
    keep_settings(cache / "train.json", {"collected": collected, "width": args.width, "qk_norm": args.qk_norm, "steps": args.steps,
                                         "batch": args.batch, "seed": args.seed}, cache.glob("layer-*"))
    layers, reports = [], []
    with tqdm(total=num_layers * args.steps, desc="steps") as bar:
        for layer in range(num_layers):
            done = cache / f"layer-{layer:02}"
            if not done.with_suffix(".json").exists():
                gate = fit([layer_of(path, layer) for path in paths["train"]], shape, args, theta, layer, bar)
                gate = {name: weight.bfloat16().float() for name, weight in gate.items()}  # as it is served
                held_out = [layer_of(path, layer) for path in paths["held_out"]]
                save_file(gate, done.with_suffix(".safetensors"))
                report = {"trained": judge(gate, held_out, args.block, theta)}
                if args.width == shape[2]:
                    untrained = gate_math.mean_key_gate(*shape)
                    report["mean_key"] = judge(untrained, held_out, args.block, theta)
                done.with_suffix(".json").write_text(json.dumps(report))
            else:
                bar.update(args.steps)
            layers.append(load_file(done.with_suffix(".safetensors")))
            reports.append(json.loads(done.with_suffix(".json").read_text()))
    settings = gate_file.metadata(width=args.width, theta=theta, block=args.block, qk_norm=args.qk_norm,
                                  base_model=facts["base_model"], digest=facts["model_digest"])
    gate_file.save(args.out, layers, settings)
    names = reports[0].keys()
    mean = {name: {key: sum(r[name][key] for r in reports) / num_layers for key in reports[0][name]} for name in names}
    text = json.dumps({"budget": BUDGET, "windows": windows,
                       "steps": args.steps, "batch": args.batch, "seed": args.seed, "mean": mean, "layers": reports},
                      indent=1)
    pathlib.Path(args.report).write_text(text + "\n")
    print(json.dumps(mean, indent=1))
