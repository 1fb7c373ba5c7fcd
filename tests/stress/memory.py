#!/usr/bin/env python3
"""Memory test: resident size of an idle server against its bounds, and no growth over many short requests.

use: memory.py --binary BIN --model GGUF [--requests 10000]
"""
import argparse
import concurrent.futures
import http.client
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

import harness  # noqa: E402

MIB = 1 << 20
KV_BYTES = 256 * MIB
ALLOWANCE = 150 * MIB
# Caches of the allocator and of libraries settle during the first requests; growth is judged after them.
SETTLE_SHARE = 0.2
GROWTH_LIMIT = 4 * MIB


def resident_bytes(server):
    for line in pathlib.Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def run_requests(port, count):
    """Short chat requests on one kept connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for i in range(count):
        body = {"model": "smol", "messages": [{"role": "user", "content": f"Number {i % 50}?"}], "max_tokens": 2, "temperature": 0,
                "stream": i % 2 == 0}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise AssertionError(f"status {answer.status}")
    connection.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=10000)
    arguments = parser.parse_args()
    harness.BINARY, harness.MODEL = arguments.binary, arguments.model
    with harness.Server("--kv-host-bytes", str(KV_BYTES), "--max-num-seqs", "8", fixture=False) as server:
        weights = json.loads(subprocess.run([arguments.binary, "inspect", arguments.model, "--json"], check=True,
                                                         capture_output=True, text=True).stdout)["weight_bytes"]
        idle = resident_bytes(server)
        bound = weights + KV_BYTES + ALLOWANCE
        print(f"idle RSS {idle / MIB:.1f} MiB, bound {bound / MIB:.1f} MiB (weights {weights / MIB:.1f} + KV {KV_BYTES / MIB:.0f} + 150)")
        workers = 8
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            def spread(total):
                list(pool.map(lambda _: run_requests(server.port, total // workers), range(workers)))
            spread(int(arguments.requests * SETTLE_SHARE))
            settled = resident_bytes(server)
            spread(int(arguments.requests * (1 - SETTLE_SHARE)))
            final = resident_bytes(server)
    growth = final - settled
    print(f"after {SETTLE_SHARE:.0%} of {arguments.requests} requests {settled / MIB:.1f} MiB, at the end {final / MIB:.1f} MiB, "
          f"growth {growth / MIB:.2f} MiB")
    passed = idle <= bound and final <= bound and growth <= GROWTH_LIMIT
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
