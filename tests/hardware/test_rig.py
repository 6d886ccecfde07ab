"""The ground that the other tests stand on: devices that are up, addresses as they say, packets that move and are counted."""

import ipaddress
import os
import re
import socket
import subprocess

import pytest


def run(*command, limit_s=120):
    return subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit_s, check=False
    )


@pytest.mark.siw
def test_every_device_is_active(devices):
    assert {device.name: device.state for device in devices} == {device.name: "ACTIVE" for device in devices}
    for device in devices:
        assert os.path.exists(f"/sys/class/net/{device.netdev}")


@pytest.mark.siw
def test_verbs_library_sees_the_same_devices(devices):
    done = run("ibv_devices")
    assert done.returncode == 0, done.stdout.decode()
    listed = [line.split()[0] for line in done.stdout.decode().splitlines()[2:]]
    assert sorted(listed) == [device.name for device in devices]


def test_gid_table_has_the_addresses(rxe_devices):
    """Each address of the network device is an entry: IPv4 in its mapped form, IPv6 as it is."""
    for device in rxe_devices:
        shown = run("ip", "-o", "address", "show", "dev", device.netdev).stdout.decode()
        expected = {f"::ffff:{address}" for address in re.findall(r"inet (\S+)/", shown)}
        expected |= set(re.findall(r"inet6 (\S+)/", shown))
        entries = {ipaddress.IPv6Address(gid) for gid, kind in device.gids().values() if kind == "RoCE v2"}
        assert entries == {ipaddress.IPv6Address(address) for address in expected}


def mapped_entry(device):
    """Index of the IPv4-mapped GID, or of a global IPv6 one where the device has no IPv4 address."""
    gids = {index: ipaddress.IPv6Address(gid) for index, (gid, _) in device.gids().items()}
    for wanted in (lambda a: a.ipv4_mapped is not None, lambda a: not a.is_link_local):
        for index, address in sorted(gids.items()):
            if wanted(address):
                return index
    return pytest.fail(f"{device.name} has no routable GID: {gids}")


@pytest.mark.parametrize("size", [1, 4096, 65537, 1 << 20])
def test_write_with_immediate_arrives_and_is_counted(compile_c, rxe_devices, size):
    """By plain verbs. The device's own packet count is the proof that the bytes took this way, and none was lost."""
    sender, receiver = rxe_devices[:2]
    rounds = 3
    before = {device: device.counters() for device in (sender, receiver)}
    done = run(
        compile_c("write_with_imm"), sender.name, mapped_entry(sender), receiver.name, mapped_entry(receiver), size, rounds
    )
    assert done.returncode == 0, done.stdout.decode()
    mtu = int(re.search(r"mtu (\d+)", done.stdout.decode()).group(1))
    sent = sender.counted(before[sender])
    came = receiver.counted(before[receiver])
    needed = rounds * -(-size // mtu)
    # A loaded machine may send again what was late; then the counters of that must say so.
    again = sent["retry_exceeded_err"] + sent["completer_retry_err"] + came["out_of_seq_request"] + came["duplicate_request"]
    if again == 0:
        assert sent["sent_pkts"] == needed
    assert sent["sent_pkts"] >= needed
    assert came["rcvd_pkts"] >= needed
    assert sent["rcvd_rnr_err"] == came["send_rnr_err"] == 0


def test_all_pairs_of_devices_reach_each_other(compile_c, rxe_devices):
    program = compile_c("write_with_imm")
    for sender in rxe_devices:
        for receiver in rxe_devices:
            done = run(program, sender.name, mapped_entry(sender), receiver.name, mapped_entry(receiver), 10000, 1)
            assert done.returncode == 0, f"{sender.name} to {receiver.name}: {done.stdout.decode()}"


def test_an_unknown_peer_is_an_error_not_a_hang(compile_c, rxe_devices):
    """A GID index that is empty: the program's own check ends it. That the program can fail is what makes the others count."""
    done = run(compile_c("write_with_imm"), rxe_devices[0].name, 200, rxe_devices[1].name, 200, 4096, 1)
    assert done.returncode != 0


@pytest.mark.siw
@pytest.mark.skipif(not os.path.exists("/usr/bin/rping"), reason="rping (rdmacm-utils) is not installed")
def test_connection_manager_moves_data(devices):
    """rping over rdma_cm: a server bound to one device's address, a client that resolves it."""
    shown = run("ip", "-o", "address", "show", "dev", devices[0].netdev, "scope", "global").stdout.decode()
    address = re.search(r"inet6? (\S+)/", shown).group(1)
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        ["rping", "-s", "-a", address, "-p", str(port), "-C", "3"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        for _ in range(20):  # until the server listens
            client = run("rping", "-c", "-a", address, "-p", port, "-C", "3", "-v", limit_s=60)
            if b"ping data: rdma-ping-2" in client.stdout:
                break
            assert server.poll() is None, server.stdout.read().decode()
        else:
            pytest.fail(f"rping: {client.stdout.decode()}")
        server.wait(60)
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
