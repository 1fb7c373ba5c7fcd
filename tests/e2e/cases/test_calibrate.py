"""`spindle calibrate`: a preset that serves, refusals."""
import pathlib
import subprocess
import tempfile
import unittest

import harness
from harness import Server, clean_environment


def run(*arguments):
    return subprocess.run([harness.BINARY, "calibrate", *arguments], capture_output=True, text=True, timeout=600, env=clean_environment())


class CalibrateTest(unittest.TestCase):
    def test_the_preset_serves(self):
        with tempfile.TemporaryDirectory() as folder:
            preset = pathlib.Path(folder, "preset.yaml")
            result = run(harness.MODEL, "--sparse-algorithm", "streaming", "--sparse-budget", "64", "--context", "1024,256", "--steps", "4", "--rounds", "3",
                         "--batch", "2", "--output", str(preset))
            self.assertEqual(result.returncode, 0, result.stderr)
            text = preset.read_text()
            self.assertEqual(result.stdout, text)
            comments = [line.split() for line in text.splitlines() if line.startswith("#")]
            self.assertEqual([line[1] for line in comments[2:4]], ["256", "1024"])  # in order
            members = dict(line.split(": ") for line in text.splitlines() if not line.startswith("#"))
            if members["algorithm"] == "streaming":
                self.assertEqual(members["budget_tokens"], "64")
                self.assertIn(int(members["min_context"]), range(256, 1025))
            else:
                self.assertEqual(members, {"algorithm": "dense"})
            with Server("--sparse-preset", str(preset)) as server:
                models = server.request("GET", "/v1/models").json
                self.assertEqual(models["data"][0]["spindle"]["sparse"]["default"], members["algorithm"])

    def test_refusals_name_the_option(self):
        for arguments, reason in ((("--sparse-algorithm", "quest", "--context", "8192"), "--context must be in [64, 8158]"),
                                  (("--sparse-algorithm", "quest", "--context", "9"), "--context"),
                                  ((), "--sparse-algorithm or --sparse-preset"), (("--sparse-algorithm", "dense"), "--sparse-algorithm"),
                                  (("--sparse-algorithm", "quest", "--sparse-min-context", "9"), "--sparse-min-context"),
                                  (("--sparse-preset", "/none"), "/none"),
                                  (("--sparse-algorithm", "quest", "--batch", "0"), "batch"),
                                  (("--sparse-algorithm", "quest", "--text", "/none.txt"), "/none.txt")):
            result = run(harness.MODEL, *arguments)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(reason, result.stderr.splitlines()[-1])
        self.assertEqual(run().returncode, 2)
