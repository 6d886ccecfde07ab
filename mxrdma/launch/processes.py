"""Finds the processes of a job in /proc, whoever their parent is by now, and signals them.

A process belongs to a job if it descends from the launcher, or if its environment at exec carries the job's mark: that
also holds for one that made itself a session and whose parents are gone.
"""

import os
import signal
import time
from typing import Dict, Iterable, NamedTuple, Set

MARK = "MXRDMA_JOB"
POLL_S = 0.02


class Process(NamedTuple):
    """A line of /proc/<pid>/stat, as far as it matters."""

    pid: int
    parent: int
    state: str
    started: int  # in clock ticks since boot: tells a reused pid apart


def snapshot() -> Dict[int, Process]:
    """All processes, zombies left out."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                text = file.read()
        except OSError:
            continue  # it ended just now
        fields = text[text.rindex(b")") + 2 :].split()  # the name before may hold blanks and brackets
        process = Process(int(name), int(fields[1]), fields[0].decode(), int(fields[19]))
        if process.state not in ("Z", "X"):
            found[process.pid] = process
    return found


def descendants(root: int, processes: Dict[int, Process]) -> Set[int]:
    """Children of `root`, their children and so on, without `root`."""
    children: Dict[int, Set[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, set()).add(process.pid)
    found: Set[int] = set()
    pending = [root]
    while pending:
        for pid in children.get(pending.pop(), ()):
            if pid not in found:
                found.add(pid)
                pending.append(pid)
    return found


def marked(job: str, processes: Dict[int, Process]) -> Set[int]:
    """Processes whose environment carries the job's mark."""
    entry = f"{MARK}={job}".encode()
    found = set()
    for pid in processes:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = file.read()
        except OSError:
            continue  # ended, or another user's
        if entry in environment.split(b"\0"):
            found.add(pid)
    return found


def send(pids: Iterable[int], number: int) -> None:
    """Signals processes; one that has ended meanwhile is fine."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def kill_marked(job: str, limit_s: float, spare: Iterable[int] = ()) -> bool:
    """KILLs what carries the mark until nothing of it is left; False if that took longer than the limit."""
    deadline = time.monotonic() + limit_s
    while True:
        left = marked(job, snapshot()) - {os.getpid()} - set(spare)
        if not left:
            return True
        send(left, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
