"""Where pages of KV are changes no answer: in place, through a fast tier that is far too small, over an emulated link."""
import unittest

from default_model import GROUPS, HEADS, PAGE_BYTES, fast_bytes
from harness import ADMIN_KEY, Server

PROMPT = " ".join(f"Item {i} costs {i * 37 % 1000} coins." for i in range(200))  # more pages than a ring has frames


class PlacementTest(unittest.TestCase):
    def answers(self, *arguments, **kv):
        """Greedy completions of three prompts, one after the other, and the server's counters."""
        with Server("--threads", "2", "--max-model-len", "4096", *arguments) as server:
            found = []
            for prompt, tokens in ((PROMPT, 16), (PROMPT[:600] + " In total", 24), ("Once upon a time", 40)):
                body = {"model": "smol", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 5, "ignore_eos": True}
                response = server.post("/v1/completions", {**body, **({"spindle": {"kv": kv}} if kv else {})})
                self.assertEqual(response.status, 200, response.body)
                choice = response.json["choices"][0]
                found.append((choice["text"], choice["logprobs"]))
            counters = {name: server.metric_sum(f"spindle_kv_{name}_total")
                        for name in ("page_hits", "page_misses", "page_streams", "refaults", "multi_pass", "fetch_stall_seconds")}
            counters["moved"] = server.metric_sum("spindle_kv_moves_total", **{"from": "host", "to": "fast"})
            tiers = server.request("GET", "/admin/kv", key=ADMIN_KEY).json["tiers"]
            if "--kv-mode" in arguments:
                self.assertEqual([tier["name"] for tier in tiers], ["fast", "host"])
                self.assertEqual(tiers[0]["page_misses"], counters["page_misses"])
            capacity, free = (server.metric_sum("spindle_kv_tier_bytes", tier="fast", state=state) for state in ("capacity", "free"))
            self.assertLessEqual(free, capacity)
        return found, counters

    def test_dense(self):
        expected, counters = self.answers()
        self.assertEqual(counters["page_misses"], 0)
        found, counters = self.answers("--kv-mode", "mirror", "--kv-fast-bytes", str(fast_bytes(0)))
        self.assertEqual(found, expected)
        self.assertEqual(counters["page_hits"], 0)
        self.assertEqual(counters["page_streams"], counters["page_misses"])
        self.assertEqual(counters["moved"], counters["page_misses"])
        self.assertGreater(counters["multi_pass"], 0)
        found, counters = self.answers("--kv-mode", "mirror", "--kv-fast-bytes", "64MiB")
        self.assertEqual(found, expected)
        self.assertGreater(counters["page_hits"], 1000)
        self.assertEqual(counters["refaults"], 0)
        found, counters = self.answers("--kv-mode", "emulated-link", "--kv-fast-bytes", "16MiB", "--sim-link-gbps", "5")
        self.assertEqual(found, expected)
        self.assertGreater(counters["fetch_stall_seconds"], 0)

    def test_synthetic_selection(self):
        drawn = ("--kv-synthetic-selection", "loose", "--kv-synthetic-pages", "6")
        expected, _ = self.answers(*drawn)
        dense, _ = self.answers()
        self.assertNotEqual(expected, dense)  # pages really are left out
        found, counters = self.answers(*drawn, "--kv-mode", "mirror", "--kv-fast-bytes", "32MiB")
        self.assertEqual(found, expected)
        self.assertGreater(counters["page_hits"], 1000)
        # A cap of one tile per head of a layer: everything is streamed.
        found, counters = self.answers(*drawn, "--kv-mode", "mirror", "--kv-fast-bytes", "32MiB",
                                       fast_tier_budget_bytes=3 * 4 * 4096, buffer_ratio=0)
        self.assertEqual(found, expected)
        self.assertEqual(counters["page_hits"], 0)

    def test_budgets_are_refused_with_their_limits(self):
        with Server("--kv-mode", "mirror", "--kv-fast-bytes", "32MiB", "--kv-synthetic-selection", "sticky") as server:
            def refusal(**kv):
                response = server.post("/v1/completions", {"model": "smol", "prompt": "a", "max_tokens": 2, "spindle": {"kv": kv}})
                self.assertEqual(response.status, 400, response.body)
                return response.json["error"]
            small = refusal(fast_tier_budget_bytes=3 * 4 * 4096 - 1)
            self.assertEqual((small["code"], small["min_bytes"]), ("fast_tier_budget_too_small", 3 * 4 * 4096))
            self.assertEqual(small["param"], "spindle.kv.fast_tier_budget_bytes")
            self.assertEqual(refusal(fast_tier_budget_fraction=1e-9)["param"], "spindle.kv.fast_tier_budget_fraction")
            large = refusal(fast_tier_budget_bytes=1 << 40)
            self.assertEqual(large["code"], "fast_tier_budget_too_large")
            self.assertLess(large["max_bytes"], 32 << 20)
            both = refusal(fast_tier_budget_bytes=1 << 20, fast_tier_budget_fraction=0.5)
            self.assertEqual(both["code"], "unsupported_combination")

    def test_indexes_are_part_of_the_budget(self):
        with Server("--kv-mode", "mirror", "--kv-fast-bytes", "3MiB", "--threads", "1", "--max-model-len", "4096") as server:
            def refusal(tokens, **kv):
                spindle = {"sparse": {"algorithm": "quest", "min_context": 0}, "kv": kv}
                response = server.post("/v1/completions", {"model": "smol", "prompt": [5] * tokens, "max_tokens": 6, "spindle": spindle})
                self.assertEqual(response.status, 400, response.body)
                return response.json["error"]
            least = [refusal(tokens, fast_tier_budget_bytes=1)["min_bytes"] for tokens in (1, 640, 1280)]
            # Of stripes, the open one too: 1 KiB per stripe, layer and head.
            self.assertEqual(least, [HEADS * 4 * PAGE_BYTES + stripes * GROUPS * 1024 for stripes in (1, 11, 21)])
            never = refusal(2000)
            self.assertEqual((never["code"], never["needed_bytes"]), ("kv_capacity_exceeded", HEADS * 4 * PAGE_BYTES + 32 * GROUPS * 1024))
            self.assertLess(never["capacity_bytes"], 3 << 20)
            tiers = server.request("GET", "/admin/kv", key=ADMIN_KEY).json["tiers"]
            self.assertEqual(tiers[0]["index_bytes"], 0)

    def test_a_fast_tier_smaller_than_its_rings_is_refused_at_start(self):
        server = Server("--kv-mode", "mirror", "--kv-fast-bytes", "4KiB", "--threads", "2", wait=False)
        self.addCleanup(server.stop)
        self.assertEqual(server.process.wait(60), 2)
        self.assertIn(f"--kv-fast-bytes must be at least {fast_bytes(0)}", server.log_text())


if __name__ == "__main__":
    unittest.main()
