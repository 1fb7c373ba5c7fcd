"""Queue, cancellation, drain, start-up, prefix cache, metrics, CORS (C34-C38, C40, C44)."""
import json
import re
import signal
import socket
import threading
import time
import unittest

from default_model import fast_bytes
from harness import ADMIN_KEY, KEY, Server, assert_error

CHAT = "/v1/chat/completions"

# Families that must exist with zero values before the first request.
VLLM_FAMILIES = """num_requests_running num_requests_waiting num_requests_waiting_by_reason kv_cache_usage_perc cache_config_info
lora_requests_info prompt_tokens_total generation_tokens_total prompt_tokens_cached_total prefix_cache_queries_total
prefix_cache_hits_total external_prefix_cache_queries_total external_prefix_cache_hits_total num_preemptions_total
request_success_total time_to_first_token_seconds inter_token_latency_seconds request_time_per_output_token_seconds
e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds request_decode_time_seconds
request_inference_time_seconds request_prompt_tokens request_generation_tokens request_max_num_generation_tokens
request_params_max_tokens request_params_n iteration_tokens_total request_prefill_kv_computed_tokens""".split()
ROUTER_FAMILIES = ["spindle_queue_requests", "spindle_running_requests", "spindle_kv_usage_ratio", "spindle_cache_info"]


def long_body(**fields):
    return {"model": "smol", "messages": [{"role": "user", "content": "Tell a long story."}], "temperature": 0,
            "max_tokens": 1500, "ignore_eos": True, "stream": True, **fields}


class LifecycleTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def active(self):
        return self.server.request("GET", "/admin/requests", key=ADMIN_KEY).json

    def wait_idle(self):
        self.server.wait_for(lambda: self.active() == [], what="no active request")

    def committed(self):
        return self.server.metric_sum("spindle_kv_tier_pages", tier="host", state="committed")

    def test_c34_full_queue(self):
        streams = [self.server.stream(CHAT, long_body()) for _ in range(4)]
        for stream in streams:
            self.assertEqual(stream.status, 200)
            next(stream.events())
        waiting = [threading.Thread(target=self.server.chat, kwargs={"max_tokens": 1}) for _ in range(2)]
        for thread in waiting:
            thread.start()
        self.server.wait_for(lambda: sum(r["state"] == "queued" for r in self.active()) == 2, what="two queued requests")
        response = self.server.chat()
        assert_error(self, response, 429, "queue_full")
        self.assertGreaterEqual(int(response.headers["retry-after"]), 1)
        self.assertGreaterEqual(int(response.headers["retry-after-ms"]), 1)
        self.assertEqual(response.headers["x-should-retry"], "true")
        for stream in streams:
            stream.close()
        for thread in waiting:
            thread.join()
        self.wait_idle()

    def test_c35_client_goes_away(self):
        self.wait_idle()
        before = self.server.metric_sum("spindle_requests_cancelled_total", phase="decode")
        pages = self.committed()
        stream = self.server.stream(CHAT, long_body())
        events = stream.events()
        for _ in range(3):
            next(events)
        self.assertGreater(self.committed(), pages)
        stream.close()
        self.server.wait_for(lambda: self.active() == [], timeout=2, what="no active request")
        self.assertEqual(self.committed(), pages)
        self.assertEqual(self.server.metric_sum("spindle_requests_cancelled_total", phase="decode"), before + 1)

    def test_admin_cancel(self):
        stream = self.server.stream(CHAT, long_body())
        events = stream.events()
        next(events)
        identity = self.active()[0]["id"]
        assert_error(self, self.server.post(f"/admin/requests/{identity}/cancel", {}), 403, "insufficient_permissions")
        self.assertEqual(self.server.post(f"/admin/requests/{identity}/cancel", {}, key=ADMIN_KEY).json, {"id": identity, "cancelled": True})
        rest = list(events)
        self.assertNotIn("[DONE]", rest)
        self.assertIn("error", rest[-1])
        assert_error(self, self.server.post("/admin/requests/nobody/cancel", {}, key=ADMIN_KEY), 404, "not_found")

    def test_c38_prefix_cache_and_salt(self):
        prompt = "The river flows to the sea. " * 50
        answers = [self.server.chat(prompt, cache_salt=salt, max_tokens=6).json for salt in ("s1", "s1", "s2")]
        cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers]
        self.assertGreaterEqual(answers[0]["usage"]["prompt_tokens"], 300)
        self.assertEqual(cached[0], 0)
        self.assertGreaterEqual(cached[1], 256)
        self.assertEqual(cached[2], 0)
        self.assertEqual(len({a["choices"][0]["message"]["content"] for a in answers}), 1)

    def test_kv_admin(self):
        self.server.chat("fill the cache " * 30)
        kv = self.server.request("GET", "/admin/kv", key=ADMIN_KEY).json
        self.assertEqual([tier["name"] for tier in kv["tiers"]], ["host"])
        host = kv["tiers"][0]
        self.assertEqual(host["used_bytes"]["live"] + host["used_bytes"]["cached"] + host["free_bytes"], host["capacity_bytes"])
        self.assertEqual(host["lookups"]["hit_tokens"] + host["lookups"]["miss_tokens"], host["lookups"]["tokens"])
        self.assertGreater(host["lookups"]["tokens"], 0)
        self.wait_idle()
        freed = self.server.post("/admin/cache/reset", {}, key=ADMIN_KEY).json
        self.assertGreater(freed["freed_pages"], 0)

    def test_admin_config_shows_what_was_asked_and_what_it_is(self):
        config = self.server.request("GET", "/admin/config", key=ADMIN_KEY).json
        self.assertEqual(config["max-model-len"], {"value": 2048, "given": "2048", "source": "flag"})
        self.assertEqual(config["max-num-batched-tokens"], {"value": 512, "given": None, "source": "default"})
        kv = self.server.request("GET", "/admin/kv", key=ADMIN_KEY).json
        self.assertEqual(config["kv-host-bytes"], {"value": kv["tiers"][0]["capacity_bytes"], "given": None, "source": "default"})
        self.assertEqual(config["max-queue-tokens"]["value"], 8 * 2048)
        self.assertEqual(config["kv-cache-dtype"]["value"], "bf16")
        self.assertEqual(config["sparse-index-dtype"], {"value": "bf16", "given": None, "source": "default"})
        self.assertGreater(config["threads"]["value"], 0)
        self.assertEqual(config["isa"]["value"], self.server.request("GET", "/version", key=None).json["isa"])
        self.assertEqual(config["stream-stall-timeout"]["value"], 60)
        self.assertNotIn(KEY, json.dumps(config["api-key"]))
        self.assertIn("config_resolved", self.server.log_text())

    def test_listed_algorithms_are_accepted(self):
        entry = self.server.request("GET", "/v1/models").json["data"][0]
        answers = {self.server.chat("Say hello.", spindle={"sparse": {"algorithm": each["name"]}}).json["choices"][0]["message"]["content"]
                   for each in entry["spindle"]["sparse"]["algorithms"]}
        self.assertEqual(answers, {self.server.chat("Say hello.").json["choices"][0]["message"]["content"]})
        refused = self.server.chat("Say hello.", spindle={"sparse": {"algorithm": "seer_r"}})
        assert_error(self, refused, 400, "sparse_algorithm_unavailable")

    def test_statistics(self):
        prompt = "The wind goes over the hills. " * 40
        plain = self.server.chat(prompt, max_tokens=4).json
        self.assertNotIn("spindle", plain)
        answer = self.server.chat(prompt, max_tokens=4, spindle={"stats": "summary"}).json
        cached = answer["usage"]["prompt_tokens_details"]
        self.assertEqual(cached["spindle_cached"], {"host": cached["cached_tokens"], "disk": 0})
        stats = answer["spindle"]
        self.assertEqual(stats["kv"]["page_tokens"], 16)
        self.assertEqual(stats["kv"]["bytes_total"], stats["kv"]["pages_total"] * 4096)
        timing = stats["timing"]
        self.assertAlmostEqual(timing["queue_ms"] + timing["prefill_ms"], timing["ttft_ms"], delta=0.1)

    def test_health_and_version(self):
        for path in ("/health", "/healthz", "/ping", "/ready", "/readyz", "/live", "/livez"):
            self.assertEqual(self.server.request("GET", path, key=None).status, 200, path)
            self.assertEqual(self.server.request("HEAD", path, key=None).body, b"", path)
        version = self.server.request("GET", "/version", key=None).json
        self.assertEqual(set(version), {"version", "commit", "build", "backend", "isa"})


class StartTest(unittest.TestCase):
    def test_c37_c40_start_and_metrics(self):
        server = Server(wait=False)
        try:
            seen = set()
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and "ready" not in seen:
                try:
                    self.assertEqual(server.request("GET", "/live", key=None).status, 200)
                    health = server.request("GET", "/health", key=None)
                except OSError:
                    continue
                if health.status == 503:
                    error = assert_error(self, health, 503, "model_loading")
                    self.assertTrue(0 <= error["progress"] <= 1)
                    seen.add("loading")
                else:
                    self.assertEqual(health.json, {"status": "ok"})
                    seen.add("ready")
            self.assertEqual(seen, {"loading", "ready"})
            self.check_metrics(server)
        finally:
            server.stop()

    def check_metrics(self, server):
        samples, families = server.metrics()
        for name in [f"vllm:{n}" for n in VLLM_FAMILIES] + ROUTER_FAMILIES:
            self.assertIn(name, families)
        for name in ("vllm:prompt_tokens_total", "vllm:generation_tokens_total"):
            self.assertEqual(server.metric_sum(name), 0)
        usage = server.chat(max_tokens=7).json["usage"]
        self.assertEqual(server.metric_sum("vllm:prompt_tokens_total"), usage["prompt_tokens"])
        self.assertEqual(server.metric_sum("vllm:generation_tokens_total"), usage["completion_tokens"])
        self.assertEqual(server.metric_sum("vllm:time_to_first_token_seconds_count"), 1)
        self.assertEqual(server.metric_sum("vllm:request_success_total"), 1)
        # One request, in each family once.
        for name in ("request_params_n", "request_params_max_tokens", "request_prompt_tokens", "request_generation_tokens",
                     "request_queue_time_seconds", "e2e_request_latency_seconds"):
            self.assertEqual(server.metric_sum(f"vllm:{name}_count"), 1, name)
        self.assertEqual(server.metric_sum("vllm:request_params_n_sum"), 1)
        self.assertEqual(server.metric_sum("vllm:request_params_max_tokens_sum"), 7)
        self.assertEqual(server.metric_sum("vllm:request_prompt_tokens_sum"), usage["prompt_tokens"])
        self.assertEqual(server.metric_sum("vllm:request_generation_tokens_sum"), usage["completion_tokens"])
        for name in ("vllm:num_requests_waiting", "vllm:num_requests_running", "spindle_queue_requests", "spindle_running_requests"):
            server.wait_for(lambda name=name: server.metric_sum(name) == 0, what=f"{name} = 0")
        for series in server.metrics()[0]:
            if series.startswith("vllm:"):
                self.assertRegex(series, r'[{,]engine="0"[,}]')
            # The shortest decimal that reads back, as Python's.
            bound = re.search(r'le="([^"]*)"', series)
            if bound and bound[1] != "+Inf":
                self.assertEqual(bound[1].removesuffix(".0"), repr(float(bound[1])).removesuffix(".0"))
        self.assertEqual(server.metric_sum("spindle_requests_total", code="200", endpoint="/v1/chat/completions"), 1)
        open_metrics = server.request("GET", "/metrics", key=None, headers={"Accept": "application/openmetrics-text"})
        self.assertTrue(open_metrics.body.endswith(b"# EOF\n"))


class DrainTest(unittest.TestCase):
    def test_c36_sigterm_during_a_stream(self):
        server = Server()
        stream = server.stream(CHAT, long_body(max_tokens=300))
        events = stream.events()
        next(events)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(lambda: server.request("GET", "/ready", key=None).status == 503, what="not ready")
        self.assertEqual(server.request("GET", "/live", key=None).status, 200)
        refused = server.chat()
        assert_error(self, refused, 503, "shutting_down")
        self.assertIn("retry-after", refused.headers)
        self.assertEqual(list(events)[-1], "[DONE]")
        self.assertEqual(server.process.wait(30), 0)
        server.stop()

    def test_sigterm_answers_who_has_not_asked_yet(self):
        server = Server()
        stream = server.stream(CHAT, long_body(max_tokens=300))
        next(stream.events())
        quiet = server.connection()
        quiet.connect()
        with socket.create_connection(("127.0.0.1", server.port)) as silent:
            server.process.send_signal(signal.SIGTERM)
            server.wait_for(lambda: server.request("GET", "/ready", key=None).status == 503, what="not ready")
            quiet.request("POST", CHAT, b"{}", {"Authorization": "Bearer k1", "Content-Type": "application/json"})
            answer = quiet.getresponse()
            self.assertEqual((answer.status, answer.getheader("connection")), (503, "close"))
            self.assertIn(b"shutting_down", answer.read())
            self.assertIn("[DONE]", stream.all())
            self.assertEqual(silent.recv(1), b"")
        self.assertEqual(server.process.wait(30), 0)
        server.stop()

    def test_second_signal_aborts(self):
        server = Server()
        stream = server.stream(CHAT, long_body())
        next(stream.events())
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(lambda: server.request("GET", "/ready", key=None).status == 503, what="not ready")
        server.process.send_signal(signal.SIGINT)
        self.assertEqual(server.process.wait(10), 130)
        stream.close()
        server.stop()

    def test_deadline_cuts_what_is_left(self):
        server = Server("--shutdown-timeout", "0")
        stream = server.stream(CHAT, long_body())
        events = stream.events()
        next(events)
        server.process.send_signal(signal.SIGTERM)
        rest = list(events)
        self.assertEqual(rest[-1]["error"]["code"], "shutting_down")
        self.assertEqual(rest[-1]["error"]["status"], 503)
        self.assertEqual(server.process.wait(10), 0)
        server.stop()

    def test_emulated_copies_do_not_outlive_the_deadline(self):
        # A tier in which nothing stays: every step waits for 90 copies, one after the other.
        server = Server("--shutdown-timeout", "0", "--threads", "1", "--kv-mode", "emulated-link",
                        "--kv-fast-bytes", str(fast_bytes(0, threads=1)), "--sim-link-latency-us", "150000")
        answers = []
        client = threading.Thread(target=lambda: answers.append(server.chat()))
        client.start()
        server.wait_for(lambda: any(r["state"] == "decode" for r in server.request("GET", "/admin/requests", key=ADMIN_KEY).json),
                        timeout=60, what="a first step")
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(8), 0)  # the second step would take 13 s
        client.join()
        assert_error(self, answers[0], 503, "shutting_down")
        server.stop()


class CorsTest(unittest.TestCase):
    def test_c44_preflight(self):
        with Server("--cors-origins", "https://good.example") as server:
            ask = {"Origin": "https://good.example", "Access-Control-Request-Method": "POST",
                   "Access-Control-Request-Headers": "authorization,content-type"}
            answer = server.request("OPTIONS", CHAT, key=None, headers=ask)
            self.assertEqual(answer.status, 204)
            self.assertEqual(answer.headers["access-control-allow-origin"], "https://good.example")
            self.assertIn("authorization", answer.headers["access-control-allow-headers"].lower())
            foreign = server.request("OPTIONS", CHAT, key=None, headers={**ask, "Origin": "https://bad.example"})
            self.assertNotIn("access-control-allow-origin", foreign.headers)


if __name__ == "__main__":
    unittest.main()
