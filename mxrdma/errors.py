"""Exceptions of mxrdma: one class for each code of the core (cpp/base/status.h).

All of them are `mxrdma.Error`, and `mx.MXNetError` too wherever MXNet has been imported, in either order, so that
`except mx.MXNetError` catches them.
"""

import sys
from typing import Dict, Type


class _WithoutMXNet(RuntimeError):
    """Stands where mx.MXNetError will stand; Python can exchange a base only for one with the same layout."""


class Error(_WithoutMXNet):
    """Base of all errors of mxrdma."""


class InvalidArgument(Error, ValueError):
    """A wrong key, shape, dtype, size or order of calls."""


class ConfigError(Error, ValueError):
    """A setting that cannot work, or on which nodes disagree. The message names it and says how to mend it."""


class AuthError(Error):
    """A peer could not prove the job's token."""


class FabricError(Error):
    """The transport failed: connect, read, write or protocol."""


class NodeLost(Error):
    """Another node of the job was lost, failed or left while it was needed."""


class WorkerLost(NodeLost):
    """A worker's process died, stopped answering, or reported a failure."""


class ServerLost(NodeLost):
    """A server's process died or stopped answering."""


class SchedulerLost(NodeLost):
    """The scheduler died or cannot be reached."""


class WorkerLeft(NodeLost):
    """A worker ended normally while others still waited for it."""


class RoundTimeout(Error):
    """A round of a key was not complete in time; the message names the key and the missing ranks."""


class BarrierTimeout(Error):
    """Not all workers reached a barrier, init or set_optimizer in time."""


class JoinTimeout(Error):
    """Not all nodes joined in time."""


class Unsupported(Error, NotImplementedError):
    """Something that mxrdma does not do."""


class UpdaterError(Error):
    """An optimizer raised on a server."""


class StoreClosed(Error):
    """The store was shut down."""


class InternalError(Error):
    """A bug in mxrdma."""


BY_CODE: Dict[str, Type[Error]] = {
    "invalid_argument": InvalidArgument,
    "config": ConfigError,
    "auth": AuthError,
    "fabric": FabricError,
    "worker_lost": WorkerLost,
    "server_lost": ServerLost,
    "scheduler_lost": SchedulerLost,
    "worker_left": WorkerLeft,
    "round_timeout": RoundTimeout,
    "barrier_timeout": BarrierTimeout,
    "join_timeout": JoinTimeout,
    "unsupported": Unsupported,
    "updater": UpdaterError,
    "busy": InternalError,
    "closed": StoreClosed,
    "cancelled": StoreClosed,
    "internal": InternalError,
}


def join_mxnet() -> None:
    """Makes `Error` an mx.MXNetError if MXNet is imported; called again when that happens later."""
    base = sys.modules.get("mxnet.base")
    mxnet_error = getattr(base, "MXNetError", None)
    if mxnet_error is not None and not issubclass(Error, mxnet_error):
        Error.__bases__ = (mxnet_error,)


join_mxnet()
