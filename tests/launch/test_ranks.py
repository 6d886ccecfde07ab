"""Ranks and barriers of a launched job, without MXNet: eight workers and two servers on the bare core."""

import re

import jobs
import pytest

pytestmark = [pytest.mark.needs_core]

START = """
import os, sys, time
import numpy as np
from mxrdma import _core, config
worker = _core.Worker(config.worker_options())
worker.start()
"""

MEET = START + """
asked = int(os.environ['MXRDMA_RANK'])
keys = worker.register_keys([_core.KeyRequest('i:3', 3, 0, [5]), _core.KeyRequest('i:4', 4, 0, [70001])])
hyper = _core.Hyper(0.0, 0.0, 1.0, 0)
zeros = [np.zeros(5, np.float32), np.zeros(70001, np.float32)]
if worker.rank == 0:
    for key, value in zip(keys, zeros):
        worker.push_buffer(key, value, hyper, 0, True)
worker.barrier()
out = [np.empty_like(value) for value in zeros]
worker.pushpull_buffers(keys, [value + (1 << worker.rank) for value in zeros], out, hyper)
exact = all((value == 255.0).all() for value in out)  # each rank's bit once
print('found', worker.rank, asked, worker.num_workers, worker.num_servers, exact, flush=True)
worker.leave()
"""


@pytest.mark.slow
@pytest.mark.parametrize("run", range(3))
def test_ranks_are_there_once_each_and_sums_hold_every_rank_once(trace, run):
    done = jobs.run("-n", 8, "-s", 2, "--", *jobs.python(MEET), env=trace.environment)
    assert done.code == 0, done
    found = re.findall(r"^\[worker (\d+)\] found (\d+) (\d+) (\d+) (\d+) (\w+)$", done.out, re.MULTILINE)
    assert sorted(int(one[1]) for one in found) == list(range(8)), done
    for label, rank, asked, workers, servers, exact in found:
        assert label == rank == asked and (workers, servers, exact) == ("8", "2", "True"), done


LATE = START + """
if worker.rank == 3:
    time.sleep(2)
    print('entering', time.monotonic(), flush=True)
worker.barrier()
print('left', time.monotonic(), flush=True)
worker.leave()
"""


@pytest.mark.slow
def test_nobody_leaves_a_barrier_before_the_last_has_come(trace):
    done = jobs.run("-n", 5, "-s", 1, "--", *jobs.python(LATE), env=trace.environment)
    assert done.code == 0, done
    (entered,) = [float(text) for text in re.findall(r"entering (\S+)", done.out)]
    left = [float(text) for text in re.findall(r"left (\S+)", done.out)]
    assert len(left) == 5 and min(left) >= entered, done  # one clock for all processes of a host


ABSENT = START + """
if worker.rank == 3:
    time.sleep(600)
worker.barrier()
"""


@pytest.mark.slow
def test_a_barrier_that_one_rank_skips_ends_with_its_name(trace):
    environment = {**trace.environment, "MXRDMA_BARRIER_TIMEOUT": "2"}
    done = jobs.run("-n", 4, "-s", 1, "--", *jobs.python(ABSENT), env=environment)
    assert done.code == 1, done
    assert re.search(r"^\[worker [012]\] .*BarrierTimeout: .*\b3\b", done.err, re.MULTILINE), done
