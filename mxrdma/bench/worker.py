"""The worker of a benchmark's job: takes its turn when the conductor says so, and sleeps between turns.

Started by mxrdma-launch as `python -m mxrdma.bench.worker --conductor PORT --secret-file FILE --case FILE ...`.
"""

import argparse
import json
import os
import socket
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence

import mxnet as mx
import numpy as np

from mxrdma.bench.channel import Channel, ChannelClosed

IDLE_TIMEOUT_S = 3600.0  # the longest that other columns may take before it is this one's turn again
LEARNING_RATE = 0.5  # a power of two: with small integers as gradients every weight is exact
PATTERN = 31
CHUNK = 1 << 18  # elements that are compared at once, so that checking does not show in the peak memory


class WrongResult(Exception):
    """The store gave other numbers than arithmetic does."""


class Work:
    """The arrays of one case on one worker and the step that is measured.

    Every step finds its gradients written anew, as back-propagation does it. That is not timed, and its CPU seconds are
    told apart. It is also necessary: MXNet's own store receives into the buffer that it sends from, which is the
    gradient itself where a worker has one device, so a second step would push what the first one pulled.
    """

    def __init__(self, store: str, shapes: Sequence[Sequence[int]], updater: str) -> None:
        self.kv = mx.kv.create(store)
        self.updater = updater
        self.plain_steps = 0
        self.pattern_steps = 0
        self.refill_cpu_s = 0.0
        self.gradients = [mx.nd.zeros(tuple(shape), dtype="float32") for shape in shapes]
        self.outputs = [mx.nd.zeros(tuple(shape), dtype="float32") for shape in shapes]
        if updater == "sgd":
            self.kv.set_optimizer(mx.optimizer.SGD(learning_rate=LEARNING_RATE, wd=0.0, rescale_grad=1.0))
        self.kv.init(list(range(len(shapes))), self.outputs)
        mx.nd.waitall()
        self.barrier()

    def barrier(self) -> None:
        self.kv._barrier()

    def _exchange(self) -> None:
        """Pushes and pulls every key, front layers first, and waits for all results."""
        for key, (gradient, output) in enumerate(zip(self.gradients, self.outputs)):
            self.kv.pushpull(key, gradient, out=output, priority=-key)
        for output in self.outputs:
            output.wait_to_read()

    def _refill(self) -> None:
        start = time.process_time()
        for gradient in self.gradients:
            gradient[:] = self.kv.rank + 1
        mx.nd.waitall()
        self.refill_cpu_s += time.process_time() - start

    def timed(self, count: int) -> List[float]:
        """Milliseconds of each of `count` steps; a barrier before each."""
        times = []
        for _ in range(count):
            self._refill()
            self.barrier()
            start = time.perf_counter()
            self._exchange()
            times.append((time.perf_counter() - start) * 1e3)
            self.plain_steps += 1
        self.barrier()
        return times

    def verify(self) -> None:
        """One more step whose gradients differ from element to element; WrongResult unless every result is exact."""
        for gradient in self.gradients:
            flat = gradient.reshape((-1,))
            for begin in range(0, flat.size, CHUNK):
                end = min(begin + CHUNK, flat.size)
                flat[begin:end] = mx.nd.array(_pattern(begin, end) + self.kv.rank + 1, dtype="float32")
        mx.nd.waitall()
        self.barrier()
        self._exchange()
        self.pattern_steps += 1
        for key, output in enumerate(self.outputs):
            flat = output.reshape((-1,))
            for begin in range(0, flat.size, CHUNK):
                end = min(begin + CHUNK, flat.size)
                self._compare(key, begin, flat[begin:end].asnumpy(), self._expected(begin, end))

    def _expected(self, begin: int, end: int) -> Any:
        workers = self.kv.num_workers
        plain = workers * (workers + 1) // 2
        patterned = workers * _pattern(begin, end) + plain
        if self.updater == "none":
            return patterned
        return -LEARNING_RATE * (self.plain_steps * plain + self.pattern_steps * patterned)

    def _compare(self, key: int, begin: int, result: Any, expected: Any) -> None:
        wrong = np.flatnonzero(result != expected)
        if wrong.size:
            first = wrong[0]
            raise WrongResult(
                f"key {key} of shape {self.outputs[key].shape}: {wrong.size} of {result.size} elements are wrong; element "
                f"{begin + first} is {result[first]!r} instead of {expected[first]!r}"
            )

    def transport(self) -> Dict[str, Any]:
        """What the core counted; nothing for MXNet's own store."""
        session = getattr(self.kv, "_session", None)
        if session is None:
            return {}
        return {"counters": session.worker.counters(), "summary": session.worker.summary()}


def _pattern(begin: int, end: int) -> Any:
    return np.arange(begin, end, dtype=np.int64) % PATTERN


def _serve(channel: Channel, work: Work) -> None:
    channel.say({"hello": work.kv.rank, "pid": os.getpid(), "type": work.kv.type})
    while True:
        request = channel.hear()
        if request["do"] == "leave":
            return
        if request["do"] == "run":
            work.refill_cpu_s = 0.0
            times = work.timed(int(request["steps"]))
            channel.say({"ms": times, "refill_cpu_s": work.refill_cpu_s, **work.transport()})
        elif request["do"] == "verify":
            try:
                work.verify()
                channel.say({"wrong": None})
            except WrongResult as error:
                channel.say({"wrong": str(error)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conductor", type=int, required=True)
    parser.add_argument("--secret-file", type=Path, required=True)
    parser.add_argument("--case", type=Path, required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--updater", required=True)
    options = parser.parse_args()
    shapes = json.loads(options.case.read_text())
    connection = socket.create_connection(("127.0.0.1", options.conductor), timeout=60)
    channel = Channel(connection, IDLE_TIMEOUT_S)
    channel.say({"secret": options.secret_file.read_text()})
    work = Work(options.store, shapes, options.updater)
    try:
        _serve(channel, work)
    except ChannelClosed as error:
        raise SystemExit(f"mxrdma-bench: the conductor is gone ({error})") from error
    finally:
        channel.close()


if __name__ == "__main__":
    main()
