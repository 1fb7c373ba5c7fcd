"""Sparse prefill: equal answers wherever and however it runs, whom it shares KV with, statistics, refusals, presets, gRPC."""
import concurrent.futures
import os
import tempfile
import unittest

import grpc

from harness import KEY, Server
from stubs import error_info, pb, rpc

PROMPT = " ".join(f"Item {i} costs {i * 37 % 1000} coins." for i in range(140))  # more than 1,500 tokens
OTHER = " ".join(f"Box {i} weighs {i * 53 % 1000} grams." for i in range(110))
TRI_SHAPE = {"prefill": "tri_shape", "prefill_params": {"start": 128, "recent": 256}}
XATTENTION = {"prefill": "xattention", "prefill_params": {"threshold": 0.7}}
AUTH = (("authorization", f"Bearer {KEY}"),)


class SparsePrefillTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--threads", "2", grpc=True)
        cls.channel = grpc.insecure_channel(f"127.0.0.1:{cls.server.grpc_port}")
        cls.inference = rpc.InferenceStub(cls.channel)
        cls.dense = cls.answer(cls.ask())

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.server.stop()

    @classmethod
    def ask(cls, sparse=None, server=None, prompt=PROMPT, tokens=12, **fields):
        return (server or cls.server).ask(prompt, tokens, sparse, **fields)

    @staticmethod
    def answer(response):
        return [(choice["text"], choice["logprobs"]) for choice in response["choices"]]

    @staticmethod
    def stats(response):
        return response["spindle"]["sparse"]

    @staticmethod
    def cached(response):
        return response["usage"]["prompt_tokens_details"]["cached_tokens"]

    def test_sparse_blocks_are_counted(self):
        for sparse in (TRI_SHAPE, XATTENTION):
            method = sparse["prefill"]
            before = self.server.metric_sum("spindle_sparse_prefill_blocks_total", method=method)
            response = self.ask({**sparse, "algorithm": "dense"}, cache_prompt=False)
            stats = self.stats(response)
            first = 4 if method == "tri_shape" else 2
            last = (response["usage"]["prompt_tokens"] - 128) // 128
            self.assertEqual((stats["prefill"], stats["prefill_sparse_blocks"]), (method, last - first))
            self.assertLess(stats["prefill_attended_fraction_mean"], 0.85)
            self.assertLessEqual(stats["prefill_attended_fraction_min"], stats["prefill_attended_fraction_mean"])
            self.assertLessEqual(stats["prefill_attended_fraction_mean"], stats["prefill_attended_fraction_max"])
            after = self.server.metric_sum("spindle_sparse_prefill_blocks_total", method=method)
            self.assertEqual(after - before, last - first)
            self.assertEqual(stats["attended_fraction_mean"], 1)
            self.assertNotEqual(self.answer(response), self.dense)
        plain = self.stats(self.ask())
        self.assertEqual((plain["prefill"], plain["prefill_sparse_blocks"], plain["prefill_attended_fraction_mean"]), ("dense", 0, 1))

    def test_everything_selected_is_dense(self):
        for sparse in ({"prefill": "xattention", "prefill_params": {"threshold": 1}}, {"prefill": "tri_shape", "prefill_params": {"recent": 8192}},
                       {"prefill": "dense"}):
            response = self.ask(sparse)
            self.assertEqual(self.answer(response), self.dense)
            self.assertGreater(self.cached(response), 1400, "it shares what dense requests have computed")
        self.assertEqual(self.answer(self.ask(XATTENTION, prompt=PROMPT[:400])), self.answer(self.ask(prompt=PROMPT[:400])))

    def test_cold_is_warm_and_dense_stays_dense(self):
        with Server("--threads", "2") as server:
            for sparse in (TRI_SHAPE, XATTENTION):
                cold = self.ask(sparse, server=server)
                warm = self.ask(sparse, server=server)
                self.assertEqual(self.answer(cold), self.answer(warm))
                length = cold["usage"]["prompt_tokens"]
                self.assertEqual(self.cached(warm), (length - 128) // 128 * 128)
                alone = self.ask(sparse, server=server, cache_prompt=False)
                self.assertEqual(self.answer(alone), self.answer(cold))
                dense = self.ask(server=server, spindle={"stats": "summary"})
                self.assertEqual(self.answer(dense), self.dense)

    def test_chunks_threads_tiers_and_company_do_not_matter(self):
        expected = {}
        for sparse in (TRI_SHAPE, XATTENTION):
            for algorithm in ("dense", "quest"):
                whole = {**sparse, "algorithm": algorithm, **({"budget_tokens": 96, "min_context": 0} if algorithm == "quest" else {})}
                expected[sparse["prefill"], algorithm] = (whole, self.answer(self.ask(whole, cache_prompt=False)))
        for options in (("--threads", "1", "--max-num-batched-tokens", "2048"), ("--threads", "2", "--max-num-batched-tokens", "200"),
                        ("--threads", "2", "--kv-mode", "mirror", "--kv-fast-bytes", "24MiB")):
            with Server("--max-queue-size", "16", *options) as server, concurrent.futures.ThreadPoolExecutor(6) as pool:
                others = [pool.submit(self.ask, None, server, OTHER, 40) for _ in range(2)]
                answers = {key: pool.submit(self.ask, whole, server) for key, (whole, _) in expected.items()}
                for key, (_, answer) in expected.items():
                    self.assertEqual(self.answer(answers[key].result()), answer, (options, key))
                for other in others:
                    other.result()

    def test_preemption_changes_nothing(self):
        # 41 stripes: both begin, with 256 tokens of output each set aside, and one has to give way.
        prompts = (PROMPT[:2200], OTHER[:2200])
        sparse = {"prefill": "xattention", "prefill_params": {"threshold": 0.5}}
        expected = [self.answer(self.ask(sparse, prompt=prompt, tokens=400)) for prompt in prompts]
        with Server("--threads", "2", "--kv-host-bytes", "58MiB", "--max-num-seqs", "2") as server:
            preempted = 0
            for _ in range(5):
                with concurrent.futures.ThreadPoolExecutor(2) as pool:
                    both = list(pool.map(lambda prompt: self.ask(sparse, server, prompt, 400, cache_prompt=False), prompts))
                self.assertEqual([self.answer(each) for each in both], expected)
                preempted += sum(each["spindle"]["timing"]["preemptions"] for each in both)
                if preempted:
                    break
            self.assertGreater(preempted, 0)
            self.assertGreater(self.stats(both[0])["prefill_sparse_blocks"], 0)

    def test_several_choices_share_the_prompt(self):
        several = self.ask(XATTENTION, n=3, temperature=1, seed=7)
        again = self.ask(XATTENTION, n=3, temperature=1, seed=7, cache_prompt=False)
        self.assertEqual(self.answer(several), self.answer(again))
        length = several["usage"]["prompt_tokens"]
        self.assertEqual(self.stats(again)["prefill_sparse_blocks"], (length - 128) // 128 - 2)

    def test_the_disk_gives_the_same(self):
        with tempfile.TemporaryDirectory() as folder:
            answers = []
            for _ in range(2):
                with Server("--threads", "2", "--kv-disk-path", folder) as server:
                    response = self.ask(XATTENTION, server=server)
                    answers.append((self.answer(response), self.cached(response)))
            self.assertEqual(answers[0][0], answers[1][0])
            self.assertEqual(answers[0][1], 0)
            self.assertGreater(answers[1][1], 0)

    def test_exact_arithmetic(self):
        with Server("--threads", "2", "--dtype", "f32") as server:
            first = self.ask(XATTENTION, server=server, tokens=4)
            self.assertGreater(self.stats(first)["prefill_sparse_blocks"], 0)
            self.assertEqual(self.answer(first), self.answer(self.ask(XATTENTION, server=server, tokens=4)))

    def test_refusals(self):
        path = "spindle.sparse.prefill"
        for sparse, code, param in (
                ({"prefill": "telepathy"}, "invalid_value", path),
                ({"prefill": 3}, "invalid_type", path),
                ({"prefill_params": {"stride": 8}}, "unsupported_combination", path + "_params"),
                ({"prefill": "dense", "prefill_params": {"stride": 8}}, "unsupported_combination", path + "_params"),
                ({"prefill": "xattention", "prefill_params": {"stride": 12}}, "invalid_value", path + "_params.stride"),
                ({"prefill": "xattention", "prefill_params": {"block": 64}}, "invalid_value", path + "_params.block"),
                ({"prefill": "xattention", "prefill_params": {"recent": 64}}, "unknown_parameter", path + "_params.recent"),
                ({"prefill": "tri_shape", "prefill_params": {"recent": 0}}, "invalid_value", path + "_params.recent"),
                ({"prefill": "tri_shape", "prefill_params": {"last_dense": 1.5}}, "invalid_value", path + "_params.last_dense")):
            error = self.ask(sparse, prompt="hi", status=400)["error"]
            self.assertEqual((error["code"], error["param"]), (code, param), sparse)
            self.assertIn(param, error["message"])
        error = self.ask(XATTENTION, prompt="hi there", status=400, echo=True, logprobs=1)["error"]
        self.assertEqual((error["code"], error["param"]), ("unsupported_combination", path))

    def test_listing_and_knobs(self):
        sparse = self.server.request("GET", "/v1/models").json["data"][0]["spindle"]["sparse"]
        self.assertTrue(all(algorithm["prefill_sparse"] for algorithm in sparse["algorithms"]))
        self.assertEqual(sparse["prefill"]["default"], "dense")
        methods = {method["name"]: method for method in sparse["prefill"]["methods"]}
        self.assertEqual(set(methods), {"xattention", "tri_shape"})
        for name, method in methods.items():
            self.assertEqual(method["partition"], "block")
            for knob in method["knobs"]:
                self.ask({"prefill": name, "prefill_params": {knob["name"]: knob["default"]}}, prompt="hi", tokens=1)
                self.ask({"prefill": name, "prefill_params": {knob["name"]: knob["max"] + 1}}, prompt="hi", tokens=1, status=400)

    def test_presets(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
            file.write("algorithm: dense\nprefill: xattention\nprefill_params: {threshold: 0.7}\n")
        self.addCleanup(os.unlink, file.name)
        with Server("--threads", "2", "--served-model-name", f"long={file.name}") as server:
            self.assertEqual(self.answer(self.ask(server=server, model="long")), self.answer(self.ask(XATTENTION)))
            self.assertEqual(self.answer(self.ask({"prefill": "dense"}, server=server, model="long")), self.dense)
            self.assertEqual(self.answer(self.ask(server=server)), self.dense, "the other name has no preset")
            listing = {m["id"]: m["spindle"]["sparse"]["prefill"]["default"] for m in server.request("GET", "/v1/models").json["data"]}
            self.assertEqual(listing, {"smol": "dense", "long": "xattention"})
        with Server("--threads", "2", "--sparse-preset", file.name) as server:
            self.assertEqual(self.answer(self.ask(server=server)), self.answer(self.ask(XATTENTION)))
            error = self.ask(server=server, prompt="hi there", status=400, echo=True, logprobs=1)["error"]
            self.assertEqual(error["code"], "unsupported_combination")

    def grpc_request(self, sparse):
        return pb.GenerateRequest(model="smol", text=PROMPT, sampling=pb.Sampling(temperature=0), sparse=sparse,
                                  stopping=pb.Stopping(max_tokens=12, ignore_eos=True),
                                  output=pb.OutputOptions(stats=pb.STATS_LEVEL_SUMMARY))

    def test_grpc_says_the_same(self):
        sparse = pb.SparseOptions(prefill="xattention", prefill_params={"threshold": "0.65"})
        result = self.inference.GenerateUnary(self.grpc_request(sparse), metadata=AUTH)
        same = self.ask({"prefill": "xattention", "prefill_params": {"threshold": 0.65, "stride": 16}})
        self.assertEqual(result.choices[0].text, same["choices"][0]["text"])
        self.assertEqual(result.stats.sparse.prefill, "xattention")
        self.assertGreater(result.stats.sparse.prefill_sparse_blocks, 0)
        self.assertLess(result.stats.sparse.prefill_attended_fraction_mean, 1)
        with self.assertRaises(grpc.RpcError) as caught:
            self.inference.GenerateUnary(self.grpc_request(pb.SparseOptions(prefill="tri_shape", prefill_params={"stride": "8"})), metadata=AUTH)
        self.assertEqual(error_info(caught.exception).reason, "unknown_parameter")


if __name__ == "__main__":
    unittest.main()
