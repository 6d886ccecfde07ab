"""Handwritten digits: scikit-learn's bundled 8 x 8 images, or MNIST's IDX files where the user has them."""

import gzip
import struct
from pathlib import Path
from typing import Tuple

import numpy as np

HELD_OUT = 0.2
MNIST_FILES = {
    "train images": "train-images-idx3-ubyte",
    "train labels": "train-labels-idx1-ubyte",
    "test images": "t10k-images-idx3-ubyte",
    "test labels": "t10k-labels-idx1-ubyte",
}
UNSIGNED_BYTE = 0x08  # the IDX format's code for the type of the elements

Split = Tuple[np.ndarray, np.ndarray]


class DataError(Exception):
    """A file is missing or is not what its name says."""


def read_idx(path: Path) -> np.ndarray:
    """The array in an IDX file of unsigned bytes, plain or .gz (format: yann.lecun.com/exdb/mnist)."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != UNSIGNED_BYTE:
        raise DataError(f"{path} is not an IDX file of unsigned bytes")
    axes = content[3]
    header = 4 + 4 * axes
    if len(content) < header:
        raise DataError(f"{path} ends within its header")
    shape = struct.unpack(f">{axes}I", content[4:header])
    expected = int(np.prod(shape, dtype=np.int64))
    if len(content) - header != expected:
        raise DataError(f"{path} holds {len(content) - header} bytes instead of the {expected} of shape {shape}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def find_idx(folder: Path, name: str) -> Path:
    """The file, plain or .gz; MNIST is also handed round with a dot in the name (train-images.idx3-ubyte)."""
    for base in (name, name.replace("-idx", ".idx")):
        for path in (folder / base, folder / f"{base}.gz"):
            if path.is_file():
                return path
    raise DataError(f"{folder / name} (or {name}.gz) is missing; the four files of MNIST are needed in {folder}")


def load_mnist(folder: Path) -> Tuple[Split, Split]:
    """Training and test set: images (N, 1, 28, 28) in 0..1 and labels (N,), float32."""
    paths = {what: find_idx(folder, name) for what, name in MNIST_FILES.items()}
    arrays = {what: read_idx(path) for what, path in paths.items()}
    splits = []
    for part in ("train", "test"):
        images, labels = arrays[f"{part} images"], arrays[f"{part} labels"]
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise DataError(
                f"{paths[f'{part} images']} has shape {images.shape} and {paths[f'{part} labels']} has shape "
                f"{labels.shape}: they do not belong together"
            )
        splits.append((images[:, None].astype(np.float32) / 255.0, labels.astype(np.float32)))
    return splits[0], splits[1]


def load_digits(seed: int) -> Tuple[Split, Split]:
    """Training and held-out set of scikit-learn's 1797 images: (N, 1, 8, 8) in 0..1; the split follows the seed."""
    from sklearn.datasets import load_digits as bundled

    data = bundled()
    images = (data.images[:, None] / 16.0).astype(np.float32)
    labels = data.target.astype(np.float32)
    order = np.random.RandomState(seed).permutation(len(images))
    held_out = int(len(images) * HELD_OUT)
    test, train = order[:held_out], order[held_out:]
    return (images[train], labels[train]), (images[test], labels[test])
