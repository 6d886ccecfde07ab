"""All settings: the only module that reads the environment and YAML files.

Each setting has one environment variable (some have MXNet's own name as a second one), one default and one meaning:
`SETTINGS`. `--help` texts and docs/settings.md are made from that table.
"""

import difflib
import os
import re
import socket
import stat
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from mxrdma.errors import ConfigError

FABRICS = ("auto", "shm", "tcp", "verbs")
LOG_LEVELS = ("debug", "info", "warning", "error", "off")
ROLES = ("scheduler", "server", "worker")
START_HINT = (
    "start the job with `mxrdma-launch -n WORKERS -s SERVERS -- python your_script.py`, or set MXRDMA_SCHEDULER_URI, "
    "MXRDMA_SCHEDULER_PORT, MXRDMA_NUM_WORKERS, MXRDMA_NUM_SERVERS and MXRDMA_TOKEN for each role by hand"
)


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"must be a whole number between {low} and {high}") from None
        if not low <= value <= high:
            raise ValueError(f"must be between {low} and {high}")
        return value

    return parse


def _milliseconds(text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("must be a number of seconds") from None
    if not 0.001 <= value <= 1e6:
        raise ValueError("must be between 0.001 and 1000000 seconds")
    return round(value * 1000)


def _one_of(choices: Tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text.lower()

    return parse


def _bytes(low: int, high: int) -> Callable[[str], int]:
    units = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

    def parse(text: str) -> int:
        match = re.fullmatch(r"\s*(\d+)\s*([kKmMgG]?)(?:i?[bB])?\s*", text)
        if match is None:
            raise ValueError("must be a number of bytes such as 131072, 128K or 1M")
        value = int(match.group(1)) * units[match.group(2).lower()]
        if not low <= value <= high:
            raise ValueError(f"must be between {low} and {high} bytes")
        return value

    return parse


def _devices(text: str) -> str:
    if re.fullmatch(r"\s*[^\s,:]+(:\d{1,3})?\s*(,\s*[^\s,:]+(:\d{1,3})?\s*)*", text) is None:
        raise ValueError("must be names of devices with or without ports, such as mlx5_0:1,mlx5_1:1")
    return re.sub(r"\s", "", text)


def _gid_index(text: str) -> str:
    if text.strip().lower() == "auto":
        return "auto"
    if not text.strip().isdigit() or int(text) > 65535:
        raise ValueError("must be auto or the number of an entry (mxrdma-doctor lists them)")
    return str(int(text))


@dataclass(frozen=True)
class Setting:
    """One setting: `parse` turns its text into the value; durations are given in seconds and kept in ms."""

    name: str
    parse: Callable[[str], Any]
    default: Optional[str]
    meaning: str
    alias: Optional[str] = None
    secret: bool = False


SETTINGS: Tuple[Setting, ...] = (
    Setting("MXRDMA_ROLE", _one_of(ROLES), None, "what this process is: scheduler, server or worker"),
    Setting("MXRDMA_SCHEDULER_URI", str, None, "name or address of the scheduler's host", "DMLC_PS_ROOT_URI"),
    Setting("MXRDMA_SCHEDULER_PORT", _integer(0, 65535), None, "its TCP port", "DMLC_PS_ROOT_PORT"),
    Setting("MXRDMA_NUM_WORKERS", _integer(1, 4096), None, "number of workers", "DMLC_NUM_WORKER"),
    Setting("MXRDMA_NUM_SERVERS", _integer(1, 4096), None, "number of servers", "DMLC_NUM_SERVER"),
    Setting("MXRDMA_TOKEN", str, None, "the job's secret; the launcher makes one", secret=True),
    Setting("MXRDMA_TOKEN_FILE", str, None, "a file that holds the secret, readable by its owner only"),
    Setting("MXRDMA_RANK", _integer(0, 4095), None, "the rank that this node asks for; free ones are given by arrival"),
    Setting(
        "MXRDMA_FABRIC", _one_of(FABRICS), "auto",
        "data path: auto (shm on one host, verbs where both ends can, else tcp), shm, tcp or verbs",
    ),
    Setting("MXRDMA_DEVICE", _devices, None, "RDMA devices, such as mlx5_0:1,mlx5_1:1; default: by the node's address"),
    Setting("MXRDMA_GID_INDEX", _gid_index, "auto", "entry of the port's GID table; auto: RoCE v2, by the node's address"),
    Setting("MXRDMA_INTERFACE", str, None, "network interface whose address servers listen on", "DMLC_INTERFACE"),
    Setting("MXRDMA_BIND_HOST", str, None, "address that servers listen on; wins over the interface", "DMLC_NODE_HOST"),
    Setting("MXRDMA_SLOT_BYTES", _bytes(4096, 16 << 20), "128K", "largest message; a ring slot (scheduler's counts)"),
    Setting("MXRDMA_SLOTS", _integer(2, 1024), "16", "slots of each worker's ring at each server (scheduler's counts)"),
    Setting("MXRDMA_STALENESS", _integer(0, 16), "0", "open rounds of a key beyond one (scheduler's counts)"),
    Setting("MXRDMA_COMPUTE_THREADS", _integer(0, 256), "0", "threads of a server that add; 0: the network's thread"),
    Setting("MXRDMA_SPIN_US", _integer(-1, 1000000), "-1", "busy polling before sleep; -1: by the number of cores"),
    Setting("MXRDMA_JOIN_TIMEOUT", _milliseconds, "120", "seconds until all nodes must have joined"),
    Setting("MXRDMA_HEARTBEAT_INTERVAL", _milliseconds, "1", "seconds between heartbeats (scheduler's counts)"),
    Setting("MXRDMA_HEARTBEAT_TIMEOUT", _milliseconds, "15", "seconds of silence that mean lost (scheduler's counts)"),
    Setting("MXRDMA_STALL_REPORT", _milliseconds, "60", "seconds until a late rank is reported (scheduler's counts)"),
    Setting("MXRDMA_ROUND_TIMEOUT", _milliseconds, "1800", "seconds until an open round fails (scheduler's counts)"),
    Setting("MXRDMA_BARRIER_TIMEOUT", _milliseconds, "1800", "the same for barrier, init, set_optimizer"),
    Setting("MXRDMA_LOG_LEVEL", _one_of(LOG_LEVELS), "warning", "debug, info, warning, error or off"),
    Setting("MXRDMA_REPORT_FILE", str, None, "a server writes memory and traffic here as JSON at its end; several add ranks"),
    Setting("MXRDMA_KVSTORE", str, "dist_rdma", "the store's name that the launcher chose (mxrdma.kvstore_name())"),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}
_PREFIX = "MXRDMA_"


class Settings:
    """Settings as this process sees them. Errors name the variable, its value and how to mend it."""

    def __init__(self, environment: Optional[Mapping[str, str]] = None) -> None:
        self._environment = os.environ if environment is None else environment

    def text(self, name: str) -> Optional[str]:
        """The raw text, or None if neither the variable, nor its alias, nor a default is there."""
        setting = _BY_NAME[name]
        own = self._environment.get(name) or None
        other = self._environment.get(setting.alias) or None if setting.alias else None
        if own is not None and other is not None and own != other:
            raise ConfigError(f"{name}={own} and {setting.alias}={other} disagree; set only one of them")
        return own if own is not None else other if other is not None else setting.default

    def get(self, name: str) -> Any:
        """The parsed value, or None if it is not set and has no default."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return _BY_NAME[name].parse(text)
        except ValueError as error:
            shown = "its value" if _BY_NAME[name].secret else f"'{text}'"
            raise ConfigError(f"{name}: {shown} cannot be used: {error}. It is {_BY_NAME[name].meaning}.") from None

    def internal(self, name: str) -> Optional[str]:
        """What the launcher tells a node, which is nothing for users to set."""
        return self._environment.get(name) or None

    def require(self, name: str) -> Any:
        """The parsed value; ConfigError if it is missing."""
        value = self.get(name)
        if value is None:
            alias = _BY_NAME[name].alias
            also = f" (or {alias})" if alias else ""
            raise ConfigError(f"{name}{also} is not set: {_BY_NAME[name].meaning}; {START_HINT}")
        return value

    def token(self) -> bytes:
        """The job's secret from MXRDMA_TOKEN or MXRDMA_TOKEN_FILE."""
        text, path = self.text("MXRDMA_TOKEN"), self.text("MXRDMA_TOKEN_FILE")
        if text is not None:
            return text.encode()
        if path is None:
            raise ConfigError(f"neither MXRDMA_TOKEN nor MXRDMA_TOKEN_FILE is set; {START_HINT}")
        try:
            mode = os.stat(path).st_mode
            with open(path, "rb") as file:
                token = file.read(65536).strip()
        except OSError as error:
            raise ConfigError(f"MXRDMA_TOKEN_FILE: {path} cannot be read: {error.strerror}") from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"MXRDMA_TOKEN_FILE: others can read {path}; run `chmod 600 {path}`")
        if len(token) < 16:
            raise ConfigError(f"MXRDMA_TOKEN_FILE: {path} holds {len(token)} bytes; use at least 16 random ones")
        return token


def split_host(text: str) -> str:
    """A host as users write it, brackets of an IPv6 literal taken off."""
    text = text.strip()
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def check_host(name: str, host: str) -> None:
    """ConfigError if the host's name does not resolve."""
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        raise ConfigError(f"{name}: the host name '{host}' does not resolve: {error}") from None


def interface_address(interface: str) -> str:
    """The interface's first IPv4 address, else its first IPv6 one; ConfigError lists what there is."""
    import psutil

    interfaces = psutil.net_if_addrs()
    if interface not in interfaces:
        raise ConfigError(f"MXRDMA_INTERFACE: no interface '{interface}'; there are {', '.join(sorted(interfaces))}")
    for family in (socket.AF_INET, socket.AF_INET6):
        for address in interfaces[interface]:
            if address.family == family:
                return str(address.address)
    raise ConfigError(f"MXRDMA_INTERFACE: interface '{interface}' has no IP address")


def _bind_host(settings: Settings, scheduler_host: str) -> str:
    host = settings.text("MXRDMA_BIND_HOST")
    if host is not None:
        host = split_host(host)
        check_host("MXRDMA_BIND_HOST", host)
        return host
    interface = settings.text("MXRDMA_INTERFACE")
    if interface is not None:
        return interface_address(interface)
    # The address from which the scheduler is reached is one at which its other nodes can reach us.
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(scheduler_host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing: it only chooses the route
            found = probe.getsockname()
    except OSError as error:
        raise ConfigError(
            f"no route to the scheduler's host '{scheduler_host}' ({error}); set MXRDMA_BIND_HOST or MXRDMA_INTERFACE"
        ) from None
    if family == socket.AF_INET6 and len(found) == 4 and found[3]:
        return f"{found[0].split('%')[0]}%{socket.if_indextoname(found[3])}"
    return str(found[0])


def misspelt(environment: Mapping[str, str]) -> List[str]:
    """A sentence for each MXRDMA_ variable that is no setting but nearly has the name of one: it is without effect."""
    known = {setting.name[len(_PREFIX) :]: setting.name for setting in SETTINGS}
    sentences = []
    for name in sorted(environment):
        rest = name[len(_PREFIX) :]
        if not name.startswith(_PREFIX) or rest in known:
            continue
        close = difflib.get_close_matches(rest, list(known), 1, cutoff=0.75)
        if close:
            sentences.append(f"{name} is no setting and has no effect; did you mean {known[close[0]]}?")
    return sentences


def own_address(settings: Settings, host: Optional[str] = None) -> Optional[str]:
    """This host's address in numbers: of `host`, else of MXRDMA_BIND_HOST or MXRDMA_INTERFACE; None if none is given."""
    host = host or settings.text("MXRDMA_BIND_HOST")
    if host is None:
        interface = settings.text("MXRDMA_INTERFACE")
        return None if interface is None else interface_address(interface)
    try:
        return str(socket.getaddrinfo(split_host(host), None, type=socket.SOCK_DGRAM)[0][4][0])
    except OSError as error:
        raise ConfigError(f"the host name '{host}' does not resolve: {error}") from None


def node_options(settings: Optional[Settings] = None) -> Any:
    """_core.NodeOptions of this process. ConfigError says what is missing."""
    from mxrdma import _core

    settings = settings or Settings()
    options = _core.NodeOptions()
    host = split_host(settings.require("MXRDMA_SCHEDULER_URI"))
    options.scheduler_port = settings.require("MXRDMA_SCHEDULER_PORT")
    options.token = settings.token()
    check_host("MXRDMA_SCHEDULER_URI", host)
    options.scheduler_host = host
    options.fabric = settings.get("MXRDMA_FABRIC")
    options.devices = settings.get("MXRDMA_DEVICE") or ""
    options.gid_index = settings.get("MXRDMA_GID_INDEX")
    options.bind_host = _bind_host(settings, host)
    options.host_name = socket.gethostname()
    options.preferred_rank = settings.get("MXRDMA_RANK")
    options.join_timeout_ms = settings.get("MXRDMA_JOIN_TIMEOUT")
    options.compute_threads = settings.get("MXRDMA_COMPUTE_THREADS")
    options.spin_us = settings.get("MXRDMA_SPIN_US")
    _core.set_log_level(settings.get("MXRDMA_LOG_LEVEL"))
    return options


def worker_options(settings: Optional[Settings] = None) -> Any:
    """_core.NodeOptions of a worker. ConfigError if this process was started as another role or outside a job."""
    settings = settings or Settings()
    chosen = str(settings.get("MXRDMA_KVSTORE"))
    if not chosen.startswith("dist_rdma"):
        raise ConfigError(
            f"this job was started with --kvstore {chosen}, but the script creates dist_rdma; "
            "let the script say mx.kv.create(mxrdma.kvstore_name())"
        )
    role = settings.get("MXRDMA_ROLE")
    if role not in (None, "worker"):
        raise ConfigError(f"MXRDMA_ROLE={role}: only a worker creates a store; {START_HINT}")
    return node_options(settings)


def job_config(settings: Optional[Settings] = None) -> Any:
    """_core.JobConfig: what the scheduler tells all nodes."""
    from mxrdma import _core

    settings = settings or Settings()
    config = _core.JobConfig()
    config.workers = settings.require("MXRDMA_NUM_WORKERS")
    config.servers = settings.require("MXRDMA_NUM_SERVERS")
    config.slot_bytes = settings.get("MXRDMA_SLOT_BYTES")
    config.slots_per_worker = settings.get("MXRDMA_SLOTS")
    config.staleness = settings.get("MXRDMA_STALENESS")
    config.heartbeat_interval_ms = settings.get("MXRDMA_HEARTBEAT_INTERVAL")
    config.heartbeat_timeout_ms = settings.get("MXRDMA_HEARTBEAT_TIMEOUT")
    config.stall_report_ms = settings.get("MXRDMA_STALL_REPORT")
    config.round_timeout_ms = settings.get("MXRDMA_ROUND_TIMEOUT")
    config.barrier_timeout_ms = settings.get("MXRDMA_BARRIER_TIMEOUT")
    if config.heartbeat_timeout_ms < 2 * config.heartbeat_interval_ms:
        raise ConfigError("MXRDMA_HEARTBEAT_TIMEOUT must be at least twice MXRDMA_HEARTBEAT_INTERVAL")
    return config


def kvstore_name() -> str:
    """The store that the launcher chose for this job: 'dist_rdma' unless it was told otherwise."""
    return str(Settings().get("MXRDMA_KVSTORE"))


def report_file() -> Optional[str]:
    """Where a server writes its report when it ends, or None."""
    return Settings().text("MXRDMA_REPORT_FILE")


def inherited() -> Dict[str, str]:
    """This process' environment, for those that it starts."""
    return dict(os.environ)


def check_all(environment: Mapping[str, str]) -> None:
    """ConfigError for the first setting in this environment that cannot be used."""
    settings = Settings(environment)
    for setting in SETTINGS:
        settings.get(setting.name)


def status_descriptor(settings: Optional[Settings] = None) -> Optional[int]:
    """The pipe on which the launcher waits for the scheduler's port; not a setting, and not inherited further."""
    text = (settings or Settings()).internal("MXRDMA_STATUS_FD")
    return None if text is None else int(text)


def from_yaml(path: str) -> Dict[str, str]:
    """Settings of a YAML file as environment variables.

    The file maps names (`fabric`, `slot_bytes`, ... or the full variable) to values. ConfigError names file and key.
    """
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must map names of settings to values")
    environment: Dict[str, str] = {}
    for key, value in content.items():
        name = str(key).upper()
        name = name if name.startswith("MXRDMA_") else "MXRDMA_" + name
        if name not in _BY_NAME:
            known: List[str] = sorted(one[len("MXRDMA_"):].lower() for one in _BY_NAME)
            raise ConfigError(f"{path}: unknown setting '{key}'; known are {', '.join(known)}")
        if _BY_NAME[name].secret:
            raise ConfigError(f"{path}: '{key}' is secret and does not belong into a configuration file")
        environment[name] = str(value)
        Settings(environment).get(name)
    return environment


def table() -> str:
    """All settings as a Markdown table, for docs/settings.md."""
    rows = ["| variable | also | default | meaning |", "|---|---|---|---|"]
    for one in SETTINGS:
        rows.append(f"| `{one.name}` | {one.alias or ''} | {one.default or ''} | {one.meaning} |")
    return "\n".join(rows) + "\n"
