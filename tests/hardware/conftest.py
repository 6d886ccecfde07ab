"""Tests that need RDMA devices: scripts/soft-roce -n 3 -- .venv/bin/python -m pytest tests/hardware"""

import shutil
import subprocess
from pathlib import Path

import pytest
from devices import find_devices, packets_sent

FOLDER = Path(__file__).parent


def pytest_configure(config):
    config.addinivalue_line("markers", "siw: has a meaning over iWARP devices too")


def pytest_collection_modifyitems(items):
    if find_devices():
        return
    skip = pytest.mark.skip(reason="no RDMA device on this machine; scripts/soft-roce runs a command where there are some")
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(skip)


@pytest.fixture
def devices():
    """The RDMA devices of this machine; two at least."""
    found = find_devices()
    if len(found) < 2:
        pytest.skip("needs two RDMA devices")
    return found


@pytest.fixture
def rxe_devices(devices):
    """Soft-RoCE alone: what iWARP has no counterpart of."""
    found = [device for device in devices if device.is_rxe]
    if len(found) < 2:
        pytest.skip("needs two Soft-RoCE devices")
    return found


@pytest.fixture(autouse=True)
def _count_packets(record_property):
    """Leaves in the JUnit file what the test moved through the devices, by their own count."""
    before = packets_sent()
    yield
    record_property("rdma_packets", packets_sent() - before)


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory):
    """compile_c(name): the path of the program that tests/hardware/NAME.c makes."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")

    def build(name):
        program = tmp_path_factory.mktemp("c") / name
        command = [compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, FOLDER / f"{name}.c", "-libverbs"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        assert done.returncode == 0, done.stdout.decode()
        return program

    return build
