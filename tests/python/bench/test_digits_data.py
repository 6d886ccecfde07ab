"""The demo's data: IDX files against bytes written by hand, and the fixed split."""

import gzip
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))

import digits_data


def idx(array, code=0x08):
    return bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder, compressed, train=6, test=3):
    random = np.random.RandomState(0)
    arrays = {}
    for part, count in (("train", train), ("t10k", test)):
        arrays[f"{part}-images-idx3-ubyte"] = random.randint(0, 256, (count, 28, 28)).astype(np.uint8)
        arrays[f"{part}-labels-idx1-ubyte"] = random.randint(0, 10, count).astype(np.uint8)
    for name, array in arrays.items():
        if compressed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (folder / name).write_bytes(idx(array))
    return arrays


@pytest.mark.parametrize("compressed", [False, True])
def test_mnist_files_are_read(tmp_path, compressed):
    arrays = write_mnist(tmp_path, compressed)
    (images, labels), (test_images, test_labels) = digits_data.load_mnist(tmp_path)
    assert images.shape == (6, 1, 28, 28) and images.dtype == np.float32
    np.testing.assert_array_equal(np.rint(images[:, 0] * 255), arrays["train-images-idx3-ubyte"])
    np.testing.assert_array_equal(labels, arrays["train-labels-idx1-ubyte"])
    np.testing.assert_array_equal(test_labels, arrays["t10k-labels-idx1-ubyte"])
    assert len(test_images) == 3


@pytest.mark.parametrize("name", list(digits_data.MNIST_FILES.values()))
def test_a_missing_file_is_named(tmp_path, name):
    write_mnist(tmp_path, compressed=False)
    (tmp_path / name).unlink()
    with pytest.raises(digits_data.DataError, match=name):
        digits_data.load_mnist(tmp_path)


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "not an IDX file"),
        (b"\x89PNG\r\n", "not an IDX file"),
        (idx(np.zeros((2, 2), np.float32), code=0x0D), "not an IDX file of unsigned bytes"),
        (bytes([0, 0, 8, 3, 0, 0]), "ends within its header"),
        (idx(np.zeros((3, 4), np.uint8))[:-1], "holds 11 bytes instead of the 12"),
        (idx(np.zeros((3, 4), np.uint8)) + b"x", "holds 13 bytes"),
    ],
)
def test_a_broken_file_is_refused(tmp_path, content, reason):
    path = tmp_path / "broken"
    path.write_bytes(content)
    with pytest.raises(digits_data.DataError, match=reason):
        digits_data.read_idx(path)


def test_a_broken_gz_is_refused(tmp_path):
    path = tmp_path / "broken.gz"
    path.write_bytes(gzip.compress(idx(np.zeros((3, 4), np.uint8)))[:-9])
    with pytest.raises(digits_data.DataError, match="cannot be read"):
        digits_data.read_idx(path)


def test_images_and_labels_must_belong_together(tmp_path):
    write_mnist(tmp_path, compressed=False)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(2, np.uint8)))
    with pytest.raises(digits_data.DataError, match="do not belong together"):
        digits_data.load_mnist(tmp_path)


def test_the_split_of_the_bundled_digits_follows_the_seed():
    pytest.importorskip("sklearn")
    (train, train_labels), (test, test_labels) = digits_data.load_digits(7)
    assert train.shape == (1438, 1, 8, 8) and test.shape == (359, 1, 8, 8)
    assert len(train_labels) == 1438 and len(test_labels) == 359
    assert train.min() >= 0 and train.max() == 1
    again = digits_data.load_digits(7)
    np.testing.assert_array_equal(again[1][0], test)
    assert not np.array_equal(digits_data.load_digits(8)[1][0], test)
