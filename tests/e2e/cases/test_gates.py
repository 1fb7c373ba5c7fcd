"""seer_r: offered with gates for the model, equal to dense where everything is selected, refused with gates for another model."""
import json
import pathlib
import struct
import tempfile
import unittest

import test_sparse
from harness import Server, assert_error

LAYERS, KV_HEADS, GROUP, WIDTH = 30, 3, 3, 64  # SmolLM2-135M; head dimension and width are equal
ONE = b"\x80\x3f"  # in bf16
GATES = pathlib.Path(__file__).parents[3] / "configs/sparse/gates/smollm2-135m-instruct.gates.safetensors"
# First block, an open one, and two that recent tokens may reach into.
ALWAYS = 4 * 64


def identity_rows(count, of_interest=lambda row: True):
    """[count][WIDTH]: the identity, again and again, or zeros."""
    return b"".join(b"".join(ONE if of_interest(row) and row % WIDTH == column else b"\0\0" for column in range(WIDTH))
                    for row in range(count))


def write_gates(path, **changes):
    """Untrained gates: sum of the group's queries · mean key of a block."""
    metadata = {"format": "spindle-gates-1", "seerattn_gate_block_size": "64", "seerattn_gate_hidden_size": str(WIDTH),
                "seerattn_use_rope": "true", "seerattn_use_qk_norm": "false", "rope_theta": "100000.0", **changes}
    parts = {"attngate_linear_q": ([KV_HEADS, GROUP, WIDTH, WIDTH], identity_rows(GROUP * WIDTH) * KV_HEADS),
             "attngate_linear_k": ([KV_HEADS, 3 * WIDTH, WIDTH], identity_rows(3 * WIDTH, lambda row: row >= 2 * WIDTH) * KV_HEADS)}
    header, data = {"__metadata__": metadata}, b""
    for layer in range(LAYERS):
        for part, (shape, weights) in parts.items():
            header[f"model.layers.{layer}.self_attn.attn_gate.{part}.weight"] = {
                "dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(weights)]}
            data += weights
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class GatesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.gates = pathlib.Path(cls.folder.name) / "smol.gates.safetensors"
        write_gates(cls.gates)
        cls.server = Server("--threads", "2", "--sparse-gates", str(cls.gates))
        cls.dense = cls.answer(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.folder.cleanup()

    @staticmethod
    def answer(server, **arguments):
        choice = test_sparse.SparseTest.ask(server=server, **arguments)["choices"][0]
        return choice["text"], choice["logprobs"]

    def test_listed(self):
        listed = self.server.request("GET", "/v1/models").json["data"][0]["spindle"]["sparse"]["algorithms"]
        (entry,) = [each for each in listed if each["name"] == "seer_r"]
        self.assertTrue(entry["extra_weights"])
        self.assertEqual(entry["partition"], "block")

    def test_everything_selected_is_dense(self):
        sparse = {"algorithm": "seer_r", "min_context": 0, "budget_fraction": 1}
        self.assertEqual(self.answer(self.server, sparse=sparse), self.dense)

    def test_a_small_budget_attends_to_little(self):
        sparse = {"algorithm": "seer_r", "min_context": 0, "budget_tokens": 128}
        answer = test_sparse.SparseTest.ask(server=self.server, sparse=sparse)
        stats = answer["spindle"]["sparse"]
        self.assertLessEqual(stats["attended_fraction_max"], (128 + ALWAYS) / (stats["context_tokens"] - 24))
        self.assertGreater(stats["attended_fraction_min"], 192 / stats["context_tokens"])
        self.assertNotEqual((answer["choices"][0]["text"], answer["choices"][0]["logprobs"]), self.dense)
        self.assertGreaterEqual(self.server.metric_sum("spindle_sparse_steps_total", algorithm="seer_r", kind="sparse"), 23)
        with Server("--threads", "2", "--kv-mode", "mirror", "--kv-fast-bytes", "24MiB", "--sparse-gates", str(self.gates)) as mirror:
            self.assertEqual(self.answer(mirror, sparse=sparse), self.answer(self.server, sparse=sparse))

    def test_as_the_servers_default(self):
        with Server("--threads", "2", "--sparse-gates", str(self.gates), "--sparse-algorithm", "seer_r", "--sparse-budget", "128",
                    "--sparse-min-context", "0") as server:
            wanted = {"algorithm": "seer_r", "min_context": 0, "budget_tokens": 128}
            self.assertEqual(self.answer(server), self.answer(self.server, sparse=wanted))

    def test_the_default_models_gates(self):
        sparse = {"algorithm": "seer_r", "min_context": 0, "budget_tokens": 128}
        with Server("--threads", "2", "--sparse-gates", str(GATES)) as server:
            self.assertEqual(self.answer(server, sparse={**sparse, "budget_fraction": 1, "budget_tokens": None}), self.dense)
            trained = self.answer(server, sparse=sparse)
        self.assertNotEqual(trained, self.answer(self.server, sparse=sparse))  # they choose otherwise than untrained ones

    def test_gates_of_another_model_end_the_start(self):
        other = pathlib.Path(self.folder.name) / "other.safetensors"
        write_gates(other, model_digest="00", base_model="another")
        for arguments, message in ((("--sparse-gates", str(other)), "made for another model, another"),
                                   (("--sparse-algorithm", "seer_r"), "seer_r needs gates")):
            server = Server(*arguments, wait=False)
            self.addCleanup(server.stop)
            self.assertEqual(server.process.wait(timeout=60), 2)
            self.assertIn(message, server.log_text())

    def test_without_gates(self):
        with Server("--threads", "2") as server:
            body = {"model": "smol", "prompt": test_sparse.PROMPT, "max_tokens": 1, "spindle": {"sparse": {"algorithm": "seer_r"}}}
            assert_error(self, server.post("/v1/completions", body), 400, "sparse_algorithm_unavailable")
