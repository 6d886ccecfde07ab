"""A worker process' one membership in the job, shared by all stores of the process; its failures, forks and end."""

import atexit
import os
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.base import register_error
from mxnet.ndarray import NDArray

from mxrdma import _arrays, _core, _process_end, config, errors
from mxrdma._arrays import Key
from mxrdma.errors import InvalidArgument
from mxrdma.optimizer import LiveOptimizer

# Every operation ends by itself within the round time-out (30 minutes by default); what waits for all of them at a fork
# or at the end waits a little longer. A script may end right after its last step while another rank is still on its way
# there: that is no failure.
DRAIN_MARGIN_MS = 60 * 1000

_NO_HYPER = _core.Hyper(0.0, 0.0, 1.0, 0)
_session: Optional["Session"] = None
_lock = threading.Lock()


class KeyInfo:
    """What a worker knows of a key: its id in the job, its shape and type, and the index that an updater sees."""

    def __init__(self, key: Key, ident: int, shape: Tuple[int, ...], dtype: np.dtype, index: int) -> None:
        self.key = key
        self.id = ident
        self.shape = shape
        self.dtype = dtype
        self.index = index
        self.layout = _core.ArrayLayout(_arrays.TYPE_FLAGS[dtype], list(shape))


class Session:
    """Joins the job when it is made. Methods raise the job's failure for ever once there is one."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.left = False
        self.keys: Dict[Key, KeyInfo] = {}
        self.live: Optional[LiveOptimizer] = None
        self._next_string_index = 0
        options = config.worker_options()
        self.engine = _core.Engine(mx.libinfo.find_lib_path()[0])
        self.worker = _core.Worker(options)
        self.worker.start()
        self.rank: int = self.worker.rank
        self.num_workers: int = self.worker.num_workers

    # ---- failure

    def check(self) -> None:
        """Raises if the store cannot be used: in a forked child, or after the job has failed."""
        if os.getpid() != self.pid:
            raise errors.Unsupported(
                f"the store belongs to process {self.pid} and cannot be used in its forked child {os.getpid()}; "
                "use it in the parent only"
            )
        failure = self.worker.failure()
        if failure is not None:
            raise _error(failure)

    # ---- keys

    def known(self, key: Key) -> KeyInfo:
        """The key's record; InvalidArgument if it was not initialised."""
        info = self.keys.get(key)
        if info is None:
            raise InvalidArgument(f"key {key!r} has not been initialised; call init or broadcast first, on all workers")
        return info

    def init(self, values: Dict[Key, List[NDArray]]) -> None:
        """A collective of all workers: registers the keys; rank 0's values count."""
        self.check()
        kinds = {type(key) for key in list(values) + list(self.keys)[:1]}
        if len(kinds) > 1:
            raise InvalidArgument("a store's keys must be all integers or all strings")
        requests = []
        string_index = self._next_string_index
        for key, arrays in values.items():
            if key in self.keys:
                raise InvalidArgument(
                    f"key {key!r} is initialised already; all stores of a process share one set of keys"
                )
            array = arrays[0]
            flag = _arrays.type_flag(key, array)
            if array.size == 0:
                raise InvalidArgument(f"key {key!r}: an array of shape {tuple(array.shape)} has no elements")
            index = key if isinstance(key, int) else string_index
            string_index += isinstance(key, str)
            requests.append(_core.KeyRequest(_arrays.canonical_name(key), index, flag, list(array.shape)))
        idents = self.worker.register_keys(requests)
        for (key, arrays), ident in zip(values.items(), idents):
            index = key if isinstance(key, int) else self._next_string_index
            self._next_string_index += isinstance(key, str)
            array = arrays[0]
            self.keys[key] = KeyInfo(key, ident, tuple(array.shape), np.dtype(array.dtype), index)
            if self.rank == 0:
                source = _arrays.reduce_to_cpu([array])
                self.worker.push(self.engine, ident, _arrays.handle(source), _NO_HYPER, 0, True)
        self.check_inline()

    # ---- operations

    def plain(self, key: Any, value: Any) -> Optional[Tuple[KeyInfo, int]]:
        """The key's record and the array's handle, if this is one key with one array that the core takes as it is.

        None means that the longer way is needed, which also finds out what is wrong, if anything is. A model has hundreds
        of keys, and asking MXNet for each fact of each array from Python takes longer than all else of a small push.
        """
        if isinstance(value, (list, tuple)):
            if len(value) != 1:
                return None
            value = value[0]
        if type(key) not in (int, str) or not isinstance(value, NDArray):
            return None
        info = self.keys.get(key)
        if info is None:
            return None
        handle = _arrays.handle(value)
        return (info, handle) if self.engine.fits(handle, info.layout) else None

    def hyper(self, info: KeyInfo) -> _core.Hyper:
        """The hyper-parameters of the next push of this key, which they count."""
        return _NO_HYPER if self.live is None else self.live.next(info.index)

    def check_push(self, info: KeyInfo, arrays: Sequence[NDArray]) -> None:
        """InvalidArgument unless these arrays can be pushed to the key."""
        for array in arrays:
            _arrays.check_like(info.key, array, info.shape, info.dtype, "the pushed value")
        self.check_updatable(info)

    def check_updatable(self, info: KeyInfo) -> None:
        """InvalidArgument if the optimizer cannot update keys of this type."""
        if self.live is not None and self.live.element_wise and info.dtype.kind != "f":
            raise InvalidArgument(
                f"key {info.key!r} has type {info.dtype}, but {type(self.live.optimizer).__name__} updates "
                "floating-point keys only"
            )

    def check_inline(self) -> None:
        """NaiveEngine never raises an operation's error, so it is raised here."""
        if self.engine.runs_inline:
            self.check()

    # ---- the end

    def fail(self, message: str) -> None:
        """Tells the job that this process ends because of an error, and ends what is outstanding."""
        if os.getpid() == self.pid and not self.left:
            self.worker.fail(message)

    def drain(self) -> None:
        """Waits for all outstanding operations; says which while that takes long. Raises what ends the wait."""
        deadline = time.monotonic() + (self.worker.round_timeout_ms + DRAIN_MARGIN_MS) / 1000
        pause_ms = self.worker.stall_report_ms
        while True:
            left_ms = max(1, int((deadline - time.monotonic()) * 1000))
            try:
                self.worker.drain(min(pause_ms, left_ms))
                return
            except errors.RoundTimeout as error:
                if self.worker.failure() is not None or pause_ms >= left_ms:
                    raise
                _say(f"waiting for outstanding operations, at most {left_ms // 1000} s more: {error}")
                pause_ms = min(2 * pause_ms, 1 << 30)

    def finish(self) -> None:
        """Ends the membership: in order if all is well, else so that nobody waits for us."""
        if self.left or os.getpid() != self.pid:
            return
        reason = _process_end.bad_end()
        if reason is not None:
            self.fail(reason)
        else:
            self._finish_well()
        try:
            self.worker.leave()
        except Exception as error:
            _say(f"leaving the job: {error}")
        self.left = True

    def _finish_well(self) -> None:
        code = 1
        try:
            failure = self.worker.failure()
            if failure is None:
                self.drain()
                return
            message = f"the job had failed, so this process ends with code 1: {failure[1]}"
        except BaseException as error:  # Ctrl-C too: nobody is left to whom it could be raised
            message = f"ending the outstanding operations: {error or type(error).__name__}"
            code = 130 if isinstance(error, KeyboardInterrupt) else 1
            self.fail(message)
        _say(message)
        _core.force_exit_code(code)


def join() -> Session:
    """The process' session; joins the job at the first call."""
    global _session
    with _lock:
        if _session is None:
            _session = Session()
            _watch(_session)
            if config.Settings().get("MXRDMA_LOG_LEVEL") not in ("error", "off"):
                _say(_session.worker.summary())
        elif os.getpid() != _session.pid:
            _session.check()
        return _session


def _error(failure: Tuple[str, str]) -> Exception:
    return errors.BY_CODE[failure[0]](failure[1])


def _say(message: str) -> None:
    rank = "" if _session is None else f" (worker {_session.rank})"
    print(f"mxrdma{rank}: {message}", file=sys.stderr, flush=True)


def _watch(session: Session) -> None:
    """Hooks into the ends of the process. Registered after MXNet's own, so it runs before them."""
    for code, klass in errors.BY_CODE.items():
        register_error(f"mxrdma.{code}", klass)  # a wait on an array raises the class, not a bare MXNetError
    atexit.register(session.finish)
    os.register_at_fork(before=lambda: _before_fork(session))
    _process_end.watch(session.fail)


def _before_fork(session: Session) -> None:
    """MXNet waits for every operation at a fork, with the GIL held and without a limit, and aborts if one has failed."""
    if session.left or os.getpid() != session.pid:
        return
    try:
        session.drain()
    except BaseException as error:
        if session.worker.failure() is None:
            session.fail(f"operations were outstanding at a fork: {error}")
        _take_errors_out_of_the_engine()


def _take_errors_out_of_the_engine() -> None:
    for _ in range(8):  # a wait raises, and so clears, one error at a time; the session keeps the failure
        try:
            mx.nd.waitall()
            return
        except mx.MXNetError:
            continue
