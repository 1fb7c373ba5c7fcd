"""Sessions: KV that outlives its request, the process and `kill -9`, under a name of its tenant."""
import hashlib
import os
import pathlib
import shutil
import tempfile
import time
import unittest

from harness import ADMIN_KEY, Server, assert_error, text_of

KEYS = """name=one key=one retention=on
name=two key=two retention=on
name=plain key=plain
"""
PROMPT = "Numbers: " + " ".join(str(i * 37 % 1000) for i in range(160))


def tenant_of(key):
    return hashlib.sha256(key.encode()).hexdigest()[:16]


class SessionTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="spindle-sessions-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.keys = os.path.join(self.folder, "keys")
        with open(self.keys, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(KEYS)
        self.kv = os.path.join(self.folder, "kv")

    def server(self, *extra, disk=True):
        arguments = ["--max-model-len", "2048", "--api-key-file", self.keys, "--admin-api-key", ADMIN_KEY, *extra]
        if disk:
            arguments += ["--kv-disk-path", self.kv, "--kv-disk-bytes", "1GiB", "--kv-disk-min-free", "1MiB"]
        return Server(*arguments, fixture=False)

    def turn(self, server, prompt, key="one", **kv):
        """One greedy completion: the JSON, and how many prompt tokens were cached."""
        body = {"model": "smol", "prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 5, "ignore_eos": True,
                "return_token_ids": True}
        if kv:
            body["spindle"] = {"kv": kv}
        response = server.post("/v1/completions", body, key=key)
        self.assertEqual(response.status, 200, response.body)
        return response.json, response.json["usage"]["prompt_tokens_details"]["cached_tokens"]

    @staticmethod
    def next_prompt(json):
        """Prompt, answer, and something new behind them; also how many of its tokens have KV already."""
        choice = json["choices"][0]
        history = choice["prompt_token_ids"] + choice["token_ids"]
        return history + [260 + i for i in range(23)], len(history) - 1

    def admin(self, server, method, path, key=ADMIN_KEY):
        return server.request(method, "/admin/sessions" + path, key=key)

    def find(self, server, name, key="one"):
        return self.admin(server, "GET", f"/{name}?tenant={tenant_of(key)}")

    def wait_saved(self, server, name, tokens, key="one"):
        def saved():
            answer = self.find(server, name, key)
            return answer.status == 200 and answer.json["tokens"] == tokens
        server.wait_for(saved, what=f"session {name} with {tokens} tokens")

    def test_kill_restore_and_go_on(self):
        with self.server(disk=False) as server:
            first, _ = self.turn(server, PROMPT)
            prompt, known = self.next_prompt(first)
            second, _ = self.turn(server, prompt)
            cold = (first["choices"][0]["text"], second["choices"][0]["text"], second["choices"][0]["logprobs"])
        with self.server() as server:
            first, cached = self.turn(server, PROMPT, session="chat", retention_seconds=600)
            self.assertEqual(cached, 0)
            self.wait_saved(server, "chat", known)
            server.process.kill()
            server.process.wait()
        with self.server() as server:
            path = f"/chat/restore?tenant={tenant_of('one')}"
            answer = self.admin(server, "POST", path)
            self.assertEqual(answer.status, 202, answer.body)
            self.assertIn(answer.json["state"], ("restoring", "resident"))
            server.wait_for(lambda: self.find(server, "chat").json["state"] == "resident", what="restored")
            info = self.find(server, "chat").json
            self.assertEqual(info["resident_tokens"], known)
            self.assertEqual(info["tail_tokens"], known % 64)
            self.assertEqual(info["expires"], info["last_used"] + 600)
            second, cached = self.turn(server, prompt, session="chat", retention_seconds=600)
            self.assertEqual(cached, known)
            self.assertEqual((first["choices"][0]["text"], second["choices"][0]["text"], second["choices"][0]["logprobs"]),
                             cold)
            self.assertEqual(server.metric_sum("spindle_kv_session_restores_total", result="complete"), 1)
            self.assertEqual(server.metric_sum("spindle_kv_tail_tokens_total"), known % 64)
            self.wait_saved(server, "chat", known + 23 + 12)
        # Without asking for it: the load brings the open tail along.
        with self.server() as server:
            third, known = self.next_prompt(second)
            self.assertEqual(self.turn(server, third)[1], known)

    def test_retention_without_a_name(self):
        with self.server() as server:
            json, _ = self.turn(server, PROMPT, retention_seconds=600)
            _, known = self.next_prompt(json)

            def listed():
                return self.admin(server, "GET", "?tenant=*").json["sessions"]
            server.wait_for(lambda: len(listed()) == 1, what="one session")
            session = listed()[0]
            self.assertRegex(session["id"], "^auto-[0-9a-f]{16}$")
            self.assertEqual(session["tokens"], known)
            self.assertEqual(session["tenant"], tenant_of("one"))
            self.assertEqual(self.admin(server, "GET", "").json["sessions"], [])  # the admin key's own
            server.process.kill()
            server.process.wait()
        with self.server() as server:
            self.assertEqual(self.turn(server, PROMPT)[1], len(json["choices"][0]["prompt_token_ids"]) - 1)

    def test_delete(self):
        with self.server() as server:
            json, _ = self.turn(server, PROMPT, session="chat")
            self.wait_saved(server, "chat", self.next_prompt(json)[1])
            path = f"/chat?tenant={tenant_of('one')}"
            self.assertEqual(self.admin(server, "DELETE", path).json, {"id": "chat", "deleted": True})
            assert_error(self, self.admin(server, "DELETE", path), 404, "not_found")
            self.assertEqual(server.metric_sum("spindle_kv_session_ends_total", cause="deleted"), 1)
            time.sleep(0.5)  # a group commit
            server.process.kill()
            server.process.wait()
        with self.server() as server:
            assert_error(self, self.find(server, "chat"), 404, "not_found")
            self.assertEqual(self.turn(server, PROMPT)[1], 0)

    def test_time_to_live(self):
        with self.server() as server:
            self.turn(server, PROMPT, session="short", retention_seconds=1)
            server.wait_for(lambda: server.metric_sum("spindle_kv_session_saves_total", result="complete") == 1)
            server.wait_for(lambda: self.find(server, "short").status == 404, what="the end of a second")
            self.assertEqual(server.metric_sum("spindle_kv_session_ends_total", cause="expired"), 1)

    def test_pin(self):
        with self.server() as server:
            json, _ = self.turn(server, PROMPT, session="kept", retention_seconds=2)
            self.wait_saved(server, "kept", self.next_prompt(json)[1])
            tenant = f"?tenant={tenant_of('one')}"
            pinned = self.admin(server, "POST", "/kept/pin" + tenant).json
            self.assertTrue(pinned["pinned"])
            self.assertIsNone(pinned["expires"])
            time.sleep(3.1)
            self.assertEqual(self.find(server, "kept").status, 200)
            self.assertFalse(self.admin(server, "POST", "/kept/unpin" + tenant).json["pinned"])
            server.wait_for(lambda: self.find(server, "kept").status == 404, what="the end of the unpinned one")

    def test_tenants_and_permissions(self):
        with self.server() as server:
            json, _ = self.turn(server, PROMPT, session="chat")
            known = self.next_prompt(json)[1]
            self.wait_saved(server, "chat", known)
            assert_error(self, self.find(server, "chat", key="two"), 404, "not_found")
            assert_error(self, self.admin(server, "GET", "/chat"), 404, "not_found")
            self.assertEqual(self.turn(server, PROMPT, key="two", session="chat")[1], 0)
            self.wait_saved(server, "chat", known, key="two")
            self.admin(server, "DELETE", f"/chat?tenant={tenant_of('two')}")
            self.assertEqual(self.find(server, "chat").status, 200)
            assert_error(self, self.admin(server, "GET", "", key="one"), 403, "insufficient_permissions")
            for kv in ({"session": "chat"}, {"retention_seconds": 5}):
                response = server.post("/v1/completions", {"prompt": "x", "spindle": {"kv": kv}}, key="plain")
                assert_error(self, response, 403, "insufficient_permissions", "spindle.kv." + next(iter(kv)))

    def test_preempted_requests_are_spilled(self):
        prompts = [f"Story {i}. " + PROMPT for i in range(2)]

        def run(server):
            streams = [server.stream("/v1/completions", {"model": "smol", "prompt": prompt, "max_tokens": 700,
                                                         "temperature": 0, "ignore_eos": True, "stream": True}, key="one")
                       for prompt in prompts]
            return [text_of(stream.all()) for stream in streams]
        with self.server(disk=False) as server:
            expected = run(server)
        # 32 stripes of 1,440 KiB: less than the two take at their ends.
        with self.server("--kv-host-bytes", str(32 * 1474560)) as server:
            self.assertEqual(run(server), expected)
            self.assertGreater(server.metric_sum("vllm:num_preemptions_total"), 0)
            self.assertGreater(server.metric_sum("spindle_kv_spills_total"), 0)
            self.assertGreater(server.metric_sum("spindle_kv_spilled_stripes_total"), 0)
            self.assertGreater(server.metric_sum("spindle_kv_move_bytes_total", **{"from": "disk", "to": "host"}), 0)

    def test_errors(self):
        with self.server() as server:
            for path, method in (("/none", "GET"), ("/none", "DELETE"), ("/none/restore", "POST"), ("/none/pin", "POST")):
                assert_error(self, self.admin(server, method, path), 404, "not_found")
            assert_error(self, self.admin(server, "DELETE", "/x?tenant=*"), 400, "invalid_value", "tenant")
            assert_error(self, self.admin(server, "PUT", "/x"), 405, "method_not_allowed")
            error = assert_error(self, server.post("/v1/completions", {"prompt": "x", "spindle": {
                "kv": {"retention_seconds": 86401}}}, key="one"), 400, "invalid_value", "spindle.kv.retention_seconds")
            self.assertIn("[0, 86400]", error["message"])
        with self.server(disk=False) as server:
            error = assert_error(self, server.post("/v1/completions", {"prompt": "x", "spindle": {
                "kv": {"retention_seconds": 5}}}, key="one"), 400, "unsupported_parameter")
            self.assertIn("--kv-disk-path", error["message"])
            assert_error(self, self.admin(server, "GET", ""), 400, "unsupported_combination")

    def test_damaged_manifest(self):
        with self.server() as server:
            json, _ = self.turn(server, PROMPT, session="a-damaged-one")
            known = self.next_prompt(json)[1]
            self.wait_saved(server, "a-damaged-one", known)
        damaged = 0
        for path in pathlib.Path(self.kv).rglob("seg-*.kv"):
            data = bytearray(path.read_bytes())
            at = data.find(b"a-damaged-one")
            while at >= 0:
                data[at + 3] ^= 1
                damaged += 1
                at = data.find(b"a-damaged-one", at)
            path.write_bytes(data)
        self.assertGreater(damaged, 0)
        with self.server() as server:
            assert_error(self, self.find(server, "a-damaged-one"), 500, "storage_error")
            path = f"/a-damaged-one/restore?tenant={tenant_of('one')}"
            assert_error(self, self.admin(server, "POST", path), 500, "storage_error")
            # Its stripes are intact, and a new save replaces it.
            again, cached = self.turn(server, PROMPT, session="a-damaged-one")
            self.assertGreater(cached, 0)
            self.assertEqual(again["choices"][0]["text"], json["choices"][0]["text"])
            self.wait_saved(server, "a-damaged-one", known)

    def test_another_model_setting(self):
        with self.server() as server:
            json, _ = self.turn(server, PROMPT, session="chat")
            self.wait_saved(server, "chat", self.next_prompt(json)[1])
        with self.server("--kv-cache-dtype", "f32") as server:
            path = f"/chat/restore?tenant={tenant_of('one')}"
            assert_error(self, self.admin(server, "POST", path), 409, "session_of_other_model")
            self.assertEqual(self.turn(server, PROMPT, session="chat")[1], 0)


if __name__ == "__main__":
    unittest.main()
