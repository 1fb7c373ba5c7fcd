"""Lower bounds of time from bytes and operations: what the machine's measured roofs would allow (evaluation rule B4), for the default model's shape."""
import json
import pathlib

WEIGHT_BYTES = 96.6e6
LAYER_WEIGHTS = 106_168_320
HEAD_WEIGHTS = 28_311_552
KV_BYTES_PER_TOKEN = 23_040
ATTENTION_FLOPS_PER_TOKEN = 69_120  # 4 · heads · head size · layers, per token of context and row

ROOF_KEYS = {"bandwidth": "stream", "int8": "int8", "bf16": "bf16"}


def read_roofs(path):
    """{bandwidth B/s, int8 op/s, bf16 FLOP/s}: the best of the roof rows of kernel_bench's JSON."""
    roofs = {}
    for row in json.loads(pathlib.Path(path).read_text())["benchmarks"]:
        for key, word in ROOF_KEYS.items():
            if "roof" in row["name"].lower() and word in row["name"].lower():
                value = row.get("bytes_per_second") if key == "bandwidth" else row.get("items_per_second")
                roofs[key] = max(roofs.get(key, 0.0), value or 0.0)
    missing = [k for k in ROOF_KEYS if not roofs.get(k)]
    if missing:
        raise SystemExit(f"{path}: no roof rows for {', '.join(missing)}")
    return roofs


def rate(point, roofs):
    if point.kind == "prefill":
        tokens = point.context
        weights = (2 * tokens * LAYER_WEIGHTS + 2 * HEAD_WEIGHTS) / roofs["int8"]
        attention = ATTENTION_FLOPS_PER_TOKEN * tokens * tokens / 2 / roofs["bf16"]
        return tokens / (weights + attention)
    batch = point.batch
    weights = max(WEIGHT_BYTES / roofs["bandwidth"], 2 * batch * (LAYER_WEIGHTS + HEAD_WEIGHTS) / roofs["int8"])
    kv_bytes = batch * point.context * KV_BYTES_PER_TOKEN
    attention = max(kv_bytes / roofs["bandwidth"], batch * point.context * ATTENTION_FLOPS_PER_TOKEN / roofs["bf16"])
    return batch / (weights + attention)
