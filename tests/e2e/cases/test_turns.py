"""Conversations and documents under several algorithms: what is shared, and what is computed again (short form of tests/stress/sharing.py)."""
import concurrent.futures
import unittest

from harness import EventStream, KEY, Server

DOCUMENT = [i * i * 31 % 40000 + 100 for i in range(1150)]
STRIPE = 64


class TurnsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--threads", "2", "--max-queue-size", "16")
        cls.fresh = Server("--threads", "2", "--no-enable-prefix-caching")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.fresh.stop()

    def body(self, ids, tokens, sparse):
        return {"model": "smol", "prompt": ids, "max_tokens": tokens, "temperature": 0, "logprobs": 5, "ignore_eos": True,
                "return_token_ids": True, "spindle": {"stats": "summary", **({"sparse": sparse} if sparse else {})}}

    def ask(self, server, ids, tokens, sparse=None):
        response = server.post("/v1/completions", self.body(ids, tokens, sparse))
        self.assertEqual(response.status, 200, response.body)
        answer = response.json
        return answer["choices"][0], answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["spindle"]["sparse"]

    def test_a_change_of_algorithm_costs_only_what_was_generated_sparsely(self):
        history, known = DOCUMENT, 0
        for algorithm, tokens in (("dense", 80), ("quest", 70), ("retroinfer", 20), ("dense", 8)):
            sparse = None if algorithm == "dense" else {"algorithm": algorithm, "budget_tokens": 128, "min_context": 0}
            history = history + [500 + tokens + i for i in range(20)]
            choice, cached, stats = self.ask(self.server, history, tokens, sparse)
            self.assertEqual(cached, known, algorithm)
            self.assertEqual(stats["decode_steps"] > stats["dense_steps"], sparse is not None)
            # All of the prompt, and what was generated densely; the last token has no KV.
            known = (len(history) + (0 if sparse else tokens - 1)) // STRIPE * STRIPE
            last = history, tokens, choice
            history = history + choice["token_ids"]
        anew, cached, _ = self.ask(self.fresh, last[0], last[1])
        self.assertEqual(cached, 0)
        self.assertEqual((anew["text"], anew["logprobs"]), (last[2]["text"], last[2]["logprobs"]))

    def test_two_questions_share_a_document_and_its_index(self):
        document = DOCUMENT[::-1]
        questions = [document + [700 + i] * 30 for i in range(2)]
        sparse = {"algorithm": "shadowkv", "budget_tokens": 64, "min_context": 0, "params": {"outlier_chunks": 4}}
        before = self.server.metric_sum("spindle_sparse_indexed_tokens_total", algorithm="shadowkv")
        answers = [self.ask(self.server, ids, 12, sparse) for ids in questions]
        shared = len(document) // STRIPE * STRIPE
        self.assertEqual([cached for _, cached, _ in answers], [0, shared])
        # Once the last step has published it.
        self.server.wait_for(lambda: self.server.metric_sum("spindle_running_requests") == 0, what="an idle engine")
        indexed = self.server.metric_sum("spindle_sparse_indexed_tokens_total", algorithm="shadowkv") - before
        self.assertEqual(indexed, sum(len(ids) + 11 for ids in questions) - shared)
        anew, _, _ = self.ask(self.fresh, questions[1], 12, sparse)
        choice = answers[1][0]
        self.assertEqual((anew["text"], anew["logprobs"]), (choice["text"], choice["logprobs"]))

    def test_company_that_leaves_changes_nothing(self):
        mine = {"algorithm": "quest", "budget_tokens": 96, "min_context": 0}
        alone, _, _ = self.ask(self.fresh, DOCUMENT, 24, mine)
        streams = []
        for i, algorithm in enumerate(("retroinfer", "shadowkv", "streaming")):
            sparse = {"algorithm": algorithm, "budget_tokens": 32 * i, "min_context": 0}
            streams.append(EventStream(self.server, "/v1/completions", {**self.body(DOCUMENT[i:], 400, sparse), "stream": True}, KEY))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            job = pool.submit(self.ask, self.server, DOCUMENT, 24, mine)
            for stream in streams:
                next(stream.events())
                stream.close()
            choice, _, stats = job.result()
        self.assertEqual((choice["text"], choice["logprobs"]), (alone["text"], alone["logprobs"]))
        self.assertGreater(stats["decode_steps"], stats["dense_steps"])
        self.server.wait_for(lambda: self.server.metric_sum("spindle_running_requests") == 0, what="no request left")


if __name__ == "__main__":
    unittest.main()
