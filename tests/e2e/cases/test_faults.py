"""Faults of the disk tier: the same answers as without it, every fault counted, and a tier that comes back by itself."""
import random
import shutil
import tempfile
import unittest

from faulty import FaultyServer, binary
from default_model import STRIPE_BYTES
from harness import ADMIN_KEY, Server

CONTEXT = ["--max-model-len", "512"]


def make_prompts():
    """Six beginnings of two stripes, two prompts each."""
    rng = random.Random(5)
    heads = [[rng.randrange(1000, 40000) for _ in range(130)] for _ in range(6)]
    return [head + [rng.randrange(1000, 40000) for _ in range(4)] for head in heads for _ in range(2)]


def answers(server, prompts):
    results = []
    for prompt in prompts:
        response = server.post("/v1/completions", {"model": "smol", "prompt": prompt, "max_tokens": 4, "temperature": 0, "logprobs": 5,
                                                   "ignore_eos": True})
        assert response.status == 200, response.body
        choice = response.json["choices"][0]
        results.append((choice["text"], choice["logprobs"]))
    return results


class FaultTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not binary().exists():
            raise unittest.SkipTest(f"{binary()} is not built")
        cls.prompts = make_prompts()
        with Server(*CONTEXT) as server:
            cls.expected = answers(server, cls.prompts)

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="spindle-kv-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def server(self, **plan):
        # The host tier holds a part of the prompts: the others come back from disk.
        return FaultyServer(self.folder, *CONTEXT, "--kv-host-bytes", str(10 * STRIPE_BYTES), **plan)

    def check(self, server):
        self.assertEqual(answers(server, self.prompts), self.expected)

    def disk(self, server):
        tiers = server.request("GET", "/admin/kv", key=ADMIN_KEY).json["tiers"]
        return next(tier for tier in tiers if tier["name"] == "disk")

    def test_mixed_faults(self):
        rates = {"read_error": 0.05, "write_error": 0.05, "short_read": 0.1, "short_write": 0.1, "flip": 0.2, "read_stall": 0.02,
                 "stall_ms": 200}
        with self.server(rates=rates, disk={"max_errors": 64}) as server:
            for _ in range(3):
                self.check(server)
            self.assertEqual(server.uncounted(), [])
            self.assertGreater(server.disk_hits(), 0)
            segments = server.report()["segments"]
            self.assertGreater(segments["damaged_reads"], 0)
            # Of all three passes: few transfers are made, and one kind may be spared.
            self.assertGreater(segments["short_reads"] + segments["short_writes"], 0)
            self.assertEqual(server.state(), "ok")

    def test_full_device_and_outage(self):
        with self.server(disk={"full_pause_ms": 500, "probe_wait_ms": 300, "max_probe_wait_ms": 300, "max_errors": 2}) as server:
            self.check(server)
            server.settle()
            # A full device: what is new cannot be stored, what was stored comes back.
            server.set_rates(no_space=1)
            new = [2 * prompt[:70] for prompt in self.prompts[::2]]
            self.assertEqual(answers(server, new), answers(server, new))
            self.assertGreater(server.report()["segments"]["no_space"], 0)
            hits = server.disk_hits()
            self.check(server)
            self.assertGreater(server.disk_hits(), hits)
            server.set_rates()
            server.wait_for(lambda: server.state() == "ok", what="stores", timeout=60)
            # Nothing works.
            server.set_rates(read_error=1, write_error=1)
            self.check(server)
            server.settle()
            self.assertEqual(self.disk(server)["state"], "degraded")
            server.set_rates()
            server.wait_for(lambda: server.state() == "ok", what="the end of the outage", timeout=60)
            hits = server.disk_hits()
            self.check(server)
            self.assertGreater(server.disk_hits(), hits)
            self.assertEqual(server.uncounted(), [])
            report = self.disk(server)
            self.assertEqual((report["outages"], report["recoveries"]), (1, 1))
            self.assertGreaterEqual(report["errors"]["read"]["io"], 2)


if __name__ == "__main__":
    unittest.main()
