"""What a benchmark moves: the arrays of each case, and the columns that it is measured for."""

import dataclasses
import re
from typing import List, Sequence, Tuple

Shape = Tuple[int, ...]

FLOAT_BYTES = 4
DEFAULT_SIZES = "4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB"
MODELS = {"resnet50": "resnet50_v1", "vgg16": "vgg16"}
MAX_SIZE_BYTES = 1 << 32

_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


@dataclasses.dataclass(frozen=True)
class Case:
    """One list of float32 arrays that are pushed and pulled together."""

    name: str
    shapes: Tuple[Shape, ...]

    @property
    def elements(self) -> int:
        return sum(elements_of(shape) for shape in self.shapes)

    @property
    def bytes(self) -> int:
        """One way, one worker."""
        return self.elements * FLOAT_BYTES


@dataclasses.dataclass(frozen=True)
class Column:
    """A store as it is started: `fabric` for dist_rdma, `tuned` (ipc and a tuned malloc) for dist_sync."""

    store: str
    fabric: str
    updater: str

    @property
    def name(self) -> str:
        return f"{self.store}:{self.fabric}"


def elements_of(shape: Sequence[int]) -> int:
    """The number of elements of an array of this shape."""
    product = 1
    for axis in shape:
        product *= axis
    return product


def parse_size(text: str) -> int:
    """Bytes of "4096", "4KiB", "64 MiB"; ValueError for anything else, and for what is no whole number of floats."""
    match = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", text)
    if match is None or match.group(2).lower() not in _UNITS:
        raise ValueError(f"'{text.strip()}' is not a size; write for example 4096, 4KiB or 64MiB")
    size = int(match.group(1)) * _UNITS[match.group(2).lower()]
    if size < FLOAT_BYTES or size % FLOAT_BYTES or size > MAX_SIZE_BYTES:
        raise ValueError(f"'{text.strip()}' must be a multiple of {FLOAT_BYTES} bytes and at most 4GiB")
    return size


def size_name(size: int) -> str:
    """The shortest exact name: 65536 is "64KiB"."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


def _words(text: str) -> List[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def parse_sizes(text: str) -> List[Case]:
    """A case of one array for each size in a list like "4KiB,64MiB"."""
    return [Case(size_name(size), ((size // FLOAT_BYTES,),)) for size in map(parse_size, _words(text))]


def parse_models(text: str) -> List[Case]:
    """A case for each model in a list like "resnet50,vgg16"; needs MXNet."""
    cases = []
    for name in _words(text):
        if name not in MODELS:
            raise ValueError(f"'{name}' is not a model; choose from {', '.join(MODELS)}")
        cases.append(Case(name, tuple(model_shapes(name))))
    return cases


def model_shapes(name: str) -> List[Shape]:
    """Shapes of the arrays that have a gradient, as gluon's model zoo says them, for images of 224 x 224."""
    import mxnet as mx
    from mxnet.gluon.model_zoo import vision

    network = getattr(vision, MODELS[name])()
    symbol = network(mx.sym.var("data"))
    shapes, _, _ = symbol.infer_shape(data=(1, 3, 224, 224))
    by_name = dict(zip(symbol.list_arguments(), shapes))
    parameters = network.collect_params()
    return [tuple(by_name[key]) for key, value in parameters.items() if value.grad_req != "null"]


def parse_columns(stores: str, fabrics: str, updaters: str) -> List[Column]:
    """Columns in the order of the options; dist_rdma once for each fabric."""
    columns = []
    for updater in _choices(updaters, ("none", "sgd"), "updater"):
        for store in _choices(stores, ("dist_rdma", "dist_sync", "dist_sync:ipc"), "store"):
            if store == "dist_rdma":
                for fabric in _choices(fabrics, ("shm", "tcp", "verbs", "auto"), "fabric"):
                    columns.append(Column("dist_rdma", fabric, updater))
            else:
                columns.append(Column("dist_sync", "ipc" if store.endswith(":ipc") else "tcp", updater))
    return columns


def _choices(text: str, allowed: Sequence[str], what: str) -> List[str]:
    words = _words(text)
    for word in words:
        if word not in allowed:
            raise ValueError(f"'{word}' is not a {what}; choose from {', '.join(allowed)}")
    if not words:
        raise ValueError(f"no {what} given; choose from {', '.join(allowed)}")
    return list(dict.fromkeys(words))
