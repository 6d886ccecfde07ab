"""A tiny real run of every column."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("mxnet")
pytest.importorskip("mxrdma._core")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_measures_and_checks_every_column():
    command = [sys.executable, "-m", "mxrdma.bench", "pushpull", "--sizes", "4KiB,1MiB", "--models", ""]
    command += ["--kv", "dist_rdma,dist_sync", "--repeats", "2", "--steps", "3", "--json", "-"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=280, check=False)
    assert done.returncode == 0, done.stderr.decode()
    rows = json.loads(done.stdout)["results"]
    assert len(rows) == 2 * 2 * 3
    for row in rows:
        assert row["steps"] == 6 and row["step_ms"]["min"] > 0
        assert {"worker", "server", "scheduler"} <= set(row["peak_memory_bytes"])
        if row["store"] == "dist_rdma":
            assert row["counters"]["write_bytes"] >= 2 * 6 * row["bytes"]
            memory = row["server_memory"]
            assert memory["weights"] >= row["bytes"]
