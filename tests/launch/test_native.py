"""`--kvstore dist_sync`: MXNet's own scheduler and servers for the same command."""

import jobs
import pytest

pytestmark = [pytest.mark.native, pytest.mark.slow]

SCRIPT = """
import os
import mxnet as mx, mxrdma
kv = mx.kv.create(mxrdma.kvstore_name())
kv.init(3, mx.nd.zeros((2,)))
kv.push(3, mx.nd.ones((2,)))
out = mx.nd.zeros((2,))
kv.pull(3, out=out)
print(kv.type, kv.num_workers, type(kv).__module__, out.asnumpy().tolist())
"""


def test_the_same_script_runs_on_both(trace):
    pytest.importorskip("mxnet")
    for name, module, kind in (
        ("dist_sync", "mxnet.kvstore.kvstore", "dist_sync"),
        ("dist_rdma", "mxrdma.kvstore", "dist_rdma_sync"),
    ):
        done = jobs.run("-n", 2, "-s", 1, "--kvstore", name, *jobs.python(SCRIPT), env=trace.environment)
        assert done.code == 0, done
        for rank in (0, 1):
            assert done.lines(f"worker {rank}") == [f"{kind} 2 {module} [2.0, 2.0]"], done
        assert trace.left() == []


def test_success_is_silent(trace):
    pytest.importorskip("mxnet")
    script = SCRIPT.replace("print(", "repr([").replace(".tolist())", ".tolist()])")
    done = jobs.run("-n", 2, "-s", 1, "--kvstore", "dist_sync", *jobs.python(script), env=trace.environment)
    assert (done.code, done.out, done.err) == (0, "", "")


def test_a_worker_that_exits_with_an_error_ends_the_others(trace):
    pytest.importorskip("mxnet")
    script = SCRIPT.replace("print(", "os._exit(7) if kv.rank == 1 else kv._barrier(")
    done = jobs.run("-n", 2, "-s", 1, "--kvstore", "dist_sync", *jobs.python(script), env=trace.environment)
    assert done.code == 7, done
    assert trace.left() == []


def test_the_fabric_option_does_not_fit(trace):
    done = jobs.run("-n", 1, "--kvstore", "dist_sync", "--fabric", "shm", *jobs.python("print('ran')"), env=trace.environment)
    assert done.code == 2 and "--fabric" in done.err and "ran" not in done.out
