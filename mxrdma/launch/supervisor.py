"""Runs the processes of a plan to their end: one thread, one poll loop, nothing in it waits for a process.

The life of a job:
- running, until all workers have ended well, one process fails, or a signal comes;
- after a failure, VERDICT_S for the one that failed first to be known: others fail because of it, and may end earlier;
- ending: a signal to the workers, TERM to all that is left, KILL; GRACE_S and TERM_S apart. See `_begin_end`. Who is known
  to have failed first is left alone until KILL, so that its code is its own.
All of it, with what the processes themselves have started, is over within 10 s.
"""

import ctypes
import json
import os
import re
import select
import signal
import subprocess
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from mxrdma.launch import exit_codes, processes
from mxrdma.launch.guard import Guard
from mxrdma.launch.output import Output
from mxrdma.launch.plan import Plan, Process

LISTEN_S = 60.0  # for the scheduler to bind its port: on a loaded machine Python alone takes seconds
VERDICT_S = 2.0
TOGETHER_S = 0.5  # ends no further apart than that may be seen in another order than they happened
GRACE_S = 2.0  # for workers to save what they want to save
TERM_S = 1.5  # for everything after TERM
KILL_S = 2.0  # for the kernel to be done with what was killed
SUCCESS_S = 5.0  # for the servers to say goodbye after the last worker
UNUSED_S = 0.3  # the same if the workers never made a store: the scheduler's word that all have joined takes 0.05
LEFTOVER_S = 1.0  # for what successful workers have left behind, between TERM and KILL
DRAIN_S = 1.0  # for a slow reader of our output, if the job failed
STATUS_BYTES = 64 << 10

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


class Child:
    """A started process."""

    def __init__(self, process: Process, popen: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self.popen = popen
        self.name = process.name
        self.is_worker = process.role == "worker"
        self.code: Optional[int] = None  # as Python gives it: negative for a signal
        self.ended_s = 0.0  # when we saw it, on the monotonic clock
        self.told = False  # to end: its code says nothing any more


class Supervisor:
    """Runs one job; `run` returns the launcher's exit code."""

    def __init__(self, plan: Plan, output: Output, verbose: bool) -> None:
        self._plan = plan
        self._output = output
        self._verbose = verbose
        self._children: Dict[int, Child] = {}
        self._failures: List[Child] = []
        self._joined = self._plan.native  # native roles do not tell
        self._named: Optional[str] = None  # whom the scheduler saw fail first
        self._awaited: Optional[Child] = None  # the same one, if it has not ended when the end of all begins
        self._code: Optional[int] = None  # decided when the end begins
        self._signals: List[int] = []
        self._timers: List[Tuple[float, Callable[[], None]]] = []
        self._ending = False
        self._stage = ""  # of the end: who was told to go last
        self._succeeded = False
        self._killed = False
        self._status: Optional[int] = None
        self._status_text = b""
        self._wake_read, self._wake_write = os.pipe()
        self._guard: Optional[Guard] = None

    # ---- the job

    def run(self) -> int:
        """Starts everything, and returns when nothing of the job is left."""
        started = time.monotonic()
        previous = self._install_handlers()
        self._guard = Guard(self._plan.job)
        # Orphans of the job become our children, so that they can be found and ended.
        if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            self._output.say(f"cannot adopt orphans: {os.strerror(ctypes.get_errno())}")
        try:
            self._start_first()
            while not self._over():
                self._turn()
            self._finish()
        finally:
            if not self._over():  # an error of ours: still nothing may be left
                processes.kill_marked(self._plan.job, KILL_S, spare=[self._guard.pid])
            self._guard.done()
            self._guard.reap()
            for number, handler in previous.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(-1)
        code = self._code or 0
        if self._verbose:
            self._output.say(f"ended with code {code} after {time.monotonic() - started:.1f} s")
            self._drain()
        return code

    def _over(self) -> bool:
        return bool(self._ending or self._children) and all(c.code is not None for c in self._children.values())

    def _start_first(self) -> None:
        first = self._plan.first
        if first is None:
            self._start_rest(0)
            return
        self._start(first)
        self._after(LISTEN_S, self._not_listening)

    def _not_listening(self) -> None:
        if len(self._children) == 1 and not self._ending:
            self._output.say(f"the scheduler has not opened its port in {LISTEN_S:.0f} s")
            self._code = exit_codes.FAILED
            self._begin_end(signal.SIGTERM)

    def _start_rest(self, port: int) -> None:
        for process in self._plan.rest(port):
            if self._ending:
                return
            self._start(process)

    def _start(self, process: Process) -> None:
        environment = dict(process.environment)
        passed: List[int] = []
        if process.reports:
            self._status, writing = os.pipe()
            os.set_blocking(self._status, False)
            environment["MXRDMA_STATUS_FD"] = str(writing)
            passed.append(writing)
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        launcher = os.getpid()

        def in_child() -> None:
            # Before exec, in a process of one thread. A launcher that dies first is seen by the comparison.
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != launcher:
                os._exit(1)

        try:
            popen = subprocess.Popen(
                process.arguments,
                stdin=subprocess.DEVNULL,
                stdout=out_write,
                stderr=err_write,
                env=environment,
                pass_fds=passed,
                start_new_session=True,
                preexec_fn=in_child,  # this process has one thread
            )
        except OSError as error:
            for descriptor in (out_read, err_read):
                os.close(descriptor)
            self._output.say(f"{process.name}: cannot start {process.arguments[0]!r}: {error.strerror}")
            missing = isinstance(error, FileNotFoundError)
            self._code = exit_codes.NOT_FOUND if missing else exit_codes.CANNOT_EXECUTE
            self._begin_end(signal.SIGTERM)
            return
        finally:
            for descriptor in (out_write, err_write, *passed):
                os.close(descriptor)
        self._children[popen.pid] = Child(process, popen)
        self._output.add(process.name, out_read, err_read)
        if self._verbose:
            self._output.say(f"{process.name} is process {popen.pid}")

    # ---- the loop

    def _turn(self) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if self._status is not None:
            poll.register(self._status, select.POLLIN)
        for descriptor, events in self._output.interests():
            poll.register(descriptor, events)
        for descriptor, _ in poll.poll(self._timeout_ms()):
            if descriptor == self._wake_read:
                os.read(self._wake_read, 4096)
            elif descriptor == self._status:
                self._read_status()
            else:
                self._output.handle(descriptor)
        self._reap()
        self._handle_signals()
        self._run_timers()

    def _timeout_ms(self) -> Optional[int]:
        waits = [moment - time.monotonic() for moment, _ in self._timers]
        shown = self._output.idle()
        if shown is not None:
            waits.append(shown)
        return None if not waits else max(0, int(min(waits) * 1000) + 1)

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._timers.append((time.monotonic() + seconds, action))

    def _run_timers(self) -> None:
        now = time.monotonic()
        due = [timer for timer in self._timers if timer[0] <= now]
        for timer in sorted(due, key=lambda one: one[0]):
            if timer in self._timers:
                self._timers.remove(timer)
                timer[1]()

    # ---- what processes say

    def _read_status(self) -> None:
        assert self._status is not None
        data = os.read(self._status, STATUS_BYTES)
        if not data or len(self._status_text) > STATUS_BYTES:
            os.close(self._status)
            self._status = None
            return
        *lines, self._status_text = (self._status_text + data).split(b"\n")
        for line in lines:
            self._on_status(json.loads(line))

    def _on_status(self, message: Dict[str, Any]) -> None:
        if "listening" in message and not self._ending:
            self._start_rest(int(message["listening"][1]))
        if "joined" in message:
            self._joined = True
        named = re.match(r"(worker|server) \d+", message.get("failure", ""))
        if named is not None:
            self._named = named.group()
            if self._failures and self._failure_is_certain():
                self._fail()

    # ---- ends of processes

    def _reap(self) -> None:
        ended: List[Child] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            child = self._children.get(pid)
            if child is not None:  # else an orphan that came to us, or the guard
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                child.code = child.popen.returncode = code
                child.ended_s = time.monotonic()
                ended.append(child)
        # Several at once: who was ended by a signal did not follow from the others, whatever the order of their pids.
        for child in sorted(ended, key=lambda one: (one.code or 0) >= 0):
            self._on_end(child)

    def _on_end(self, child: Child) -> None:
        if self._verbose:
            self._output.say(f"{child.name} ended with code {exit_codes.of_wait_status(child.code or 0)}")
        if child.code != 0 and not child.told and not self._ending:
            self._failures.append(child)
            if len(self._failures) == 1:
                self._after(VERDICT_S, self._fail)
        if child is self._awaited and not child.told:
            self._blame(child)
        if self._ending:
            self._after_an_end()
        elif self._failures:
            if self._failure_is_certain():
                self._fail()
        elif self._workers_done() and not self._succeeded:
            self._succeeded = True
            self._after(SUCCESS_S if self._joined else UNUSED_S, self._end_of_success)

    def _after_an_end(self) -> None:
        """While ending: goes on to the next as soon as those before it are gone."""
        left = [c for c in self._children.values() if c.code is None]
        if self._stage == "workers" and not any(c.is_worker for c in left):
            self._term_all()
        elif self._stage == "servers" and all(c.process.role == "scheduler" for c in left):
            self._term_scheduler()

    def _workers_done(self) -> bool:
        workers = [child for child in self._children.values() if child.is_worker]
        return len(workers) == self._plan.workers and all(child.code == 0 for child in workers)

    def _first_named(self) -> Optional[Child]:
        return next((child for child in self._children.values() if child.name == self._named), None)

    def _failure_is_certain(self) -> bool:
        named = self._first_named()
        if named is not None:
            return named.code is not None
        return (self._failures[0].code or 0) < 0 or all(child.code is not None for child in self._children.values())

    def _culprit(self) -> Child:
        """Who failed first, as well as can be told; see exit_codes."""
        first = self._failures[0]
        named = self._first_named()
        if named is not None:
            return named
        for child in self._failures:
            if (child.code or 0) < 0 and child.ended_s - first.ended_s <= TOGETHER_S:
                return child
        for child in self._failures:
            if child.is_worker or child.code not in (exit_codes.PEER_LOST, exit_codes.FAILED):
                return child
        return first

    def _fail(self) -> None:
        if self._ending:
            return
        culprit = self._culprit()
        if culprit.code is None:
            self._awaited = culprit
            self._code = exit_codes.PEER_LOST  # unless it ends by itself after all
        else:
            self._blame(culprit)
        self._begin_end(signal.SIGTERM)

    def _blame(self, child: Child) -> None:
        code = child.code or 0
        self._code = exit_codes.of_wait_status(code) or exit_codes.PEER_LOST
        how = f"was ended by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"ended with code {code}"
        early = "" if code else " while others needed it"
        self._output.say(f"{child.name} {how}{early}; ending the job")

    # ---- the end

    def _begin_end(self, first_signal: int) -> None:
        """Workers first, the scheduler last: who loses a node that it needs would only complain."""
        self._ending = True
        self._stage = "workers"
        self._timers.clear()
        workers = [c for c in self._children.values() if c.is_worker and c.code is None]
        for child in workers:
            if child is not self._awaited:
                child.told = True
                _signal_group(child, first_signal)
        if workers:
            self._after(GRACE_S, self._term_all)
        else:
            self._term_all()

    def _end_of_success(self) -> None:
        """Servers that still wait for something after the last worker; e.g. because no worker ever made a store."""
        self._ending = True
        self._term_all()

    def _term_all(self) -> None:
        """All but the scheduler, which follows when the others are gone."""
        self._stage = "servers"
        self._timers.clear()
        for child in self._children.values():
            child.told = child is not self._awaited
            # A node that is told to go misses others that are told the same: nothing that anybody needs to read.
            if not child.is_worker and not self._verbose:
                self._output.mute(child.name)
        spared = {pid for pid, child in self._children.items() if child.process.role == "scheduler"}
        if self._awaited is not None and self._awaited.code is None:
            awaited = self._awaited.popen.pid
            spared |= {awaited} | processes.descendants(awaited, processes.snapshot())
        processes.send(set(self._everything()) - spared, signal.SIGTERM)
        self._after(TERM_S, self._kill_all)
        self._after_an_end()

    def _term_scheduler(self) -> None:
        self._stage = "scheduler"
        left = [pid for pid, child in self._children.items() if child.code is None and child is not self._awaited]
        processes.send(left, signal.SIGTERM)

    def _kill_all(self) -> None:
        self._killed = True
        if self._awaited is not None and self._awaited.code is None and not self._awaited.told:
            self._awaited.told = True
            self._output.say(f"{self._awaited.name}, which failed first, does not end by itself; ending the job")
        self._timers.clear()
        processes.send(self._everything(), signal.SIGKILL)
        self._after(0.1, self._kill_all)  # until all are reaped; a process may have forked meanwhile

    def _everything(self) -> List[int]:
        """All processes of the job, whoever their parents are."""
        assert self._guard is not None
        running = processes.snapshot()
        found = processes.descendants(os.getpid(), running) | processes.marked(self._plan.job, running)
        return sorted(found - {self._guard.pid, os.getpid()})

    def _finish(self) -> None:
        """All processes that we started have ended: ends what they left behind, and writes what is not written."""
        if self._code is None and self._failures:
            self._fail()
        for number, limit_s in ((signal.SIGTERM, LEFTOVER_S), (signal.SIGKILL, KILL_S)):
            deadline = time.monotonic() + (0 if self._killed and number == signal.SIGTERM else limit_s)
            left = self._everything()
            processes.send(left, number)
            while left and time.monotonic() < deadline:
                time.sleep(processes.POLL_S)
                self._reap()
                left = self._everything()
        if left:
            self._output.say(f"processes {left} of the job do not end")
        self._drain()

    def _drain(self) -> None:
        """A reader may take its time after success; after a failure, or another signal, the end is not kept waiting."""
        streams_until = time.monotonic() + DRAIN_S
        failed_until = time.monotonic() + DRAIN_S
        signals = len(self._signals)
        while self._output.open or self._output.pending:
            now = time.monotonic()
            if self._output.open and now > streams_until and not self._output.pending:
                self._output.close_streams()
            if len(self._signals) > signals:
                self._code = self._code or exit_codes.SIGNAL_BASE + self._signals[-1]
                return
            if self._code and now > failed_until:
                return
            poll = select.poll()
            for descriptor, events in self._output.interests():
                poll.register(descriptor, events)
            for descriptor, _ in poll.poll(100):
                self._output.handle(descriptor)

    # ---- signals

    def _install_handlers(self) -> Dict[int, Any]:
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        previous: Dict[int, Any] = {}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup
            previous[number] = signal.signal(number, lambda received, _: self._signals.append(received))
        previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        # Writing to a pipe without a reader is an error to be seen, not our end.
        previous[signal.SIGPIPE] = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        return previous

    def _handle_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if self._ending and self._code is not None:
                self._kill_all()  # asked twice
                continue
            self._code = exit_codes.SIGNAL_BASE + number
            self._output.say(f"{'interrupted' if number == signal.SIGINT else signal.Signals(number).name}; ending the job")
            # Ctrl-C in a terminal reaches a program as INT, and scripts catch KeyboardInterrupt to save their state.
            self._begin_end(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)


def _signal_group(child: Child, number: int) -> None:
    """To the process and all of its session's first group, as a terminal would."""
    try:
        os.killpg(child.popen.pid, number)
    except (ProcessLookupError, PermissionError):
        pass
