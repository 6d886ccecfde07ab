"""The compiled core as Python sees it. Bindings hold no logic; the GIL is released around every wait.

Failures raise the exception class of mxrdma.errors that belongs to the C++ code (`errors.BY_CODE`).
"""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

__version__: str

class NodeOptions:
    """Mirror of cpp/node/options.h; all attributes are plain and settable."""

    scheduler_host: str
    scheduler_port: int
    token: bytes
    fabric: str  # "auto", "shm", "tcp", "verbs"
    devices: str  # "mlx5_0:1,mlx5_1:1"; empty: by the address
    gid_index: str  # "auto" or a number
    bind_host: str
    host_name: str
    preferred_rank: Optional[int]
    join_timeout_ms: int
    compute_threads: int
    spin_us: int
    def __init__(self) -> None: ...

class JobConfig:
    """Mirror of wire::JobConfig (cpp/wire/control.h); all attributes are ints and settable."""

    workers: int
    servers: int
    slot_bytes: int
    slots_per_worker: int
    staleness: int
    heartbeat_interval_ms: int
    heartbeat_timeout_ms: int
    stall_report_ms: int
    round_timeout_ms: int
    barrier_timeout_ms: int
    def __init__(self) -> None: ...

class KeyRequest:
    """name ("i:3" or "s:fc1_weight"), updater_index, dtype (MXNet's type flag), shape (elements per axis)."""

    def __init__(self, name: str, updater_index: int, dtype: int, shape: Sequence[int]) -> None: ...

class OptimizerSpec:
    """kind: "none", "sgd", "nag", "adam", "python"."""

    kind: str
    momentum: float
    beta1: float
    beta2: float
    epsilon: float
    clip_gradient: float
    multi_precision: bool
    name: str
    pickle: bytes
    def __init__(self) -> None: ...

class Hyper:
    """lr, wd, rescale_grad and the update count of one push."""

    lr: float
    wd: float
    rescale_grad: float
    update_count: int
    def __init__(self, lr: float, wd: float, rescale_grad: float, update_count: int) -> None: ...

class ArrayLayout:
    """MXNet's type flag and the shape in elements of a key's arrays."""

    def __init__(self, dtype: int, shape: Sequence[int]) -> None: ...

class Engine:
    """MXNet's dependency engine through its C API (cpp/engine); opened from the path of libmxnet.so.

    Handles are the integer values of NDArray handles (ctypes c_void_p.value).
    """

    runs_inline: bool  # MXNET_ENGINE_TYPE=NaiveEngine: an operation is waited for inside the call that pushes it
    def __init__(self, libmxnet_path: str) -> None: ...
    def fits(self, handle: int, layout: ArrayLayout) -> bool:
        """Whether the array is dense, lies in CPU memory and has this layout. Quicker than asking for each in Python."""

class Worker:
    """A worker of the job (cpp/node/worker.h). Blocking calls notice Ctrl-C within about 100 ms."""

    def __init__(self, options: NodeOptions) -> None: ...
    def start(self) -> None: ...
    rank: int
    num_workers: int
    num_servers: int
    round_timeout_ms: int  # the job's, as the scheduler told it
    stall_report_ms: int
    def summary(self) -> str: ...
    def counters(self) -> Dict[str, int]: ...
    def barrier(self) -> None: ...
    def register_keys(self, keys: Sequence[KeyRequest]) -> List[int]: ...
    def set_optimizer(self, spec: OptimizerSpec) -> None: ...
    # ---- on MXNet's engine: asynchronous; handle is an NDArray handle ----
    def push(self, engine: Engine, key: int, handle: int, hyper: Hyper, priority: int, initial: bool = False) -> None:
        """Opens a push and puts a `send` operation that reads the array on MXNet's engine."""
    def pull(self, engine: Engine, key: int, handle: int, priority: int) -> None:
        """Opens a pull and puts a `receive` operation that writes the array on MXNet's engine."""
    def pushpull(self, engine: Engine, key: int, handle: int, out_handle: int, hyper: Hyper, priority: int) -> None:
        """push and pull in one call; the arrays may be one. Where they are apart, their bytes cross in one message each."""
    # ---- without MXNet: blocking, on C-contiguous buffers (numpy arrays) ----
    def push_buffer(self, key: int, data: Any, hyper: Hyper, priority: int = 0, initial: bool = False) -> None:
        """Returns when `data` may be reused."""
    def pull_buffer(self, key: int, out: Any, priority: int = 0) -> None: ...
    def pushpull_buffers(
        self, keys: Sequence[int], data: Sequence[Any], out: Sequence[Any], hyper: Hyper
    ) -> None:
        """All pushes and pulls at once, priority by position; returns when all are complete."""
    # ---- ends ----
    def drain(self, timeout_ms: int) -> None: ...
    def failure(self) -> Optional[Tuple[str, str]]:
        """(code, message) of the job's failure as this worker saw it, or None."""
    def fail(self, message: str) -> None: ...
    def leave(self) -> None: ...

class Server:
    """make_updater(spec_name, pickle) returns update(key_name, index, dtype, shape, gradient, weights, hyper);

    gradient and weights are writable memoryviews ('B') of the whole tensor that live for the call only.
    """

    def __init__(self, options: NodeOptions, make_updater: Callable[[str, bytes], Callable[..., None]]) -> None: ...
    def run(self) -> None: ...
    def stop(self) -> None: ...
    def report(self) -> Dict[str, int]: ...

class Scheduler:
    def __init__(self, options: NodeOptions, config: JobConfig) -> None: ...
    def listen(self) -> Tuple[str, int]: ...
    def run(self) -> None: ...
    def stop(self) -> None: ...
    def joined(self) -> bool:
        """Whether all nodes have joined, ever. From any thread."""
    def failure(self) -> Optional[str]:
        """The job's failure as soon as it is known, from any thread; run() returns only when the nodes have gone."""

def fabric_viable(name: str) -> Optional[str]:
    """None if this host can run the fabric, else the reason."""

def device_report(address: str, devices: str, gid_index: str) -> Dict[str, Any]:
    """RDMA devices with ports and GID tables, each with its state, and the rails that a job would use (or why none).

    Never raises for what is wrong with the host. The keys are those of `mxrdma-doctor --json` under "rdma".
    """

class PairListener:
    """The waiting end of `mxrdma-doctor pair`; of the options it takes fabric, token, devices, gid_index, spin_us."""

    def __init__(self, options: NodeOptions) -> None: ...
    def listen(self, host: str, port: int) -> Tuple[str, int]: ...
    def run(self, once: bool) -> None:
        """Until stop(), or with `once` until a client is through. Does not notice Ctrl-C: run it in a thread."""
    def stop(self) -> None: ...
    def log(self) -> List[str]: ...

def measure_pair(options: NodeOptions, host: str, port: int, sizes: Sequence[int], last: bool) -> Dict[str, Any]:
    """fabric, path, connect_ms and steps with bytes, latency_us, slowest_us, bytes_per_s."""

def set_log_level(level: str) -> None:
    """debug, info, warning, error or off."""

def set_log_identity(identity: str) -> None: ...
def force_exit_code(code: int) -> None:
    """The process ends with this code, whatever Python would return; 0 takes it back."""

def watch_system_exit(main_thread: int) -> None:
    """From now on, system_exit_code() knows. main_thread: threading.main_thread().ident."""

def system_exit_code() -> Optional[int]:
    """The exit status if the interpreter is ending by a SystemExit, else None."""
