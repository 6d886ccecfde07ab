"""Optimizers on the servers against MXNet's own updates in one process."""

import numpy as np
import pytest

STEPS = 100

# Two keys with multipliers of their own; 100 steps. The reference applies MXNet's updater to the sum of all gradients.
BODY = """
from mxnet import lr_scheduler
STEPS = %(steps)d
cases = %(cases)s
shapes = [(3, 5), (4097,)]
def gradient(step, key, r):
    random = np.random.RandomState(step * 100 + key * 10 + r)
    return random.uniform(-1, 1, shapes[key]).astype("float32")
class Multipliers:
    def __init__(self, lr_mult, wd_mult):
        self.lr_mult, self.wd_mult = lr_mult, wd_mult
base = 0
for name, make, dtype in cases:
    ours, reference = eval(make), eval(make)
    multipliers = {base: Multipliers(0.5, 2.0), base + 1: Multipliers(1.0, 0.0)}
    ours.param_dict = multipliers
    reference.param_dict = multipliers
    updater = mx.optimizer.get_updater(reference)
    start = [np.random.RandomState(k).uniform(-1, 1, s) for k, s in enumerate(shapes)]
    expected = [mx.nd.array(s, dtype=dtype) for s in start]
    weights = [mx.nd.array(s, dtype=dtype) for s in start]
    kv.set_optimizer(ours)
    for k in range(2):
        kv.broadcast(base + k, weights[k], out=weights[k])
    for step in range(STEPS):
        if step == 50:
            for multiplier in multipliers.values():
                multiplier.lr_mult *= 0.5
            if ours.lr_scheduler is None:
                ours.set_learning_rate(ours.lr * 0.7)
                reference.set_learning_rate(reference.lr * 0.7)
        for k in range(2):
            kv.pushpull(base + k, mx.nd.array(gradient(step, k, rank), dtype=dtype), out=weights[k], priority=-k)
            total = sum(mx.nd.array(gradient(step, k, r), dtype=dtype) for r in range(size))
            updater(base + k, total, expected[k])
    result[name] = [(w.asnumpy().astype("float64"), e.asnumpy().astype("float64")) for w, e in zip(weights, expected)]
    base += 2
"""

COMMON = "wd=0.01, rescale_grad=0.25, clip_gradient=0.4"
CORE = [
    ("sgd", f"mx.optimizer.SGD(learning_rate=0.1, {COMMON})", "float32"),
    ("momentum", f"mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, {COMMON})", "float32"),
    ("momentum64", f"mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, {COMMON})", "float64"),
    ("nag", f"mx.optimizer.NAG(learning_rate=0.1, momentum=0.9, {COMMON})", "float32"),
    ("adam", f"mx.optimizer.Adam(learning_rate=0.01, {COMMON})", "float32"),
    ("schedule", "mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, "
     "lr_scheduler=lr_scheduler.FactorScheduler(step=7, factor=0.9, base_lr=0.1))", "float32"),
    ("mixed", f"mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, multi_precision=True, {COMMON})", "float16"),
]  # fmt: skip
PYTHON = [
    ("rmsprop", f"mx.optimizer.RMSProp(learning_rate=0.01, {COMMON})", "float32"),
    ("lamb", "mx.optimizer.LAMB(learning_rate=0.01, wd=0.01)", "float32"),
    ("schedule", "mx.optimizer.AdaGrad(learning_rate=0.1, "
     "lr_scheduler=lr_scheduler.FactorScheduler(step=7, factor=0.9, base_lr=0.1))", "float32"),
]  # fmt: skip


def check(job, cases):
    for result in job:
        for name, _, dtype in cases:
            # Half precision is compared in steps of its own: sums of halves are rounded in another order.
            tolerance = 2e-3 if dtype == "float16" else 1e-6
            for got, want in result[name]:
                scale = np.abs(want).max()
                assert np.abs(got - want).max() <= tolerance * scale, (name, np.abs(got - want).max() / scale)
                assert not np.array_equal(got, np.zeros_like(got))
    first = job.results[0]
    for result in job:
        for name in first:
            assert all(np.array_equal(a[0], b[0]) for a, b in zip(first[name], result[name])), f"{name}: workers differ"


@pytest.mark.parametrize("servers", [1, 3])
def test_optimizers_of_the_core(run_job, servers):
    check(run_job(BODY % {"steps": STEPS, "cases": repr(CORE)}, 2, servers), CORE)


def test_optimizers_in_python(run_job):
    check(run_job(BODY % {"steps": 20, "cases": repr(PYTHON)}, 2, 2), PYTHON)


def test_an_optimizer_of_the_script_itself(run_job, tmp_path):
    job = run_job(
        """
        with open("beside.py", "w") as file:
            file.write("def halve(x):\\n    return x * 0.5\\n")
        sys.path.insert(0, os.getcwd())
        kv.barrier()
        import beside

        @mx.optimizer.register
        class Mine(mx.optimizer.Optimizer):
            def create_state(self, index, weight):
                return None
            def update(self, index, weight, grad, state):
                weight -= beside.halve(grad) * self._get_lr(index) * 2

        kv.init(0, mx.nd.ones((2,)))
        kv.set_optimizer(Mine(learning_rate=0.1))
        out = mx.nd.zeros((2,))
        kv.push(0, mx.nd.ones((2,)))
        kv.pull(0, out=out)
        result["class"] = out.asnumpy().tolist()
        with_lambda = mx.optimizer.SGD()
        with_lambda.lr_scheduler = lambda n: 0.25
        kv.set_optimizer(with_lambda)
        kv.pushpull(0, mx.nd.ones((2,)), out=out)
        result["lambda"] = out.asnumpy().tolist()

        def updater(key, received, stored):
            stored += received * (key + 2)
        kv._set_updater(updater)
        kv.pushpull(0, mx.nd.ones((2,)), out=out)
        result["function"] = out.asnumpy().tolist()
        """,
        servers=2,
    )
    for result in job:
        np.testing.assert_allclose(result["class"], [0.8, 0.8], rtol=1e-6)
        np.testing.assert_allclose(result["lambda"], [0.3, 0.3], rtol=1e-5)
        np.testing.assert_allclose(result["function"], [4.3, 4.3], rtol=1e-6)


@pytest.mark.parametrize("where", ["rank >= 0", "rank == 1"])
def test_what_cannot_be_pickled_is_named(run_job, where):
    job = run_job(
        f"""
        optimizer = mx.optimizer.SGD()
        if {where}:
            optimizer.log = open(os.devnull)
        kv.set_optimizer(optimizer)
        """,
        timeout=60,
        ok=False,
    )
    assert job.returncode != 0
    assert "'log'" in job.output


def test_an_optimizer_that_one_server_refuses_is_used_by_none(run_job):
    """Each server unpickles it by itself; here the second one cannot. The job goes on without it, then with another."""
    job = run_job(
        """
        class Part:
            def __reduce__(self):
                return (make_part, ())
        def make_part():
            import os, time
            if os.environ.get("MXRDMA_ROLE") == "server":
                if os.environ.get("MXRDMA_RANK") == "1":
                    raise ImportError("no module named beside")
                time.sleep(5)  # still being made when it is given up and the next one comes
            return Part()
        big = (600000,)  # on both servers, so it would move
        for key in range(4):
            kv.init(key, mx.nd.zeros(big if key == 0 else (1000,)))
        def sums():
            found = []
            for key in range(4):
                out = mx.nd.zeros(big if key == 0 else (1000,))
                kv.pushpull(key, mx.nd.full(out.shape, 1 + rank), out=out)
                found.append((float(out.asnumpy().min()), float(out.asnumpy().max())))
            return found
        class Strange(mx.optimizer.SGD):
            pass
        strange = Strange(learning_rate=0.5)
        strange.part = Part()
        try:
            kv.set_optimizer(strange)
            result["refused"] = "no"
        except mx.MXNetError as error:
            result["refused"] = f"{type(error).__name__}: {error}"
        result["sums"] = sums()
        kv.set_optimizer(Strange(learning_rate=0.5))
        result["updated"] = sums()
        """,
        servers=2,
    )
    for result in job:
        assert "UpdaterError" in result["refused"] and "server 1" in result["refused"], result["refused"]
        assert "no module named beside" in result["refused"]
        assert result["sums"] == [(3, 3)] * 4
        assert result["updated"] == [(3 - 0.5 * 3, 3 - 0.5 * 3)] * 4


def test_an_updater_that_raises_ends_the_job_with_its_words(run_job):
    job = run_job(
        """
        def updater(key, received, stored):
            raise ValueError("no such thing as key %s" % key)
        kv.init(3, mx.nd.ones((2,)))
        kv._set_updater(updater)
        kv.pushpull(3, mx.nd.ones((2,)), out=mx.nd.zeros((2,)))
        mx.nd.waitall()
        """,
        timeout=60,
        ok=False,
    )
    assert job.returncode != 0
    assert "no such thing as key 3" in job.output


def test_a_slow_updater_does_not_cost_the_server_its_heartbeats(run_job):
    body = """
    def slow(key, received, stored):
        import time
        time.sleep(0.15)
        stored += received
    keys = list(range(40))
    for key in keys:
        kv.init(key, mx.nd.zeros(3))
    for wrong in None, 3:
        try:
            kv._set_updater(wrong)
            result[repr(wrong)] = "accepted"
        except mx.MXNetError as error:
            result[repr(wrong)] = str(error)
    kv._set_updater(slow)
    outs = [mx.nd.zeros(3) for key in keys]
    for key, out in zip(keys, outs):
        kv.pushpull(key, mx.nd.ones(3) * (rank + 1), out=out)
    result["sum"] = sum(float(out.asnumpy().sum()) for out in outs)
    """
    job = run_job(body, environment={"MXRDMA_HEARTBEAT_TIMEOUT": "3"})
    for one in job:
        assert one["sum"] == 40 * 3 * 3
        assert "callable" in one["None"] and "callable" in one["3"]
