"""Optimizers on the servers: what a worker sends once, what it sends with each push, what a server runs.

MXNet's own SGD, NAG and Adam run in the core, on slices of a key. Every other optimizer, and every updater function, is
pickled by value and runs in the server's Python on whole tensors. In both cases the learning rate, the weight decay and
the rescaling come with each push from the worker's live optimizer object, so that schedules, `set_learning_rate` and
`lr_mult` work as in a single process.
"""

import copy
import io
import math
import os
import site
import sys
import sysconfig
from types import ModuleType
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

from mxrdma import _core, errors

# By MXNet's type flags.
_DTYPES = (np.float32, np.float64, np.float16, np.uint8, np.int32, np.int8, np.int64)
_RATE_METHODS = ("_get_lr", "_get_lrs", "_get_wd", "_get_wds")


class ParameterView:
    """Stands for a gluon.Parameter in `param_dict` on a server: its multipliers and its looks, without its data."""

    def __init__(self, name: str, shape: Any, dtype: str, lr_mult: float, wd_mult: float) -> None:
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.lr_mult = lr_mult
        self.wd_mult = wd_mult


class RateFromWorker:
    """Stands for the learning rate schedule on a server: the worker computes it and sends the value with each push."""

    def __init__(self, base_lr: float) -> None:
        self.base_lr = base_lr

    def __call__(self, num_update: int) -> float:
        return self.base_lr


# ---- in the worker


def _is_plain(optimizer: Any, klass: type) -> bool:
    """Exactly MXNet's class, with nothing set on the object that the class itself does not set."""
    return type(optimizer) is klass and set(vars(optimizer)) == set(vars(klass()))


def spec_for(optimizer: Any) -> _core.OptimizerSpec:
    """What the servers need to run this mx.optimizer.Optimizer. Raises Unsupported if it cannot be pickled."""
    import mxnet as mx

    spec = _core.OptimizerSpec()
    spec.name = type(optimizer).__name__
    spec.multi_precision = bool(optimizer.multi_precision)
    spec.clip_gradient = float(optimizer.clip_gradient or -1.0)
    momentum = float(getattr(optimizer, "momentum", 0.0) or 0.0)
    if _is_plain(optimizer, mx.optimizer.SGD) and momentum >= 0:
        spec.kind, spec.momentum = "sgd", momentum
    elif _is_plain(optimizer, mx.optimizer.NAG) and momentum >= 0:
        spec.kind, spec.momentum = "nag", momentum
    elif _is_plain(optimizer, mx.optimizer.Adam):
        spec.kind = "adam"
        spec.beta1, spec.beta2, spec.epsilon = optimizer.beta1, optimizer.beta2, optimizer.epsilon
    else:
        spec.kind = "python"
        spec.pickle = _pickle_optimizer(optimizer)
    return spec


def spec_for_function(updater: Callable[..., None]) -> _core.OptimizerSpec:
    """What the servers need to run updater(key, gradient, weight)."""
    spec = _core.OptimizerSpec()
    spec.kind = "python"
    spec.name = getattr(updater, "__qualname__", type(updater).__name__)
    try:
        spec.pickle = _dumps({"updater": updater})
    except Exception as error:
        raise errors.Unsupported(f"the updater {spec.name} cannot be sent to the servers: {error}") from error
    return spec


def folds_multipliers(optimizer: Any) -> bool:
    """Whether the class takes its rates in MXNet's way, so that the worker can work the multipliers in."""
    import mxnet as mx

    return all(getattr(type(optimizer), name) is getattr(mx.optimizer.Optimizer, name) for name in _RATE_METHODS)


class LiveOptimizer:
    """The worker's optimizer object: gives each push its hyper-parameters."""

    def __init__(self, optimizer: Any, kind: str) -> None:
        self.optimizer = optimizer
        self._kind = kind
        self._folds = kind != "python" or folds_multipliers(optimizer)

    @property
    def element_wise(self) -> bool:
        """Whether it runs in the core, which updates floating-point keys only."""
        return self._kind != "python"

    def next(self, index: int) -> _core.Hyper:
        """Counts an update of the key with this index."""
        optimizer = self.optimizer
        optimizer._update_count(index)
        count = optimizer._index_update_count[index]
        if self._folds:
            lr, wd = optimizer._get_lr(index), optimizer._get_wd(index)
        else:
            lr, wd = optimizer.learning_rate, optimizer.wd
        if self._kind == "adam":
            lr *= math.sqrt(1.0 - optimizer.beta2**count) / (1.0 - optimizer.beta1**count)
        return _core.Hyper(lr, wd, optimizer.rescale_grad, count)


def _parameter_views(optimizer: Any) -> Dict[Any, ParameterView]:
    folds = folds_multipliers(optimizer)
    views = {}
    for index, parameter in optimizer.param_dict.items():
        views[index] = ParameterView(
            str(getattr(parameter, "name", index)),
            getattr(parameter, "shape", None),
            str(getattr(parameter, "dtype", "float32")),
            1.0 if folds else parameter.lr_mult,
            1.0 if folds else parameter.wd_mult,
        )
    return views


def _pickle_optimizer(optimizer: Any) -> bytes:
    clone = copy.copy(optimizer)
    # The schedule stays here: its value goes along with each push, so that it may be anything callable.
    if clone.lr_scheduler is not None:
        clone.lr_scheduler = RateFromWorker(float(optimizer.learning_rate))
    if folds_multipliers(optimizer):
        clone.lr_mult, clone.wd_mult = {}, {}
    payload = {"optimizer": clone, "parameters": _parameter_views(optimizer)}
    try:
        # cloudpickle would send the contents of an open file in its place: not what its owner expects.
        files = [name for name, value in vars(clone).items() if isinstance(value, io.IOBase)]
        if files:
            raise TypeError("open files stay in their process")
        return _dumps(payload)
    except Exception as error:
        name = type(optimizer).__name__
        culprits = _unpicklable_attributes(clone)
        what = f"its attribute {', '.join(culprits)} cannot be pickled" if culprits else "it cannot be pickled"
        raise errors.Unsupported(
            f"the optimizer {name} cannot be sent to the servers: {what} ({error}). Remove it from the optimizer before "
            "set_optimizer, or leave it out of __getstate__"
        ) from error


def _unpicklable_attributes(optimizer: Any) -> List[str]:
    culprits = []
    for name, value in vars(optimizer).items():
        try:
            if isinstance(value, io.IOBase):
                raise TypeError("an open file")
            _dumps(value)
        except Exception as error:
            culprits.append(f"{name!r} ({type(value).__name__}: {error})")
    return culprits


def _installed_prefixes() -> Tuple[str, ...]:
    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += site.getsitepackages() + [site.getusersitepackages()]
    return tuple(os.path.realpath(path) + os.sep for path in found)


def _modules_of_the_script() -> List[ModuleType]:
    """Modules that servers may not find: neither of Python, nor installed, nor ours."""
    prefixes = _installed_prefixes()
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or name.split(".")[0] in ("__main__", "__mp_main__", "mxrdma", "mxnet"):
            continue
        if getattr(module, "__name__", None) == name and not os.path.realpath(file).startswith(prefixes):
            found.append(module)
    return found


def _dumps(value: Any) -> bytes:
    import cloudpickle

    registered = []
    already = cloudpickle.list_registry_pickle_by_value()
    for module in _modules_of_the_script():
        if module.__name__ not in already:
            cloudpickle.register_pickle_by_value(module)
            registered.append(module)
    try:
        return cloudpickle.dumps(value)
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


# ---- in the server


def make_updater(name: str, pickle: bytes) -> Callable[..., None]:
    """What the core calls on a server for each complete round of a key: see _core.Server."""
    os.environ.pop("DMLC_ROLE", None)  # with the role of a native server, the import below would run one and exit
    import cloudpickle
    import mxnet as mx

    payload = cloudpickle.loads(pickle)
    if "updater" in payload:
        return _call_function(payload["updater"])
    optimizer = payload["optimizer"]
    optimizer.param_dict = payload["parameters"]
    return _call_optimizer(optimizer, mx.optimizer.get_updater(optimizer))


def _call_optimizer(optimizer: Any, updater: Callable[..., None]) -> Callable[..., None]:
    def update(
        key: str, index: int, dtype: int, shape: Tuple[int, ...], gradient: Any, weights: Any, hyper: _core.Hyper
    ) -> None:
        if getattr(optimizer, "lr_scheduler", None) is not None:
            optimizer.lr_scheduler.base_lr = hyper.lr
        else:
            optimizer.lr = hyper.lr
        optimizer.wd = hyper.wd
        optimizer.rescale_grad = hyper.rescale_grad
        _on_arrays(lambda grad, weight: updater(index, grad, weight), dtype, shape, gradient, weights)

    return update


def _call_function(function: Callable[..., None]) -> Callable[..., None]:
    def update(
        key: str, index: int, dtype: int, shape: Tuple[int, ...], gradient: Any, weights: Any, hyper: _core.Hyper
    ) -> None:
        user_key = index if key.startswith("i:") else key[2:]
        _on_arrays(lambda grad, weight: function(user_key, grad, weight), dtype, shape, gradient, weights)

    return update


def _on_arrays(function: Callable[..., None], dtype: int, shape: Tuple[int, ...], gradient: Any, weights: Any) -> None:
    """Copies in and out, because an updater may keep the arrays that it was given."""
    import mxnet as mx

    numpy_type = _DTYPES[dtype]
    grad = mx.nd.array(np.frombuffer(gradient, numpy_type).reshape(shape or (1,)), dtype=numpy_type)
    stored = np.frombuffer(weights, numpy_type)
    weight = mx.nd.array(stored.reshape(shape or (1,)), dtype=numpy_type)
    function(grad, weight)
    stored[:] = weight.asnumpy().reshape(-1)
    del stored  # the core takes the view back
