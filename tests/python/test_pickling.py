"""What is sent to the servers for an optimizer, without a job."""

import subprocess
import sys
import threading

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")
_core = pytest.importorskip("mxrdma._core")

from mxrdma import errors, optimizer  # noqa: E402


@pytest.mark.parametrize(
    "make, kind",
    [
        (lambda: mx.optimizer.SGD(momentum=0.9, clip_gradient=2.0), "sgd"),
        (lambda: mx.optimizer.NAG(momentum=0.9), "nag"),
        (lambda: mx.optimizer.Adam(), "adam"),
        (lambda: mx.optimizer.SGD(momentum=-0.5), "python"),
        (lambda: mx.optimizer.LAMB(), "python"),
        (lambda: type("Child", (mx.optimizer.SGD,), {})(), "python"),
    ],
)
def test_only_mxnets_own_classes_run_in_the_core(make, kind):
    spec = optimizer.spec_for(make())
    assert spec.kind == kind
    assert bool(spec.pickle) == (kind == "python")


def test_parameters_of_the_core_kinds():
    spec = optimizer.spec_for(mx.optimizer.SGD(momentum=0.5, clip_gradient=2.0, multi_precision=True))
    assert (spec.momentum, spec.clip_gradient, spec.multi_precision) == (0.5, 2.0, True)
    assert optimizer.spec_for(mx.optimizer.SGD()).clip_gradient <= 0
    spec = optimizer.spec_for(mx.optimizer.Adam(beta1=0.5, beta2=0.25, epsilon=0.125))
    assert (spec.beta1, spec.beta2, spec.epsilon) == (0.5, 0.25, 0.125)


@pytest.mark.parametrize("value", [threading.Lock(), open("/dev/null")], ids=["lock", "file"])  # noqa: SIM115
def test_an_attribute_that_cannot_be_pickled_is_named(value):
    sgd = mx.optimizer.SGD()
    sgd.log = value
    with pytest.raises(errors.Unsupported, match="'log'"):
        optimizer.spec_for(sgd)


def test_live_rates():
    sgd = mx.optimizer.SGD(learning_rate=0.5, wd=0.25, rescale_grad=0.125)
    sgd.set_lr_mult({3: 0.5})
    sgd.set_wd_mult({3: 2.0})
    live = optimizer.LiveOptimizer(sgd, "sgd")
    hyper = live.next(3)
    assert (hyper.lr, hyper.wd, hyper.rescale_grad, hyper.update_count) == (0.25, 0.5, 0.125, 1)
    sgd.set_learning_rate(1.0)
    hyper = live.next(3)
    assert (hyper.lr, hyper.update_count) == (0.5, 2)
    adam = mx.optimizer.Adam(learning_rate=0.5, beta1=0.5, beta2=0.75)
    assert optimizer.LiveOptimizer(adam, "adam").next(0).lr == pytest.approx(0.5 * 0.25**0.5 / 0.5)


def test_a_module_beside_the_script_goes_along(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text(
        "import mxnet as mx\n"
        "class Mine(mx.optimizer.Optimizer):\n"
        "    def update(self, index, weight, grad, state):\n"
        "        weight -= grad * self._get_lr(index)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import beside

    mine = beside.Mine(learning_rate=0.5)
    mine.set_lr_mult({0: 0.5})
    spec = optimizer.spec_for(mine)
    hyper = optimizer.LiveOptimizer(mine, "python").next(0)
    (tmp_path / "pickle").write_bytes(spec.pickle)
    script = (
        "import sys, numpy as np\n"
        "from mxrdma import _core, optimizer\n"
        "update = optimizer.make_updater('Mine', open('pickle', 'rb').read())\n"
        "weight, grad = np.ones(2, 'float32'), np.ones(2, 'float32')\n"
        f"update('i:0', 0, 0, (2,), memoryview(grad).cast('B'), memoryview(weight).cast('B'),"
        f" _core.Hyper({hyper.lr}, 0.0, 1.0, 1))\n"
        "print(weight.tolist())\n"
    )
    (tmp_path / "beside.py").unlink()
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, timeout=60, check=True)
    assert done.stdout.decode().split("\n")[-2] == str(np.array([0.75, 0.75]).tolist())
