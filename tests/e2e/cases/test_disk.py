"""The disk tier of the prefix cache: what was computed once answers at once after a restart, even after `kill -9`."""
import pathlib
import shutil
import subprocess
import tempfile
import time
import unittest

import harness
from harness import Server, clean_environment

PROMPT = "Numbers: " + " ".join(str(i * 37 % 1000) for i in range(700))


def complete(server, prompt=PROMPT):
    """The text, the prompt's tokens, how many of them were cached, and the time."""
    started = time.monotonic()
    response = server.post("/v1/completions", {"model": "smol", "prompt": prompt, "max_tokens": 12, "temperature": 0,
                                               "logprobs": 5})
    assert response.status == 200, response.body
    usage = response.json["usage"]
    choice = response.json["choices"][0]
    return ((choice["text"], choice["logprobs"]), usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"],
            time.monotonic() - started)


class DiskTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="spindle-kv-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def server(self):
        return Server("--kv-disk-path", self.folder, "--kv-disk-bytes", "1GiB", "--kv-disk-min-free", "1MiB",
                      "--max-model-len", "4096")

    def wait_stored(self, server, stripes):
        """Until so many stripes are durable: a group commit follows within 100 ms of the write."""
        deadline = time.monotonic() + 20
        while server.metric_sum("spindle_kv_moves_total", **{"from": "host", "to": "disk"}) < stripes * 360:
            self.assertLess(time.monotonic(), deadline, server.log_text())
            time.sleep(0.05)
        time.sleep(1.0)

    def test_kill_and_restart(self):
        with self.server() as server:
            cold = complete(server)
            self.assertEqual(cold[2], 0)
            self.wait_stored(server, cold[1] // 64)
            server.process.kill()
            server.process.wait()
        with self.server() as server:
            warm = complete(server)
            self.assertEqual(warm[0], cold[0])
            self.assertGreaterEqual(warm[2], 0.95 * cold[1])
            self.assertGreater(server.metric_sum("spindle_kv_move_bytes_total", **{"from": "disk", "to": "host"}), 0)
            # In memory now: the disk is not asked again.
            moved = server.metric_sum("spindle_kv_moves_total", **{"from": "disk", "to": "host"})
            self.assertEqual(complete(server)[0], cold[0])
            self.assertEqual(server.metric_sum("spindle_kv_moves_total", **{"from": "disk", "to": "host"}), moved)

    def test_clean_stop_keeps_everything(self):
        with self.server() as server:
            cold = complete(server)
        with self.server() as server:
            self.assertGreaterEqual(complete(server)[2], 0.95 * cold[1])

    def test_small_tier(self):
        with Server("--kv-disk-path", self.folder, "--kv-disk-bytes", "100MiB", "--kv-disk-min-free", "1MiB",
                    "--max-model-len", "4096") as server:
            for start in range(6):
                complete(server, " ".join(str((i + start) * 37 % 1000) for i in range(700)))
            self.assertEqual(server.metric_sum("spindle_kv_disk_errors_total"), 0)
        used = sum(p.stat().st_size for p in pathlib.Path(self.folder).rglob("*") if p.is_file())
        self.assertLessEqual(used, 100 << 20)

    def test_folder_in_use(self):
        with self.server() as server:
            second = subprocess.run([harness.BINARY, "serve", "--model", harness.MODEL, "--port", "0", "--grpc-port", "0",
                                     "--kv-disk-path", self.folder], capture_output=True, text=True, timeout=60,
                                    env=clean_environment())
            self.assertNotEqual(second.returncode, 0)
            self.assertIn(str(server.process.pid), second.stderr)
            self.assertEqual(complete(server)[2], 0)

    def test_damaged_file_is_computed_again(self):
        with self.server() as server:
            cold = complete(server)
        segments = list(pathlib.Path(self.folder).rglob("seg-*.kv"))
        self.assertTrue(segments)
        for path in segments:
            with path.open("r+b") as file:
                file.seek(path.stat().st_size // 2)
                byte = file.read(1)
                file.seek(-1, 1)
                file.write(bytes([byte[0] ^ 1]))
        check = subprocess.run([harness.BINARY, "kv", "fsck", self.folder], capture_output=True, text=True, timeout=60)
        self.assertNotEqual(check.returncode, 0, check.stdout)
        with self.server() as server:
            self.assertEqual(complete(server)[0], cold[0])

    def test_option_errors(self):
        for arguments, words in (
            (["--kv-disk-path", self.folder, "--enable-prefix-caching=false"], "--enable-prefix-caching"),
            (["--kv-disk-path", "/proc/nowhere"], "/proc/nowhere"),
            (["--kv-disk-path", self.folder, "--kv-disk-bytes", "0"], "--kv-disk-bytes"),
            (["--kv-disk-path", self.folder, "--kv-disk-bytes", "1MiB"], "--kv-disk-bytes must be at least"),
        ):
            result = subprocess.run([harness.BINARY, "serve", "--model", harness.MODEL, "--port", "0", "--grpc-port", "0",
                                     *arguments], capture_output=True, text=True, timeout=60, env=clean_environment())
            self.assertNotEqual(result.returncode, 0, arguments)
            self.assertIn(words, result.stderr)


if __name__ == "__main__":
    unittest.main()
