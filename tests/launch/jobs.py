"""Starts mxrdma-launch as a real process and looks at what it leaves behind."""

import os
import signal
import subprocess
import sys
import time

LAUNCHER = [sys.executable, "-m", "mxrdma.launch"]
# Upper bounds of waits, not expectations: they end a test that would hang.
LIMIT_S = 90


def start(*arguments, env=None, cwd=None, **options):
    """A launcher in a session of its own, its output in pipes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MXRDMA_", "DMLC_"))}
    environment.update(env or {})
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    return subprocess.Popen(
        [*LAUNCHER, *map(str, arguments)], env=environment, cwd=cwd, start_new_session=True, **options
    )


class Finished:
    def __init__(self, code, out, err):
        self.code = code
        self.out = out.decode(errors="replace") if out is not None else ""
        self.err = err.decode(errors="replace") if err is not None else ""

    def lines(self, label):
        """What came out behind a label on stdout, in order."""
        start = f"[{label}] "
        return [line[len(start) :] for line in self.out.splitlines() if line.startswith(start)]

    def __repr__(self):
        return f"code {self.code}\n-- out\n{self.out}\n-- err\n{self.err}"


def finish(launcher, timeout=LIMIT_S):
    """Waits for the launcher; a launcher that does not end is killed and fails the test."""
    try:
        out, err = launcher.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(launcher.pid, signal.SIGKILL)
        out, err = launcher.communicate()
        raise AssertionError(f"the launcher hung: {Finished(None, out, err)}") from None
    return Finished(launcher.returncode, out, err)


def run(*arguments, timeout=LIMIT_S, **options):
    return finish(start(*arguments, **options), timeout)


def python(script):
    """A command that runs this text as a script."""
    return ["python", "-c", script]


def wait_for(condition, what, limit_s=LIMIT_S):
    deadline = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"no {what} within {limit_s} s"
        time.sleep(0.05)


def carriers(variable):
    """Live processes that carry NAME=VALUE in their environment; the oracle for "nothing is left"."""
    entry = variable.encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                environment = file.read().split(b"\0")
            with open(f"/proc/{name}/stat", "rb") as file:
                state = file.read().rsplit(b")", 1)[1].split()[0]
        except OSError:
            continue
        if entry in environment and state != b"Z":
            found.append(int(name))
    return found


def role_of(pid):
    """("worker", "0") and the like, from the environment of a process of a job; blank if it has none or has ended."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = dict(entry.partition(b"=")[::2] for entry in file.read().split(b"\0"))
    except OSError:
        return "", ""
    return pairs.get(b"MXRDMA_ROLE", b"").decode(), pairs.get(b"MXRDMA_RANK", b"").decode()
