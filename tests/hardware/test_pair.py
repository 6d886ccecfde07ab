"""mxrdma-doctor pair over real queue pairs: measured, compared byte for byte, and counted by the devices."""

import json
import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("mxrdma._core")

COMMAND = [sys.executable, "-m", "mxrdma.doctor", "pair"]
LIMIT_S = 120


@pytest.mark.siw
def test_pair_measures_verbs(devices):
    here, there = devices[-2:]
    environment = {**os.environ, "MXRDMA_TOKEN": "a-token-of-this-test"}
    listener = subprocess.Popen(
        [*COMMAND, "--listen", "--once", "--bind", "127.0.0.1", "--port", "0"],
        env={**environment, "MXRDMA_DEVICE": there.name},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        port = re.fullmatch(rb"listening on 127\.0\.0\.1, port (\d+)\n", listener.stdout.readline()).group(1)
        done = subprocess.run(
            [*COMMAND, "127.0.0.1", "--port", port, "--fabric", "verbs", "--json"],
            env={**environment, "MXRDMA_DEVICE": here.name},
            stdout=subprocess.PIPE,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout.decode()
        told, _ = listener.communicate(timeout=LIMIT_S)
    finally:
        listener.kill()
        listener.wait()
        listener.stdout.close()
    [run] = json.loads(done.stdout)["fabrics"]
    assert run["fabric"] == "verbs"
    assert f"verbs {here.name}:1" in run["path"] and f"{there.name}:1" in run["path"], run["path"]
    assert [step["bytes"] for step in run["steps"]] == [8, 4096, 65536, 1 << 20, 4 << 20]
    assert all(step["latency_us"] > 0 and step["bytes_per_s"] > 0 for step in run["steps"])
    assert b"connected over verbs" in told, told.decode()
    if here.is_rxe:
        counters = json.loads(done.stdout)["counters"]
        assert f"{here.name}/1" in counters and "sent_pkts" in counters[f"{here.name}/1"], counters
