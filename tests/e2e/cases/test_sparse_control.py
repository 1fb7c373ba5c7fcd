"""What governs sparse attention beside its budget: estimated mass, the guard, kept choices, audits, knobs, presets (C24, C41)."""
import concurrent.futures
import json
import os
import pathlib
import tempfile
import unittest

import grpc

from harness import KEY, Server, assert_error
from stubs import error_info, pb, rpc

PROMPT = " ".join(f"Item {i} costs {i * 37 % 1000} coins." for i in range(110))  # more than one segment
LONG_PROMPT = " ".join(f"Item {i} costs {i * 37 % 1000} coins." for i in range(140))  # more than 1,500 tokens
SHADOW = {"algorithm": "shadowkv", "min_context": 0, "params": {"outlier_chunks": 8}}
AUTH = (("authorization", f"Bearer {KEY}"),)


class SparseControlTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--threads", "2", "--max-queue-size", "16", "--allow-audit", grpc=True)
        cls.channel = grpc.insecure_channel(f"127.0.0.1:{cls.server.grpc_port}")
        cls.inference = rpc.InferenceStub(cls.channel)
        cls.dense = cls.answer(cls.ask())

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.server.stop()

    @classmethod
    def ask(cls, sparse=None, server=None, model="smol", tokens=24, prompt=PROMPT, status=200, **spindle):
        return (server or cls.server).ask(prompt, tokens, sparse, status, spindle, model=model)

    def preset_file(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
            file.write(text)
        self.addCleanup(os.unlink, file.name)
        return file.name

    @staticmethod
    def answer(response):
        choice = response["choices"][0]
        return choice["text"], choice["logprobs"]

    @staticmethod
    def stats(response):
        return response["spindle"]["sparse"]

    def test_c24_a_mistyped_member_is_refused(self):
        response = self.server.post("/v1/completions", {"model": "smol", "prompt": "hi", "spindle": {"sparse": {"bugdet_tokens": 1}}})
        error = assert_error(self, response, 400, "unknown_parameter")
        self.assertEqual(response.json["error"]["param"], "spindle.sparse.bugdet_tokens", error)

    def test_c41_shadowkv_with_few_outliers(self):
        sparse = {"algorithm": "shadowkv", "budget_tokens": 256, "min_context": 0, "params": {"outlier_chunks": 8}}
        answer = self.ask(sparse=sparse, prompt=LONG_PROMPT)
        stats = self.stats(answer)
        self.assertGreaterEqual(answer["usage"]["prompt_tokens"], 1500)
        self.assertLess(stats["attended_fraction_mean"], 0.5)
        self.assertLessEqual(abs(stats["decode_steps"] - (answer["usage"]["completion_tokens"] - 1)), 1)
        body = {"model": "smol", "prompt": LONG_PROMPT, "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True},
                "spindle": {"stats": "summary", "sparse": sparse}}
        stream = self.server.post("/v1/completions", body).body
        chunks = [json.loads(line[6:]) for line in stream.decode().splitlines() if line.startswith("data: {")]
        self.assertEqual([c["spindle"]["sparse"]["algorithm"] for c in chunks if "spindle" in c], ["shadowkv"])
        self.assertIsNotNone(chunks[-1]["usage"])

    def test_estimates_are_reported_and_change_nothing(self):
        sparse = {**SHADOW, "budget_tokens": 128}
        with_stats = self.ask(sparse=sparse)
        body = {"model": "smol", "prompt": PROMPT, "max_tokens": 24, "temperature": 0, "logprobs": 5, "ignore_eos": True,
                "spindle": {"sparse": sparse}}
        self.assertEqual(self.answer(self.server.post("/v1/completions", body).json), self.answer(with_stats))
        stats = self.stats(with_stats)
        self.assertGreater(stats["est_mass_min"], 0)
        self.assertLessEqual(stats["est_mass_min"], stats["est_mass_mean"])
        self.assertLess(stats["est_mass_mean"], 1)
        larger = self.stats(self.ask(sparse={**SHADOW, "budget_tokens": 512}))
        self.assertGreater(larger["est_mass_mean"], stats["est_mass_mean"])
        self.assertIsNone(self.stats(self.ask(sparse={"algorithm": "quest", "budget_tokens": 128, "min_context": 0}))["est_mass_mean"])
        self.assertIsNone(self.stats(self.ask())["est_mass_mean"])

    def test_statistics_of_layers(self):
        sparse = {**SHADOW, "budget_tokens": 128, "dense_layers": [0, 7]}
        self.assertNotIn("per_layer", self.ask(sparse=sparse)["spindle"])
        answer = self.ask(sparse=sparse, stats="per_layer")
        self.assertEqual(self.answer(answer), self.answer(self.ask(sparse=sparse)))
        layers = answer["spindle"]["per_layer"]
        self.assertEqual([layer["layer"] for layer in layers], list(range(30)))
        for i in (0, 7):
            self.assertEqual(layers[i], {"layer": i, "attended_fraction_mean": 1, "hit_rate": 1, "est_mass_mean": None})
        chosen = [layer for layer in layers if layer["layer"] not in (0, 7)]
        for name in ("attended_fraction_mean", "est_mass_mean"):
            mean = sum(layer[name] for layer in chosen) / 28
            self.assertAlmostEqual(mean, self.stats(answer)[name], places=5)
            self.assertGreater(len({layer[name] for layer in chosen}), 1)

    def test_top_p_mass(self):
        shares = []
        for mass in (0.5, 0.8, 0.95):
            before = self.server.metric_sum("spindle_sparse_est_mass_count", algorithm="shadowkv")
            stats = self.stats(self.ask(sparse={**SHADOW, "top_p_mass": mass}))
            self.assertGreaterEqual(stats["est_mass_min"], mass - 1e-5)
            self.assertEqual(self.server.metric_sum("spindle_sparse_est_mass_count", algorithm="shadowkv") - before, 23)
            shares.append(stats["attended_fraction_mean"])
        self.assertEqual(shares, sorted(shares))
        self.assertLess(shares[0], shares[2])
        self.assertLess(shares[2], 1)
        capped = self.stats(self.ask(sparse={**SHADOW, "top_p_mass": 0.99, "budget_tokens": 64}))
        self.assertLessEqual(capped["attended_fraction_max"], (64 + 68 + 8 + 64) / (capped["context_tokens"] - 24))
        everything = self.ask(sparse={**SHADOW, "top_p_mass": 1})
        self.assertEqual(self.answer(everything), self.dense)
        self.assertEqual(self.stats(everything)["dense_steps"], 24)
        self.assertEqual(self.stats(everything)["attended_fraction_mean"], 1)

    def test_retroinfer_estimates_mass(self):
        retroinfer = {"algorithm": "retroinfer", "min_context": 0}
        stats = self.stats(self.ask(sparse={**retroinfer, "budget_tokens": 128}, prompt=LONG_PROMPT))
        self.assertTrue(0 < stats["est_mass_min"] <= stats["est_mass_mean"] < 1, stats)
        shares = []
        for mass in (0.5, 0.95):
            stats = self.stats(self.ask(sparse={**retroinfer, "top_p_mass": mass}, prompt=LONG_PROMPT))
            self.assertGreaterEqual(stats["est_mass_min"], mass - 1e-5)
            shares.append(stats["attended_fraction_mean"])
        self.assertTrue(shares[0] < shares[1] < 1, shares)
        strict = self.ask(sparse={**retroinfer, "budget_tokens": 64, "fallback": "dense", "min_mass": 1}, prompt=LONG_PROMPT)
        self.assertEqual(self.stats(strict)["fallback_steps"], 23)
        self.assertEqual(self.answer(strict), self.answer(self.ask(prompt=LONG_PROMPT)))

    def test_the_guard_makes_layers_dense(self):
        sparse = {**SHADOW, "budget_tokens": 64}
        plain = self.ask(sparse=sparse)
        self.assertEqual(self.stats(plain)["fallback_steps"], 0)
        before = self.server.metric_sum("spindle_sparse_steps_total", algorithm="shadowkv", kind="fallback")
        strict = self.ask(sparse={**sparse, "fallback": "dense", "min_mass": 1})
        self.assertEqual(self.answer(strict), self.dense)
        self.assertEqual(self.stats(strict)["fallback_steps"], 23)
        after = self.server.metric_sum("spindle_sparse_steps_total", algorithm="shadowkv", kind="fallback")
        self.assertEqual(after - before, 23)
        lenient = self.ask(sparse={**sparse, "fallback": "dense", "min_mass": 0.001})
        self.assertEqual(self.answer(lenient), self.answer(plain))
        guarded = self.stats(self.ask(sparse={**sparse, "fallback": "dense"}))  # 0.5
        self.assertGreater(guarded["fallback_steps"], 0)
        self.assertGreater(guarded["est_mass_mean"], self.stats(plain)["est_mass_mean"])
        self.assertLess(guarded["attended_fraction_mean"], 1)

    def test_kept_choices_are_the_same_everywhere(self):
        with Server("--threads", "2", "--kv-mode", "mirror", "--kv-fast-bytes", "24MiB") as mirror:
            for algorithm in ("quest", "shadowkv", "streaming"):
                sparse = {"algorithm": algorithm, "budget_tokens": 96, "min_context": 0}
                every = self.answer(self.ask(sparse={**sparse, "reselect_interval": 1}))
                self.assertEqual(every, self.answer(self.ask(sparse=sparse)))
                kept = self.answer(self.ask(sparse={**sparse, "reselect_interval": 8}))
                self.assertNotEqual(kept, every)
                self.assertEqual(kept, self.answer(self.ask(sparse={**sparse, "reselect_interval": 8})))
                self.assertEqual(kept, self.answer(self.ask(server=mirror, sparse={**sparse, "reselect_interval": 8})), algorithm)

    def test_preempted_requests_go_on_with_what_they_kept(self):
        """More tokens than the tight server holds: it computes again what it gave up."""
        prompts = [f"Story {i}. " + PROMPT[:560] for i in range(2)]
        sparse = {"algorithm": "quest", "budget_tokens": 96, "min_context": 0, "reselect_interval": 11}

        def run(*arguments):
            with Server("--threads", "2", *arguments) as server, concurrent.futures.ThreadPoolExecutor(2) as pool:
                jobs = [pool.submit(self.ask, server=server, prompt=prompt, tokens=400, sparse=sparse) for prompt in prompts]
                answers = [self.answer(job.result()) for job in jobs]
                return answers, server.metric_sum("vllm:num_preemptions_total")
        expected, preemptions = run()
        self.assertEqual(preemptions, 0)
        answers, preemptions = run("--kv-host-bytes", str(18 * 1474560))  # stripes of 1,440 KiB
        self.assertGreater(preemptions, 0)
        self.assertEqual(answers, expected)

    def test_audits_report_and_change_nothing(self):
        sparse = {**SHADOW, "budget_tokens": 64}
        plain = self.ask(sparse=sparse)
        self.assertIsNone(self.stats(plain)["audit"])
        before = self.server.metric_sum("spindle_sparse_audit_divergence_count", algorithm="shadowkv")
        audited = self.ask(sparse=sparse, audit_every=2)
        self.assertEqual(self.answer(audited), self.answer(plain))
        audit = self.stats(audited)["audit"]
        self.assertEqual(audit["steps"], 11)
        self.assertGreater(audit["mean_kl"], 0)
        self.assertGreater(audit["max_logit_diff"], 0)
        self.assertTrue(0 <= audit["top1_agreement"] <= 1)
        after = self.server.metric_sum("spindle_sparse_audit_divergence_count", algorithm="shadowkv")
        self.assertEqual(after - before, 11)
        exact = self.stats(self.ask(sparse={**SHADOW, "budget_fraction": 1}, audit_every=1))["audit"]
        self.assertEqual((exact["steps"], exact["top1_agreement"], exact["mean_kl"], exact["max_logit_diff"]), (23, 1, 0, 0))
        better = self.stats(self.ask(sparse={**SHADOW, "budget_tokens": 768}, audit_every=1))["audit"]
        worse = self.stats(self.ask(sparse=sparse, audit_every=1))["audit"]
        self.assertLess(better["mean_kl"], worse["mean_kl"])

    def test_audits_need_permission(self):
        with Server("--threads", "2") as server:
            body = {"model": "smol", "prompt": "hi", "max_tokens": 1, "spindle": {"audit_every": 1}}
            assert_error(self, server.post("/v1/completions", body), 403, "insufficient_permissions")
            body["spindle"]["audit_every"] = 0
            self.assertEqual(server.post("/v1/completions", body).status, 200)

    def test_refusals(self):
        cases = [
            ({"algorithm": "quest", "top_p_mass": 0.9}, "unsupported_combination", "top_p_mass"),
            ({"top_p_mass": 0.9}, "unsupported_combination", "top_p_mass"),
            ({"budget_tokens": 256}, "unsupported_combination", "budget_tokens"),
            ({"algorithm": "auto", "head_multipliers": [2]}, "unsupported_combination", "head_multipliers"),
            ({"algorithm": "streaming", "fallback": "dense"}, "unsupported_combination", "fallback"),
            ({"algorithm": "shadowkv", "min_mass": 0.5}, "unsupported_combination", "min_mass"),
            ({"algorithm": "shadowkv", "top_p_mass": 0}, "invalid_value", "top_p_mass"),
            ({"algorithm": "shadowkv", "top_p_mass": 1.01}, "invalid_value", "top_p_mass"),
            ({"algorithm": "shadowkv", "fallback": "maybe"}, "invalid_value", "fallback"),
            ({"algorithm": "shadowkv", "fallback": "dense", "min_mass": 2}, "invalid_value", "min_mass"),
            ({"algorithm": "quest", "reselect_interval": 0}, "invalid_value", "reselect_interval"),
            ({"algorithm": "quest", "reselect_interval": 65}, "invalid_value", "reselect_interval"),
            ({"algorithm": "retroinfer", "reselect_interval": 2}, "unsupported_combination", "reselect_interval"),
            ({"algorithm": "quest", "params": {"page_tokens": 32}}, "invalid_value", "params.page_tokens"),
            ({"algorithm": "shadowkv", "params": {"outlier_chunks": -1}}, "invalid_value", "params.outlier_chunks"),
            ({"algorithm": "shadowkv", "params": {"outlier_chunks": "8"}}, "invalid_type", "params.outlier_chunks"),
            ({"algorithm": "quest", "params": {"outlier_chunks": 8}}, "unknown_parameter", "params.outlier_chunks"),
            ({"algorithm": "quest", "params": [1]}, "invalid_type", "params"),
        ]
        for sparse, code, param in cases:
            response = self.server.post("/v1/completions", {"model": "smol", "prompt": "hi", "max_tokens": 1, "spindle": {"sparse": sparse}})
            assert_error(self, response, 400, code)
            self.assertEqual(response.json["error"]["param"], "spindle.sparse." + param)

    def test_the_listing_comes_from_the_algorithms(self):
        listing = self.server.request("GET", "/v1/models").json["data"][0]["spindle"]["sparse"]
        algorithms = {a["name"]: a for a in listing["algorithms"]}
        self.assertEqual([n for n, a in algorithms.items() if a["mass_estimate"]], ["shadowkv", "retroinfer"])
        for name, algorithm in algorithms.items():
            if name == "dense":
                continue
            # Every knob is accepted with its default, and says so beyond its range.
            for knob in algorithm["knobs"]:
                sparse = {"algorithm": name, "params": {knob["name"]: knob["default"]}}
                self.ask(sparse=sparse, prompt="hi", tokens=1)
                sparse["params"][knob["name"]] = knob["max"] + 1
                self.ask(sparse=sparse, prompt="hi", tokens=1, status=400)
            # So is a mass where it is said to be offered.
            self.ask(sparse={"algorithm": name, "top_p_mass": 0.9}, prompt="hi", tokens=1, status=200 if algorithm["mass_estimate"] else 400)

    def test_presets(self):
        general = self.preset_file("algorithm: shadowkv\nbudget_tokens: 96\nmin_context: 0\ndense_layers: first:2\nparams: {outlier_chunks: 8}\n")
        own = self.preset_file("algorithm: quest\nbudget_tokens: 64\nmin_context: 0\ndense_layers: [0]\nlayer_multipliers: [1, 2]\n")
        wanted = {"algorithm": "shadowkv", "budget_tokens": 96, "min_context": 0, "dense_layers": [0, 1], "params": {"outlier_chunks": 8}}
        with Server("--threads", "2", "--sparse-preset", general, "--served-model-name", f"quick={own}") as server:
            by_default = self.ask(server=server)
            self.assertEqual(self.answer(by_default), self.answer(self.ask(sparse=wanted)))
            self.assertEqual(self.answer(self.ask(server=server, sparse={"algorithm": "auto"})), self.answer(by_default))
            quick = self.ask(server=server, model="quick")
            self.assertEqual(self.stats(quick)["algorithm"], "quest")
            mine = {"algorithm": "quest", "budget_tokens": 64, "min_context": 0, "dense_layers": [0], "layer_multipliers": [1, 2]}
            self.assertEqual(self.answer(quick), self.answer(self.ask(sparse=mine)))
            self.assertEqual(self.answer(self.ask(server=server, model="quick", sparse={"algorithm": "dense"})), self.dense)
            listing = {m["id"]: m["spindle"]["sparse"]["default"] for m in server.request("GET", "/v1/models").json["data"]}
            self.assertEqual(listing, {"smol": "shadowkv", "quick": "quest"})
        with Server("--threads", "2", "--sparse-preset", general, "--sparse-algorithm", "dense") as server:
            self.assertEqual(self.answer(self.ask(server=server)), self.dense)

    def test_presets_that_do_not_fit_are_refused_at_the_start(self):
        for text, why in (("algorithm: telepathy\n", "algorithm"), ("dense_layers: [30]\nalgorithm: quest\n", "dense_layers"),
                          ("budget: 5\n", "budget"), ("- 1\n", "map")):
            server = Server("--sparse-preset", self.preset_file(text), wait=False)
            self.addCleanup(server.stop)
            self.assertEqual(server.process.wait(60), 2, text)
            self.assertIn(why, server.log_text())

    def test_the_presets_of_this_tree_load(self):
        folder = pathlib.Path(__file__).resolve().parents[3] / "configs" / "sparse"
        files = list(folder.glob("*.yaml"))
        self.assertTrue(files)
        for file in files:
            with Server("--threads", "2", "--sparse-preset", str(file)) as server:
                self.assertEqual(self.ask(server=server, prompt="hi", tokens=2)["usage"]["completion_tokens"], 2)

    def grpc_request(self, sparse, **output):
        return pb.GenerateRequest(model="smol", text=PROMPT, sampling=pb.Sampling(temperature=0), sparse=sparse,
                                  stopping=pb.Stopping(max_tokens=24, ignore_eos=True),
                                  output=pb.OutputOptions(stats=pb.STATS_LEVEL_SUMMARY, **output))

    def test_grpc_says_the_same(self):
        sparse = pb.SparseOptions(algorithm="shadowkv", budget_tokens=96, min_context=0, dense_layers="first:1,last:1",
                                  sink_tokens=8, recent_tokens=32, reselect_interval=4, layer_multipliers=[1, 2, 0.5],
                                  head_multipliers=[1, 1.5], top_p_mass=0.75, fallback="dense", min_mass=0.25,
                                  params={"outlier_chunks": "8"})
        result = self.inference.GenerateUnary(self.grpc_request(sparse, audit_every=4), metadata=AUTH)
        same = self.ask(sparse={
            "algorithm": "shadowkv", "budget_tokens": 96, "min_context": 0, "dense_layers": [0, -1], "sink_tokens": 8, "recent_tokens": 32,
            "reselect_interval": 4, "layer_multipliers": [1, 2, 0.5], "head_multipliers": [1, 1.5], "top_p_mass": 0.75, "fallback": "dense",
            "min_mass": 0.25, "params": {"outlier_chunks": 8}}, audit_every=4)
        self.assertEqual(result.choices[0].text, same["choices"][0]["text"])
        use, stats = result.stats.sparse, self.stats(same)
        for field in ("algorithm", "decode_steps", "dense_steps", "fallback_steps"):
            self.assertEqual(getattr(use, field), stats[field])
        for field in ("attended_fraction_mean", "attended_fraction_min", "attended_fraction_max", "est_mass_mean", "est_mass_min"):
            self.assertAlmostEqual(getattr(use, field), stats[field], places=5)
        self.assertEqual(use.audit.steps, stats["audit"]["steps"])
        self.assertAlmostEqual(use.audit.mean_kl, stats["audit"]["mean_kl"], places=5)

    def test_grpc_refuses_the_same(self):
        cases = [
            (pb.SparseOptions(algorithm="quest", top_p_mass=0.9), "unsupported_combination", "sparse.top_p_mass"),
            (pb.SparseOptions(algorithm="quest", budget_tokens=5, budget_fraction=0.5), "unsupported_combination", "sparse.budget_fraction"),
            (pb.SparseOptions(algorithm="quest", reselect_interval=65), "invalid_value", "sparse.reselect_interval"),
            (pb.SparseOptions(algorithm="quest", head_multipliers=[1, 1, 1, 1]), "invalid_value", "sparse.head_multipliers"),
            (pb.SparseOptions(algorithm="quest", params={"rank": "160"}), "unknown_parameter", "sparse.params.rank"),
            (pb.SparseOptions(algorithm="shadowkv", params={"outlier_chunks": "many"}), "invalid_type", "sparse.params.outlier_chunks"),
            (pb.SparseOptions(algorithm="telepathy"), "invalid_value", "sparse.algorithm"),
            (pb.SparseOptions(algorithm="shadowkv", fallback="maybe"), "invalid_value", "sparse.fallback"),
        ]
        for sparse, code, param in cases:
            with self.assertRaises(grpc.RpcError) as caught:
                self.inference.GenerateUnary(self.grpc_request(sparse), metadata=AUTH)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT, caught.exception.details())
            self.assertEqual(error_info(caught.exception).reason, code)
            self.assertIn(param, caught.exception.details())
