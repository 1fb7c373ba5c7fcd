"""Exit codes and the other commands (C43)."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import harness
from harness import Server, clean_environment


def run(*arguments, **kwargs):
    return subprocess.run([harness.BINARY, *arguments], capture_output=True, text=True, timeout=120, env=clean_environment(), **kwargs)


class CliTest(unittest.TestCase):
    def assert_fatal(self, result, code):
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertTrue(result.stderr.rstrip("\n").splitlines()[-1].startswith("fatal: "), result.stderr)

    def test_c43_misspelt_key(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
            config.write(f"model: {harness.MODEL}\nmax_num_sequs: 3\n")
            config.flush()
            result = run("serve", "--config", config.name)
        self.assert_fatal(result, 2)
        self.assertIn("max-num-seqs", result.stderr)

    def test_c43_unreadable_model(self):
        self.assert_fatal(run("serve", "--model", "/nonexistent.gguf", "--port", "0", "--grpc-port", "0"), 3)
        with tempfile.NamedTemporaryFile("wb", suffix=".gguf") as broken:
            broken.write(b"GGUF" + b"\xff" * 64)
            broken.flush()
            self.assert_fatal(run("serve", "--model", broken.name, "--port", "0", "--grpc-port", "0"), 3)

    def test_c43_busy_port(self):
        with Server() as server:
            self.assert_fatal(run("serve", "--model", harness.MODEL, "--port", str(server.port), "--grpc-port", "0"), 4)

    def test_usage_errors(self):
        self.assert_fatal(run("serve", "--model", harness.MODEL, "--max-num-seqs", "0"), 2)
        self.assert_fatal(run("serve", "--modle", harness.MODEL), 2)
        self.assert_fatal(run("dance"), 2)
        self.assert_fatal(run("serve"), 2)
        self.assertEqual(run("--help").returncode, 0)
        self.assertEqual(run("serve", "--help").returncode, 0)

    def test_a_folder_is_no_file(self):
        for flag in ("--config", "--api-key-file", "--admin-api-key-file", "--chat-template", "--tokenizer"):
            with tempfile.TemporaryDirectory() as folder:
                result = run("serve", harness.MODEL, "--port", "0", "--grpc-port", "0", flag, folder)
            self.assert_fatal(result, 2)
            self.assertIn(folder, result.stderr)
            if flag in ("--chat-template", "--tokenizer"):
                self.assertIn(f"fatal: {flag}: ", result.stderr)

    def test_options_that_only_loading_can_refuse(self):
        serve = ("serve", harness.MODEL, "--port", "0", "--grpc-port", "0", "--max-model-len", "1024", "--kv-host-bytes", "64MiB")
        with tempfile.TemporaryDirectory() as folder:
            taken = os.path.join(folder, "file")
            pathlib.Path(taken).write_text("text")
            store = os.path.join(folder, "kv")
            for options, named in ((("--kv-disk-path", store, "--kv-disk-bytes", "1"), "--kv-disk-bytes must be at least"),
                                   (("--kv-disk-path", store, "--no-enable-prefix-caching"), "--kv-disk-path needs"),
                                   (("--kv-disk-path", taken), f"--kv-disk-path {taken}: "),
                                   (("--kv-disk-path", "/proc/foo"), "--kv-disk-path /proc/foo: "),
                                   (("--kv-disk-path", "/dev/null/x"), "--kv-disk-path /dev/null/x: "),
                                   (("--kv-trace", "/dev/null/x"), "--kv-trace /dev/null/x: "),
                                   (("--kv-mode", "mirror", "--kv-fast-bytes", "1KiB"), "--kv-fast-bytes must be at least"),
                                   (("--kv-host-bytes", "1MiB"), "--kv-host-bytes must be in"),
                                   (("--max-model-len", "16777216"), "--max-model-len must be in"),
                                   (("--sparse-algorithm", "quest", "--sparse-dense-layers", "999"), "--sparse-algorithm"),
                                   (("--kv-synthetic-selection", "loose", "--kv-synthetic-pages", "4096"), "--kv-synthetic-pages")):
                result = run(*serve, *options)
                self.assert_fatal(result, 2)
                self.assertIn(named, result.stderr.rstrip("\n").splitlines()[-1])
                self.assertNotIn("model_loaded", result.stderr)

    def test_a_store_that_another_server_uses(self):
        with tempfile.TemporaryDirectory() as folder:
            disk = ("--kv-disk-path", folder, "--kv-disk-bytes", "1GiB", "--kv-disk-min-free", "1MiB")
            with Server(*disk):
                server = Server(*disk, wait=False)
                self.addCleanup(server.stop)
                self.assertEqual(server.process.wait(60), 2)
                self.assertIn(f"fatal: --kv-disk-path {folder}: ", server.log_text())

    def test_options_without_effect_are_warned_about(self):
        with Server("--kv-fast-bytes", "64MiB", "--kv-disk-bytes", "1GiB", "--kv-synthetic-selection", "medium") as server:
            for warning in ("--kv-fast-bytes has no effect without --kv-mode", "--kv-disk-bytes has no effect without --kv-disk-path",
                            "--kv-synthetic-selection medium makes answers meaningless"):
                self.assertIn(warning, server.log_text())

    def test_contradictions_are_refused(self):
        for arguments in (("-m", "/other.gguf"), ("--isa", "foo"), ("--tls-ca", "/ca.pem"), ("--cors-origins", "")):
            self.assert_fatal(run("serve", harness.MODEL, "--port", "0", "--grpc-port", "0", *arguments), 2)

    def test_bytes_that_are_no_utf8(self):
        for arguments in (("-p", b"\xff"), ("-p", "Hi", "--system", b"\xff")):
            result = run("chat", harness.MODEL, "-n", "1", *arguments)
            self.assert_fatal(result, 1)
            self.assertIn("UTF-8", result.stderr)
        with tempfile.TemporaryDirectory() as folder:
            path = os.fsencode(folder) + b"/bad\xff.gguf"
            os.symlink(os.path.abspath(harness.MODEL), path)
            result = run("inspect", path, "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("\ufffd", json.loads(result.stdout)["files"][0])

    def test_memory_plan(self):
        result = run("serve", "--model", harness.MODEL, "--port", "0", "--grpc-port", "0", "--kv-host-bytes", "100TiB")
        self.assert_fatal(result, 5)
        last = result.stderr.rstrip("\n").splitlines()[-1]
        self.assertIn("KV in host memory 100.0 TiB (--kv-host-bytes); ", last)
        for part in ("weights", "activations", "large HTTP bodies 128.0 MiB (--max-body-size)", "large answers 128.0 MiB (--answer-memory)",
                     "program"):
            self.assertIn(part, last)

    def test_settings_of_other_servers(self):
        for arguments, reason in ((("--tensor-parallel-size", "2"), "one process"), (("--no-mmap",), "mapping"), (("--mlock",), "not locked")):
            result = run("serve", harness.MODEL, "--port", "0", "--grpc-port", "0", *arguments)
            self.assert_fatal(result, 2)
            self.assertIn(reason, result.stderr)
        with Server("--tensor-parallel-size", "1", "--gpu-memory-utilization", "0.9", "--no-mlock", "--mmap") as server:
            self.assertEqual(server.request("GET", "/health").status, 200)

    def test_kv_help_asks_for_a_folder(self):
        result = run("kv", "stat", "--help")
        self.assertEqual(result.returncode, 0)
        self.assertIn("DIR", result.stdout)
        self.assertNotIn("MODEL", result.stdout)

    def test_inspect(self):
        description = json.loads(run("inspect", harness.MODEL, "--json").stdout)
        self.assertEqual(description["architecture"], "llama")
        self.assertEqual(description["kv_bytes_per_token"], 23040)
        self.assertEqual(description["kv_page_tokens"], 16)
        plan = description["memory_plan"]
        self.assertEqual(plan["total_bytes"], sum(part["bytes"] for part in plan["parts"]))
        self.assertIn("memory plan of spindle serve", run("inspect", harness.MODEL).stdout)

    def test_chat_one_prompt(self):
        result = run("chat", harness.MODEL, "-p", "Say hello.", "--temp", "0", "-n", "8")
        self.assertEqual(result.returncode, 0, result.stderr)
        with Server() as server:
            answer = server.chat().json["choices"][0]["message"]["content"]
        self.assertEqual(result.stdout, answer + "\n")

    def test_chat_conversation_from_a_pipe(self):
        result = run("chat", harness.MODEL, "--temp", "0", "-n", "4", input="Hello\n/stats\n/reset\n/exit\n")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("tokens/s", result.stdout)

    def test_chat_sampling_defaults(self):
        result = run("chat", harness.MODEL, "-n", "4", input="/stats\n")
        self.assertIn("temperature 0.7, top-p 0.9\n", result.stdout)

    def test_stop_while_loading_removes_the_socket(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.sock")
            process = subprocess.Popen([harness.BINARY, "serve", harness.MODEL, "--uds", path, "--grpc-port", "0"],
                                       stderr=subprocess.PIPE, text=True, env=clean_environment())
            for line in process.stderr:
                if " listening " in line:
                    process.terminate()
                    break
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0)
            self.assertFalse(os.path.exists(path))

    def test_version(self):
        self.assertRegex(run("version").stdout, r"^spindle \d+\.\d+\.\d+ \(commit .*isa \w+\)")


if __name__ == "__main__":
    unittest.main()
