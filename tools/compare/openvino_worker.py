"""Runs inside a Python that has openvino-genai: reads points as JSON lines, answers "rate X" lines. use: openvino_worker.py MODEL THREADS"""
import json
import random
import sys
import time

import numpy
import openvino
import openvino_genai


def make_pipeline(model, threads):
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 4
    scheduler.max_num_seqs = 16
    scheduler.max_num_batched_tokens = 2048
    scheduler.enable_prefix_caching = False
    return openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1,
                                                                              "PERFORMANCE_HINT": "LATENCY"})


def measure(pipeline, request, rng):
    batch, context = request["batch"], request["context"]
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = request["generated"] if request["kind"] == "decode" else 1
    config.ignore_eos = True
    config.do_sample = False
    started = time.perf_counter()
    handles = []
    for i in range(batch):
        ids = numpy.array([[rng.randrange(*request["vocabulary"]) for _ in range(context)]], dtype=numpy.int64)
        handles.append(pipeline.add_request(i, openvino.Tensor(ids), config))
    times = [[] for _ in handles]  # of the tokens of each sequence
    while pipeline.has_non_finished_requests():
        pipeline.step()
        now = time.perf_counter()
        for sequence, handle in enumerate(handles):
            if handle.can_read():
                times[sequence] += [now] * sum(len(output.generated_ids) for output in handle.read().values())
    if request["kind"] == "prefill":
        return context / (times[0][0] - started)
    begin, end = max(t[0] for t in times), min(t[-1] for t in times)
    return sum(begin < t <= end for sequence in times for t in sequence) / (end - begin)


def main():
    pipeline = make_pipeline(sys.argv[1], int(sys.argv[2]))
    rng = random.Random(1)
    for line in sys.stdin:
        print(f"rate {measure(pipeline, json.loads(line), rng)}", flush=True)


if __name__ == "__main__":
    main()
