"""What breaks below a job: a port that goes down, memory that may not be locked. Each ends in words, none in a hang."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
import job

pytest.importorskip("mxnet")
pytest.importorskip("mxrdma._core")

LIMIT_S = 240
pytestmark = pytest.mark.timeout(LIMIT_S + 30)

LOOP = """
kv.init(0, mx.nd.zeros((300000,)))
value, out = mx.nd.ones((300000,)), mx.nd.zeros((300000,))
def steps(count):
    for _ in range(count):
        kv.pushpull(0, value, out=out)
        out.wait_to_read()
        assert out[0].asscalar() == size
"""


def test_a_port_that_goes_down_ends_the_job_with_its_name(tmp_path, rxe_devices):
    device = rxe_devices[-1]
    try:
        done = job.run(
            tmp_path,
            LOOP
            + f"""
import subprocess
steps(5)
kv.barrier()
if rank == 0:
    subprocess.run(["ip", "link", "set", "{device.netdev}", "down"], check=True)
steps(100000)
""",
            fabric="verbs",
            environment={"MXRDMA_DEVICE": device.name},
            timeout=LIMIT_S,
            workers=1,
            ok=False,
        )
    finally:
        subprocess.run(["ip", "link", "set", device.netdev, "up"], check=True)
    assert done.returncode != 0
    assert device.name in done.output, done.output
    assert "Lost" in done.output or "FabricError" in done.output, done.output


def without_right(*words):
    """A prefix of a command: the limit of locked memory counts for it, though it is root's."""
    if shutil.which("setpriv") is None or shutil.which("prlimit") is None:
        pytest.skip("setpriv and prlimit (util-linux) are not installed")
    return ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", *words]


def test_where_nothing_may_be_locked_the_reason_and_the_mend_are_told(tmp_path, rxe_devices):
    done = job.run(
        tmp_path,
        LOOP + "steps(2)\n",
        fabric="verbs",
        environment={"MXRDMA_DEVICE": rxe_devices[-1].name},
        timeout=LIMIT_S,
        workers=1,  # importing MXNet is what takes long in the guest
        ok=False,
        prefix=without_right("prlimit", "--memlock=0"),
    )
    assert done.returncode != 0
    assert "limit of locked memory: 0 KiB" in done.output and "ulimit -l unlimited" in done.output, done.output
    assert rxe_devices[-1].name in done.output


def test_gradients_are_copied_where_they_may_not_be_locked(tmp_path, rxe_devices):
    """40 MB of gradients and 40 MB of weights, 25 MiB that a worker may lock: it goes on, slower."""
    done = job.run(
        tmp_path,
        """
import resource
resource.setrlimit(resource.RLIMIT_MEMLOCK, (25 << 20, 25 << 20))
kv = mx.kv.create("dist_rdma")
rank, size = kv.rank, kv.num_workers
held = []
for key in range(40):  # arrays that all come again
    kv.init(key, mx.nd.zeros((250000,)))
    held.append((key, mx.nd.ones((250000,)), mx.nd.zeros((250000,))))
for _ in range(4):
    for key, one, target in held:
        kv.pushpull(key, one, out=target)
    for key, one, target in held:
        assert (target.asnumpy() == size).all()
        target[:] = 0
from mxrdma import _session
result["counters"] = _session.join().worker.counters()
save()
""",
        fabric="verbs",
        environment={"MXRDMA_DEVICE": rxe_devices[-1].name},
        timeout=LIMIT_S,
        workers=1,
        create=False,
        prefix=without_right(),
    )
    assert "gradients are copied instead" in done.output and "limit of locked memory: 25600 KiB" in done.output, done.output
    for result in done:
        assert result["counters"]["staged_bytes"] > 0
        assert result["counters"]["registered_bytes"] <= 25 << 20
