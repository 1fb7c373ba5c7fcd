"""Lower bounds of time from bytes and operations: what the machine's measured roofs would allow, for the default model's shape."""
import pathlib
import re
import subprocess

WEIGHT_BYTES = 96.6e6
LAYER_WEIGHTS = 106_168_320
HEAD_WEIGHTS = 28_311_552
KV_BYTES_PER_TOKEN = 23_040
ATTENTION_FLOPS_PER_TOKEN = 69_120  # 4 · heads · head size · layers, per token of context and row

NUMBER = r"([0-9.]+)"
BANDWIDTH = re.compile(rf"streaming reads\s+{NUMBER} GB/s")
BF16 = re.compile(rf"bf16 dot product\s+{NUMBER} GFLOP/s, tiles\s+{NUMBER}")


def measure_roofs(folder):
    """{bandwidth B/s, bf16 FLOP/s} as kernel_bench measures them; tiles count where the machine has them, since they are what is used."""
    run = subprocess.run([str(pathlib.Path(folder) / "kernel_bench"), "--benchmark_filter=^$"], capture_output=True, text=True)
    bandwidth, bf16 = BANDWIDTH.search(run.stdout), BF16.search(run.stdout)
    if not bandwidth or not bf16:
        raise SystemExit(f"kernel_bench printed no roofs:\n{run.stdout}{run.stderr}")
    return {"bandwidth": float(bandwidth[1]) * 1e9, "bf16": max(float(bf16[1]), float(bf16[2])) * 1e9}


def rate(point, roofs):
    if point.kind == "prefill":
        tokens = point.context
        weights = (2 * tokens * LAYER_WEIGHTS + 2 * HEAD_WEIGHTS) / roofs["bf16"]
        attention = ATTENTION_FLOPS_PER_TOKEN * tokens * tokens / 2 / roofs["bf16"]
        return tokens / (weights + attention)
    batch = point.batch
    weights = max(WEIGHT_BYTES / roofs["bandwidth"], 2 * batch * (LAYER_WEIGHTS + HEAD_WEIGHTS) / roofs["bf16"])
    kv_bytes = batch * point.context * KV_BYTES_PER_TOKEN
    attention = max(kv_bytes / roofs["bandwidth"], batch * point.context * ATTENTION_FLOPS_PER_TOKEN / roofs["bf16"])
    return batch / (weights + attention)
