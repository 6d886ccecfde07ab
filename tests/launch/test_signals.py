"""Ctrl-C, TERM, HUP and kill -9: whatever happens to the launcher or to a role, nothing of the job is left."""

import os
import signal
import time

import jobs
import pytest

pytestmark = pytest.mark.needs_core

# Each worker has two children as a data loader has: forked, blocked on a pipe, deaf to Ctrl-C.
LOADERS = """
import os, signal, sys, time
for _ in range(2):
    if os.fork() == 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        reading, writing = os.pipe()
        os.read(reading, 1)
open(os.path.join(os.environ['READY'], os.environ['MXRDMA_RANK']), 'w').close()
time.sleep(600)
"""
LIMIT_S = 10  # the documented bound


def begin(trace, folder, *arguments, script=LOADERS, workers=2):
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    launcher = jobs.start(
        "-n", workers, "-s", 1, *arguments, *jobs.python(script), env={**trace.environment, "READY": str(folder)}
    )
    jobs.wait_for(lambda: len(list(folder.iterdir())) == workers or launcher.poll() is not None, "worker that is ready")
    assert launcher.poll() is None, jobs.finish(launcher)
    return launcher


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_children_and_grandchildren(trace, tmp_path, number, code):
    launcher = begin(trace, tmp_path / "ready")
    # launcher, guard, scheduler, server, 2 workers with 2 children each
    assert len(trace.left()) == 10
    launcher.send_signal(number)
    done = jobs.finish(launcher, LIMIT_S)
    assert done.code == code, done
    assert trace.left() == []


def test_a_second_signal_kills_at_once(trace, tmp_path):
    script = """
import os, signal, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
open(os.path.join(os.environ['READY'], os.environ['MXRDMA_RANK']), 'w').close()
while True: time.sleep(1)
"""
    launcher = begin(trace, tmp_path / "ready", script=script)
    launcher.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert launcher.poll() is None
    launcher.send_signal(signal.SIGINT)
    done = jobs.finish(launcher, 2)  # less than the patience with the first one
    assert done.code == 130
    assert trace.left() == []


def test_ctrl_c_reaches_a_script_as_an_interrupt(trace, tmp_path):
    script = """
import os, time
open(os.path.join(os.environ['READY'], os.environ['MXRDMA_RANK']), 'w').close()
try:
    time.sleep(600)
except KeyboardInterrupt:
    print('saved', flush=True)
    raise SystemExit(4)
"""
    launcher = begin(trace, tmp_path / "ready", script=script)
    launcher.send_signal(signal.SIGINT)
    done = jobs.finish(launcher, LIMIT_S)
    assert done.code == 130
    assert done.lines("worker 0") == done.lines("worker 1") == ["saved"]


def test_an_ignored_hangup_stays_ignored(trace):
    script = "import time; time.sleep(2); print('done')"
    launcher = jobs.start(
        "-n", 1, "-s", 1, *jobs.python(script), env=trace.environment,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    jobs.wait_for(lambda: any(jobs.role_of(pid)[0] == "worker" for pid in trace.left()), "worker")
    launcher.send_signal(signal.SIGHUP)
    done = jobs.finish(launcher)
    assert done.code == 0 and done.lines("worker 0") == ["done"], done


def test_a_launcher_in_the_background_still_hears_an_interrupt(trace, tmp_path):
    # A shell starts `command &` of a script with INT ignored.
    (tmp_path / "ready").mkdir()
    launcher = jobs.start(
        "-n", 2, "-s", 1, *jobs.python(LOADERS), env={**trace.environment, "READY": str(tmp_path / "ready")},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip
    jobs.wait_for(lambda: len(list((tmp_path / "ready").iterdir())) == 2, "worker that is ready")
    launcher.send_signal(signal.SIGINT)
    assert jobs.finish(launcher, LIMIT_S).code == 130


def test_a_killed_launcher_takes_its_job_with_it(trace, tmp_path):
    launcher = begin(trace, tmp_path / "ready")
    launcher.kill()
    jobs.wait_for(lambda: trace.left() == [], "end of all processes", LIMIT_S)
    launcher.communicate()


def test_a_killed_launcher_takes_even_those_in_other_sessions(trace, tmp_path):
    script = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    open(os.path.join(os.environ['READY'], os.environ['MXRDMA_RANK']), 'w').close()
time.sleep(600)
"""
    launcher = begin(trace, tmp_path / "ready", script=script)
    launcher.kill()
    jobs.wait_for(lambda: trace.left() == [], "end of all processes", LIMIT_S)
    launcher.communicate()


def test_an_immediate_second_run_on_the_same_port(trace, tmp_path):
    port = None
    for _ in range(2):
        launcher = begin(trace, tmp_path / "ready", *(["--port", port] if port else []))
        if port is None:
            worker = next(pid for pid in trace.left() if jobs.role_of(pid) == ("worker", "0"))
            with open(f"/proc/{worker}/environ", "rb") as file:
                pairs = dict(entry.partition(b"=")[::2] for entry in file.read().split(b"\0"))
            port = pairs[b"MXRDMA_SCHEDULER_PORT"].decode()
        before = set(os.listdir("/dev/shm"))
        launcher.send_signal(signal.SIGTERM)
        assert jobs.finish(launcher, LIMIT_S).code == 143
        assert set(os.listdir("/dev/shm")) <= before
    done = jobs.run("-n", 1, "-s", 1, "--port", port, *jobs.python("print('again')"), env=trace.environment)
    assert done.code == 0 and done.lines("worker 0") == ["again"], done


@pytest.mark.parametrize("role, rank", [("worker", "0"), ("worker", "1"), ("server", "0"), ("scheduler", "")])
def test_kill_9_of_any_role_ends_the_job(trace, tmp_path, role, rank):
    launcher = begin(trace, tmp_path / "ready", script=LOADERS)
    # The eldest: a loader's forks carry the environment of their worker.
    victim = min(pid for pid in trace.left() if jobs.role_of(pid) == (role, rank))
    os.kill(victim, signal.SIGKILL)
    done = jobs.finish(launcher, LIMIT_S)
    assert done.code == 137, done
    assert f"{role} {rank}".strip() + " was ended by signal 9 (SIGKILL)" in done.err


TRAINING = """
import os, sys, time
import mxnet as mx
kv = mx.kv.create('dist_rdma')
assert kv.rank == int(os.environ['MXRDMA_RANK'])
kv.init(3, mx.nd.zeros((1000,)))
out = mx.nd.zeros((1000,))
step = 0
while True:
    kv.push(3, mx.nd.ones((1000,)))
    kv.pull(3, out=out)
    out.wait_to_read()
    step += 1
    if step == 3:
        open(os.path.join(os.environ['READY'], os.environ['MXRDMA_RANK']), 'w').close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("fabric", ["shm", "tcp"])
@pytest.mark.parametrize("role, rank", [("worker", "1"), ("server", "1"), ("scheduler", "")])
def test_kill_9_in_a_training_names_the_lost_role(trace, tmp_path, role, rank, fabric):
    pytest.importorskip("mxnet")
    folder = tmp_path / "ready"
    folder.mkdir()
    launcher = jobs.start(
        "-n", 2, "-s", 2, "--fabric", fabric, *jobs.python(TRAINING),
        env={**trace.environment, "READY": str(folder), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    jobs.wait_for(lambda: len(list(folder.iterdir())) == 2 or launcher.poll() is not None, "training")
    victim = min(pid for pid in trace.left() if jobs.role_of(pid) == (role, rank))
    os.kill(victim, signal.SIGKILL)
    done = jobs.finish(launcher, LIMIT_S)
    assert done.code == 137, done
    name = f"{role} {rank}".strip()
    assert f"{name} was ended by signal 9 (SIGKILL)" in done.err


@pytest.mark.slow
def test_exit_of_one_rank_counts_though_the_others_fail_of_it(trace):
    pytest.importorskip("mxnet")
    script = TRAINING.replace("    if step == 3:", "    if step == 3 and kv.rank == 1: sys.exit(3)\n    if step == 1:")
    environment = {**trace.environment, "READY": "/tmp", "OMP_NUM_THREADS": "1"}
    script = script.replace("open(os.path.join(os.environ['READY'], os.environ['MXRDMA_RANK']), 'w').close()", "pass")
    done = jobs.run("-n", 3, "-s", 1, *jobs.python(script), env=environment)
    assert done.code == 3, done
    assert "mxrdma-launch: worker 1 ended with code 3" in done.err


