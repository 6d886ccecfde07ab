"""Several processes fail at nearly the same time: the job's code is that of the first, never of one that failed because
of it. The launcher is stopped meanwhile, so that it finds all ends at once and in the kernel's order, not that of time."""

import os
import signal

import jobs
import pytest

pytestmark = [pytest.mark.needs_core, pytest.mark.slow]

# Workers of the bare core that need each other all the time, and end with a code of their own when that fails.
START = """
import os, signal, sys, time
from mxrdma import _core, config, errors
worker = _core.Worker(config.worker_options())
worker.start()
rank = worker.rank
mark = os.path.join(os.environ['READY'], str(rank))
"""
LOOP = """
try:
    for step in range(10 ** 9):
        worker.barrier()
        if step == 3:
            open(mark, 'w').close()
        if step > 3 and rank == 1 and os.path.exists(os.path.join(os.environ['READY'], 'go')):
            {act}
except errors.Error as error:
    print(error, file=sys.stderr, flush=True)
    os._exit(21)
"""


def begin(trace, folder, act="pass", workers=3):
    launcher = jobs.start(
        "-n", workers, "-s", 2, *jobs.python(START + LOOP.format(act=act)),
        env={**trace.environment, "READY": str(folder)},
    )  # fmt: skip
    jobs.wait_for(lambda: len(list(folder.iterdir())) == workers or launcher.poll() is not None, "job that runs")
    assert launcher.poll() is None, jobs.finish(launcher)
    return launcher


def roles(trace):
    found = {" ".join(jobs.role_of(pid)).strip(): pid for pid in trace.left()}
    return {name: pid for name, pid in found.items() if name}


def end_all_but(trace, launcher, act):
    """The launcher stands still while `act` ends one process and all others follow."""
    os.kill(launcher.pid, signal.SIGSTOP)
    act()
    jobs.wait_for(lambda: not roles(trace), "end of all roles", 30)
    os.kill(launcher.pid, signal.SIGCONT)
    return jobs.finish(launcher)


@pytest.mark.parametrize("victim", ["worker 0", "worker 2", "server 1", "scheduler"])
def test_kill_9_wins_over_all_that_follows_from_it(trace, tmp_path, victim):
    launcher = begin(trace, tmp_path)
    pid = roles(trace)[victim]
    done = end_all_but(trace, launcher, lambda: os.kill(pid, signal.SIGKILL))
    assert done.code == 137, done
    assert f"{victim} was ended by signal 9 (SIGKILL)" in done.err


@pytest.mark.parametrize(
    "act, code",
    [
        ("os._exit(5)", 5),
        ("worker.fail('own error'); worker.leave(); time.sleep(1); os._exit(6)", 6),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139),
    ],
)
def test_a_workers_own_code_wins(trace, tmp_path, act, code):
    launcher = begin(trace, tmp_path, act)
    done = end_all_but(trace, launcher, (tmp_path / "go").touch)
    assert done.code == code, done
    assert "mxrdma-launch: worker 1 " in done.err


def test_the_first_one_may_take_its_time_to_end(trace, tmp_path):
    # The others have long ended; nothing has told them to.
    launcher = begin(trace, tmp_path, "worker.fail('own error'); worker.leave(); time.sleep(3); os._exit(7)")
    (tmp_path / "go").touch()
    done = jobs.finish(launcher)
    assert done.code == 7, done
    assert "mxrdma-launch: worker 1 ended with code 7" in done.err


def test_one_that_does_not_end_is_named_and_killed(trace, tmp_path):
    launcher = begin(trace, tmp_path, "worker.fail('own error'); worker.leave(); time.sleep(600)")
    (tmp_path / "go").touch()
    done = jobs.finish(launcher)
    assert done.code == 69, done  # not the 21 of those that failed because of it
    assert "worker 1, which failed first, does not end by itself" in done.err


def test_an_end_with_0_while_others_need_it_is_a_failure_of_that_one(trace, tmp_path):
    launcher = begin(trace, tmp_path, "os._exit(0)")
    (tmp_path / "go").touch()
    done = jobs.finish(launcher)
    assert done.code == 69, done
    assert "worker 1 ended with code 0 while others needed it" in done.err


@pytest.mark.parametrize("victims", [("worker 2", "worker 0"), ("server 0", "worker 1"), ("worker 1", "server 1")])
def test_of_two_that_are_killed_one_after_the_other_the_first_is_named(trace, tmp_path, victims):
    launcher = begin(trace, tmp_path)
    found = roles(trace)

    def act():
        for victim in victims:
            os.kill(found[victim], signal.SIGKILL)

    done = end_all_but(trace, launcher, act)
    assert done.code == 137, done
    assert any(f"{victim} was ended by signal 9" in done.err for victim in victims), done
