"""Text completions and tokenizer endpoints (C15, C19-C21, C39)."""
import unittest

import openai

import schemas
from harness import KEY, Server, assert_error, text_of


class CompletionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_shape_and_client(self):
        answer = self.server.complete()
        schemas.validate(schemas.COMPLETION, answer.json)
        with openai.OpenAI(base_url=self.server.url + "/v1", api_key=KEY, max_retries=0) as client:
            same = client.completions.create(model="smol", prompt="The capital of France is", temperature=0, max_tokens=8)
        self.assertEqual(same.choices[0].text, answer.json["choices"][0]["text"])

    def test_stream_concatenates(self):
        body = {"model": "smol", "prompt": "The capital of France is", "temperature": 0, "max_tokens": 8}
        whole = self.server.post("/v1/completions", body).json["choices"][0]["text"]
        events = self.server.stream("/v1/completions", {**body, "stream": True}).all()
        self.assertEqual(text_of(events), whole)
        self.assertEqual(events[-1], "[DONE]")

    def test_c15_stop_string(self):
        whole = self.server.complete(max_tokens=24, ignore_eos=True).json["choices"][0]["text"]
        stop = whole[len(whole) // 2:len(whole) // 2 + 4]
        choice = self.server.complete(max_tokens=24, ignore_eos=True, stop=stop).json["choices"][0]
        self.assertEqual(choice["text"], whole[:whole.index(stop)])
        self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("stop", stop))
        kept = self.server.complete(max_tokens=24, ignore_eos=True, stop=stop, include_stop_str_in_output=True).json["choices"][0]
        self.assertEqual(kept["text"], whole[:whole.index(stop)] + stop)

    def test_c19_logprobs(self):
        choice = self.server.complete(logprobs=2, max_tokens=4, ignore_eos=True).json["choices"][0]
        logprobs = choice["logprobs"]
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            self.assertEqual(len(logprobs[key]), 4, key)
        self.assertTrue(all(len(m) in (2, 3) for m in logprobs["top_logprobs"]))
        self.assertEqual(logprobs["text_offset"], sorted(logprobs["text_offset"]))
        self.assertEqual(logprobs["text_offset"][0], 0)

    def test_echo_with_prompt_logprobs(self):
        prompt = "The capital of France is"
        choice = self.server.complete(prompt, echo=True, logprobs=1, max_tokens=2, ignore_eos=True).json["choices"][0]
        self.assertTrue(choice["text"].startswith(prompt))
        self.assertIsNone(choice["logprobs"]["token_logprobs"][0])
        self.assertTrue(all(v is not None and v <= 0 for v in choice["logprobs"]["token_logprobs"][1:]))
        scored = self.server.complete(prompt, echo=True, logprobs=1, max_tokens=0).json
        self.assertEqual(scored["choices"][0]["text"], prompt)
        self.assertEqual(scored["usage"]["completion_tokens"], 0)

    def test_c20_prompt_list(self):
        answer = self.server.complete(["One two", "Three four five"], n=2, temperature=0.5, seed=3).json
        self.assertEqual([c["index"] for c in answer["choices"]], [0, 1, 2, 3])
        counts = [self.server.post("/tokenize", {"model": "smol", "prompt": p}).json["count"] for p in ("One two", "Three four five")]
        self.assertEqual(answer["usage"]["prompt_tokens"], sum(counts))

    def test_c21_ids_equal_text(self):
        ids = self.server.post("/tokenize", {"model": "smol", "prompt": "The capital of France is"}).json["tokens"]
        self.assertEqual(self.server.complete(ids).json["choices"][0]["text"], self.server.complete().json["choices"][0]["text"])

    def test_c39_tokenizer_round_trips(self):
        for text in ("plain", " \n\t  spaces", "日本語 тест émigré", "👩‍👩‍👧‍👦 🏳️‍🌈", "a\u0301 \u200b x", "1234567890 0x1F"):
            vllm = self.server.post("/tokenize", {"model": "smol", "prompt": text, "add_special_tokens": False}).json
            llama = self.server.post("/tokenize", {"content": text, "with_pieces": True}).json
            self.assertEqual([t["id"] for t in llama["tokens"]], vllm["tokens"])
            back = self.server.post("/detokenize", {"model": "smol", "tokens": vllm["tokens"]}).json
            self.assertEqual((back["prompt"], back["content"]), (text, text))
        messages = [{"role": "user", "content": "Count me."}]
        count = self.server.post("/tokenize", {"model": "smol", "messages": messages}).json["count"]
        usage = self.server.post("/v1/chat/completions", {"model": "smol", "messages": messages, "max_tokens": 1}).json["usage"]
        self.assertEqual(count, usage["prompt_tokens"])
        assert_error(self, self.server.post("/detokenize", {"model": "smol", "tokens": [10 ** 7]}), 400, "invalid_value")

    def test_prompt_kinds_are_checked(self):
        for prompt, code in (([], "invalid_value"), ([[]], "invalid_value"), (["a", 1], "invalid_type"), ([-1], "invalid_value"), (5, "invalid_type")):
            response = self.server.complete(prompt)
            self.assertEqual(response.status, 400, prompt)
            self.assertIn(response.json["error"]["code"], (code, "invalid_type", "invalid_value"))


if __name__ == "__main__":
    unittest.main()
