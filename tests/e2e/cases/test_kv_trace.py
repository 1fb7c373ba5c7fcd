"""--kv-trace: what a server records is read back, replays without a difference, and never gets in the way of an answer."""
import concurrent.futures
import glob
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import harness
from harness import KEY, Server

PROMPT = " ".join(f"Item {i} costs {i * 37 % 1000} coins." for i in range(110))  # more than two units of 512 tokens
MIRROR = ("--threads", "2", "--kv-mode", "mirror", "--kv-fast-bytes", "24MiB",
          "--kv-synthetic-selection", "medium", "--kv-synthetic-pages", "16")
UNIT_TOKENS = 512


def simulate(path, *options):
    """`spindle kv sim` on a trace: its JSON."""
    result = subprocess.run([harness.BINARY, "kv", "sim", path, "--json", *options], capture_output=True, text=True,
                            env=harness.clean_environment(), timeout=300)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


class KvTraceTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, suffix):
        found = glob.glob(os.path.join(self.folder.name, "traces", "*" + suffix))
        self.assertEqual(len(found), 1, found)
        return found[0]

    def serve(self, *arguments, **options):
        return Server("--kv-trace", os.path.join(self.folder.name, "traces"), *arguments, **options)

    def complete(self, server, prompt=PROMPT, **fields):
        response = server.complete(prompt, ignore_eos=True, **{"max_tokens": 24, **fields})
        self.assertEqual(response.status, 200, response.body)
        return response.json

    def counters(self, server):
        """Page hits and misses, once the last step has published them."""
        server.wait_for(lambda: server.metric_sum("spindle_running_requests") == 0, what="an idle engine")
        return [int(server.metric_sum(f"spindle_kv_page_{name}_total")) for name in ("hits", "misses")]

    def test_a_recorded_run_replays_without_a_difference(self):
        with self.serve("--max-model-len", "2048", "--max-num-seqs", "4", *MIRROR, fixture=False) as server:
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                jobs = [pool.submit(self.complete, server, PROMPT[i * 40:], max_tokens=30 + 5 * i, **fields)
                        for i, fields in enumerate(({}, {"n": 2, "temperature": 1}, {}, {"stream": False}, {}))]
                for job in jobs:
                    job.result()
            hits, misses = self.counters(server)
        report = simulate(self.file("-pages.trace"), "--capacity", "recorded")
        self.assertEqual(report["trace"]["trace"], "whole")
        self.assertEqual(report["recorded"]["differences"], 0)
        self.assertEqual(report["recorded"]["compared_pages"], hits + misses)
        self.assertGreater(hits, 10000)
        self.assertGreater(misses, 10000)
        self.assertEqual((report["results"][0]["hits"], report["results"][0]["accesses"]), (hits, hits + misses))
        # With frames for what a step selects and as many again, as another policy would have it.
        fixed = simulate(self.file("-pages.trace"), "--capacity", "48", "--policy", "lru,bucketed")
        ratios = [result["hit_ratio"] for result in fixed["results"]]
        self.assertTrue(all(0.1 < ratio < 1 for ratio in ratios), ratios)

    def test_dense_requests_and_their_forks(self):
        with self.serve("--kv-mode", "mirror", "--kv-fast-bytes", "24MiB", "--threads", "2") as server:
            self.complete(server, PROMPT[:1500], n=3, temperature=1, max_tokens=12)
            hits, misses = self.counters(server)
        report = simulate(self.file("-pages.trace"), "--capacity", "recorded")
        self.assertEqual(report["recorded"], {"compared_pages": hits + misses, "differences": 0})
        self.assertGreater(hits, 10000)

    def test_an_algorithm_and_a_request_that_asks_for_none(self):
        with self.serve("--kv-mode", "mirror", "--kv-fast-bytes", "24MiB", "--threads", "2", "--sparse-algorithm", "quest",
                        "--sparse-budget", "256", "--sparse-min-context", "128", "--sparse-dense-layers", "first:2") as server:
            self.complete(server, PROMPT[:3000], max_tokens=40)
            self.complete(server, PROMPT[:600], spindle={"sparse": {"algorithm": "dense"}})
            hits, misses = self.counters(server)
            self.assertGreater(server.metric_sum("spindle_sparse_steps_total", algorithm="quest", kind="sparse"), 0)
        report = simulate(self.file("-pages.trace"), "--capacity", "recorded")
        self.assertEqual(report["title"], "recorded selection: quest")
        self.assertEqual(report["recorded"], {"compared_pages": hits + misses, "differences": 0})
        self.assertGreater(hits, 10000)

    def test_requests(self):
        secret = "The password of the safe is 4711."
        with self.serve() as server:  # in place: requests only
            first = self.complete(server, secret + PROMPT, max_tokens=5)
            self.complete(server, secret + PROMPT, max_tokens=7, priority=20)
            self.complete(server, secret + PROMPT, max_tokens=1, cache_salt="x")
            self.complete(server, secret + PROMPT[:-7], max_tokens=1)
            self.complete(server, "Short.", max_tokens=3)
            # The last one is written down after its answer.
            server.wait_for(lambda: server.metric_sum("spindle_kv_trace_records_total", trace="requests", state="kept") == 5,
                            what="five records")
        self.assertEqual(glob.glob(os.path.join(self.folder.name, "traces", "*.trace")), [])
        path = self.file("-requests.jsonl")
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        with open(path) as file:
            text = file.read()
        for leak in ("password", "4711", "Item", KEY):
            self.assertNotIn(f'{leak}"', text)
        lines = [json.loads(line) for line in text.splitlines()]
        self.assertEqual([line["output_length"] for line in lines], [5, 7, 1, 1, 3])
        self.assertEqual(lines[0]["input_length"], first["usage"]["prompt_tokens"])
        self.assertEqual([line["priority"] for line in lines], [50, 40, 50, 50, 50])
        self.assertEqual(len({line["tenant"] for line in lines}), 1)
        times = [line["timestamp"] for line in lines]
        self.assertEqual(times, sorted(times))
        ids = [line["hash_ids"] for line in lines]
        for line in lines:
            self.assertEqual(len(line["hash_ids"]), -(-line["input_length"] // UNIT_TOKENS))
        self.assertEqual(ids[0], ids[1])
        self.assertEqual(set(ids[0]) & set(ids[2]), set())  # another salt
        self.assertEqual(ids[0][:-1], ids[3][:-1])
        self.assertNotEqual(ids[0][-1], ids[3][-1])
        report = simulate(path, "--capacity", "100", "--policy", "lru")
        self.assertEqual(report["results"][0]["accesses"], sum(map(len, ids)))
        self.assertEqual(report["results"][0]["hits"], len(ids[1]) + len(ids[3]) - 1)

    def test_a_killed_server_leaves_what_it_had_written(self):
        with self.serve(*MIRROR) as server:
            self.complete(server, max_tokens=100)
            self.complete(server, max_tokens=100)
            path, requests = self.file("-pages.trace"), self.file("-requests.jsonl")
            server.wait_for(lambda: os.path.getsize(path) > 100000, what="two blocks in the trace")
            server.wait_for(lambda: pathlib.Path(requests).read_text().count("\n") == 2, what="two requests in the trace")
            server.process.kill()
            server.process.wait()
        report = simulate(path, "--capacity", "recorded")
        self.assertIn("torn", report["trace"]["trace"])
        self.assertEqual(report["recorded"]["differences"], 0)
        self.assertGreater(report["recorded"]["compared_pages"], 10000)
        self.assertEqual(simulate(requests, "--capacity", "100")["trace"]["requests"], 2)

    def test_a_full_trace_ends_and_serving_goes_on(self):
        with self.serve("--kv-trace-bytes", "64KiB", *MIRROR) as server:
            self.complete(server)
            self.complete(server)
            dropped = server.metric_sum("spindle_kv_trace_records_total", trace="pages", state="dropped")
            self.assertGreater(dropped, 1000)
            server.process.terminate()
            server.process.wait(60)
            self.assertIn("kv_trace_end", server.log_text())
        path = self.file("-pages.trace")
        self.assertLessEqual(os.path.getsize(path), 65536)
        self.assertGreater(os.path.getsize(path), 60000)
        report = simulate(path, "--capacity", "recorded")
        self.assertIn("cut", report["trace"]["trace"])
        self.assertEqual(report["recorded"]["differences"], 0)

    def test_what_cannot_be_recorded_is_refused_at_start(self):
        def refusal(*arguments):
            server = Server(*arguments, wait=False)
            self.addCleanup(server.stop)
            self.assertEqual(server.process.wait(60), 2)
            return server.log_text()
        taken = os.path.join(self.folder.name, "file")
        open(taken, "w").close()
        self.assertIn("--kv-trace " + taken, refusal("--kv-trace", os.path.join(taken, "below")))
        self.assertIn("65536..1073741824", refusal("--kv-trace", self.folder.name, "--kv-trace-bytes", "1KiB"))


if __name__ == "__main__":
    unittest.main()
