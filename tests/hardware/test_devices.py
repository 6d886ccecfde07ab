"""mxrdma-doctor where RDMA devices are: Soft-RoCE in the guest, or hardware.

What changes the machine (permissions, addresses) is done only where the devices are rxe's, and undone.
"""

import contextlib
import ipaddress
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

CLASS = Path("/sys/class/infiniband")
LIMIT_S = 120
SECOND_OPINION = Path(__file__).resolve().parents[2] / "mxrdma" / "doctor" / "second_opinion.py"


def names():
    return sorted(path.name for path in CLASS.iterdir()) if CLASS.is_dir() else []


pytestmark = pytest.mark.skipif(not names(), reason="no RDMA device here; scripts/soft-roce runs this in a guest")


@pytest.fixture
def soft_roce():
    """Two rxe devices in a machine of our own, whose files and addresses may be changed."""
    if os.geteuid() != 0 or not {"rxe1", "rxe2"} <= set(names()):
        pytest.skip("changes permissions or addresses: only as root with rxe1 and rxe2, as scripts/soft-roce has them")


def doctor(*arguments, before=()):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MXRDMA_")}
    done = subprocess.run(
        [*before, sys.executable, "-m", "mxrdma.doctor", "--json", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, timeout=LIMIT_S, check=False,
    )
    assert done.stdout, done.stderr.decode()
    told = json.loads(done.stdout)
    assert told["exit_code"] == done.returncode
    return told


def by_name(told):
    return {device["name"]: device for device in told["rdma"]["devices"]}


def kernel_gids(device, port):
    """The GID table as the kernel's files have it: index -> (16 bytes, type)."""
    folder = CLASS / device / "ports" / str(port)
    table = {}
    for file in (folder / "gids").iterdir():
        gid = ipaddress.IPv6Address(file.read_text().strip()).packed
        if any(gid):
            table[int(file.name)] = (gid.hex(), (folder / "gid_attrs" / "types" / file.name).read_text().strip())
    return table


def test_devices_and_gid_tables_equal_the_kernels():
    told = doctor()
    assert sorted(by_name(told)) == names()
    compared = 0
    for name, device in by_name(told).items():
        assert [str(p["number"]) for p in device["ports"]] == sorted(os.listdir(CLASS / name / "ports"), key=int)
        for port in device["ports"]:
            state = (CLASS / name / "ports" / str(port["number"]) / "state").read_text().split(": ")[1].strip()
            assert port["state"] == state
            told_gids = {gid["index"]: gid for gid in port["gids"]}
            table = kernel_gids(name, port["number"])
            assert sorted(told_gids) == sorted(table)
            for index, (raw, kind) in table.items():
                assert told_gids[index]["raw"] == raw
                if port["link_layer"] == "Ethernet" and device["transport"] != "iWARP":
                    assert (told_gids[index]["type"] == "RoCE v2") == (kind == "RoCE v2")
                compared += 1
    assert compared > 0


def test_the_default_is_the_entry_of_the_address(soft_roce):
    for name, address in (("rxe1", "10.77.0.1"), ("rxe2", "10.77.0.2")):
        rail = doctor("--address", address)["rdma"]["rails"]
        assert [(one["device"], one["gid"], one["type"]) for one in rail] == [(name, address, "RoCE v2")]
    told = doctor("--address", "10.77.0.99")
    assert told["exit_code"] == 2
    assert "10.77.0.99" in told["rdma"]["rails_problem"] and "rxe2 port 1" in told["rdma"]["rails_problem"]


def test_forced_entries(soft_roce):
    rail = doctor("--address", "10.77.0.1", "--gid-index", "0")["rdma"]["rails"][0]
    assert rail["gid_index"] == 0 and rail["gid"].startswith("fe80:") and "link-local" in rail["why"]
    told = doctor("--address", "10.77.0.1", "--gid-index", "99")
    assert told["exit_code"] == 2
    for word in ("99", "rxe1 port 1", "10.77.0.1", "fe80:"):
        assert word in told["rdma"]["rails_problem"], told["rdma"]["rails_problem"]


def test_two_devices_by_name_are_two_rails(soft_roce):
    rails = doctor("--address", "10.77.0.1", "--device", "rxe2:1,rxe1:1")["rdma"]["rails"]
    assert [(rail["device"], rail["port"], rail["gid"]) for rail in rails] == [
        ("rxe2", 1, "10.77.0.2"), ("rxe1", 1, "10.77.0.1"),
    ]
    assert "rxe9" in doctor("--device", "rxe9")["rdma"]["rails_problem"]


NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
# For files a root without these capabilities is a user like others; it can still read its own Python.
NO_OVERRIDE = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


@pytest.mark.parametrize("user, mode", [(NOBODY, 0o600), (NO_OVERRIDE, 0)], ids=["nobody", "no-override"])
def test_an_unreadable_device_leaves_the_other_usable(soft_roce, user, mode):
    if subprocess.run([*user, sys.executable, "-c", "import mxrdma._core"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("this user cannot reach this Python")
    file = Path(by_name(doctor())["rxe2"]["device_file"])
    before = file.stat().st_mode
    file.chmod(mode)
    try:
        told = doctor("--address", "10.77.0.1", before=user)
        bad = doctor("--device", "rxe2", before=user)
    finally:
        file.chmod(before)
    assert told["exit_code"] == 1 and told["rdma"]["rails"][0]["device"] == "rxe1"
    rxe2 = by_name(told)["rxe2"]
    assert rxe2["state"] == "no permission" and str(file) in rxe2["problem"]
    assert rxe2["ports"][0]["active"] and rxe2["ports"][0]["gids"]  # still listed with all that sysfs has
    assert bad["exit_code"] == 2 and str(file) in bad["rdma"]["rails_problem"]


def test_a_missing_provider_is_named(soft_roce, tmp_path):
    driver = Path("/etc/libibverbs.d/rxe.driver")
    if not driver.exists():
        pytest.skip(f"{driver} is not there: this libibverbs finds its providers in another way")
    (tmp_path / "empty").touch()
    hide = ["unshare", "--mount", "sh", "-c", f'mount --bind {tmp_path}/empty {driver} && exec "$@"', "sh"]
    told = doctor(before=hide)
    assert told["exit_code"] == 2
    for device in told["rdma"]["devices"]:
        assert device["state"] == "no provider library" and "ibverbs-providers" in device["mend"], device


@contextlib.contextmanager
def only_ipv6(interface, old, new):
    def ip(*arguments):
        subprocess.run(["ip", *arguments], check=True)

    ip("addr", "del", f"{old}/24", "dev", interface)
    ip("addr", "add", f"{new}/64", "dev", interface, "nodad")
    try:
        yield
    finally:
        ip("addr", "del", f"{new}/64", "dev", interface)
        ip("addr", "add", f"{old}/24", "dev", interface)


def wait_for_gid(device, address, there):
    packed = ipaddress.ip_address(address).packed
    raw = (packed if len(packed) == 16 else bytes(10) + b"\xff\xff" + packed).hex()
    deadline = time.monotonic() + LIMIT_S
    while (raw in [gid for gid, _ in kernel_gids(device, 1).values()]) != there:
        assert time.monotonic() < deadline, f"the kernel's GID table does not follow: {address}"
        time.sleep(0.05)


def test_a_device_with_ipv6_only(soft_roce):
    interface = by_name(doctor())["rxe2"]["ports"][0]["interfaces"][0]
    with only_ipv6(interface, "10.77.0.2", "fd00:99::2"):
        wait_for_gid("rxe2", "10.77.0.2", False)
        wait_for_gid("rxe2", "fd00:99::2", True)
        for address in ("fd00:99::2", "[fd00:99::2]"):
            rails = doctor("--address", address)["rdma"]["rails"]
            assert [(rail["device"], rail["gid"]) for rail in rails] == [("rxe2", "fd00:99::2")]
        told = doctor("--address", "10.77.0.2")
        assert told["exit_code"] == 2 and "10.77.0.2" in told["rdma"]["rails_problem"]
    wait_for_gid("rxe2", "10.77.0.2", True)


def test_pyverbs_of_the_system_sees_the_same():
    python = "/usr/bin/python3"
    if not os.access(python, os.X_OK):
        pytest.skip("no system Python")
    done = subprocess.run([python, str(SECOND_OPINION)], stdout=subprocess.PIPE, timeout=LIMIT_S, check=True)
    listing = json.loads(done.stdout)
    if listing is None:
        pytest.skip("the system's Python has no pyverbs (Debian, Ubuntu: apt-get install python3-pyverbs)")
    ours = {
        name: {str(p["number"]): {str(gid["index"]): gid["raw"] for gid in p["gids"]} for p in device["ports"]}
        for name, device in by_name(doctor()).items() if device["usable"]
    }
    assert listing == ours and ours
