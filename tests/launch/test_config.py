"""Settings: where they come from, and what an error names."""

import os
import socket
import subprocess
import sys
import time

import pytest

from mxrdma import config
from mxrdma.errors import ConfigError

JOB = {
    "MXRDMA_SCHEDULER_URI": "127.0.0.1",
    "MXRDMA_SCHEDULER_PORT": "9091",
    "MXRDMA_NUM_WORKERS": "2",
    "MXRDMA_NUM_SERVERS": "1",
    "MXRDMA_TOKEN": "0123456789abcdef0123456789abcdef",
}
NATIVE_NAMES = {
    "MXRDMA_SCHEDULER_URI": "DMLC_PS_ROOT_URI",
    "MXRDMA_SCHEDULER_PORT": "DMLC_PS_ROOT_PORT",
    "MXRDMA_NUM_WORKERS": "DMLC_NUM_WORKER",
    "MXRDMA_NUM_SERVERS": "DMLC_NUM_SERVER",
}


def refused(action, *words):
    with pytest.raises(ConfigError) as caught:
        action()
    for word in words:
        assert word in str(caught.value), str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name, text, value", [
    ("MXRDMA_SLOT_BYTES", "131072", 131072), ("MXRDMA_SLOT_BYTES", "128K", 131072), ("MXRDMA_SLOT_BYTES", "1 MiB", 1 << 20),
    ("MXRDMA_FABRIC", "TCP", "tcp"), ("MXRDMA_JOIN_TIMEOUT", "0.5", 500), ("MXRDMA_SPIN_US", "-1", -1),
    ("MXRDMA_FABRIC", "verbs", "verbs"), ("MXRDMA_DEVICE", "mlx5_0:1, mlx5_1", "mlx5_0:1,mlx5_1"),
    ("MXRDMA_GID_INDEX", "AUTO", "auto"), ("MXRDMA_GID_INDEX", "03", "3"),
])  # fmt: skip
def test_values_are_parsed(name, text, value):
    assert config.Settings({name: text}).get(name) == value


@pytest.mark.parametrize("name, text", [
    ("MXRDMA_SLOT_BYTES", "1"), ("MXRDMA_SLOT_BYTES", "128X"), ("MXRDMA_SLOTS", "1"), ("MXRDMA_SLOTS", "many"),
    ("MXRDMA_FABRIC", "smoke"), ("MXRDMA_DEVICE", "mlx5_0:"), ("MXRDMA_DEVICE", "a,,b"), ("MXRDMA_GID_INDEX", "-1"),
    ("MXRDMA_GID_INDEX", "first"), ("MXRDMA_ROLE", "boss"), ("MXRDMA_SCHEDULER_PORT", "65536"),
    ("MXRDMA_JOIN_TIMEOUT", "nan"), ("MXRDMA_JOIN_TIMEOUT", "-1"), ("MXRDMA_NUM_WORKERS", "0"),
    ("MXRDMA_NUM_WORKERS", "2.5"), ("MXRDMA_LOG_LEVEL", "loud"), ("MXRDMA_RANK", "-1"),
])  # fmt: skip
def test_a_value_that_cannot_be_used_is_named(name, text):
    refused(lambda: config.Settings({name: text}).get(name), name, f"'{text}'")


def test_a_number_that_is_none_is_told_in_our_words():
    text = refused(lambda: config.Settings({"MXRDMA_SLOTS": "abc"}).get("MXRDMA_SLOTS"), "whole number between 2 and 1024")
    assert "literal" not in text


def test_a_misspelt_variable_is_told_and_others_of_ours_are_not():
    told = config.misspelt({"MXRDMA_SLOTZ": "3", "MXRDMA_SLOTS": "3", "MXRDMA_VENV": "x", "MXRDMA_JOB": "x", "SLOTZ": "1"})
    assert told == ["MXRDMA_SLOTZ is no setting and has no effect; did you mean MXRDMA_SLOTS?"]
    assert config.misspelt(dict.fromkeys((one.name for one in config.SETTINGS), "1")) == []


def test_a_script_for_dist_rdma_in_a_job_of_another_store_is_told_so():
    refused(lambda: config.worker_options(config.Settings({**JOB, "MXRDMA_KVSTORE": "dist_sync"})),
            "--kvstore dist_sync", "kvstore_name()")  # fmt: skip


def test_defaults_are_the_cores_limits():
    import re
    from pathlib import Path

    limits = (Path(__file__).resolve().parents[2] / "cpp/base/limits.h").read_text()
    for name, constant in {
        "MXRDMA_JOIN_TIMEOUT": "kJoinTimeoutMs", "MXRDMA_HEARTBEAT_INTERVAL": "kHeartbeatIntervalMs",
        "MXRDMA_HEARTBEAT_TIMEOUT": "kHeartbeatTimeoutMs", "MXRDMA_STALL_REPORT": "kStallReportMs",
        "MXRDMA_ROUND_TIMEOUT": "kRoundTimeoutMs", "MXRDMA_BARRIER_TIMEOUT": "kBarrierTimeoutMs",
    }.items():  # fmt: skip
        text = re.search(rf"{constant} =\s*([^;]+);", limits).group(1).replace("'", "")
        assert config.Settings({}).get(name) == eval(text)


@pytest.mark.parametrize("own, native", NATIVE_NAMES.items())
def test_mxnets_names_do_as_well_but_must_agree(own, native):
    assert config.Settings({native: JOB[own]}).get(own) == config.Settings({own: JOB[own]}).get(own)
    assert config.Settings({native: JOB[own], own: JOB[own]}).require(own) is not None
    refused(lambda: config.Settings({native: "7", own: "8"}).get(own), own, native, "7", "8")


@pytest.mark.parametrize("own, native", NATIVE_NAMES.items())
def test_what_is_missing_is_named_with_how_to_start(own, native):
    refused(lambda: config.Settings({}).require(own), own, native, "mxrdma-launch")


def test_the_token(tmp_path):
    secret = "s3cret-s3cret-s3cret"
    assert config.Settings({"MXRDMA_TOKEN": secret}).token() == secret.encode()
    path = tmp_path / "token"
    path.write_text(secret + "\n")
    path.chmod(0o600)
    assert config.Settings({"MXRDMA_TOKEN_FILE": str(path)}).token() == secret.encode()
    path.chmod(0o640)
    message = refused(config.Settings({"MXRDMA_TOKEN_FILE": str(path)}).token, "MXRDMA_TOKEN_FILE", str(path), "chmod 600")
    assert secret not in message
    path.chmod(0o600)
    path.write_text("short")
    refused(config.Settings({"MXRDMA_TOKEN_FILE": str(path)}).token, str(path), "16")
    refused(config.Settings({"MXRDMA_TOKEN_FILE": "/no/such"}).token, "/no/such")
    refused(config.Settings({}).token, "MXRDMA_TOKEN", "mxrdma-launch")


@pytest.mark.parametrize("text, host", [("[::1]", "::1"), ("::1", "::1"), (" a.b ", "a.b"), ("[fe80::1%eth0]", "fe80::1%eth0")])
def test_hosts_as_people_write_them(text, host):
    assert config.split_host(text) == host


def test_an_interface_that_is_not_there_lists_those_that_are():
    refused(lambda: config.interface_address("nosuch0"), "nosuch0", "lo")
    assert config.interface_address("lo") == "127.0.0.1"


def test_the_table_in_the_documentation_is_this_one():
    from pathlib import Path

    text = (Path(__file__).resolve().parents[2] / "docs/settings.md").read_text()
    for row in config.table().splitlines()[2:]:
        assert row in text


def test_every_file_in_configs_is_accepted():
    from pathlib import Path

    files = sorted((Path(__file__).resolve().parents[2] / "configs").glob("*.yaml"))
    assert files
    for path in files:
        config.check_all(config.from_yaml(str(path)))


# ---- roles started by hand

ROLES = {
    "scheduler": [sys.executable, "-m", "mxrdma.node", "scheduler"],
    "server": [sys.executable, "-m", "mxrdma.node", "server"],
    "worker": [sys.executable, "-c", "from mxrdma import _core, config; _core.Worker(config.worker_options()).start()"],
}


def by_hand(role, **changes):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MXRDMA_", "DMLC_"))}
    environment.update({**JOB, **changes})
    return subprocess.Popen(
        ROLES[role], env={n: v for n, v in environment.items() if v is not None},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


@pytest.mark.needs_core
@pytest.mark.parametrize("role", ROLES)
def test_a_name_that_does_not_resolve_is_named_in_every_role(role):
    process = by_hand(role, MXRDMA_SCHEDULER_URI="no-such.invalid")
    started = time.monotonic()
    text = process.communicate(timeout=60)[0].decode()
    assert "no-such.invalid" in text and "ConfigError" in text
    assert process.returncode == (1 if role == "worker" else 78)
    assert time.monotonic() - started < 30  # the documented bound, not a measurement


@pytest.mark.needs_core
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", ["MXRDMA_TOKEN", "MXRDMA_SCHEDULER_PORT"])
def test_what_is_missing_ends_every_role(role, name):
    process = by_hand(role, **{name: None})
    text = process.communicate(timeout=60)[0].decode()
    assert name in text and process.returncode in (1, 78)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


@pytest.mark.slow
@pytest.mark.needs_core
def test_a_scheduler_that_is_not_there_is_waited_for_aloud_and_named_first():
    port = free_port()
    process = by_hand("server", MXRDMA_SCHEDULER_PORT=port, MXRDMA_JOIN_TIMEOUT="8")
    text = process.communicate(timeout=60)[0].decode()
    assert f"waiting for the scheduler at 127.0.0.1:{port}, at most" in text, text
    assert f"the scheduler at 127.0.0.1:{port} was not reached within 8 s" in text, text
    assert "numbers of workers" not in text, text
    assert process.returncode == 75


WORKER = """
import os
import mxnet as mx
kv = mx.kv.create('dist_rdma')
kv.init(3, mx.nd.zeros((2,)))
kv.push(3, mx.nd.ones((2,)) * (kv.rank + 1))
out = mx.nd.zeros((2,))
kv.pull(3, out=out)
print('value', out.asnumpy().tolist(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.needs_core
@pytest.mark.parametrize("host", ["localhost", "[::1]", socket.gethostname()])
def test_roles_by_hand_with_mxnets_variables(host, monkeypatch, tmp_path):
    pytest.importorskip("mxnet")
    try:
        socket.getaddrinfo(config.split_host(host), None)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.bind((config.split_host(host) if family == socket.AF_INET6 else "127.0.0.1", 0))
    except OSError as error:
        pytest.skip(f"{host} cannot be used here: {error}")
    token = tmp_path / "token"
    token.write_text(JOB["MXRDMA_TOKEN"])
    token.chmod(0o600)
    values = {**JOB, "MXRDMA_SCHEDULER_URI": host, "MXRDMA_SCHEDULER_PORT": free_port()}
    native = {NATIVE_NAMES.get(name, name): value for name, value in values.items() if name != "MXRDMA_TOKEN"}
    changes = {**dict.fromkeys(JOB), **native, "MXRDMA_TOKEN_FILE": str(token)}
    monkeypatch.setitem(ROLES, "script", [sys.executable, "-c", WORKER])
    # DMLC_ROLE=worker set by hand is fine; that of a native server must do no harm to ours.
    started = [by_hand("scheduler", **changes, DMLC_ROLE="scheduler"), by_hand("server", **changes, DMLC_ROLE="server")]
    started += [by_hand("script", **changes, MXRDMA_ROLE="worker", DMLC_ROLE="worker") for _ in range(2)]
    try:
        for process in started:
            text = process.communicate(timeout=90)[0].decode()
            assert process.returncode == 0, text
            if process in started[2:]:
                assert "value [3.0, 3.0]" in text
    finally:
        for process in started:
            process.kill()
            process.wait()
