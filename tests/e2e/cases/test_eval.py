"""`spindle eval`: reports, gates, refusals."""
import json
import pathlib
import subprocess
import tempfile
import unittest

import harness
from harness import clean_environment


def run(*arguments):
    return subprocess.run([harness.BINARY, "eval", *arguments], capture_output=True, text=True, timeout=600, env=clean_environment())


class EvalTest(unittest.TestCase):
    def test_report(self):
        with tempfile.TemporaryDirectory() as folder:
            result = run(harness.MODEL, "--context", "512", "--windows", "2", "--steps", "8", "--budgets", "25%,12.5%", "--algorithms", "shadowkv",
                         "--tasks", "passkey", "--samples", "1", "--output", folder)
            self.assertEqual(result.returncode, 0, result.stderr)
            report = json.loads(pathlib.Path(folder, "report.json").read_text())
            self.assertEqual(result.stdout, pathlib.Path(folder, "report.md").read_text())
        forced = report["forced"][0]
        self.assertEqual((forced["context_tokens"], forced["windows"], forced["steps"]), (512, 2, 8))
        policies = {policy["policy"]: policy for policy in forced["policies"]}
        self.assertEqual(set(policies), {"dense", "streaming", "random@25%", "random@12.5%", "oracle(shadowkv)@25%", "shadowkv@25%",
                                         "oracle(shadowkv)@12.5%", "shadowkv@12.5%"})
        self.assertEqual(policies["dense"]["kl_mean"], 0)
        self.assertLess(policies["oracle(shadowkv)@12.5%"]["kl_mean"], policies["streaming"]["kl_mean"])
        self.assertEqual((len(policies["shadowkv@25%"]["head_mass"]), len(policies["shadowkv@25%"]["head_mass"][0])), (30, 3))
        for exactness in report["exactness"]:
            self.assertTrue(exactness["full_budget_equals_dense"] and exactness["alone_equals_batched"], exactness)
        task = report["tasks"][0]
        self.assertEqual((task["family"], task["samples"]), ("passkey", 1))
        self.assertEqual(task["policies"][0]["retention"], 1)
        self.assertEqual(report["gates"], [])

    def test_gates_fail_on_too_few_positions(self):
        result = run(harness.MODEL, "--context", "256", "--windows", "1", "--steps", "2", "--budgets", "50%", "--algorithms", "quest", "--tasks", "none",
                     "--gates")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("| FAIL | positions |", result.stdout)
        self.assertIn("| pass | exactness |", result.stdout)
        self.assertEqual(result.stderr.splitlines()[-1], "fatal: a quality gate failed")

    def test_an_index_of_segments(self):
        result = run(harness.MODEL, "--context", "1280", "--windows", "1", "--steps", "2", "--budgets", "5%,100%", "--algorithms", "retroinfer",
                     "--tasks", "none", "--gates")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("| pass | exactness | retroinfer with a budget of 100 % and dense, relative error |", result.stdout)
        self.assertIn("| pass | batching | retroinfer alone and in a batch |", result.stdout)

    def test_refusals_name_the_option(self):
        for arguments, reason in ((("--context", "8192"), "--context must be in [256, "), (("--context", "9"), "--context"),
                                  (("--algorithms", "qest"), "--algorithms"), (("--budgets", "0%"), "--budgets"),
                                  (("--algorithms", "seer_r"), "--sparse-gates"), (("--sparse-gates", "/none"), "/none"),
                                  (("--algorithms", "retroinfer", "--sink", "32"), "sink_tokens must be at most"),
                                  (("--tasks", "cwe", "--generated", "512"), "--tasks cwe"),
                                  (("--tasks", "passkey", "--generated", "4000"), "needs --context of at least 4256"),
                                  (("--text", "a.txt", "--text", "a.txt"), "twice"),
                                  (("--tasks", "pass-key"), "--tasks"), (("--windows", "0", "--tasks", "none"), "nothing to do"),
                                  (("--text", "/nonexistent.txt"), "/nonexistent.txt"), (("--max-num-seqs", "4"), "max-num-seqs")):
            result = run(harness.MODEL, *arguments)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(reason, result.stderr.splitlines()[-1])
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
            text.write("One sentence. Another one.\n")
            text.flush()
            result = run(harness.MODEL, "--text", text.name)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--windows 8", result.stderr)
        self.assertEqual(run().returncode, 2)
