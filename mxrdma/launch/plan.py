"""Which processes a job has, with which arguments and environment. Nothing is started here."""

import os
import secrets
import shutil
import socket
import sys
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence

from mxrdma.errors import ConfigError
from mxrdma.launch.processes import MARK

HOST = "127.0.0.1"
STORES = ("dist_rdma", "dist_rdma_sync", "dist_rdma_device_sync", "dist_rdma_async")
NATIVE_STORES = ("dist_sync", "dist_device_sync", "dist_sync_device", "dist_async", "dist_async_device")
# What says which place a process has in a job: never taken over from the launcher's own surroundings. DMLC_ROLE matters
# most: with the role of a native server, `import mxnet` runs one and exits.
_OF_A_JOB = (
    "DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_WORKER_ID",
    "DMLC_SERVER_ID", "DMLC_TASK_ID", "MXRDMA_ROLE", "MXRDMA_SCHEDULER_URI", "MXRDMA_SCHEDULER_PORT",
    "MXRDMA_NUM_WORKERS", "MXRDMA_NUM_SERVERS", "MXRDMA_TOKEN", "MXRDMA_TOKEN_FILE", "MXRDMA_RANK", "MXRDMA_STATUS_FD",
    "MXRDMA_KVSTORE", MARK,
)  # fmt: skip


@dataclass(frozen=True)
class Process:
    """One process of the job. `reports`: it tells its address and the job's failure on a pipe."""

    role: str
    index: Optional[int]
    arguments: List[str]
    environment: Dict[str, str]
    reports: bool = False

    @property
    def name(self) -> str:
        """As people see it: `worker 0`."""
        return self.role if self.index is None else f"{self.role} {self.index}"


def resolve_command(command: Sequence[str]) -> List[str]:
    """The command with `python` replaced by the launcher's own interpreter.

    A `python` found in PATH may be another one than that in which mxrdma and MXNet are installed; who wants a certain one
    gives its path. FileNotFoundError or PermissionError if it cannot be run.
    """
    first = command[0]
    if first in ("python", "python3"):
        return [sys.executable, *command[1:]]
    if shutil.which(first) is None:
        found = os.path.exists(first) if os.sep in first else shutil.which(first, mode=os.F_OK) is not None
        raise (PermissionError if found else FileNotFoundError)(first)
    return list(command)


class Plan:
    """The processes of one job: `first`, to be started at once, and `rest(port)` when the scheduler's port is known."""

    def __init__(
        self,
        command: Sequence[str],
        workers: int,
        servers: int,
        store: str,
        settings: Mapping[str, str],
        inherited: Mapping[str, str],
        port: int = 0,
    ) -> None:
        self.job = secrets.token_hex(16)
        self.workers = workers
        self.servers = servers
        self.native = store in NATIVE_STORES
        self._command = list(command)
        self._port = port
        self._base = {name: value for name, value in inherited.items() if name not in _OF_A_JOB}
        # Output is to be seen when it is made: what goes to a pipe is otherwise kept back by Python.
        self._base.setdefault("PYTHONUNBUFFERED", "1")
        self._base.update(settings)
        self._base.update({MARK: self.job, "MXRDMA_KVSTORE": store})
        if not self.native:
            self._base.update(
                {
                    "MXRDMA_TOKEN": secrets.token_hex(32),
                    "MXRDMA_SCHEDULER_URI": HOST,
                    "MXRDMA_NUM_WORKERS": str(workers),
                    "MXRDMA_NUM_SERVERS": str(servers),
                }
            )

    @property
    def first(self) -> Optional[Process]:
        """The scheduler, which binds a port and reports it; None if all processes can be started together."""
        if self.native:
            return None
        environment = {**self._base, "MXRDMA_ROLE": "scheduler", "MXRDMA_SCHEDULER_PORT": str(self._port)}
        return Process("scheduler", None, _node("scheduler"), environment, reports=True)

    def rest(self, port: int) -> List[Process]:
        """All others. `port`: the scheduler's; not used by native stores."""
        if self.native:
            return self._native(self._port or free_port())
        shared = {**self._base, "MXRDMA_SCHEDULER_PORT": str(port)}
        found = []
        for index in range(self.servers):
            environment = {**shared, "MXRDMA_ROLE": "server", "MXRDMA_RANK": str(index)}
            found.append(Process("server", index, _node("server"), environment))
        for index in range(self.workers):
            environment = {**shared, "MXRDMA_ROLE": "worker", "MXRDMA_RANK": str(index)}
            found.append(Process("worker", index, self._command, environment))
        return found

    def _native(self, port: int) -> List[Process]:
        """MXNet's own roles: its scheduler and servers run inside `import mxnet`."""
        shared = {
            **self._base,
            "DMLC_PS_ROOT_URI": HOST,
            "DMLC_PS_ROOT_PORT": str(port),
            "DMLC_NUM_WORKER": str(self.workers),
            "DMLC_NUM_SERVER": str(self.servers),
        }
        node = [sys.executable, "-c", "import mxnet"]
        found = [Process("scheduler", None, node, {**shared, "DMLC_ROLE": "scheduler"})]
        for index in range(self.servers):
            found.append(Process("server", index, node, {**shared, "DMLC_ROLE": "server"}))
        for index in range(self.workers):
            environment = {**shared, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(index)}
            found.append(Process("worker", index, self._command, environment))
        return found


def _node(role: str) -> List[str]:
    return [sys.executable, "-m", "mxrdma.node", role]


def free_port() -> int:
    """A TCP port that is free now: MXNet's scheduler cannot pick one and tell."""
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])


def passed_variables(wanted: Sequence[str], inherited: Mapping[str, str]) -> Dict[str, str]:
    """What `--env NAME=VALUE` and `--env NAME` ask for; ConfigError if NAME is not set here."""
    found: Dict[str, str] = {}
    for text in wanted:
        name, equals, value = text.partition("=")
        if not name:
            raise ConfigError(f"--env {text}: the name before '=' is missing")
        if not equals:
            if name not in inherited:
                raise ConfigError(f"--env {name}: there is no such variable here; give its value with --env {name}=VALUE")
            value = inherited[name]
        if name in _OF_A_JOB:
            raise ConfigError(f"--env {name}: the launcher sets this variable itself")
        found[name] = value
    return found
