"""Gluon's Trainer and Module on the store."""

import numpy as np
import pytest

TRAINER = """
mx.random.seed(1)
np.random.seed(rank)
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Conv2D(64, 3, padding=1, in_channels=64), gluon.nn.Activation("relu"), gluon.nn.GlobalAvgPool2D(),
        gluon.nn.Dense(10, in_units=64))
net.initialize(mx.init.Xavier())
net.hybridize()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05, "momentum": 0.9, "wd": 0.001}, kvstore=kv,
                        update_on_kvstore=%(on_store)s)
loss = gluon.loss.SoftmaxCrossEntropyLoss()
result["losses"] = []
for step in range(6):
    x = mx.nd.array(np.random.RandomState(step * 7 + rank).uniform(-1, 1, (4, 64, 8, 8)))
    y = mx.nd.array(np.random.RandomState(step * 7 + rank).randint(0, 10, 4))
    if step == 3:
        net.collect_params()["dense0_bias"].lr_mult = 0.0 if %(on_store)s else 1.0
    with autograd.record():
        value = loss(net(x), y)
    value.backward()
    trainer.step(4 * size)
    if step %% 2:
        result["losses"].append(net(x).asnumpy())  # a forward in predict mode: blocked layouts
result["weights"] = {n: p.data().asnumpy() for n, p in net.collect_params().items()}
"""


@pytest.mark.parametrize("on_store", [True, False])
@pytest.mark.parametrize("engine", ["ThreadedEnginePerDevice", "NaiveEngine"])
def test_trainer_leaves_all_workers_with_the_same_weights(run_job, on_store, engine):
    job = run_job(TRAINER % {"on_store": on_store}, 2, 2, environment={"MXNET_ENGINE_TYPE": engine})
    first, second = job
    for name, weight in first["weights"].items():
        assert np.isfinite(weight).all()
        assert np.array_equal(weight, second["weights"][name]), name


@pytest.mark.native
def test_trainer_equals_dist_sync(run_job):
    body = (TRAINER % {"on_store": True}).replace("lr_mult = 0.0", "lr_mult = 1.0")  # native ignores it
    ours, native = run_job(body), run_job(body, kvstore="dist_sync")
    for name, weight in native.results[0]["weights"].items():
        np.testing.assert_allclose(ours.results[0]["weights"][name], weight, rtol=1e-5, atol=1e-6, err_msg=name)


def test_gradients_are_scaled_as_by_dist_sync(run_job):
    """One step of size 1 through Module, Trainer and the bare optimizer; Trainer without a store stays local."""
    job = run_job(
        """
        data, label = mx.nd.ones((4, 1)), mx.nd.ones((4,))
        symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, no_bias=True, name="fc")
        symbol = mx.sym.LinearRegressionOutput(symbol, mx.sym.var("label"), name="out")
        module = mx.mod.Module(symbol, data_names=["data"], label_names=["label"])
        module.bind(data_shapes=[("data", (4, 1))], label_shapes=[("label", (4,))])
        module.init_params(mx.init.Zero())
        module.init_optimizer(kvstore=kv, optimizer="sgd", optimizer_params={"learning_rate": 1.0})
        module.forward(mx.io.DataBatch([data], [label]), is_train=True)
        module.backward()
        module.update()
        result["module"] = module.get_params()[0]["fc_weight"].asscalar()
        result["rescale"] = module._optimizer.rescale_grad

        net = gluon.nn.Dense(1, use_bias=False, in_units=1)
        net.initialize(mx.init.Zero())
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, kvstore=None)
        with autograd.record():
            value = gluon.loss.L2Loss()(net(data), label)
        value.backward()
        before = kv._session.worker.counters()["pushes"]
        trainer.step(4)
        result["local"] = net.weight.data().asscalar()
        result["traffic"] = kv._session.worker.counters()["pushes"] - before
        result["type"] = kv.type
        """
    )
    for result in job:
        assert result["module"] == pytest.approx(1.0)
        assert result["rescale"] == pytest.approx(0.125)
        assert result["local"] == pytest.approx(1.0)
        assert result["traffic"] == 0
        assert "dist" in result["type"] and "_sync" in result["type"]


def test_blocked_layouts(run_job):
    """After a forward in predict mode a convolution's weight lies in oneDNN's own layout; bytes are then no weights."""
    job = run_job(
        """
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Conv2D(64, 3, padding=1, in_channels=64, use_bias=False))
        net.initialize()
        net.hybridize()
        x = mx.nd.random.uniform(shape=(2, 64, 16, 16))
        weight = net[0].weight
        weight.set_data(mx.nd.array(np.random.RandomState(rank).uniform(-1, 1, (64, 64, 3, 3))))
        def validate():
            for _ in range(3):
                net(x).wait_to_read()
        values = [np.random.RandomState(r).uniform(-1, 1, (64, 64, 3, 3)).astype("float32") for r in range(size)]
        total = sum(values)
        validate()
        out = mx.nd.zeros(weight.shape)
        kv.broadcast(0, weight.data(), out=out)
        result["broadcast"] = np.array_equal(out.asnumpy(), values[0])
        validate()
        kv.push(0, weight.data())
        kv.pull(0, out=out)
        result["push"] = np.array_equal(out.asnumpy(), total)
        validate()
        kv.pull(0, out=weight.data())
        result["pull"] = np.array_equal(weight.data().asnumpy(), total)
        validate()
        kv.pushpull(0, weight.data())
        result["in place"] = np.array_equal(weight.data().asnumpy(), size * total)
        other = gluon.nn.Conv2D(64, 3, padding=1, in_channels=64, use_bias=False)
        other.initialize()
        other.weight.set_data(mx.nd.array(size * total))
        validate()
        kv.pull(0, out=weight.data())
        result["forward"] = float(np.abs(net(x).asnumpy() - other(x).asnumpy()).max())
        """
    )
    for result in job:
        assert result["broadcast"] and result["push"] and result["pull"] and result["in place"]
        assert result["forward"] < 1e-3
