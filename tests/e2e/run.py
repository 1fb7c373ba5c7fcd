#!/usr/bin/env python3
"""Runs the end-to-end tests against a binary and a model.

use: run.py --binary BIN --model GGUF [--cases NAME…]     NAME: test_chat, test_errors.ErrorTest.test_c06_…, …
"""
import argparse
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "cases")]

import harness  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--cases", nargs="*", default=[])
    arguments = parser.parse_args()
    harness.BINARY = str(pathlib.Path(arguments.binary).resolve())
    harness.MODEL = str(pathlib.Path(arguments.model).resolve())
    loader = unittest.TestLoader()
    if arguments.cases:
        suite = loader.loadTestsFromNames(arguments.cases)
    else:
        suite = loader.discover(str(HERE / "cases"))
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    return 0 if result.wasSuccessful() and result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
