"""mxrdma-doctor as a process, on a machine without RDMA devices; tests/hardware has it where devices are."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jobs
import pytest

pytestmark = pytest.mark.needs_core

LIMIT_S = 90
TOKEN = "0123456789abcdef-a-secret"


def doctor(*arguments, before=(), env=None):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MXRDMA_")}
    environment.update(env or {})
    command = [*before, sys.executable, "-m", "mxrdma.doctor", *arguments]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, timeout=LIMIT_S, check=False
    )
    return jobs.Finished(done.returncode, done.stdout, done.stderr)


def has_devices():
    return os.path.isdir("/sys/class/infiniband") and bool(os.listdir("/sys/class/infiniband"))


@pytest.fixture
def no_devices():
    if has_devices():
        pytest.skip("this machine has RDMA devices")


def test_no_device_as_text(no_devices):
    done = doctor()
    assert done.code == 2 and done.err == "", done
    assert "no RDMA devices" in done.out and "rdma link add" in done.out and "RDMA on this host: not usable" in done.out


def test_no_device_as_json(no_devices):
    done = doctor("--json")
    assert done.code == 2 and done.err == "", done
    told = json.loads(done.out)
    assert (told["exit_code"], told["verdict"], told["rdma"]["devices"]) == (2, "not usable", [])
    assert [f["topic"] for f in told["findings"] if f["level"] == "problem"] == ["devices"]
    assert told["host"]["locked_memory"].keys() == {"soft", "hard"}


def test_settings_that_cannot_be_read():
    for arguments, word in (
        (["--device", "a,,b"], "MXRDMA_DEVICE"), (["--gid-index", "x"], "MXRDMA_GID_INDEX"),
        (["--address", "no.such.host.invalid"], "no.such.host.invalid"),
    ):
        done = doctor(*arguments)
        assert done.code == 2 and word in done.err and "Traceback" not in done.err, done


def library_file(name):
    listed = subprocess.run(["/sbin/ldconfig", "-p"], stdout=subprocess.PIPE, check=False).stdout.decode()
    found = re.findall(rf"{re.escape(name)} \(.*x86-64\) => (\S+)", listed)
    return os.path.realpath(found[0]) if found else None


@pytest.fixture
def without_libibverbs(tmp_path):
    """The beginning of a command whose processes find an empty file in place of libibverbs."""
    file = library_file("libibverbs.so.1")
    if file is None:
        return []
    (tmp_path / "empty").touch()
    begin = ["unshare", "--mount", "sh", "-c", f'mount --bind {tmp_path}/empty {file} && exec "$@"', "sh"]
    if os.geteuid() != 0 or subprocess.run([*begin, "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        pytest.skip("hiding a library needs a mount namespace, thus root")
    return begin


def test_without_libibverbs(without_libibverbs):
    done = doctor(before=without_libibverbs)
    assert done.code == 2 and "libibverbs.so.1" in done.out and "apt-get install libibverbs1" in done.out, done
    told = json.loads(doctor("--json", before=without_libibverbs).out)
    assert "libibverbs.so.1" in told["rdma"]["library_problem"]
    script = "import mxrdma; from mxrdma import _core; print(_core.fabric_viable('tcp'), _core.fabric_viable('verbs'))"
    done = subprocess.run(
        [*without_libibverbs, sys.executable, "-c", script], stdout=subprocess.PIPE, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0 and done.stdout.startswith(b"None verbs cannot be used on this host"), done.stdout


def test_the_core_links_no_rdma_library():
    from mxrdma import _core

    dynamic = subprocess.run(["readelf", "-d", _core.__file__], stdout=subprocess.PIPE, check=True).stdout.decode()
    needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic)
    assert needed and not [name for name in needed if "ibverbs" in name or "rdmacm" in name]
    listed = subprocess.run(["nm", "-D", "--undefined-only", _core.__file__], stdout=subprocess.PIPE, check=True)
    symbols = listed.stdout.decode()
    assert "dlvsym" in symbols
    assert re.findall(r"U (_?ibv_\w+|rdma_\w+)", symbols) == []


def test_the_doctor_works_without_mxnet():
    script = (
        "import sys; sys.modules['mxnet'] = None; sys.argv = ['mxrdma-doctor', '--json']\n"
        "from mxrdma.doctor.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, timeout=LIMIT_S, check=False)
    assert done.returncode in (0, 1, 2) and json.loads(done.stdout)["exit_code"] == done.returncode


# ---- pair


class Listening:
    def __init__(self, *arguments, token=TOKEN):
        environment = {**os.environ, "MXRDMA_TOKEN": token}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mxrdma.doctor", "pair", "--listen", "--bind", "127.0.0.1", "--port", "0", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
        )
        line = self.process.stdout.readline().decode()
        found = re.fullmatch(r"listening on 127\.0\.0\.1, port (\d+)\n", line)
        assert found, (line, self.process.poll())
        self.port = found.group(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def test_pair_measures_every_fabric_of_both_hosts():
    with Listening("--once") as listening:
        done = doctor("pair", "127.0.0.1", "--port", listening.port, "--json", env={"MXRDMA_TOKEN": TOKEN})
        assert done.code == 0, done
        out, err = listening.process.communicate(timeout=LIMIT_S)
    assert listening.process.returncode == 0 and err == b"", err
    told = json.loads(done.out)
    by_fabric = {run["fabric"]: run for run in told["fabrics"]}
    assert set(by_fabric) == {"tcp", "shm", "verbs"}
    for fabric in ("tcp", "shm"):
        run = by_fabric[fabric]
        assert "problem" not in run and run["fabric"] in run["path"], run
        assert [step["bytes"] for step in run["steps"]] == [8, 4096, 65536, 1 << 20, 4 << 20]
        assert all(step["latency_us"] > 0 and step["bytes_per_s"] > 0 for step in run["steps"])
        assert f"connected over {fabric}" in out.decode()
    if not has_devices():
        assert "no RDMA device" in by_fabric["verbs"]["problem"]


def test_pair_as_text_with_one_fabric():
    with Listening() as listening:
        done = doctor("pair", "127.0.0.1", "--port", listening.port, "--fabric", "tcp", env={"MXRDMA_TOKEN": TOKEN})
        assert done.code == 0 and "tcp: connected in" in done.out and "latency (us)" in done.out, done
        assert listening.process.poll() is None  # waits for the next


def test_pair_that_cannot_have_the_fabric(no_devices):
    with Listening() as listening:
        done = doctor("pair", "127.0.0.1", "--port", listening.port, "--fabric", "verbs", env={"MXRDMA_TOKEN": TOKEN})
        assert done.code == 2 and "no RDMA device" in done.out, done


def test_pair_with_another_token():
    with Listening() as listening:
        done = doctor(
            "pair", "127.0.0.1", "--port", listening.port, "--fabric", "tcp", env={"MXRDMA_TOKEN": "another-secret-of-length"}
        )
        assert done.code == 2 and "token" in done.err + done.out and "Traceback" not in done.err, done
        assert listening.process.poll() is None


def test_pair_without_token_or_host():
    done = doctor("pair", "127.0.0.1")
    assert done.code == 2 and "MXRDMA_TOKEN" in done.err, done
    done = doctor("pair", env={"MXRDMA_TOKEN": TOKEN})
    assert done.code == 2 and "--listen" in done.err, done


def test_the_doctor_is_documented():
    page = (Path(__file__).resolve().parents[2] / "docs" / "rdma.md").read_text(encoding="utf-8")
    assert "0 ready, 1 usable with warnings, 2 not usable" in page
