"""Wrong entries of the GID table: said with both ends' entries, soon, and not by a hang."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
import job

pytest.importorskip("mxnet")
pytest.importorskip("mxrdma._core")

LIMIT_S = 240
pytestmark = pytest.mark.timeout(LIMIT_S + 30)
PUSH = """
kv = mx.kv.create("dist_rdma")
rank, size = kv.rank, kv.num_workers
kv.init(0, mx.nd.zeros((1000,)))
out = mx.nd.zeros((1000,))
kv.pushpull(0, mx.nd.ones((1000,)), out=out)
result["sum"] = float(out[999].asscalar())
save()
"""


def run(folder, device, before, **options):
    return job.run(
        folder,
        before + PUSH,
        fabric="verbs",
        environment={"MXRDMA_DEVICE": device.name, **options.pop("environment", {})},
        timeout=LIMIT_S,
        create=False,
        ok=False,
        **options,
    )


def link_local(device):
    return next(index for index, (gid, kind) in sorted(device.gids().items()) if gid.startswith("fe80") and "v2" in kind)


def test_an_entry_that_is_not_there(tmp_path, rxe_devices):
    device = rxe_devices[-1]
    done = run(tmp_path, device, "", environment={"MXRDMA_GID_INDEX": "99"}, workers=1)
    assert done.returncode != 0
    assert "GID index 99" in done.output and device.name in done.output, done.output


def test_entries_that_do_not_fit(tmp_path, rxe_devices):
    """Worker 1 uses its link-local entry, the server the one of its address."""
    device = rxe_devices[-1]
    index = link_local(device)
    done = run(tmp_path, device, f"if os.environ['MXRDMA_RANK'] == '1': os.environ['MXRDMA_GID_INDEX'] = '{index}'\n")
    assert done.returncode != 0
    told = [line for line in done.output.splitlines() if "GID index" in line]
    assert any(f"GID index {index} " in line and line.count("GID index") == 2 for line in told), done.output
    assert "fe80::" in done.output and "MXRDMA_GID_INDEX" in done.output, done.output


def test_ipv6_entries_at_all_ends(tmp_path, rxe_devices):
    found = [
        (device, index)
        for device in rxe_devices
        for index, (gid, kind) in sorted(device.gids().items())
        if gid.startswith("fd00") and "v2" in kind
    ]
    if not found:
        pytest.skip("no device with a unique local IPv6 address; scripts/soft-roce --ipv6 has some")
    device, index = found[0]
    done = run(tmp_path, device, "", environment={"MXRDMA_GID_INDEX": str(index)}, workers=1)
    assert done.returncode == 0, done.output
    assert [result["sum"] for result in done] == [1]
    assert "GID fd00:" in done.output, done.output
