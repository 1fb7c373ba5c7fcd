"""gRPC with stubs generated here from the proto file (C42)."""
import tempfile
import unittest

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from default_model import STRIPE_BYTES
from harness import ADMIN_KEY, KEY, Server
from stubs import error_info, pb, rpc

AUTH = (("authorization", f"Bearer {KEY}"),)
ADMIN = (("authorization", f"Bearer {ADMIN_KEY}"),)


def request(**fields):
    base = {"model": "smol", "text": "The capital of France is", "sampling": pb.Sampling(temperature=0),
            "stopping": pb.Stopping(max_tokens=8)}
    base.update(fields)
    return pb.GenerateRequest(**base)


class GrpcTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(grpc=True)
        cls.channel = grpc.insecure_channel(f"127.0.0.1:{cls.server.grpc_port}")
        cls.inference = rpc.InferenceStub(cls.channel)
        cls.control = rpc.ControlStub(cls.channel)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.server.stop()

    def assert_code(self, code, call):
        with self.assertRaises(grpc.RpcError) as caught:
            list(call) if hasattr(call, "__iter__") else call()
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        return caught.exception

    def test_c42_generate_order_and_text(self):
        events = list(self.inference.Generate(request(), metadata=AUTH))
        kinds = [e.WhichOneof("event") for e in events]
        self.assertEqual(kinds[0], "started")
        self.assertEqual(kinds[-1], "usage")
        self.assertEqual(kinds[-2], "finished")
        self.assertTrue(all(k == "delta" for k in kinds[1:-2]) and len(kinds) > 3)
        text = "".join(e.delta.text for e in events if e.WhichOneof("event") == "delta")
        self.assertEqual(text, self.server.complete().json["choices"][0]["text"])
        unary = self.inference.GenerateUnary(request(), metadata=AUTH)
        self.assertEqual(unary.choices[0].text, text)
        self.assertEqual(unary.usage.completion_tokens, events[-1].usage.usage.completion_tokens)

    def test_token_ids_and_logprobs(self):
        ids = self.inference.Tokenize(pb.TokenizeRequest(text="The capital of France is"), metadata=AUTH).ids
        result = self.inference.GenerateUnary(
            request(text=None, token_ids=pb.TokenIds(ids=ids), output=pb.OutputOptions(token_ids=True, logprobs=True, top_logprobs=2)),
            metadata=AUTH)
        choice = result.choices[0]
        self.assertEqual(len(choice.token_ids), len(choice.logprobs))
        self.assertTrue(all(len(entry.top) == 2 for entry in choice.logprobs))
        back = self.inference.Detokenize(pb.DetokenizeRequest(ids=ids), metadata=AUTH).text
        self.assertEqual(back, "The capital of France is")

    def test_chat_json_equals_http(self):
        body = '{"messages":[{"role":"user","content":"Say hello."}],"temperature":0,"max_tokens":8}'
        result = self.inference.GenerateUnary(pb.GenerateRequest(model="smol", chat_json=body), metadata=AUTH)
        self.assertEqual(result.choices[0].text, self.server.chat().json["choices"][0]["message"]["content"])

    def test_chat_json_has_fields_of_its_own(self):
        body = '{"messages":[{"role":"user","content":"Say hello."}],"temperature":0,"max_tokens":8}'
        for name, field in (("sampling", {"sampling": pb.Sampling(temperature=1)}), ("stopping", {"stopping": pb.Stopping(max_tokens=4)}),
                            ("output.logprobs", {"output": pb.OutputOptions(logprobs=True)})):
            error = self.assert_code(grpc.StatusCode.INVALID_ARGUMENT,
                                     self.inference.Generate(pb.GenerateRequest(model="smol", chat_json=body, **field), metadata=AUTH))
            self.assertIn(f"'{name}' and 'chat_json'", error.details())
        view = self.inference.GenerateUnary(
            pb.GenerateRequest(model="smol", chat_json=body, output=pb.OutputOptions(text=False, token_ids=True)), metadata=AUTH)
        self.assertEqual(view.choices[0].text, "")
        self.assertGreater(len(view.choices[0].token_ids), 0)

    def test_errors_name_fields_of_the_message(self):
        for name, field in (("sampling.temperature", {"sampling": pb.Sampling(temperature=9)}), ("sampling.top_k", {"sampling": pb.Sampling(top_k=-5)}),
                            ("stopping.stop_token_ids[0]", {"stopping": pb.Stopping(max_tokens=4, stop_token_ids=[1 << 31])}),
                            ("output.top_logprobs", {"output": pb.OutputOptions(logprobs=True, top_logprobs=99)}),
                            ("token_ids.ids[1]", {"text": None, "token_ids": pb.TokenIds(ids=[1, 10**9])})):
            error = self.assert_code(grpc.StatusCode.INVALID_ARGUMENT, self.inference.Generate(request(**field), metadata=AUTH))
            self.assertIn(f"'{name}' must be in [", error.details())

    def test_the_algorithm_that_runs_anyway_may_be_named(self):
        plain = self.inference.GenerateUnary(request(), metadata=AUTH)
        for algorithm in ("dense", "auto"):
            named = self.inference.GenerateUnary(request(sparse=pb.SparseOptions(algorithm=algorithm)), metadata=AUTH)
            self.assertEqual(named.choices[0].text, plain.choices[0].text)
        error = self.assert_code(grpc.StatusCode.INVALID_ARGUMENT,
                                 self.inference.Generate(request(sparse=pb.SparseOptions(top_p_mass=0.9)), metadata=AUTH))
        self.assertIn("sparse.top_p_mass", error.details())

    def test_statistics(self):
        ids = [1 + i % 997 for i in range(300)]
        long = request(text=None, token_ids=pb.TokenIds(ids=ids), output=pb.OutputOptions(stats=pb.STATS_LEVEL_SUMMARY))
        self.inference.GenerateUnary(long, metadata=AUTH)
        stats = self.inference.GenerateUnary(long, metadata=AUTH).stats
        self.assertEqual((stats.kv.host_cached_tokens, stats.kv.disk_cached_tokens), (256, 0))
        self.assertEqual(stats.kv.bytes, 5 * STRIPE_BYTES)
        self.assertGreaterEqual(stats.ttft_ms, stats.queue_ms)
        self.assertEqual(len(stats.per_layer), 0)
        long.output.stats = pb.STATS_LEVEL_PER_LAYER
        layers = self.inference.GenerateUnary(long, metadata=AUTH).stats.per_layer
        self.assertEqual([layer.layer for layer in layers], list(range(30)))
        self.assertEqual({(layer.attended_fraction_mean, layer.hit_rate, layer.HasField("est_mass_mean")) for layer in layers}, {(1, 1, False)})

    def test_several_choices(self):
        events = list(self.inference.Generate(request(sampling=pb.Sampling(temperature=1, seed=5, n=3)), metadata=AUTH))
        self.assertEqual(sorted(e.finished.index for e in events if e.WhichOneof("event") == "finished"), [0, 1, 2])

    def test_c42_health_and_reflection(self):
        health = health_pb2_grpc.HealthStub(self.channel)
        for service in ("", "spindle.v1.Inference"):
            self.assertEqual(health.Check(health_pb2.HealthCheckRequest(service=service)).status, health_pb2.HealthCheckResponse.SERVING)
        reflection = reflection_pb2_grpc.ServerReflectionStub(self.channel)
        answer = next(reflection.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")])))
        names = {s.name for s in answer.list_services_response.service}
        self.assertLessEqual({"spindle.v1.Inference", "spindle.v1.Control", "grpc.health.v1.Health"}, names)

    def test_c42_refusals(self):
        self.assert_code(grpc.StatusCode.NOT_FOUND, self.inference.Generate(request(model="nope"), metadata=AUTH))
        self.assert_code(grpc.StatusCode.UNAUTHENTICATED, self.inference.Generate(request()))
        self.assert_code(grpc.StatusCode.INVALID_ARGUMENT, self.inference.Generate(request(sampling=pb.Sampling(temperature=9)), metadata=AUTH))
        self.assert_code(grpc.StatusCode.INVALID_ARGUMENT, self.inference.Generate(request(text="hello " * 3000), metadata=AUTH))
        for field in ({"constraint": pb.Constraint(regex="a")}, {"sparse": pb.SparseOptions(algorithm="seer_r")},
                      {"kv": pb.KvOptions(reuse_sparse=True)}):
            error = self.assert_code(grpc.StatusCode.INVALID_ARGUMENT, self.inference.Generate(request(**field), metadata=AUTH))
            self.assertIn("not available", error.details())

    def test_c42_deadline_frees_everything(self):
        slow = request(stopping=pb.Stopping(max_tokens=1500, ignore_eos=True))
        self.assert_code(grpc.StatusCode.DEADLINE_EXCEEDED, self.inference.Generate(slow, metadata=AUTH, timeout=0.02))
        idle = lambda: self.server.request("GET", "/admin/requests", key=ADMIN_KEY).json == []  # noqa: E731
        self.server.wait_for(idle, timeout=2, what="no active request")

    def test_cancel(self):
        call = self.inference.Generate(request(stopping=pb.Stopping(max_tokens=1500, ignore_eos=True)), metadata=AUTH)
        next(call)
        call.cancel()
        idle = lambda: self.server.request("GET", "/admin/requests", key=ADMIN_KEY).json == []  # noqa: E731
        self.server.wait_for(idle, timeout=2, what="no active request")

    def test_control(self):
        info = self.control.GetServerInfo(pb.GetServerInfoRequest(), metadata=AUTH)
        self.assertEqual((info.state, info.backend), ("ready", "cpu"))
        self.assertEqual(list(self.control.ListModels(pb.ListModelsRequest(), metadata=AUTH).ids), ["smol"])
        load = self.control.GetLoad(pb.GetLoadRequest(), metadata=AUTH)
        self.assertEqual(load.tiers[0].name, "host")
        self.assertGreater(load.tiers[0].capacity_bytes, 0)
        call = self.inference.Generate(request(request_id="to-abort", stopping=pb.Stopping(max_tokens=1500, ignore_eos=True)), metadata=AUTH)
        next(call)
        self.assert_code(grpc.StatusCode.PERMISSION_DENIED, lambda: self.control.Abort(pb.AbortRequest(request_id="to-abort"), metadata=AUTH))
        self.assertTrue(self.control.Abort(pb.AbortRequest(request_id="to-abort"), metadata=ADMIN).found)
        with self.assertRaises(grpc.RpcError):
            list(call)
        self.assertFalse(self.control.Abort(pb.AbortRequest(request_id="to-abort"), metadata=ADMIN).found)


class GrpcKvTest(unittest.TestCase):
    """`kv` over gRPC does what `spindle.kv` does over HTTP."""

    def call(self, server, metadata=ADMIN, **fields):
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            return rpc.InferenceStub(channel).GenerateUnary(request(**fields), metadata=metadata)

    def refusal(self, server, metadata=ADMIN, **fields):
        with self.assertRaises(grpc.RpcError) as caught:
            self.call(server, metadata, **fields)
        return caught.exception.code(), error_info(caught.exception)

    def test_sessions(self):
        ids = pb.TokenIds(ids=[1 + i % 997 for i in range(200)])
        with tempfile.TemporaryDirectory() as folder, Server("--kv-disk-path", folder, grpc=True) as server:
            kept = {"text": None, "token_ids": ids, "kv": pb.KvOptions(session="mine", retention_seconds=600)}
            self.call(server, **kept)
            server.wait_for(lambda: server.request("GET", "/admin/sessions/mine", key=ADMIN_KEY).status == 200, what="the session")
            found = server.request("GET", "/admin/sessions/mine", key=ADMIN_KEY).json
            self.assertGreaterEqual(found["tokens"], 200)
            self.assertEqual(found["expires"], found["last_used"] + 600)
            self.assertGreaterEqual(self.call(server, **kept).stats.kv.host_cached_tokens, 192)
            code, info = self.refusal(server, metadata=AUTH, **kept)
            self.assertEqual((code, info.metadata["param"]), (grpc.StatusCode.PERMISSION_DENIED, "kv.session"))
            code, info = self.refusal(server, kv=pb.KvOptions(session="a/b"))
            self.assertEqual((code, info.reason, info.metadata["param"]), (grpc.StatusCode.INVALID_ARGUMENT, "invalid_value", "kv.session"))

    def test_fast_budgets(self):
        drawn = ("--kv-mode", "mirror", "--kv-fast-bytes", "32MiB", "--kv-synthetic-selection", "sticky")
        with Server(*drawn, grpc=True) as server:
            plain = self.call(server).choices[0].text
            self.assertEqual(self.call(server, kv=pb.KvOptions(fast_tier_budget_fraction=0.5, buffer_ratio=1)).choices[0].text, plain)
            code, info = self.refusal(server, kv=pb.KvOptions(fast_tier_budget_bytes=1))
            self.assertEqual((code, info.reason), (grpc.StatusCode.INVALID_ARGUMENT, "fast_tier_budget_too_small"))
            self.assertEqual((info.metadata["param"], info.metadata["min_bytes"]), ("kv.fast_tier_budget_bytes", str(3 * 4 * 4096)))
            code, info = self.refusal(server, kv=pb.KvOptions(fast_tier_budget_bytes=1 << 40))
            self.assertEqual(info.reason, "fast_tier_budget_too_large")


if __name__ == "__main__":
    unittest.main()
