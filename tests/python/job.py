"""Runs a piece of a training script as a real job through mxrdma-launch and collects what each rank found.

The body sees `mx`, `np`, `kv` (made by `create`), `rank`, `size` and a dict `result`; what it puts there (numbers, lists,
NumPy arrays) comes back by rank.
"""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

PRELUDE = """\
import os, pickle, sys, time
import numpy as np
import mxnet as mx
from mxnet import autograd, gluon
result = {}
def save():
    with open(os.path.join(%(folder)r, "partial-%%d" %% rank), "wb") as file:
        pickle.dump(result, file)
    os.replace(file.name, os.path.join(%(folder)r, "rank-%%d" %% rank))
"""
CREATE = """\
kv = mx.kv.create(%(kvstore)r)
rank, size = kv.rank, kv.num_workers
"""


class Job:
    """A finished job: return code, all output, and the results by rank of those workers that came to the end."""

    def __init__(self, returncode, output, results):
        self.returncode = returncode
        self.output = output
        self.results = results

    def __iter__(self):
        return iter(self.results[rank] for rank in sorted(self.results))


def launcher():
    beside = Path(sys.executable).with_name("mxrdma-launch")
    command = str(beside) if beside.exists() else shutil.which("mxrdma-launch")
    assert command, "mxrdma is not installed: run `pip install -e .`"
    return command


def run(
    folder,
    body,
    workers=2,
    servers=1,
    kvstore="dist_rdma",
    fabric="auto",
    timeout=120,
    environment=None,
    ok=True,
    create=True,
    prefix=(),
):
    """The finished job. ok: fail the test unless the job succeeded; otherwise it is up to the caller.

    prefix: words before the launcher's, as of a command that limits what it runs.
    A job that is not over in `timeout` seconds is a failure in any case; its processes are killed.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "script.py"
    names = {"folder": str(folder), "kvstore": kvstore}
    source = PRELUDE % names + (CREATE % names if create else "")
    script.write_text(source + textwrap.dedent(body) + ("\nsave()\n" if create else ""))
    command = [*prefix, launcher(), "-n", str(workers), "-s", str(servers)]
    if kvstore == "dist_sync":
        command += ["--kvstore", "dist_sync"]
    else:
        command += ["--fabric", fabric]
    command += ["--", sys.executable, str(script)]
    full = dict(os.environ, OMP_NUM_THREADS="1", **(environment or {}))
    process = subprocess.Popen(
        command, env=full, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, cwd=str(folder)
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"the job hung; its output:\n{output.decode(errors='replace')}") from None
    text = output.decode(errors="replace")
    results = {}
    for path in folder.glob("rank-*"):
        results[int(path.name.split("-")[1])] = pickle.loads(path.read_bytes())
    if ok:
        assert process.returncode == 0, f"code {process.returncode}; output:\n{text}"
        assert sorted(results) == list(range(workers)), text
    return Job(process.returncode, text, results)
