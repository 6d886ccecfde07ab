"""Trains a LeNet-sized network on handwritten digits, data-parallel: one process for each worker.

    mxrdma-launch -n 2 -s 1 -- python scripts/train_digits.py
    mxrdma-launch -n 2 -s 1 --kvstore dist_sync -- python scripts/train_digits.py --kvstore dist_sync

What makes it distributed are the lines marked with (*); all else is a script for one process.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import mxnet as mx
import numpy as np
from digits_data import DataError, load_digits, load_mnist
from mxnet import autograd, gluon
from rich.console import Console
from rich.progress import Progress


def lenet():
    """LeNet's layers, for images of 8 x 8 and larger."""
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(20, 3, padding=1, activation="relu"),
        gluon.nn.MaxPool2D(2, 2),
        gluon.nn.Conv2D(50, 3, padding=1, activation="relu"),
        gluon.nn.MaxPool2D(2, 2),
        gluon.nn.Dense(500, activation="relu"),
        gluon.nn.Dense(10),
    )
    return net


def accuracy(net, split, batch_size=256):
    """Share of images whose digit is recognised."""
    images, labels = split
    right = 0
    for begin in range(0, len(images), batch_size):
        scores = net(mx.nd.array(images[begin : begin + batch_size])).asnumpy()
        right += int((scores.argmax(axis=1) == labels[begin : begin + batch_size]).sum())
    return right / len(images)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvstore", default="dist_rdma", help="dist_rdma or dist_sync")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16, help="of one worker")
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", type=Path, help="folder with MNIST's IDX files, plain or .gz")
    parser.add_argument("--result", type=Path, help="where rank 0 writes its figures, as JSON")
    return parser.parse_args()


def fabric_of(kv):
    """What carries the data, as the store itself says it."""
    session = getattr(kv, "_session", None)
    return "MXNet's own tcp" if session is None else session.worker.summary()


def main():
    arguments = parse_arguments()
    try:
        data = load_mnist(arguments.data_dir) if arguments.data_dir else load_digits(arguments.seed)
    except DataError as error:
        sys.exit(f"train_digits: {error}")
    (images, labels), held_out = data

    kv = mx.kv.create(arguments.kvstore)  # (*)
    images, labels = images[kv.rank :: kv.num_workers], labels[kv.rank :: kv.num_workers]  # (*) this worker's share
    steps = len(data[0][0]) // kv.num_workers // arguments.batch_size  # (*) all workers take equally many

    mx.random.seed(arguments.seed)
    net = lenet()
    net.initialize(mx.init.Xavier())
    net(mx.nd.array(images[:1]))  # shapes become known
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    schedule = mx.lr_scheduler.CosineScheduler(arguments.epochs * steps, base_lr=arguments.lr)
    sgd = mx.optimizer.SGD(learning_rate=arguments.lr, momentum=0.9, lr_scheduler=schedule)
    trainer = gluon.Trainer(net.collect_params(), sgd, kvstore=kv)  # (*) SGD runs on the servers
    parameters = list(net.collect_params().values())
    shuffle = np.random.RandomState(arguments.seed + kv.rank)

    console = Console(quiet=kv.rank != 0, width=None if sys.stdout.isatty() else 100)
    history = {"accuracy": [], "epoch_s": [], "communication_s": []}
    with Progress(console=console, disable=kv.rank != 0 or not console.is_terminal) as progress:
        task = progress.add_task("training", total=arguments.epochs * steps)
        for epoch in range(arguments.epochs):
            start = time.perf_counter()
            order = shuffle.permutation(len(images))
            for step in range(steps):
                chosen = order[step * arguments.batch_size : (step + 1) * arguments.batch_size]
                with autograd.record():
                    loss = loss_of(net(mx.nd.array(images[chosen])), mx.nd.array(labels[chosen]))
                loss.backward()
                mx.nd.waitall()  # for the measurement alone: the gradients are there ...
                sent = time.perf_counter()
                trainer.step(arguments.batch_size * kv.num_workers)  # (*) the sum of all workers' gradients
                for parameter in parameters:
                    parameter.data().wait_to_read()  # ... and here the new weights are
                history["communication_s"].append(time.perf_counter() - sent)
                progress.advance(task)
            history["epoch_s"].append(time.perf_counter() - start)
            history["accuracy"].append(accuracy(net, held_out))
            console.print(
                f"epoch {epoch + 1:2d} of {arguments.epochs}: held-out accuracy {history['accuracy'][-1]:.2%}, "
                f"{history['epoch_s'][-1]:.2f} s"
            )

    if kv.rank == 0 and arguments.result:
        kind = {"kvstore": kv.type, "workers": kv.num_workers, "fabric": fabric_of(kv)}
        arguments.result.write_text(json.dumps({**kind, "steps_per_epoch": steps, **history}))


if __name__ == "__main__":
    main()
