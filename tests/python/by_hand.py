"""A job whose roles are started by hand, without the launcher: what peers hear is not cut short by anybody."""

import os
import signal
import socket
import subprocess
import sys
import textwrap

PRELUDE = """\
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
import mxnet as mx
kv = mx.kv.create('dist_rdma')
rank, size = kv.rank, kv.num_workers
kv.init(0, mx.nd.zeros((1000000,)))
big, out = mx.nd.ones((1000000,)), mx.nd.zeros((1000000,))
"""


class Ended:
    """How a process ended: its return code as Python gives it, and all that it said."""

    def __init__(self, code, output):
        self.code = code
        self.output = output

    def __repr__(self):
        return f"code {self.code}\n{self.output}"


def run(folder, body, workers=2, limit_s=120, environment=None):
    """{"scheduler": Ended, "server": Ended, 0: Ended, 1: Ended, ...}; a job that is not over in time fails the test."""
    script = folder / "script.py"
    script.write_text(PRELUDE + textwrap.dedent(body))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    full = {name: value for name, value in os.environ.items() if not name.startswith(("MXRDMA_", "DMLC_"))}
    full.update(
        MXRDMA_SCHEDULER_URI="127.0.0.1", MXRDMA_SCHEDULER_PORT=str(port), MXRDMA_NUM_WORKERS=str(workers),
        MXRDMA_NUM_SERVERS="1", MXRDMA_TOKEN="a-token-of-this-test", OMP_NUM_THREADS="1", **(environment or {}),
    )  # fmt: skip
    commands = {role: ([sys.executable, "-m", "mxrdma.node", role], {}) for role in ("scheduler", "server")}
    for rank in range(workers):
        commands[rank] = ([sys.executable, str(script)], {"MXRDMA_ROLE": "worker", "MXRDMA_RANK": str(rank)})
    running = {}
    for name, (command, extra) in commands.items():
        with open(folder / f"{name}.log", "wb") as log:
            running[name] = subprocess.Popen(
                command, env={**full, **extra}, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=folder
            )
    hung = []
    for name, process in running.items():
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            hung.append(name)
            limit_s = 1
    for name in hung:
        running[name].send_signal(signal.SIGKILL)
        running[name].wait()
    ended = {
        name: Ended(process.returncode, (folder / f"{name}.log").read_text(errors="replace"))
        for name, process in running.items()
    }
    assert not hung, f"{hung} did not end: {ended}"
    return ended
