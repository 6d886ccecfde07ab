"""Many short jobs one after the other, on one port: each succeeds, says nothing, and leaves nothing behind."""

import os
import re
import socket

import jobs
import pytest

pytestmark = [pytest.mark.needs_core]

# Three rounds; the last pushes are not waited for, so that each run also ends with operations outstanding.
SCRIPT = """
import mxnet as mx
kv = mx.kv.create('dist_rdma')
kv.init('w', mx.nd.zeros((1000,)))
out = mx.nd.zeros((1000,))
for step in range(3):
    kv.push('w', mx.nd.ones((1000,)) * (kv.rank + 1))
    kv.pull('w', out=out)
assert (out.asnumpy() == 3).all(), out
for _ in range(5):
    kv.push('w', out)
"""
START_LINE = re.compile(r"\[worker ([01])\] mxrdma \(worker \1\): worker \1 of 2 on .*; server 0: .*")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(10, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
        pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(3 * 3600)]),
    ],
)
def test_runs_succeed_in_silence_and_leave_nothing(trace, tmp_path, runs):
    pytest.importorskip("mxnet")
    port = free_port()
    files = tmp_path / "files"
    files.mkdir()
    environment = {**trace.environment, "TMPDIR": str(files), "OMP_NUM_THREADS": "1"}
    named = set(os.listdir("/dev/shm"))
    descriptors = len(os.listdir("/proc/self/fd"))
    for run in range(runs):
        fabric = ("shm", "tcp")[run % 2]
        done = jobs.run(
            "-n", 2, "-s", 1, "--port", port, "--fabric", fabric, *jobs.python(SCRIPT), env=environment, cwd=files
        )  # fmt: skip
        assert done.code == 0, f"run {run}: {done}"
        lines = done.err.splitlines()
        assert done.out == "" and len(lines) == 2 and all(map(START_LINE.fullmatch, lines)), f"run {run}: {done}"
        assert trace.left() == [], f"run {run}"
        assert list(files.iterdir()) == [], f"run {run}"
        assert len(os.listdir("/proc/self/fd")) == descriptors, f"run {run}"
    # Other programs of this machine may be at work there; what they have there for a moment is none of ours.
    jobs.wait_for(lambda: set(os.listdir("/dev/shm")) <= named, "end of what appeared in /dev/shm", 30)
