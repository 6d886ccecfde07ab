"""From facts to findings: made-up hosts, what the doctor must say of them, and its exit code."""

import copy

import pytest

from mxrdma.doctor import findings, host, pair

GID = {"index": 3, "gid": "10.0.0.1", "raw": b"", "type": "RoCE v2", "interface": "eth0"}
RAIL = {"device": "mlx5_0", "port": 1, "gid_index": 3, "text": "mlx5_0 port 1, GID 3", "why": "the job's address"}
PORT = {
    "number": 1, "state": "ACTIVE", "active": True, "physical_state": "LinkUp", "link_layer": "Ethernet",
    "rate": "100 Gb/sec", "active_mtu": 4096, "max_mtu": 4096, "gids": [GID], "choice": RAIL, "choice_problem": "",
}
RDMA = {
    "library_problem": "", "cm_problem": "", "fork_support": "unneeded", "rails": [RAIL], "rails_problem": "",
    "devices": [
        {"name": "mlx5_0", "usable": True, "state": "usable", "problem": "", "mend": "", "numa_node": 1, "ports": [PORT]}
    ],
}
HOST = {
    "container": None, "device_files": ["rdma_cm", "uverbs0"], "locked_memory": {"soft": -1, "hard": -1},
    "may_lock_without_limit": False, "huge_pages": {"transparent": "madvise", "reserved": 0}, "numa_nodes": [0, 1],
}
JOB = {"model_bytes": 256 << 20, "workers": 4, "servers": 2, "slot_bytes": 128 << 10, "slots": 16}


def judged(change_rdma=None, change_host=None):
    rdma, surroundings = copy.deepcopy(RDMA), copy.deepcopy(HOST)
    for change, target in ((change_rdma, rdma), (change_host, surroundings)):
        if change:
            change(target)
    found = findings.judge(rdma, surroundings, JOB)
    for finding in found:
        assert bool(finding.mend) or finding.level == findings.GOOD, finding
    return findings.exit_code(found), [f for f in found if f.level != findings.GOOD]


def test_a_good_host_is_ready():
    assert judged() == (0, [])


def unusable_beside(rdma):
    rdma["devices"].append({
        "name": "mlx5_1", "usable": False, "state": "no permission", "problem": "uverbs1 may not be opened",
        "mend": "chmod 666", "numa_node": -1, "ports": [],
    })


@pytest.mark.parametrize("change, topic, words", [
    (unusable_beside, "mlx5_1", ["no permission", "uverbs1"]),
    (lambda r: r.update(cm_problem="librdmacm.so.1 cannot be opened; install it"), "library", ["librdmacm.so.1", "iWARP"]),
    (lambda r: r.update(fork_support="disabled"), "fork", ["pinned pages"]),
    (lambda r: r["devices"][0]["ports"][0].update(active_mtu=1024), "mlx5_0", ["MTU of 1024", "4096"]),
])
def test_warnings_of_devices(change, topic, words):
    code, found = judged(change)
    assert (code, [f.topic for f in found]) == (1, [topic])
    assert all(word in found[0].text for word in words), found


@pytest.mark.parametrize("change, topic, word", [
    (lambda h: h.update(locked_memory={"soft": 8 << 20, "hard": 8 << 20}), "locked memory", "ulimit -l unlimited"),
    (lambda h: h.update(numa_nodes=[0]), "NUMA", "numactl --cpunodebind=1"),
    (lambda h: h.update(device_files=["uverbs0"]), "device files", "rdma_ucm"),
])
def test_warnings_of_the_host(change, topic, word):
    code, found = judged(change_host=change)
    assert (code, [f.topic for f in found]) == (1, [topic])
    assert word in found[0].mend


def no_rail(rdma):
    rdma.update(rails=[], rails_problem="no RDMA device carries the job's address 10.9.9.9")


def no_library(rdma):
    rdma.update(library_problem="libibverbs.so.1 cannot be opened; install it", rails=[], rails_problem="x")
    rdma["devices"][0].update(usable=False, state="no library", problem="libibverbs.so.1 cannot be opened", mend="install")


def no_device(rdma):
    rdma.update(devices=[], rails=[], rails_problem="none")


PROBLEMS = [(no_rail, "10.9.9.9"), (no_library, "libibverbs.so.1"), (no_device, "no RDMA devices")]


@pytest.mark.parametrize("change, word", PROBLEMS)
def test_problems(change, word):
    code, found = judged(change)
    problems = [f for f in found if f.level == findings.PROBLEM]
    assert code == 2 and len(problems) == 1 and word in problems[0].text, found


def test_a_limit_that_suffices_or_does_not_apply_is_good():
    need = max(findings.locked_bytes_needed(JOB).values())
    assert judged(change_host=lambda h: h["locked_memory"].update(soft=need))[0] == 0
    assert judged(change_host=lambda h: h["locked_memory"].update(soft=need - 1))[0] == 1
    assert judged(change_host=lambda h: (h["locked_memory"].update(soft=0), h.update(may_lock_without_limit=True)))[0] == 0


def test_locked_bytes():
    # gradients and weights, a ring of 2 MiB at each of 2 servers; half the weights and 4 rings at a server
    assert findings.locked_bytes_needed(JOB) == {"worker": (512 + 4) << 20, "server": (128 + 8) << 20}


def test_facts_of_a_tree(tmp_path):
    def write(name, text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert host.container(tmp_path) is None and host.device_files(tmp_path) is None and host.numa_nodes(tmp_path) == []
    assert host.huge_pages(tmp_path) == {"transparent": None, "reserved": 0, "free": 0, "size_kib": 0}
    write("proc/1/cgroup", "0::/kubepods/besteffort/pod1\n")
    write("proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n")
    write("proc/meminfo", "HugePages_Total:      12\nHugePages_Free:        5\nHugepagesize:       2048 kB\n")
    write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    write("sys/devices/system/node/node0/cpulist", "0-4095\n")
    write("sys/devices/system/node/node1/cpulist", "\n")
    write("dev/infiniband/uverbs0", "")
    write("sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_errors", "7\n")
    write("sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence", "9\n")
    assert host.container(tmp_path) == "kubepods" and host.device_files(tmp_path) == ["uverbs0"]
    assert host.may_lock_without_limit(tmp_path) and host.numa_nodes(tmp_path) == [0]
    assert host.huge_pages(tmp_path) == {"transparent": "madvise", "reserved": 12, "free": 5, "size_kib": 2048}
    assert host.counters("mlx5_0", 1, tmp_path) == {"port_rcv_errors": 7, "out_of_sequence": 9}
    assert host.parse_cpu_list("0-2,8,10-11\n") == {0, 1, 2, 8, 10, 11}


def test_changes_of_counters():
    before = {"mlx5_0/1": {"out_of_sequence": 5, "rx_prio3_pause": 0, "lifespan": 1, "port_rcv_errors": 2}}
    after = {"mlx5_0/1": {"out_of_sequence": 8, "rx_prio3_pause": 4, "lifespan": 9, "port_rcv_errors": 2}}
    assert pair.changes(before, after) == {"mlx5_0/1": {"out_of_sequence": (5, 8), "rx_prio3_pause": (0, 4)}}


def test_pyverbs_as_a_second_opinion():
    rdma = copy.deepcopy(RDMA)
    rdma["devices"][0]["ports"][0]["gids"] = [{**GID, "raw": bytes(15) + b"\1"}]
    same = {"mlx5_0": {"1": {"3": "00" * 15 + "01"}}}
    assert findings.compare(rdma, None) == []
    assert [f.level for f in findings.compare(rdma, same)] == [findings.GOOD]
    for other in ({}, {"mlx5_0": {"1": {"2": "00" * 15 + "01"}}}, {"mlx5_0": {}}):
        assert [f.level for f in findings.compare(rdma, other)] == [findings.WARNING]
