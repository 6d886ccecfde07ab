"""What is measured: sizes, columns and shape lists."""

import pytest

from mxrdma.bench import cases


@pytest.mark.parametrize(
    "text, size", [("4096", 4096), ("4KiB", 4096), (" 64 MiB ", 64 << 20), ("1gib", 1 << 30), ("8B", 8)]
)
def test_sizes_are_read(text, size):
    assert cases.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "4KB", "-4KiB", "0", "6", "1.5MiB", "8GiB", "MiB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError):
        cases.parse_size(text)


@pytest.mark.parametrize("size", [4, 4096, 65536, 3 << 20, 1 << 30, 4100])
def test_names_of_sizes_are_exact(size):
    assert cases.parse_size(cases.size_name(size)) == size


def test_default_sizes_go_from_4_kib_to_64_mib_by_fours():
    sizes = [case.bytes for case in cases.parse_sizes(cases.DEFAULT_SIZES)]
    assert sizes == [4096 * 4**power for power in range(8)]


def test_columns_come_in_the_order_of_the_options():
    columns = cases.parse_columns("dist_rdma,dist_sync,dist_sync:ipc", "shm,tcp", "none,sgd")
    assert [column.name for column in columns[:4]] == [
        "dist_rdma:shm",
        "dist_rdma:tcp",
        "dist_sync:tcp",
        "dist_sync:ipc",
    ]
    assert [column.updater for column in columns] == ["none"] * 4 + ["sgd"] * 4


@pytest.mark.parametrize(
    "arguments, word",
    [
        (("dist_async", "shm", "none"), "dist_async"),
        (("dist_rdma", "ib", "none"), "ib"),
        (("dist_rdma", "", "none"), "fabric"),
        (("dist_rdma", "shm", "adam"), "adam"),
    ],
)
def test_a_wrong_word_is_named(arguments, word):
    with pytest.raises(ValueError, match=word):
        cases.parse_columns(*arguments)


@pytest.mark.parametrize(
    "name, arrays, elements, first, last",
    [
        # torchvision's models have the same 25,557,032 and 138,357,544 parameters; gluon's resnet50_v1 adds a bias to
        # the 1 x 1 convolutions of its bottlenecks: 18,880 of them.
        ("resnet50", 193, 25_557_032 + 18_880, (64, 3, 7, 7), (1000,)),
        ("vgg16", 32, 138_357_544, (64, 3, 3, 3), (1000,)),
    ],
)
def test_shape_lists_are_those_of_the_model_zoo(name, arrays, elements, first, last):
    pytest.importorskip("mxnet")
    shapes = cases.model_shapes(name)
    assert len(shapes) == arrays
    assert sum(cases.elements_of(shape) for shape in shapes) == elements
    assert (shapes[0], shapes[-1]) == (first, last)


def test_an_unknown_model_is_named():
    with pytest.raises(ValueError, match="alexnet"):
        cases.parse_models("alexnet")
