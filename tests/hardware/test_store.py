"""The store over real queue pairs: right values, arrays left alone, forks, memory that stays flat, silent ends."""

import sys
import textwrap
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
import job

pytest.importorskip("mxnet")
pytest.importorskip("mxrdma._core")

LIMIT_S = 240
pytestmark = pytest.mark.timeout(LIMIT_S + 30)
WORDS_OF_BAD_ENDS = ("terminate called", "Segmentation", "Traceback", "Error", "had failed", "giving back")


COUNTERS = """
from mxrdma import _session
def counters():
    return _session.join().worker.counters()
"""


def run(folder, device, body, **options):
    environment = {"MXRDMA_DEVICE": device.name, **options.pop("environment", {})}
    options.update(fabric="verbs", environment=environment, timeout=LIMIT_S)
    return job.run(folder, COUNTERS + textwrap.dedent(body), **options)


def silent(done):
    return not any(word in done.output for word in WORDS_OF_BAD_ENDS)


@pytest.mark.siw
def test_values_are_right_and_callers_arrays_left_alone(tmp_path, devices):
    """Arrays used again and again, so that they stay registered; fresh ones; views; a change right after the push."""
    done = run(
        tmp_path,
        devices[-1],
        """
        big, small = 70000, 3
        for key, size in enumerate((big, small, big)):
            kv.init(key, mx.nd.zeros((size,)))
        gradient, out = mx.nd.zeros((big,)), mx.nd.full((big,), -1)
        wrong = []
        for step in range(1, 31):
            if step == 4:
                kv.barrier()
                begin = counters()
            gradient[:] = step * (rank + 1)
            kv.pushpull(0, gradient, out=out)
            gradient[:] = -7  # MXNet makes this wait
            fresh = mx.nd.full((small,), step)
            kv.push(1, fresh)
            target = mx.nd.full((small + 2,), -1)
            kv.pull(1, out=target[1:-1])
            if not (out.asnumpy() == 3 * step).all():
                wrong.append(("sum", step))
            if target.asnumpy().tolist() != [-1] + [2 * step] * small + [-1]:
                wrong.append(("view", step, target.asnumpy().tolist()))
            if fresh.asnumpy().tolist() != [step] * small:
                wrong.append(("pushed", step))
        end = counters()
        result["counted"] = {name: end[name] - begin[name] for name in ("staged_bytes", "write_bytes")}
        whole = mx.nd.arange(3 * big).reshape((3, big))
        kv.push(2, whole[1])
        kv.pull(2, out=out)
        if not (whole.asnumpy().ravel() == np.arange(3 * big)).all() or out[1].asscalar() != 2 * (big + 1):
            wrong.append("slice")
        result["wrong"] = wrong
        result["counters"] = counters()
        """,
    )
    assert silent(done), done.output
    for result in done:
        assert result["wrong"] == []
        assert result["counters"]["rnr"] == 0
        # From the second use of an array on, all but small ones and headers leaves without a copy.
        counted = result["counted"]
        assert counted["write_bytes"] >= 27 * 280000 and counted["staged_bytes"] < counted["write_bytes"] / 500, counted


def test_forks_do_not_touch_what_is_sent(tmp_path, rxe_devices):
    done = run(
        tmp_path,
        rxe_devices[-1],
        """
        import subprocess
        from mxnet.gluon.data import ArrayDataset, DataLoader
        size = 100000
        kv.init(0, mx.nd.zeros((size,)))
        value, out, total = mx.nd.zeros((size,)), mx.nd.zeros((size,)), 0
        for epoch in range(3):
            for batch in DataLoader(ArrayDataset(np.arange(64, dtype="float32")), batch_size=8, num_workers=2):
                value[:] = batch.sum().asscalar()
                kv.push(0, value)
                subprocess.run(["true"], check=True)  # a fork that no hook of Python sees
                kv.pull(0, out=out)
                assert (out.asnumpy() == out[0].asscalar()).all()
                total += out[0].asscalar()
        result["total"] = float(total)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                kv.pull(0, out=out)
            except mx.MXNetError as error:
                code = 42 if "forked" in str(error) else 2
            os._exit(code)
        result["child"] = os.WEXITSTATUS(os.waitpid(pid, 0)[1])
        kv.pushpull(0, mx.nd.ones((size,)), out=out)
        result["after"] = float(out[size - 1].asscalar())
        """,
    )
    assert silent(done), done.output
    for result in done:
        assert (result["total"], result["child"], result["after"]) == (12096, 42, 2)


def test_registered_memory_stays_flat_over_1000_steps(tmp_path, rxe_devices):
    """Arrays of ten sizes, some kept, most new in each step, as in training with shapes that change."""
    done = run(
        tmp_path,
        rxe_devices[-1],
        """
        sizes = [100, 1000, 2500, 5000, 7000, 9000, 12000, 16000, 20000, 30000]
        for key, size in enumerate(sizes):
            kv.init(key, mx.nd.zeros((size,)))
        kept = [mx.nd.ones((size,)) for size in sizes]
        marks = []
        for step in range(1000):
            key = step % len(sizes)
            source = kept[key] if step % 3 == 0 else mx.nd.ones((sizes[key],))
            out = kept[key] if step % 5 == 0 else mx.nd.zeros((sizes[key],))
            kv.pushpull(key, source, out=out)
            out.wait_to_read()
            assert out[0].asscalar() == out[-1].asscalar()
            if out is kept[key]:
                out[:] = 1
            if step % 100 == 99:
                time.sleep(0.5)  # a tick of the loop lets go of what nobody has
                marks.append(counters()["registered_bytes"])
        result["marks"] = marks
        result["kept"] = sum(4 * size for size in sizes)
        """,
        workers=1,
    )
    for result in done:
        marks = result["marks"]
        # What is kept may be registered; no more, at the end as at the beginning.
        assert max(marks) - min(marks) <= 2 * result["kept"], marks
        assert marks[-1] <= marks[1] + result["kept"], marks


@pytest.mark.parametrize("victim", ["server", "worker 1"])
def test_a_killed_process_is_named(tmp_path, rxe_devices, victim):
    role, _, rank = victim.partition(" ")
    done = run(
        tmp_path,
        rxe_devices[-1],
        f"""
        import signal, psutil
        kv.init(0, mx.nd.zeros((500000,)))
        out = mx.nd.zeros((500000,))
        for i in range(100000):
            kv.pushpull(0, out, out=out)
            out.wait_to_read()
            if rank == 0 and i == 20:
                for p in psutil.Process().parent().children(recursive=True):
                    names = p.environ()
                    if names.get("MXRDMA_ROLE") == {role!r} and {rank!r} in ("", names.get("MXRDMA_RANK")):
                        p.send_signal(signal.SIGKILL)
        """,
        ok=False,
    )
    assert done.returncode != 0
    assert f"{victim}" in done.output and "lost" in done.output.lower(), done.output
