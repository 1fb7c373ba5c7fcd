"""The resident size stays below the memory plan: the short form of tests/stress/memory_plan.py."""
import sys
import unittest

from harness import ROOT

sys.path.append(str(ROOT / "tests/stress"))
import memory_plan  # noqa: E402


class SmallBodies(memory_plan.Bodies):
    largest = 2 * memory_plan.MIB


class FewAnswers(memory_plan.FullAnswerMemory):
    choices = 16


class FewSlowReaders(memory_plan.SlowReaders):
    connections = 40


class MemoryPlanTest(unittest.TestCase):
    def test_all_parts_at_once(self):
        scenario = memory_plan.Scenario(
            ["--max-model-len", "1024", "--kv-host-bytes", "48MiB", "--kv-mode", "mirror", "--kv-fast-bytes", "16MiB", "--kv-disk-bytes", "512MiB",
             "--kv-max-sessions", "64", "--max-body-size", "2MiB", "--answer-memory", "2MiB", "--max-connections", "128"],
            [memory_plan.LongPrompts, SmallBodies, FewAnswers, FewSlowReaders, memory_plan.Sessions], disk=True)
        result = memory_plan.run_scenario("all parts at once", scenario, seconds=8)
        self.assertEqual(result.problems, [], f"\n{memory_plan.HEADER}\n{result.row()}\n{result.seen}")
        self.assertGreater(result.ratio, 0.5, "the plan is padded")


if __name__ == "__main__":
    unittest.main()
