"""Facts about this host that no RDMA library tells. Every one of them may be unreadable: then it is None."""

import os
import platform
import resource
from pathlib import Path
from typing import Any, Dict, List, Optional, Set

CAP_IPC_LOCK = 14  # number of the capability that lifts the limit on locked memory
UNLIMITED = -1


def _text(path: Path) -> Optional[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def parse_cpu_list(text: str) -> Set[int]:
    """The CPUs of a list such as "0-3,8"."""
    cpus: Set[int] = set()
    for part in text.replace("\n", "").split(","):
        first, _, last = part.partition("-")
        if first.strip().isdigit():
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def numa_nodes(root: Path = Path("/")) -> List[int]:
    """NUMA nodes whose CPUs this process may use; empty where the kernel shows none."""
    allowed = os.sched_getaffinity(0)
    nodes = []
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        if parse_cpu_list(_text(folder / "cpulist") or "") & allowed:
            nodes.append(int(folder.name[4:]))
    return sorted(nodes)


def may_lock_without_limit(root: Path = Path("/")) -> bool:
    """Whether this process has CAP_IPC_LOCK."""
    for line in (_text(root / "proc/self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> CAP_IPC_LOCK & 1)
    return False


def locked_memory() -> Dict[str, int]:
    """Soft and hard limit in bytes; -1: no limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    infinite = resource.RLIM_INFINITY
    return {"soft": UNLIMITED if soft == infinite else soft, "hard": UNLIMITED if hard == infinite else hard}


def container(root: Path = Path("/")) -> Optional[str]:
    """What kind of container this is, or None."""
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    groups = _text(root / "proc/1/cgroup") or ""
    for word in ("kubepods", "docker", "containerd", "lxc", "libpod"):
        if word in groups:
            return word
    return None


def huge_pages(root: Path = Path("/")) -> Dict[str, Any]:
    """Transparent huge pages as set, reserved ones and their size in KiB."""
    enabled = _text(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    chosen = enabled[enabled.find("[") + 1:enabled.find("]")] if "[" in enabled else None
    fields = {}
    for line in (_text(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        fields[name] = value.split()[0] if value.split() else ""
    return {
        "transparent": chosen,
        "reserved": int(fields.get("HugePages_Total") or 0),
        "free": int(fields.get("HugePages_Free") or 0),
        "size_kib": int(fields.get("Hugepagesize") or 0),
    }


def device_files(root: Path = Path("/")) -> Optional[List[str]]:
    """Names in /dev/infiniband, or None where the folder is missing."""
    try:
        return sorted(os.listdir(root / "dev/infiniband"))
    except OSError:
        return None


def counters(device: str, port: int, root: Path = Path("/")) -> Dict[str, int]:
    """All counters of a port, of the standard and of the vendor: name -> value."""
    found: Dict[str, int] = {}
    for kind in ("counters", "hw_counters"):
        try:
            files = sorted((root / f"sys/class/infiniband/{device}/ports/{port}/{kind}").iterdir())
        except OSError:
            continue
        for file in files:
            text = _text(file)
            if text is not None and text.isdigit():
                found[file.name] = int(text)
    return found


def facts(root: Path = Path("/")) -> Dict[str, Any]:
    """Everything above, as `mxrdma-doctor --json` shows it under "host"."""
    return {
        "kernel": platform.release(),
        "user": os.geteuid(),
        "container": container(root),
        "device_files": device_files(root),
        "locked_memory": locked_memory(),
        "may_lock_without_limit": may_lock_without_limit(root),
        "huge_pages": huge_pages(root),
        "numa_nodes": numa_nodes(root),
    }
