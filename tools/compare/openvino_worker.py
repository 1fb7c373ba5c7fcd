"""Runs inside a Python that has openvino-genai: reads points as JSON lines, answers "rate X" lines. use: openvino_worker.py MODEL THREADS"""
import json
import random
import sys

import numpy
import openvino
import openvino_genai


def make_pipeline(model, threads):
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 4
    scheduler.max_num_seqs = 16
    scheduler.max_num_batched_tokens = 2048
    scheduler.enable_prefix_caching = False
    return openvino_genai.LLMPipeline(model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=threads, NUM_STREAMS=1,
                                      PERFORMANCE_HINT="LATENCY")


def measure(pipeline, request, rng):
    batch, context = request["batch"], request["context"]
    ids = numpy.array([[rng.randrange(*request["vocabulary"]) for _ in range(context)] for _ in range(batch)], dtype=numpy.int64)
    inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = request["generated"] if request["kind"] == "decode" else 1
    config.ignore_eos = True
    config.do_sample = False
    metrics = pipeline.generate(inputs, config).perf_metrics
    if request["kind"] == "prefill":
        return context / (metrics.get_ttft().mean / 1000)
    return batch / (metrics.get_tpot().mean / 1000)


def main():
    pipeline = make_pipeline(sys.argv[1], int(sys.argv[2]))
    rng = random.Random(1)
    for line in sys.stdin:
        print(f"rate {measure(pipeline, json.loads(line), rng)}", flush=True)


if __name__ == "__main__":
    main()
