"""`mx.kv.create('dist_rdma')`: MXNet's distributed store over the fabrics of mxrdma.

Importing this module registers the stores with MXNet. They are subclasses of mx.kv.KVStore, because MXNet asks for that
class where gradients are sparse, and replace every method of it that touches a native handle.

All stores of a process share one membership in the job, one set of keys and one optimizer: a second `create` is cheap,
and a key is initialised once. `push`, `pull` and `pushpull` return at once; what they do is on MXNet's engine, ordered
with all that reads or writes the same arrays. A failure of the job is raised by the next wait on an array concerned and
by every later call on a store.
"""

from typing import Any, Dict, List, Optional

import mxnet as mx
import numpy as np
from mxnet.kvstore import KVStore
from mxnet.kvstore.base import KVStoreBase
from mxnet.ndarray import NDArray

from mxrdma import _arrays, _session, errors
from mxrdma import optimizer as optimizers
from mxrdma._arrays import Key
from mxrdma.errors import InvalidArgument, Unsupported

__all__ = ["RdmaKVStore"]

errors.join_mxnet()  # MXNet is imported now, so that `except mx.MXNetError` catches our errors


class RdmaKVStore(KVStore):
    """What the registered stores have in common; they differ in `type` only."""

    _type = "dist_rdma_sync"

    def __init__(self) -> None:  # pylint: disable=super-init-not-called
        # KVStore.__init__ demands a native handle.
        self.handle = None
        self._updater = None
        self._updater_func = None
        self._str_updater_func = None
        self._is_p3 = False
        self._session = _session.join()

    def __del__(self) -> None:
        """Nothing: there is no native handle, and dropping a store does not leave the job."""

    def __reduce__(self) -> Any:
        raise TypeError("a distributed store cannot be pickled")

    # ---- facts

    @property
    def type(self) -> str:
        """Contains `_sync`: Module multiplies the batch size by the number of workers only then."""
        return self._type

    @property
    def rank(self) -> int:
        """This worker's number, 0 to num_workers - 1; each is there once. It need not follow the order of starts."""
        return self._session.rank

    @property
    def num_workers(self) -> int:
        """The number of workers of the job."""
        return self._session.num_workers

    def is_capable(self, capability: str) -> bool:
        """Whether the store can run the optimizer itself: it can."""
        if capability.lower() == KVStoreBase.OPTIMIZER:
            return True
        raise ValueError(f"Unknown capability: {capability}")

    # ---- keys

    def init(self, key: Any, value: Any) -> None:
        """Initialises keys with rank 0's values. All workers must call it, with equal keys, shapes and types.

        Returns when the keys are known to all workers and servers. Raises InvalidArgument for a key that is
        initialised already.
        """
        self._session.init(_arrays.group(key, value, "value"))

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """init, then pull into `out`. `value` is not changed, unless it is one of the outputs."""
        values = _arrays.group(key, value, "value")
        outputs = _arrays.group(key, out, "out")
        for one, arrays in outputs.items():
            first = values[one][0]
            for array in arrays:
                _arrays.check_like(one, array, tuple(first.shape), np.dtype(first.dtype), "out")
        self._session.init(values)
        self._pull(outputs, priority)

    # ---- data

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Adds values to the current round of their keys; several arrays of one key are summed first.

        The k-th push of a key by each worker forms its round k. The arrays are read as they are at the time of the call
        and never changed.
        """
        session = self._session
        session.check()
        plain = session.plain(key, value)
        if plain is not None:
            info, handle = plain
            session.check_updatable(info)
            session.worker.push(session.engine, info.id, handle, session.hyper(info), priority)
            session.check_inline()
            return
        values = self._checked_pushes(_arrays.group(key, value, "value"))
        for one, arrays in values.items():
            info = session.keys[one]
            source = _arrays.reduce_to_cpu(arrays)
            session.worker.push(session.engine, info.id, _arrays.handle(source), session.hyper(info), priority)
        session.check_inline()

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Writes the result of this worker's last push of each key into `out` (several arrays: into each)."""
        if out is None:
            raise InvalidArgument("pull needs out=")
        session = self._session
        session.check()
        plain = session.plain(key, out)
        if plain is not None:
            info, handle = plain
            session.worker.pull(session.engine, info.id, handle, priority)
            session.check_inline()
            return
        outputs = _arrays.group(key, out, "out")
        if ignore_sparse:
            outputs = {one: [array for array in arrays if array.stype == "default"] for one, arrays in outputs.items()}
            outputs = {one: arrays for one, arrays in outputs.items() if arrays}
        self._check_pulls(outputs)
        self._pull(outputs, priority)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """push, then pull, in one exchange with the servers. Without `out` the result is written to `value`."""
        session = self._session
        session.check()
        plain = session.plain(key, value)
        target = plain if out is None else session.plain(key, out)
        if plain is not None and target is not None:
            info, handle = plain
            session.check_updatable(info)
            session.worker.pushpull(session.engine, info.id, handle, target[1], session.hyper(info), priority)
            session.check_inline()
            return
        values = self._checked_pushes(_arrays.group(key, value, "value"))
        outputs = values if out is None else _arrays.group(key, out, "out")
        if set(values) != set(outputs):
            raise InvalidArgument("pushpull needs an out= for each key and no other")
        self._check_pulls(outputs)
        for one, arrays in values.items():
            info = session.keys[one]
            source = _arrays.reduce_to_cpu(arrays)
            target, others = self._target(info, outputs[one])
            session.worker.pushpull(
                session.engine, info.id, _arrays.handle(source), _arrays.handle(target), session.hyper(info), priority
            )
            _arrays.copy_to_all(target, others)
        session.check_inline()

    def _checked_pushes(self, values: Dict[Key, List[NDArray]]) -> Dict[Key, List[NDArray]]:
        for one, arrays in values.items():
            self._session.check_push(self._session.known(one), arrays)
        return values

    def _check_pulls(self, outputs: Dict[Key, List[NDArray]]) -> None:
        for one, arrays in outputs.items():
            info = self._session.known(one)
            for array in arrays:
                _arrays.check_like(one, array, info.shape, info.dtype, "out")

    def _target(self, info: _session.KeyInfo, arrays: List[NDArray]) -> Any:
        """The array that the core writes, and those to which MXNet copies it."""
        for position, array in enumerate(arrays):
            if _arrays.on_cpu(array):
                return array, arrays[:position] + arrays[position + 1 :]
        return _arrays.empty_on_cpu(info.shape, info.dtype), arrays

    def _pull(self, outputs: Dict[Key, List[NDArray]], priority: int) -> None:
        session = self._session
        for one, arrays in outputs.items():
            info = session.keys[one]
            target, others = self._target(info, arrays)
            session.worker.pull(session.engine, info.id, _arrays.handle(target), priority)
            _arrays.copy_to_all(target, others)
        session.check_inline()

    # ---- optimizers

    def set_optimizer(self, optimizer: Any) -> None:
        """Runs this optimizer on the servers from now on. All workers must call it, with the same kind of optimizer.

        Waits for this worker's outstanding operations. Rank 0's object is the one that the servers get; learning rate,
        weight decay and rescaling are read from each worker's own object at each push, so later changes take effect.
        """
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise InvalidArgument(f"set_optimizer needs an mx.optimizer.Optimizer, not {type(optimizer).__name__}")
        self._session.check()
        spec = optimizers.spec_for(optimizer)
        self._session.worker.set_optimizer(spec)
        self._session.live = optimizers.LiveOptimizer(optimizer, spec.kind)

    def _set_updater(self, updater: Any) -> None:
        """Runs updater(key, received, stored) on the servers for each complete round. All workers must call it."""
        if not callable(updater):
            raise InvalidArgument(f"an updater must be callable as updater(key, received, stored), not {updater!r}")
        if isinstance(updater, mx.optimizer.Updater):
            self.set_optimizer(updater.optimizer)
        else:
            self._session.check()
            self._session.worker.set_optimizer(optimizers.spec_for_function(updater))
            self._session.live = None
        self._updater = updater

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Not there yet."""
        raise Unsupported(
            "saving the optimizer's state from the servers is not supported yet; to save it, train with "
            "update_on_kvstore=False, where each worker holds the state"
        )

    def load_optimizer_states(self, fname: str) -> None:
        """Not there yet."""
        raise Unsupported(
            "loading the optimizer's state into the servers is not supported yet; to load it, train with "
            "update_on_kvstore=False, where each worker holds the state"
        )

    # ---- all workers together

    def barrier(self) -> None:
        """Returns when all workers have called it. It says nothing about pushes: wait for their arrays for that."""
        self._session.check()
        self._session.worker.barrier()

    def _barrier(self) -> None:
        self.barrier()

    # ---- what is not there

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Optional[Any] = None) -> None:
        """Not there yet."""
        raise Unsupported("row_sparse keys are not supported by this store yet; use dense arrays")

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Not there yet."""
        raise Unsupported("gradient compression is not supported by this store yet; leave compression_params out")

    def _send_command_to_servers(self, head: int, body: str) -> None:
        raise Unsupported("servers of this store take no commands; use set_optimizer or _set_updater")


# MXNet registers a store under its class' name in lower case.


@KVStoreBase.register
class Dist_RDMA(RdmaKVStore):
    """The synchronous store."""


@KVStoreBase.register
class Dist_RDMA_Sync(RdmaKVStore):
    """The synchronous store under its full name."""


@KVStoreBase.register
class Dist_RDMA_Device_Sync(RdmaKVStore):
    """The same; arrays on several devices are summed by MXNet where they are copied to."""

    _type = "dist_rdma_device_sync"


@KVStoreBase.register
class Dist_RDMA_Async(RdmaKVStore):
    """Not there yet: refused before it joins a job."""

    _type = "dist_rdma_async"

    def __init__(self) -> None:  # pylint: disable=super-init-not-called
        raise Unsupported("dist_rdma_async is not supported yet; use dist_rdma")
