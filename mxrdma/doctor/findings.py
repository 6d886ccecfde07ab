"""From facts to findings. Pure: a finding says what is so, how bad it is and how to mend it."""

from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional

GOOD, WARNING, PROBLEM = "good", "warning", "problem"
READY, USABLE, UNUSABLE = 0, 1, 2  # exit codes of mxrdma-doctor
VERDICTS = {READY: "ready", USABLE: "usable with warnings", UNUSABLE: "not usable"}

MIB = 1 << 20


@dataclass(frozen=True)
class Finding:
    """`level` is good, warning (works, but) or problem (RDMA cannot be used); `mend` is empty where it is good."""

    level: str
    topic: str
    text: str
    mend: str = ""

    def as_dict(self) -> Dict[str, str]:
        return asdict(self)


def locked_bytes_needed(job: Dict[str, int]) -> Dict[str, int]:
    """Bytes that one process of the job registers: gradients and weights at a worker; rings and weights at a server.

    `job` has model_bytes, workers, servers, slot_bytes and slots.
    """
    ring = job["slot_bytes"] * job["slots"]
    return {
        "worker": 2 * job["model_bytes"] + ring * job["servers"],
        "server": -(-job["model_bytes"] // job["servers"]) + ring * job["workers"],
    }


def judge(rdma: Dict[str, Any], host: Dict[str, Any], job: Dict[str, int]) -> List[Finding]:
    """All findings, in the order in which a person would look: library, devices, choice, limits, surroundings."""
    found = _library(rdma, host)
    for device in rdma["devices"]:
        found += _device(device, rdma)
    found += _choice(rdma)
    if rdma["devices"]:
        found += _locked_memory(host, job)
        found += _fork(rdma)
        found += _numa(rdma, host)
    found += _surroundings(rdma, host)
    return found


def compare(rdma: Dict[str, Any], other: Optional[Dict[str, Any]]) -> List[Finding]:
    """What pyverbs sees differently; nothing without pyverbs. `other` is second_opinion.listing()."""
    if other is None:
        return []
    found = []
    ours = {device["name"]: device for device in rdma["devices"] if device["usable"]}
    mend = "one of them is of another rdma-core: compare the versions of pyverbs and of the installed libibverbs"
    for name in sorted(set(ours) - set(other)):
        found.append(Finding(WARNING, "pyverbs", f"pyverbs does not see {name}", mend))
    for name in sorted(set(ours) & set(other)):
        for port in ours[name]["ports"]:
            mine = {str(gid["index"]): gid["raw"].hex() for gid in port["gids"]}
            theirs = other[name].get(str(port["number"]), {})
            if mine != theirs:
                text = f"pyverbs reads another GID table of {name} port {port['number']}: {theirs}"
                found.append(Finding(WARNING, "pyverbs", text, mend))
    return found or [Finding(GOOD, "pyverbs", "pyverbs sees the same devices and GIDs")]


def exit_code(findings: List[Finding]) -> int:
    """READY, USABLE or UNUSABLE."""
    levels = {finding.level for finding in findings}
    return UNUSABLE if PROBLEM in levels else USABLE if WARNING in levels else READY


def _library(rdma: Dict[str, Any], host: Dict[str, Any]) -> List[Finding]:
    found = []
    if rdma["library_problem"]:
        text, _, mend = rdma["library_problem"].partition("; ")
        found.append(Finding(PROBLEM, "library", text, mend))
    elif rdma["cm_problem"]:
        text, _, mend = rdma["cm_problem"].partition("; ")
        found.append(Finding(WARNING, "library", f"{text}: iWARP needs it, other devices do without", mend))
    else:
        found.append(Finding(GOOD, "library", "libibverbs and librdmacm can be used"))
    if not rdma["devices"]:
        mend = (
            "see whether the machine has a card (lspci | grep -i -e mellanox -e infiniband -e ethernet), load its driver "
            "(modprobe mlx5_ib, irdma, bnxt_re, ...); Soft-RoCE makes one of any network interface: modprobe rdma_rxe && "
            "rdma link add rxe0 type rxe netdev eth0. Without RDMA, jobs use shared memory and TCP: --fabric auto"
        )
        if host["container"]:
            mend = "this is a container: the host's devices must be passed in (docker run --device /dev/infiniband); " + mend
        found.append(Finding(PROBLEM, "devices", "no RDMA devices: /sys/class/infiniband is empty", mend))
    return found


def _device(device: Dict[str, Any], rdma: Dict[str, Any]) -> List[Finding]:
    name = device["name"]
    used = {(rail["device"], rail["port"]) for rail in rdma["rails"]}
    if not device["usable"]:
        return [Finding(WARNING, name, f"{device['state']}: {device['problem']}", device["mend"])]
    found = []
    for port in device["ports"]:
        text = f"port {port['number']} {port['state']}, {port['link_layer']}, {port['rate'] or 'unknown rate'}"
        if not port["active"]:
            found.append(Finding(WARNING, name, text, "fine if the port is not meant to be used; else check cable and switch"))
            continue
        found.append(Finding(GOOD, name, text))
        mtu, most = port["active_mtu"], port["max_mtu"]
        if (name, port["number"]) in used and port["link_layer"] == "Ethernet" and mtu and mtu < min(most, 4096):
            found.append(Finding(
                WARNING, name, f"port {port['number']} has an RDMA MTU of {mtu}; it can do {most}",
                f"set the network's MTU to {most + 104} or more at all hosts and switches (ip link set ... mtu 9000)",
            ))
    return found


def _choice(rdma: Dict[str, Any]) -> List[Finding]:
    if rdma["rails"]:
        return [Finding(GOOD, "choice", f"a job would use {rail['text']}: {rail['why']}") for rail in rdma["rails"]]
    if not rdma["devices"] or rdma["library_problem"]:
        return []  # said already
    return [Finding(PROBLEM, "choice", rdma["rails_problem"], "the text names the setting; --address shows other choices")]


def _locked_memory(host: Dict[str, Any], job: Dict[str, int]) -> List[Finding]:
    need = locked_bytes_needed(job)
    most = max(need.values())
    needs = f"a worker of such a job registers about {need['worker'] // MIB} MiB, a server {need['server'] // MIB} MiB"
    limit = host["locked_memory"]["soft"]
    if host["may_lock_without_limit"] or limit < 0:
        return [Finding(GOOD, "locked memory", f"no limit; {needs}")]
    if limit >= most:
        return [Finding(GOOD, "locked memory", f"{limit // MIB} MiB may be locked; {needs}")]
    return [Finding(
        WARNING, "locked memory", f"only {limit // 1024} KiB may be locked; {needs}",
        "ulimit -l unlimited; for good: '* soft memlock unlimited' and '* hard memlock unlimited' in "
        "/etc/security/limits.d/rdma.conf; docker run --ulimit memlock=-1; LimitMEMLOCK=infinity in a systemd unit",
    )]


def _fork(rdma: Dict[str, Any]) -> List[Finding]:
    if not rdma["fork_support"]:
        return []
    if rdma["fork_support"] == "unneeded":
        return [Finding(GOOD, "fork", "the kernel copies pinned pages at fork: data loaders may fork")]
    return [Finding(
        WARNING, "fork", "the kernel does not copy pinned pages at fork: tensors go through a buffer of their own, a copy each",
        "use Linux 5.12 or newer with rdma-core 36 or newer",
    )]


def _numa(rdma: Dict[str, Any], host: Dict[str, Any]) -> List[Finding]:
    nodes = host["numa_nodes"]
    by_name = {device["name"]: device["numa_node"] for device in rdma["devices"]}
    found = []
    for rail in rdma["rails"]:
        node = by_name[rail["device"]]
        if node < 0 or len(nodes) == 0:
            continue
        if node not in nodes:
            found.append(Finding(
                WARNING, "NUMA", f"{rail['device']} is at node {node}, this process runs on node {_list(nodes)}",
                f"start the job near the card: numactl --cpunodebind={node} --membind={node} mxrdma-launch ...",
            ))
        else:
            found.append(Finding(GOOD, "NUMA", f"{rail['device']} is at node {node}; this process may use it"))
    return found


def _surroundings(rdma: Dict[str, Any], host: Dict[str, Any]) -> List[Finding]:
    found = []
    if host["container"]:
        found.append(Finding(
            GOOD, "container", f"this is a container ({host['container']}): it needs --device for /dev/infiniband/uverbs* and "
            "rdma_cm, --ulimit memlock=-1, and the host's network (--network host) or an RDMA device of its own",
        ))
    files = host["device_files"]
    if rdma["devices"] and files is not None and "rdma_cm" not in files:
        found.append(Finding(
            WARNING, "device files", "/dev/infiniband/rdma_cm is missing: iWARP cannot connect, others do without",
            "modprobe rdma_ucm; in a container: --device /dev/infiniband/rdma_cm",
        ))
    pages = host["huge_pages"]
    if pages["transparent"] == "never" and not pages["reserved"] and rdma["devices"]:
        found.append(Finding(
            GOOD, "huge pages", "none: large regions take more entries of the card's translation table; "
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled may help",
        ))
    return found


def _list(numbers: List[int]) -> str:
    return ", ".join(map(str, numbers))
