"""A real job over real queue pairs: the same numbers as over TCP, and the devices' own counters say that it went there."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("mxnet")
pytest.importorskip("mxrdma._core")

STEPS = 20
TRAIN = f"""
import hashlib, json, sys
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

kv = mx.kv.create('dist_rdma')
mx.random.seed(1)
np.random.seed(1)
net = gluon.nn.Sequential()
net.add(gluon.nn.Dense(256, activation='relu'), gluon.nn.Dense(10))
net.initialize(mx.init.Xavier())
trainer = gluon.Trainer(net.collect_params(), 'sgd', {{'learning_rate': 0.1, 'momentum': 0.9}}, kvstore=kv)
draw = np.random.RandomState(kv.rank)
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
for _ in range({STEPS}):
    x, y = mx.nd.array(draw.rand(32, 256)), mx.nd.array(draw.randint(0, 10, 32))
    with autograd.record():
        loss = loss_of(net(x), y)
    loss.backward()
    trainer.step(64)
weights = b''.join(p.data().asnumpy().tobytes() for p in net.collect_params().values())
print(json.dumps([hashlib.sha256(weights).hexdigest(), len(weights)]))
"""
LIMIT_S = 240  # importing MXNet alone takes most of a minute in the guest


def train(*options):
    command = [sys.executable, "-m", "mxrdma.launch", "-n", "2", "-s", "1", *options, "--", sys.executable, "-c", TRAIN]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MXRDMA_", "DMLC_"))}
    done = subprocess.run(
        command, env={**environment, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(line.split("] ", 1)[1]) for line in done.stdout.splitlines() if '"' in line]
    assert len(results) == 2, done.stdout + done.stderr
    return results, done.stderr


@pytest.mark.timeout(2 * LIMIT_S + 30)
def test_a_training_over_verbs_ends_with_the_weights_of_one_over_tcp(rxe_devices):
    device = rxe_devices[-1]
    before = device.counters()["sent_pkts"]
    over_tcp, _ = train("--fabric", "tcp")
    assert device.counters()["sent_pkts"] == before, "TCP does not go through the device"
    over_verbs, told = train("--fabric", "verbs", "--device", device.name)
    packets = device.counters()["sent_pkts"] - before
    assert over_verbs[0] == over_verbs[1], "the workers differ"
    assert over_verbs == over_tcp
    assert f"verbs {device.name}:1 GID" in told, told
    # Two workers, there and back; a packet of RoCE carries at most 4096 bytes.
    moved = 2 * 2 * STEPS * over_verbs[0][1]
    assert packets >= moved // 4096, (packets, moved)
