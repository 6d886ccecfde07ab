"""RDMA devices as sysfs shows them; nothing of mxrdma's own, so that tests have a second opinion."""

from pathlib import Path

ROOT = Path("/sys/class/infiniband")


class Device:
    """One device; its first port."""

    def __init__(self, path):
        self.name = path.name
        self.port = path / "ports" / "1"

    @property
    def is_rxe(self):
        return self.name.startswith("rxe")

    @property
    def state(self):
        return (self.port / "state").read_text().split(": ")[1].strip()

    @property
    def netdev(self):
        return (self.port / "gid_attrs" / "ndevs" / "0").read_text().strip()

    def gids(self):
        """{index: (GID, type)} of the entries that are set."""
        found = {}
        for path in (self.port / "gids").iterdir():
            gid = path.read_text().strip()
            if gid.replace(":", "").strip("0"):
                try:
                    kind = (self.port / "gid_attrs" / "types" / path.name).read_text().strip()
                except OSError:  # an entry that is going away, or iWARP
                    kind = ""
                found[int(path.name)] = (gid, kind)
        return found

    def counters(self):
        """All of hw_counters and counters that can be read, by name."""
        values = {}
        for folder in ("counters", "hw_counters"):
            for path in sorted((self.port / folder).glob("*")):
                try:
                    values[path.name] = int(path.read_text())
                except (OSError, ValueError):  # not kept by this device
                    continue
        return values

    def counted(self, before):
        """What has been added to each counter since `before`."""
        return {name: value - before.get(name, 0) for name, value in self.counters().items()}


def find_devices():
    return [Device(path) for path in sorted(ROOT.iterdir())] if ROOT.is_dir() else []


def packets_sent():
    return sum(device.counters().get("sent_pkts", 0) for device in find_devices())
