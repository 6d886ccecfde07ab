"""Exit codes: 0 only if all went well, otherwise that of the first process that failed."""

import os
import subprocess
import sys

import jobs
import pytest

pytestmark = pytest.mark.needs_core

SEGV = "import os; os.kill(os.getpid(), 11)"


@pytest.mark.parametrize(
    "script, code, words",
    [
        ("import sys; sys.exit(3)", 3, "ended with code 3"),
        (SEGV, 139, "SIGSEGV"),
        ("import nosuch", 1, "ModuleNotFoundError"),
        ("import os; os._exit(255)", 255, "ended with code 255"),
        ("raise SystemExit('text')", 1, "text"),
    ],
)
def test_a_script_that_fails(trace, script, code, words):
    done = jobs.run("-n", "2", "-s", "1", *jobs.python(script), env=trace.environment)
    assert done.code == code, done
    assert words in done.err and "worker" in done.err, done


def test_success_is_silent(trace):
    done = jobs.run("-n", "2", "-s", "2", *jobs.python("pass"), env=trace.environment)
    assert (done.code, done.out, done.err) == (0, "", "")


def test_a_pipe_does_not_hide_the_code(trace):
    command = f"set -o pipefail; {sys.executable} -m mxrdma.launch -n 1 -s 1 python -c 'import sys; sys.exit(3)' 2>&1 | cat"
    done = subprocess.run(["bash", "-c", command], env={**os.environ, **trace.environment}, timeout=60, check=False)
    assert done.returncode == 3


def test_the_first_failure_counts_and_ends_those_that_sleep(trace):
    script = """
import os, sys, time
if os.environ['MXRDMA_RANK'] == '2':
    raise RuntimeError('boom-2')
time.sleep(600)
"""
    done = jobs.run("-n", "3", "-s", "1", *jobs.python(script), env=trace.environment, timeout=30)
    assert done.code == 1
    assert "[worker 2] RuntimeError: boom-2" in done.err
    assert done.err.count("boom-2") <= 2  # Python 3.11 quotes no source of -c; the traceback is there once
    assert "mxrdma-launch: worker 2 ended with code 1" in done.err


def test_those_that_fail_because_of_the_first_do_not_mask_it(trace, tmp_path):
    mark = tmp_path / "failed"
    script = f"""
import os, sys, time
if os.environ['MXRDMA_RANK'] == '1':
    open({str(mark)!r}, 'w').close()
    sys.exit(7)
while not os.path.exists({str(mark)!r}): time.sleep(0.01)
time.sleep(0.3)
sys.exit(1)
"""
    done = jobs.run("-n", "4", "-s", "1", *jobs.python(script), env=trace.environment)
    assert done.code == 7, done


def test_workers_that_ignore_term_are_killed(trace):
    script = """
import os, signal, sys, time
if os.environ['MXRDMA_RANK'] == '0':
    time.sleep(1); sys.exit(9)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
while True: time.sleep(1)
"""
    done = jobs.run("-n", "2", "-s", "1", *jobs.python(script), env=trace.environment, timeout=60)
    assert done.code == 9, done


def test_early_success_of_one_is_no_end_for_the_others(trace):
    script = "import os, time; time.sleep(2 * int(os.environ['MXRDMA_RANK'])); print('done')"
    done = jobs.run("-n", "2", "-s", "1", *jobs.python(script), env=trace.environment)
    assert done.code == 0 and done.lines("worker 1") == ["done"], done


def test_a_process_left_behind_by_a_worker_is_ended(trace):
    # In a session of its own, its parents gone, its output closed, deaf to TERM.
    script = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2): os.dup2(null, fd)
        time.sleep(600)
    os._exit(0)
os.wait()
"""
    done = jobs.run("-n", "2", "-s", "1", *jobs.python(script), env=trace.environment)
    assert done.code == 0, done
    assert trace.left() == []


def test_the_console_script_is_the_same(trace):
    from pathlib import Path

    script = Path(sys.executable).with_name("mxrdma-launch")
    if not script.exists():
        pytest.skip("mxrdma is not installed beside this interpreter")
    done = subprocess.run(
        [str(script), "-n", "1", "-s", "1", "python", "-c", "raise SystemExit(5)"],
        env={**os.environ, **trace.environment}, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 5
