"""Refusals: shape, order of checks, ranges, limits (C05-C12, C14, C22-C25, C32, C33)."""
import socket
import unittest

from harness import KEY, Server, assert_error

CHAT = "/v1/chat/completions"
BODY = {"model": "smol", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 4}


class ErrorTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def refused(self, status, code, param=..., path=CHAT, **fields):
        body = {k: v for k, v in {**BODY, **fields}.items() if v is not ...}
        return assert_error(self, self.server.post(path, body), status, code, param)

    def test_c05_keys(self):
        response = self.server.post(CHAT, BODY, key=None)
        assert_error(self, response, 401, "missing_api_key")
        self.assertEqual(response.headers["www-authenticate"], "Bearer")
        assert_error(self, self.server.post(CHAT, BODY, key="wrong"), 401, "invalid_api_key")
        self.assertEqual(self.server.post(CHAT, BODY, key=None, headers={"x-api-key": KEY}).status, 200)
        self.assertEqual(self.server.post(CHAT, BODY, key=None, headers={"Authorization": f"bEARER {KEY}"}).status, 200)
        assert_error(self, self.server.request("GET", "/nothing/here", key=None), 401, "missing_api_key")

    def test_c06_model_before_ranges(self):
        self.refused(404, "model_not_found", "model", model="nope", temperature=9)

    def test_c07_broken_json(self):
        assert_error(self, self.server.post(CHAT, b'{"model":"smol",', headers={"Content-Type": "application/json"}), 400, "invalid_json")
        for body in (b"", b"[1", b'{"a": NaN}', b'{"a":1,}', b"\xff\xfe", b"[" * 200 + b"]" * 200):
            assert_error(self, self.server.post(CHAT, body, headers={"Content-Type": "application/json"}), 400, "invalid_json")
        assert_error(self, self.server.post(CHAT, b"[]", headers={"Content-Type": "application/json"}), 400, "invalid_type")

    def test_c08_integer_types(self):
        for value in ("8", 8.5, True):
            self.refused(400, "invalid_type", "max_tokens", max_tokens=value)
        self.assertEqual(self.server.post(CHAT, {**BODY, "max_tokens": 8.0}).status, 200)

    def test_c09_ranges(self):
        for field, value in (("temperature", 2.1), ("top_p", -0.1), ("presence_penalty", 3), ("n", 0), ("n", 129),
                             ("frequency_penalty", -2.5), ("top_k", -2), ("min_p", 1.5), ("repetition_penalty", 0),
                             ("max_tokens", 0), ("priority", 101), ("cache_salt", "")):
            self.refused(400, "invalid_value", field, **{field: value})

    def test_c10_messages(self):
        self.refused(400, "invalid_value", "messages", messages=[])
        self.refused(400, "missing_required_parameter", "messages", messages=...)
        self.refused(400, "invalid_value", messages=[{"role": "robot", "content": "x"}])
        self.refused(400, "invalid_type", messages=[{"role": "user", "content": None}])

    def test_c11_image_parts(self):
        part = {"type": "image_url", "image_url": {"url": "data:,"}}
        self.refused(400, "unsupported_content_part", "messages[0].content[0]", messages=[{"role": "user", "content": [part]}])

    def test_c14_stop(self):
        for stop in ("", [""], ["a", "b", "c", "d", "e"]):
            self.refused(400, "invalid_value", "stop", stop=stop)
        self.refused(400, "invalid_type", "stop[0]", stop=[1])
        self.assertEqual(self.server.post(CHAT, {**BODY, "stop": []}).status, 200)

    def test_c22_not_offered(self):
        for field, value in (("functions", [{"name": "f"}]), ("audio", {"voice": "x"}), ("web_search_options", {})):
            self.refused(400, "unsupported_parameter", field, **{field: value})
        self.refused(400, "unsupported_parameter", "suffix", path="/v1/completions", messages=..., prompt="a", suffix="x")

    def test_c23_unknown_fields(self):
        answer = self.server.post(CHAT, {**BODY, "foo": 1})
        self.assertEqual((answer.status, answer.headers["x-spindle-ignored"]), (200, "foo"))
        before = self.server.metric_sum("spindle_ignored_fields_total")
        self.server.post(CHAT, {**BODY, "foo": 1, "bar": 2})
        self.assertEqual(self.server.metric_sum("spindle_ignored_fields_total"), before + 2)

    def test_c24_spindle_object(self):
        self.refused(400, "unknown_parameter", "spindle.sparse.bugdet_tokens", spindle={"sparse": {"bugdet_tokens": 1}})

    def test_c25_combinations(self):
        self.refused(400, "invalid_value", stream_options={"include_usage": True})
        self.refused(400, "invalid_value", "tools", tools=[])
        self.refused(400, "invalid_value", "tool_choice", tool_choice="required")

    def test_tools_and_grammars_are_refused_for_now(self):
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        self.refused(400, "unsupported_parameter", tools=[tool])
        self.refused(400, "unsupported_parameter", response_format={"type": "json_object"})
        self.assertEqual(self.server.post(CHAT, {**BODY, "response_format": {"type": "text"}}).status, 200)

    def test_c32_body_limit(self):
        with socket.create_connection(("127.0.0.1", self.server.port)) as raw:
            raw.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
                        f"Content-Length: {33 << 20}\r\n\r\n".encode())
            answer = raw.recv(65536)
        self.assertIn(b"HTTP/1.1 413", answer)
        self.assertIn(b"connection: close", answer.lower())
        self.assertIn(b"request_too_large", answer)
        with socket.create_connection(("127.0.0.1", self.server.port)) as raw:
            raw.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
                        f"Transfer-Encoding: chunked\r\n\r\n".encode())
            chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
            try:
                for _ in range(33):
                    raw.sendall(chunk)
                answer = raw.recv(65536)
            except OSError:
                answer = raw.recv(65536)
        self.assertIn(b"HTTP/1.1 413", answer)

    def test_c33_paths_and_methods(self):
        assert_error(self, self.server.post(CHAT, b"x", headers={"Content-Type": "text/plain"}), 415, "unsupported_media_type")
        response = self.server.request("GET", CHAT)
        assert_error(self, response, 405, "method_not_allowed")
        self.assertIn("POST", response.headers["allow"])
        assert_error(self, self.server.post("/v1/nope", {}), 404, "not_found")
        assert_error(self, self.server.request("PUT", "/metrics"), 405, "method_not_allowed")
        self.assertEqual(self.server.post("/chat/completions", BODY).status, 200)

    def test_request_ids(self):
        self.assertEqual(self.server.post(CHAT, BODY, headers={"x-request-id": "my-id.1"}).headers["x-request-id"], "my-id.1")
        self.assertNotEqual(self.server.post(CHAT, BODY, headers={"x-request-id": "bad id"}).headers["x-request-id"], "bad id")
        named = self.server.post(CHAT, {**BODY, "request_id": "my-id.2"})
        self.assertEqual(named.headers["x-request-id"], "my-id.2")
        self.assertEqual(named.json["id"], "chatcmpl-my-id.2")
        both = self.server.post(CHAT, {**BODY, "request_id": "my-id.2"}, headers={"x-request-id": "my-id.3"})
        self.assertEqual(both.headers["x-request-id"], "my-id.3")
        self.refused(400, "invalid_value", request_id="bad id")


class RejectUnknownTest(unittest.TestCase):
    def test_c23_reject_mode(self):
        with Server("--unknown-fields", "reject") as server:
            assert_error(self, server.post(CHAT, {**BODY, "foo": 1}), 400, "unknown_parameter", "foo")


class ChangedLimitsTest(unittest.TestCase):
    def test_limits_are_in_force_and_listed(self):
        with Server("--max-body-size", "2048", "--max-queue-size", "3") as server:
            limits = server.request("GET", "/v1/models/smol").json["spindle"]["limits"]
            self.assertEqual((limits["max_num_seqs"], limits["max_queue_size"], limits["max_body_size"]), (4, 3, 2048))
            assert_error(self, server.post(CHAT, {**BODY, "user": "x" * 2048}), 413, "request_too_large")
            self.assertEqual(server.post(CHAT, BODY).status, 200)


if __name__ == "__main__":
    unittest.main()
