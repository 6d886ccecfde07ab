"""mxrdma: distributed training with Apache MXNet 1.9.1 through `mx.kv.create('dist_rdma')`.

Importing this package needs neither MXNet nor a network. The store itself is in `mxrdma.kvstore`, which an installed
mxrdma registers by itself when MXNet is imported.
"""

from importlib import metadata

from mxrdma import errors
from mxrdma.config import kvstore_name
from mxrdma.errors import (
    AuthError,
    BarrierTimeout,
    ConfigError,
    Error,
    FabricError,
    InvalidArgument,
    JoinTimeout,
    NodeLost,
    RoundTimeout,
    SchedulerLost,
    ServerLost,
    StoreClosed,
    Unsupported,
    UpdaterError,
    WorkerLeft,
    WorkerLost,
)

try:
    __version__ = metadata.version("mxrdma")
except metadata.PackageNotFoundError:
    __version__ = "0.0.0"

__all__ = [
    "AuthError",
    "BarrierTimeout",
    "ConfigError",
    "Error",
    "FabricError",
    "InvalidArgument",
    "JoinTimeout",
    "NodeLost",
    "RoundTimeout",
    "SchedulerLost",
    "ServerLost",
    "StoreClosed",
    "Unsupported",
    "UpdaterError",
    "WorkerLeft",
    "WorkerLost",
    "__version__",
    "errors",
    "kvstore_name",
]
