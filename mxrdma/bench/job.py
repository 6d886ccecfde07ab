"""One job of a benchmark: started by mxrdma-launch, told when to work, measured from outside."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import psutil

from mxrdma.bench.cases import Case, Column
from mxrdma.bench.channel import Channel, ChannelClosed

START_TIMEOUT_S = 120.0
TURN_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0

# The strongest form of MXNet's own store on one host: Unix sockets, and big messages without fresh pages each time.
TUNED_NATIVE = {
    "DMLC_LOCAL": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
}


class BenchFailure(Exception):
    """A job did not start, ended early, or computed wrong numbers."""


class Job:
    """W workers and S servers of one column. `start`, any number of `run`s, `stop`."""

    def __init__(self, column: Column, case: Case, workers: int, servers: int) -> None:
        self.column = column
        self.case = case
        self.workers = workers
        self.servers = servers
        self._channels: List[Channel] = []
        self._process: Optional[subprocess.Popen] = None
        self._folder = tempfile.TemporaryDirectory(prefix="mxrdma-bench-")
        self.roles: Dict[int, str] = {}
        self.server_reports: List[Dict[str, int]] = []
        self.warm = False  # for the one who takes turns: warmed up and checked
        self.counters: Dict[str, int] = {}  # as of the last turn

    # ---- start

    def command(self, port: int) -> List[str]:
        """The launcher's command line for this column."""
        folder = Path(self._folder.name)
        launcher = [sys.executable, "-m", "mxrdma.launch", "-n", str(self.workers), "-s", str(self.servers)]
        if self.column.store == "dist_sync":
            launcher += ["--kvstore", "dist_sync"]
        else:
            launcher += ["--fabric", self.column.fabric]
        worker = [sys.executable, "-m", "mxrdma.bench.worker", "--conductor", str(port)]
        worker += ["--secret-file", str(folder / "secret"), "--case", str(folder / "case.json")]
        return [*launcher, "--", *worker, "--store", self.column.store, "--updater", self.column.updater]

    def start(self) -> None:
        folder = Path(self._folder.name)
        secret = secrets.token_hex(16)
        (folder / "secret").write_text(secret)
        (folder / "case.json").write_text(json.dumps(self.case.shapes))
        variables = {"OMP_NUM_THREADS": "1", "MXRDMA_REPORT_FILE": str(folder / "report.json")}
        if self.column.store == "dist_sync" and self.column.fabric == "ipc":
            variables.update(TUNED_NATIVE)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(1.0)
            log = open(folder / "log", "wb")  # noqa: SIM115 - the child's; closed below
            with log:
                self._process = subprocess.Popen(
                    self.command(listener.getsockname()[1]),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **variables},
                )
            self._accept(listener, secret)
        self._note_roles()

    def _accept(self, listener: socket.socket, secret: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while len(self._channels) < self.workers:
            self._check_alive()
            if time.monotonic() > deadline:
                raise BenchFailure(f"{self.column.name}: the job did not start in {START_TIMEOUT_S:.0f} s{self._log()}")
            try:
                connection, _ = listener.accept()
            except socket.timeout:
                continue
            channel = Channel(connection, START_TIMEOUT_S)
            with self._named_failures():
                if channel.hear().get("secret") == secret:
                    self._channels.append(channel)
                else:
                    channel.close()
        with self._named_failures():
            hellos = [channel.hear() for channel in self._channels]
        in_order = sorted(zip(hellos, self._channels), key=lambda pair: int(pair[0]["hello"]))
        self._channels = [channel for _, channel in in_order]
        self._rank_of_pid = {int(hello["pid"]): int(hello["hello"]) for hello in hellos}
        if sorted(self._rank_of_pid.values()) != list(range(self.workers)):
            raise BenchFailure(f"{self.column.name}: ranks {sorted(self._rank_of_pid.values())} joined")

    def _note_roles(self) -> None:
        assert self._process is not None
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                self.roles[process.pid] = self._role_of(process)

    def _role_of(self, process: psutil.Process) -> str:
        if process.pid in self._rank_of_pid:
            return "worker"
        environment = process.environ()
        role = environment.get("MXRDMA_ROLE") or environment.get("DMLC_ROLE") or "other"
        return role if role in ("server", "scheduler") else "other"

    # ---- work

    def run(self, steps: int) -> Dict[str, Any]:
        """One turn: the times of its steps (of each, the slowest worker's), CPU seconds of all roles."""
        before = self._cpu_seconds()
        for channel in self._channels:
            channel.say({"do": "run", "steps": steps})
        replies = self._hear_all()
        cpu_s = self._cpu_seconds() - before - sum(reply["refill_cpu_s"] for reply in replies)
        ms = [max(times) for times in zip(*(reply["ms"] for reply in replies))]
        return {
            "ms": ms,
            "cpu_s": max(cpu_s, 0.0),
            "transport": [reply.get("counters") for reply in replies],
            "summary": replies[0].get("summary"),
        }

    def verify(self) -> None:
        """BenchFailure unless every worker holds exactly what was pushed."""
        for channel in self._channels:
            channel.say({"do": "verify"})
        for rank, reply in enumerate(self._hear_all()):
            if reply["wrong"]:
                raise BenchFailure(f"{self.column.name}, {self.case.name}, worker {rank}: {reply['wrong']}")

    def _hear_all(self) -> List[Dict[str, Any]]:
        with self._named_failures():
            return [channel.hear() for channel in self._channels]

    def _cpu_seconds(self) -> float:
        total = 0.0
        for pid in self.roles:
            try:
                times = psutil.Process(pid).cpu_times()
            except psutil.NoSuchProcess as error:
                raise BenchFailure(f"{self.column.name}: a {self.roles[pid]} ended early{self._log()}") from error
            total += times.user + times.system + times.children_user + times.children_system
        return total

    def peak_memory_bytes(self) -> Dict[str, int]:
        """The highest resident size that any process of a role has had."""
        peaks: Dict[str, int] = {}
        for pid, role in self.roles.items():
            peaks[role] = max(peaks.get(role, 0), peak_resident_bytes(pid))
        return peaks

    # ---- end

    def stop(self) -> None:
        """Ends the job in order; BenchFailure if it does not end well."""
        assert self._process is not None
        for channel in self._channels:
            channel.say({"do": "leave"})
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise BenchFailure(f"{self.column.name}: the job did not end in {STOP_TIMEOUT_S:.0f} s{self._log()}") from error
        if code != 0:
            raise BenchFailure(f"{self.column.name}: the job ended with code {code}{self._log()}")
        self.server_reports = read_reports(Path(self._folder.name))
        self.close()

    def close(self) -> None:
        """Whatever state the job is in, nothing of it is left."""
        for channel in self._channels:
            channel.close()
        self._channels = []
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._folder.cleanup()

    def _check_alive(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise BenchFailure(f"{self.column.name}: the job ended with code {self._process.returncode}{self._log()}")

    @contextlib.contextmanager
    def _named_failures(self) -> Iterator[None]:
        try:
            yield
        except ChannelClosed as error:
            raise BenchFailure(f"{self.column.name}, {self.case.name}: {error}{self._log()}") from error

    def _log(self) -> str:
        path = Path(self._folder.name) / "log"
        text = path.read_text(errors="replace")[-2000:].strip() if path.exists() else ""
        return f"; its last words:\n{text}" if text else ""


def peak_resident_bytes(pid: int) -> int:
    """VmHWM of a process (proc(5)); 0 if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def read_reports(folder: Path) -> List[Dict[str, int]]:
    """What the servers said of their memory when they ended."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("report.json*"))]

