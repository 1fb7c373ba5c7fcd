"""Sparse attention by request: equal to dense where everything is selected, less where it is not, and nobody else's business."""
import concurrent.futures
import unittest

from harness import Server, assert_error

PROMPT = " ".join(f"Item {i} costs {i * 37 % 1000} coins." for i in range(110))  # more than one segment
# Tokens that are attended on top of the budget: sink and recent ones, an open partition, ShadowKV's outliers, what
# lies behind RetroInfer's last segment.
ALGORITHMS = {"streaming": 68, "quest": 68 + 16, "shadowkv": 68 + 8 + 384, "retroinfer": 16 + 300}


class SparseTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--threads", "2", "--max-queue-size", "16")
        cls.dense = cls.answer()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    @classmethod
    def ask(cls, prompt=PROMPT, tokens=24, server=None, **spindle):
        return (server or cls.server).ask(prompt, tokens, spindle=spindle)

    @classmethod
    def answer(cls, **arguments):
        choice = cls.ask(**arguments)["choices"][0]
        return choice["text"], choice["logprobs"]

    def test_everything_selected_is_dense(self):
        for algorithm in ALGORITHMS:
            for budget in ({"budget_fraction": 1}, {"budget_tokens": 100000}, {"budget_tokens": 5}):
                # The last one is far too small for its length, but the context is shorter than min_context.
                short = budget == {"budget_tokens": 5}
                sparse = {"algorithm": algorithm, "min_context": 100000 if short else 0, **budget}
                self.assertEqual(self.answer(sparse=sparse), self.dense, (algorithm, budget))

    def test_a_small_budget_attends_to_little(self):
        for algorithm, always in ALGORITHMS.items():
            before = self.server.metric_sum("spindle_sparse_steps_total", algorithm=algorithm, kind="sparse")
            sparse = {"algorithm": algorithm, "budget_tokens": 128, "min_context": 0}
            answer = self.ask(sparse=sparse)
            stats = answer["spindle"]["sparse"]
            self.assertEqual(stats["algorithm"], algorithm)
            context = stats["context_tokens"]
            self.assertGreater(context, 1200)
            self.assertLessEqual(stats["attended_fraction_max"], (128 + always) / (context - 24))
            self.assertGreater(stats["attended_fraction_min"], 128 / context)
            self.assertLessEqual(stats["attended_fraction_min"], stats["attended_fraction_mean"])
            self.assertLessEqual(stats["attended_fraction_mean"], stats["attended_fraction_max"])
            estimated = stats["estimated_fraction_mean"]
            self.assertTrue(0.1 < estimated < 0.35 if algorithm == "retroinfer" else estimated == 0, (algorithm, estimated))
            self.assertNotEqual((answer["choices"][0]["text"], answer["choices"][0]["logprobs"]), self.dense)
            after = self.server.metric_sum("spindle_sparse_steps_total", algorithm=algorithm, kind="sparse")
            self.assertEqual(after - before, 23)  # the first token comes from the prompt's last row
            self.assertEqual(self.answer(sparse=sparse), self.answer(sparse=sparse))

    def test_indexes_in_int8(self):
        with Server("--threads", "2", "--sparse-index-dtype", "int8") as server:
            for algorithm in ("quest", "shadowkv", "retroinfer"):
                small = {"algorithm": algorithm, "budget_tokens": 128, "min_context": 0}
                everything = {"algorithm": algorithm, "budget_fraction": 1, "min_context": 0}
                self.assertEqual(self.answer(sparse=everything, server=server), self.dense, algorithm)
                stats = self.ask(sparse=small, server=server)["spindle"]["sparse"]
                wide = self.ask(sparse=small)["spindle"]["sparse"]
                # Other vectors choose other positions, but as many of them; clusters are whole.
                within = 0.02 if algorithm == "retroinfer" else 0.002
                self.assertAlmostEqual(stats["attended_fraction_mean"], wide["attended_fraction_mean"], delta=within)
                self.assertNotEqual(self.answer(sparse=small, server=server), self.dense)
                self.assertEqual(self.answer(sparse=small, server=server), self.answer(sparse=small, server=server))

    def test_dense_layers_raise_nothing_in_the_shares(self):
        sparse = {"algorithm": "quest", "budget_tokens": 64, "min_context": 0}
        some = self.answer(sparse={**sparse, "dense_layers": "first:2,last:1"})
        self.assertNotEqual(some, self.answer(sparse=sparse))
        self.assertEqual(some, self.answer(sparse={**sparse, "dense_layers": [0, 1, -1]}))
        self.assertEqual(self.answer(sparse={**sparse, "dense_layers": "first:30"}), self.dense)
        self.assertEqual(self.answer(sparse={**sparse, "layer_multipliers": [1000] * 30}), self.dense)

    def test_switching_keeps_the_prompt(self):
        """Turns under different methods share the prompt's KV; a dense one equals an all-dense run."""
        cold = self.ask(prompt=PROMPT + " One more.", sparse={"algorithm": "quest", "budget_tokens": 64, "min_context": 0})
        self.assertGreater(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0)  # of the runs before
        again = self.ask(prompt=PROMPT + " One more.")
        self.assertGreater(again["usage"]["prompt_tokens_details"]["cached_tokens"], 1100)
        with Server("--threads", "2", "--no-enable-prefix-caching") as fresh:
            self.assertEqual(self.ask(prompt=PROMPT + " One more.", server=fresh)["choices"][0]["logprobs"], again["choices"][0]["logprobs"])

    def test_company_changes_nothing(self):
        mine = {"algorithm": "quest", "budget_tokens": 96, "min_context": 0}
        alone = self.answer(sparse=mine)
        others = [{"algorithm": "quest", "budget_tokens": 32, "min_context": 0}, {"algorithm": "dense"},
                  {"algorithm": "shadowkv", "budget_fraction": 0.5, "min_context": 0, "recent_tokens": 5}]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for round_number in range(3):
                jobs = [pool.submit(self.ask, prompt=PROMPT[: 2500 + 300 * i] + str(round_number), sparse=sparse)
                        for i, sparse in enumerate(others)]
                self.assertEqual(pool.submit(self.answer, sparse=mine).result(), alone)
                for job in jobs:
                    job.result()

    def test_refusals(self):
        cases = [
            ({"algorithm": "telepathy"}, "invalid_value"),
            ({"algorithm": "quest", "budget_tokens": 5, "budget_fraction": 0.5}, "unsupported_combination"),
            ({"algorithm": "dense", "budget_tokens": 5}, "unsupported_combination"),
            ({"algorithm": "quest", "budget_fraction": 0}, "invalid_value"),
            ({"algorithm": "quest", "budget_tokens": -1}, "invalid_value"),
            ({"algorithm": "quest", "budget_tokens": "many"}, "invalid_type"),
            ({"algorithm": "quest", "dense_layers": [30]}, "invalid_value"),
            ({"algorithm": "quest", "dense_layers": "middle:3"}, "invalid_value"),
            ({"algorithm": "quest", "head_multipliers": [1, 1, 1, 1]}, "invalid_value"),
            ({"algorithm": "quest", "layer_multipliers": [0]}, "invalid_value"),
            ({"algorithm": "quest", "top_p_mass": 0.9}, "unsupported_combination"),
            ({"algorithm": "quest", "params": {"nonsense": 1}}, "unknown_parameter"),
            ({"algorithm": "quest", "budget": 5}, "unknown_parameter"),
            ({"algorithm": "retroinfer", "sink_tokens": 17}, "invalid_value"),
            ({"algorithm": "retroinfer", "params": {"estimation_fraction": 1.5}}, "invalid_value"),
        ]
        for sparse, code in cases:
            response = self.server.post("/v1/completions", {"model": "smol", "prompt": "hi", "max_tokens": 1, "spindle": {"sparse": sparse}})
            assert_error(self, response, 400, code)

    def test_server_defaults(self):
        arguments = ("--sparse-algorithm", "quest", "--sparse-budget", "96", "--sparse-min-context", "0", "--sparse-dense-layers", "first:2")
        wanted = {"algorithm": "quest", "budget_tokens": 96, "min_context": 0, "dense_layers": [0, 1]}
        with Server("--threads", "2", *arguments) as server:
            self.assertEqual(self.answer(server=server), self.answer(sparse=wanted))
            self.assertEqual(self.answer(server=server, sparse={"algorithm": "dense"}), self.dense)
            self.assertEqual(self.answer(server=server, sparse={"budget_tokens": 200}), self.answer(sparse={**wanted, "budget_tokens": 200}))
            listing = server.request("GET", "/v1/models").json["data"][0]["spindle"]["sparse"]
            self.assertEqual(listing["default"], "quest")

    def test_through_a_fast_tier(self):
        sparse = {"algorithm": "quest", "budget_tokens": 96, "min_context": 0}
        with Server("--threads", "2", "--kv-mode", "mirror", "--kv-fast-bytes", "24MiB") as server:
            self.assertEqual(self.answer(server=server, sparse=sparse), self.answer(sparse=sparse))
            self.assertGreater(server.metric_sum("spindle_kv_page_hits_total"), 1000)
