"""Keys and arrays as users pass them to a store, checked and brought into one form.

Everything is checked before anything is sent, so that a wrong call leaves the store, the servers and the other workers
as they were.
"""

from typing import Any, Dict, List, Sequence, Tuple, Union

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.ndarray import NDArray

from mxrdma.errors import InvalidArgument

Key = Union[int, str]

# MXNet's type flags, which are the core's too (cpp/base/dtype.h).
TYPE_FLAGS = {
    np.dtype(np.float32): 0,
    np.dtype(np.float64): 1,
    np.dtype(np.float16): 2,
    np.dtype(np.uint8): 3,
    np.dtype(np.int32): 4,
    np.dtype(np.int8): 5,
    np.dtype(np.int64): 6,
}
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_CPU_DEVICES = ("cpu", "cpu_pinned", "cpu_shared")


def check_key(key: Any) -> Key:
    """The key as a plain int or str; InvalidArgument for anything else."""
    if isinstance(key, (bool, np.bool_)):
        raise InvalidArgument(f"key {key!r} is a bool; keys are integers or strings")
    if isinstance(key, (int, np.integer)):
        if not _INT64_MIN <= key <= _INT64_MAX:
            raise InvalidArgument(f"key {key} does not fit into 64 bits; use a string")
        return int(key)
    if isinstance(key, str):
        return key
    raise InvalidArgument(f"key {key!r} is of type {type(key).__name__}; keys are integers or strings")


def canonical_name(key: Key) -> str:
    """The key's name in the job: "i:3" or "s:weight"."""
    return f"i:{key}" if isinstance(key, int) else f"s:{key}"


def _array_list(key: Key, value: Any, what: str) -> List[NDArray]:
    arrays = list(value) if isinstance(value, (list, tuple)) else [value]
    if not arrays:
        raise InvalidArgument(f"key {key!r}: the list given as {what} is empty")
    for array in arrays:
        if not isinstance(array, NDArray):
            raise InvalidArgument(
                f"key {key!r}: {what} must be an NDArray or a list of them, not {type(array).__name__}"
            )
    return arrays


def group(key: Any, value: Any, what: str) -> Dict[Key, List[NDArray]]:
    """Arrays by key, in order of first mention. key: one or a list; value: arrays, or lists of them (devices)."""
    if not isinstance(key, (list, tuple)):
        checked = check_key(key)
        return {checked: _array_list(checked, value, what)}
    if not isinstance(value, (list, tuple)) or len(value) != len(key):
        count = len(value) if isinstance(value, (list, tuple)) else 1
        raise InvalidArgument(f"{len(key)} keys, but {count} entries given as {what}: one for each key is needed")
    grouped: Dict[Key, List[NDArray]] = {}
    for one, arrays in zip(key, value):
        checked = check_key(one)
        grouped.setdefault(checked, []).extend(_array_list(checked, arrays, what))
    if len({type(one) for one in grouped}) > 1:
        raise InvalidArgument("a call's keys must be all integers or all strings")
    return grouped


def type_flag(key: Key, array: NDArray) -> int:
    """MXNet's number of the array's type; InvalidArgument if a store cannot hold it."""
    if array.stype != "default":
        raise InvalidArgument(
            f"key {key!r}: arrays of storage type {array.stype!r} are not supported by this store yet; use dense arrays"
        )
    flag = TYPE_FLAGS.get(np.dtype(array.dtype))
    if flag is None:
        names = ", ".join(str(dtype) for dtype in TYPE_FLAGS)
        raise InvalidArgument(f"key {key!r}: type {np.dtype(array.dtype)} is not supported; use one of {names}")
    return flag


def check_like(key: Key, array: NDArray, shape: Tuple[int, ...], dtype: np.dtype, what: str) -> None:
    """InvalidArgument unless the array has the shape and the type that the key was initialised with."""
    type_flag(key, array)
    if tuple(array.shape) != shape:
        raise InvalidArgument(
            f"key {key!r}: {what} has shape {tuple(array.shape)}, but the key was initialised with shape {shape}"
        )
    if np.dtype(array.dtype) != dtype:
        raise InvalidArgument(
            f"key {key!r}: {what} has type {np.dtype(array.dtype)}, but the key was initialised with type {dtype}"
        )


def on_cpu(array: NDArray) -> bool:
    """Whether the core can read and write the array's memory itself."""
    return array.context.device_type in _CPU_DEVICES


def handle(array: NDArray) -> int:
    """The NDArrayHandle as the core takes it."""
    return array.handle.value


def cpu_copy(array: NDArray) -> NDArray:
    """A new array in CPU memory; the copy is asynchronous."""
    with autograd.pause():
        return array.as_nd_ndarray().copyto(mx.cpu())


def reduce_to_cpu(arrays: Sequence[NDArray]) -> NDArray:
    """One array in CPU memory that holds the sum. A single one that is there already is returned as it is."""
    if len(arrays) == 1:
        return arrays[0] if on_cpu(arrays[0]) else cpu_copy(arrays[0])
    with autograd.pause():
        total = cpu_copy(arrays[0])
        for array in arrays[1:]:
            total += array.as_nd_ndarray().as_in_context(mx.cpu())
        return total


def empty_on_cpu(shape: Tuple[int, ...], dtype: np.dtype) -> NDArray:
    """A new array in CPU memory, to be written."""
    with autograd.pause():
        return mx.nd.empty(shape or (1,), mx.cpu(), dtype=dtype)


def copy_to_all(source: NDArray, targets: Sequence[NDArray]) -> None:
    """Copies on MXNet's engine, after whatever writes the source."""
    with autograd.pause():
        for target in targets:
            source.as_nd_ndarray().copyto(target.as_nd_ndarray())
