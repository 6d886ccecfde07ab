"""The include graph and the import graph: a layer may use only the layers that the design allows it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# What each folder of cpp/ may include besides itself (docs/architecture.md shows the same as a picture).
ALLOWED = {
    "base": set(),
    "wire": {"base"},
    "fabric": {"base", "wire"},
    "cluster": {"base", "wire"},
    "store": {"base", "wire", "fabric"},
    "node": {"base", "wire", "fabric", "cluster", "store"},
    "engine": {"base"},
    "bindings": {"base", "wire", "store", "node", "fabric", "engine"},
    "bench": {"base", "store", "fabric"},
}
# Folders inside fabric/ that others must not reach into: only the contract and the factory are public.
PRIVATE_FABRICS = ("fabric/tcp/", "fabric/shm/", "fabric/verbs/", "fabric/bootstrap/")

# Only these Python files may import mxnet; the rest of the package works without it.
MAY_IMPORT_MXNET = {"kvstore.py", "optimizer.py", "_arrays.py", "_session.py", "_lifecycle.py"}
MAY_READ_ENVIRONMENT = {"config.py"}


def sources():
    return sorted(p for p in (ROOT / "cpp").rglob("*") if p.suffix in (".cc", ".h"))


def includes(path):
    return re.findall(r'^\s*#include\s+["<]([^">]+)[">]', path.read_text(), flags=re.MULTILINE)


def layer_of(path):
    return path.relative_to(ROOT / "cpp").parts[0]


def forbidden_edges(paths):
    found = []
    for path in paths:
        layer = layer_of(path)
        for name in includes(path):
            target = name.split("/")[0]
            if target in ALLOWED and target != layer and target not in ALLOWED[layer]:
                found.append(f"{path.relative_to(ROOT)} includes {name}")
            bare = layer == "bench" and name.startswith("fabric/verbs/")  # its bound is the bare device
            if layer != "fabric" and name.startswith(PRIVATE_FABRICS) and not bare:
                found.append(f"{path.relative_to(ROOT)} reaches into {name}")
    return found


def test_every_folder_of_the_core_has_a_rule():
    folders = {p.name for p in (ROOT / "cpp").iterdir() if p.is_dir()}
    assert folders == set(ALLOWED)
    assert len(sources()) > 20


def test_no_layer_includes_what_it_may_not_know():
    assert forbidden_edges(sources()) == []


def test_verbs_headers_stay_in_the_verbs_folder():
    offenders = [
        str(path.relative_to(ROOT))
        for path in sources()
        if any(name.startswith(("infiniband/", "rdma/")) for name in includes(path))
        and "fabric/verbs" not in str(path)
    ]
    assert offenders == []


@pytest.mark.parametrize("layer", ["store", "cluster", "wire"])
def test_pure_layers_do_no_input_or_output(layer):
    impure = re.compile(r"#include <(sys/socket|sys/epoll|netinet|unistd|poll|thread|mutex|chrono|fcntl)")
    offenders = [str(p) for p in sources() if layer_of(p) == layer and impure.search(p.read_text())]
    assert offenders == []


def imported_modules(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module.split(".")[0]


def package_files():
    return sorted((ROOT / "mxrdma").rglob("*.py"))


def test_only_the_store_and_the_bench_import_mxnet():
    offenders = [
        str(path.relative_to(ROOT))
        for path in package_files()
        if "mxnet" in set(imported_modules(path))
        and path.name not in MAY_IMPORT_MXNET
        and "bench" not in path.parts
    ]
    assert offenders == []


def test_only_config_reads_the_environment():
    reads = re.compile(r"os\.environ\.get\(|os\.getenv\(|os\.environ\[[^\]]+\](?!\s*=)")
    offenders = [
        str(path.relative_to(ROOT))
        for path in package_files()
        if reads.search(path.read_text()) and path.name not in MAY_READ_ENVIRONMENT
    ]
    assert offenders == []
