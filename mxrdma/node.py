"""`python -m mxrdma.node scheduler|server`: a node of a job that is not a worker.

mxrdma-launch starts these by itself; by hand, give each the variables of `config.START_HINT`. A node ends by itself when
all workers have left (code 0) or the job has failed. INT, TERM and HUP end it with 128 + the signal's number. The other
codes are in `mxrdma.launch.exit_codes`.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import click

from mxrdma import config, errors
from mxrdma.launch import exit_codes

REPORT_POLL_S = 0.05
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def say(text: str) -> None:
    """A line on stderr."""
    print(f"mxrdma: {text}", file=sys.stderr, flush=True)


def _say_at_info(text: str) -> None:
    if config.Settings().get("MXRDMA_LOG_LEVEL") in ("debug", "info"):
        say(text)


def _stop_on_signals(stop: Callable[[], None]) -> List[int]:
    """Has INT, TERM and HUP call `stop`; the returned list then holds the signal's number."""
    caught: List[int] = []

    def handler(number: int, _frame: Any) -> None:
        if not caught:
            caught.append(number)
        stop()

    for number in STOP_SIGNALS:
        signal.signal(number, handler)
    return caught


def _make_updater(name: str, pickle: bytes) -> Callable[..., None]:
    """Imports MXNet in a server only if an optimizer needs it."""
    from mxrdma.optimizer import make_updater

    return make_updater(name, pickle)


def report_path(text: str, rank: Optional[int], servers: int) -> Path:
    """Where a server writes its report: `{rank}` is replaced; without it, several servers add their rank to the name."""
    label = str(os.getpid()) if rank is None else str(rank)
    if "{rank}" in text:
        return Path(text.replace("{rank}", label))
    return Path(text if servers == 1 else f"{text}.{label}")


def _write_report(report: Dict[str, int], settings: config.Settings) -> None:
    text = settings.text("MXRDMA_REPORT_FILE")
    if text is None:
        return
    servers = settings.get("MXRDMA_NUM_SERVERS") or 1
    path = report_path(text, settings.get("MXRDMA_RANK"), servers)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)  # readers see all of it or nothing
    except OSError as error:
        raise errors.ConfigError(f"MXRDMA_REPORT_FILE: {path} cannot be written: {error.strerror}") from None


class _Told(Exception):
    """An error of which the user has read already."""

    def __init__(self, error: errors.Error) -> None:
        super().__init__(str(error))
        self.error = error


class Status:
    """Tells the launcher, on a pipe that it gave the scheduler, the port and the job's failure; else does nothing."""

    def __init__(self, descriptor: Optional[int]) -> None:
        self._descriptor = descriptor
        if descriptor is not None:
            os.set_inheritable(descriptor, False)

    def tell(self, **message: Any) -> None:
        """Writes one line of JSON."""
        if self._descriptor is None:
            return
        try:
            os.write(self._descriptor, json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            self._descriptor = None  # the launcher has gone; the kernel ends us


def run_scheduler(settings: config.Settings) -> int:
    """Runs the scheduler to the job's end; the exit code."""
    from mxrdma import _core

    status = Status(config.status_descriptor(settings))
    scheduler = _core.Scheduler(config.node_options(settings), config.job_config(settings))
    caught = _stop_on_signals(scheduler.stop)
    host, port = scheduler.listen()
    status.tell(listening=[host, port])
    _say_at_info(f"scheduler (pid {os.getpid()}) listens on {host} port {port}")
    threading.Thread(target=_report, args=(scheduler, status), daemon=True).start()
    try:
        return _run(scheduler.run, caught)
    except errors.Error as error:
        status.tell(failure=str(error))  # the thread may not have come to it
        if scheduler.failure() is not None:
            raise _Told(error) from error  # the core has logged it
        raise


def _report(scheduler: Any, status: Status) -> None:
    """Tells the launcher that all have joined, and who failed first while the others still notice."""
    joined = False
    while scheduler.failure() is None:
        if scheduler.joined() and not joined:
            joined = True
            status.tell(joined=True)
        time.sleep(REPORT_POLL_S)
    status.tell(failure=scheduler.failure())


def run_server(settings: config.Settings) -> int:
    """Runs a server to the job's end and writes its report; the exit code."""
    from mxrdma import _core

    server = _core.Server(config.node_options(settings), _make_updater)
    caught = _stop_on_signals(server.stop)
    _say_at_info(f"server (pid {os.getpid()}, {socket.gethostname()}), fabric {settings.get('MXRDMA_FABRIC')}, starts")
    try:
        return _run(server.run, caught)
    finally:
        _write_report(server.report(), settings)


def _run(run: Callable[[], None], caught: List[int]) -> int:
    try:
        run()
    except errors.Error:
        if not caught:  # otherwise it was our stop() that ended it
            raise
    return exit_codes.SIGNAL_BASE + caught[0] if caught else exit_codes.OK


def _end(role: str, run: Callable[[], int]) -> None:
    """Runs a node and ends the process; an error becomes one line and its exit code."""
    settings = config.Settings()
    try:
        told = settings.get("MXRDMA_ROLE")
        if told not in (None, role):
            raise errors.ConfigError(f"MXRDMA_ROLE={told}, but this process was started as a {role}")
        code = run()
    except _Told as told:
        code = exit_codes.of_error(told.error)
    except errors.Error as error:
        say(f"{role}: {type(error).__name__}: {error}")
        code = exit_codes.of_error(error)
    sys.stderr.flush()
    sys.exit(code)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Runs one node of a job. mxrdma-launch does this for you on one host."""


@main.command()
def scheduler() -> None:
    """The scheduler: gives ranks, holds barriers, sees who is lost. One for each job."""
    _end("scheduler", lambda: run_scheduler(config.Settings()))


@main.command()
def server() -> None:
    """A server: holds its part of the weights, adds gradients, runs the optimizer."""
    _end("server", lambda: run_server(config.Settings()))


if __name__ == "__main__":
    main()
