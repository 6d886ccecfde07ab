"""A small process that outlives a launcher which was killed (kill -9, out of memory) and ends its job.

It is forked before anything else is started and waits for the end of a pipe that only the launcher holds.
"""

import os
import signal
from typing import Optional

from mxrdma.launch import processes

KILL_LIMIT_S = 10.0
_DONE = b"d"


class Guard:
    """Watches over the job with this mark from its construction until `done`."""

    def __init__(self, job: str) -> None:
        reading, self._writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(self._writing)
                _watch(reading, job)
                code = 0
            finally:
                os._exit(code)  # never back into the launcher's code
        os.close(reading)

    def done(self) -> None:
        """Nothing of the job is left: the guard ends. It is to be reaped by the caller."""
        try:
            os.write(self._writing, _DONE)
        except BrokenPipeError:
            pass  # somebody killed it
        os.close(self._writing)

    def reap(self) -> Optional[int]:
        """Waits for its end, which is at hand after `done`."""
        try:
            return os.waitpid(self.pid, 0)[1]
        except ChildProcessError:
            return None


def _watch(reading: int, job: str) -> None:
    signal.set_wakeup_fd(-1)
    os.setsid()  # the terminal's Ctrl-C and HUP are the launcher's business
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # A pipe that somebody reads to its end (`| tee`) must not wait for us.
    null = os.open(os.devnull, os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(null, target)
    if os.read(reading, 1) != _DONE:
        processes.kill_marked(job, KILL_LIMIT_S)
