"""A host whose network goes away without a word: no end of a connection, no reset. Two network namespaces are the hosts."""

import os
import shutil
import subprocess
import sys
import uuid

import pytest

SCRIPT = """
import mxnet as mx, time
kv = mx.kv.create("dist_rdma")
value, out = mx.nd.ones((1000,)), mx.nd.zeros((1000,))
kv.init(0, out)
while True:
    kv.pushpull(0, value, out=out)
    out.wait_to_read()
    print("step", flush=True)
    time.sleep(0.2)
"""
NETWORK = "10.79.83"
# The documented limits (docs/threads-and-memory.md): 15 s of silence at the scheduler, 30 s without an acknowledgement.
LIMIT_S = 75


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts():
    """Names of two namespaces that reach each other, and a function that cuts them apart."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the ip command")
    names = [f"mxrdma-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    made = []
    try:
        for name in names:
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
            made.append(name)
        ip("link", "add", "end0", "netns", names[0], "type", "veth", "peer", "name", "end1", "netns", names[1])
        for index, name in enumerate(names):
            ip("-n", name, "addr", "add", f"{NETWORK}.{index + 1}/24", "dev", f"end{index}")
            ip("-n", name, "link", "set", f"end{index}", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names, lambda: ip("-n", names[0], "link", "set", "end0", "down")
    finally:
        for name in made:
            ip("netns", "del", name)


@pytest.mark.slow
@pytest.mark.needs_core
def test_both_sides_of_a_cut_end_with_a_name(hosts, trace, tmp_path):
    (here, there), cut = hosts
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    token = tmp_path / "token"
    token.write_text(uuid.uuid4().hex)
    token.chmod(0o600)
    names = ("MXRDMA_", "DMLC_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    environment.update(trace.environment)
    environment.update(
        MXRDMA_SCHEDULER_URI=f"{NETWORK}.1",
        MXRDMA_SCHEDULER_PORT="29871",
        MXRDMA_NUM_WORKERS="2",
        MXRDMA_NUM_SERVERS="1",
        MXRDMA_TOKEN_FILE=str(token),
    )

    def start(host, role, *command, **more):
        return subprocess.Popen(
            ["ip", "netns", "exec", host, sys.executable, *command],
            env={**environment, "MXRDMA_ROLE": role, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    scheduler = start(here, "scheduler", "-m", "mxrdma.node", "scheduler")
    server = start(here, "server", "-m", "mxrdma.node", "server", MXRDMA_BIND_HOST=f"{NETWORK}.1")
    near = start(here, "worker", str(script), MXRDMA_RANK="0")
    far = start(there, "worker", str(script), MXRDMA_RANK="1")
    started = {"scheduler": scheduler, "server": server, "near": near, "far": far}
    try:
        for line in far.stdout:
            if line.startswith("step"):
                break
        assert far.poll() is None
        cut()
        output = {name: process.communicate(timeout=LIMIT_S)[0] for name, process in started.items()}
    finally:
        for process in started.values():
            process.kill()
            process.wait()
    codes = {name: process.returncode for name, process in started.items()}
    assert 0 not in codes.values(), (codes, output)
    assert "worker 1" in output["near"] and "WorkerLost" in output["near"], output["near"]
    assert "SchedulerLost" in output["far"] or "ServerLost" in output["far"], output["far"]
    assert f"{NETWORK}.1" in output["far"], output["far"]
