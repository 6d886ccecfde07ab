"""scripts/soft-roce as a command: what passes through the guest, what stays in it, and that nothing is left."""

import os
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "soft-roce"
LIMIT_S = 200  # a loaded machine boots slowly
CANNOT_RUN = 77


def run(*arguments, env=None, cwd=None):
    return subprocess.run(
        [str(SCRIPT), *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd, timeout=LIMIT_S, check=False,
        env={**os.environ, **(env or {})},
    )  # fmt: skip


@pytest.fixture
def guest():
    """run() where a guest can be booted without building a kernel first."""
    done = run("--check")
    if done.returncode == CANNOT_RUN:
        pytest.skip(done.stderr.decode().strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr.decode()
    return run


def processes_with(mark):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # ended meanwhile
            continue
    return [pid for pid in found if pid != os.getpid()]


@pytest.mark.parametrize("plain", ["", "1"], ids=["namespaces", "no-namespaces"])
@pytest.mark.slow
def test_output_status_environment_and_files(guest, tmp_path, plain):
    """One boot for all that passes in and out. The command is told apart from the host by its kernel."""
    before = set(Path("/tmp").glob("soft-roce.*"))
    (tmp_path / "input").write_text("from the host")
    script = (
        'cat input; echo; echo "$MARK"; printf "%s|" "$@"; echo; head -c 3 /proc/self/comm >/dev/null; '
        "grep -c 'User Mode Linux' /proc/cpuinfo; ls /sys/class/infiniband; echo wrong >&2; "
        "echo kept > out/kept; echo gone > gone; exit 23"
    )
    done = guest(
        "-n", 3, "--results", "out", "--", "bash", "-c", script, "bash", "two words", "", "$HOME",
        cwd=tmp_path, env={"MARK": "a=b\nline 'two'", "MXRDMA_SOFT_ROCE_PLAIN": plain},
    )  # fmt: skip
    assert done.returncode == 23, done.stderr.decode()
    expected = ["from the host", "a=b", "line 'two'", "two words||$HOME|", "1", "rxe1", "rxe2", "rxe3"]
    assert done.stdout.decode().splitlines() == expected
    assert done.stderr.decode() == "wrong\n"
    assert (tmp_path / "out" / "kept").read_text() == "kept\n"
    assert not (tmp_path / "gone").exists()
    assert set(Path("/tmp").glob("soft-roce.*")) == before


@pytest.mark.slow
def test_time_limit(guest, tmp_path):
    done = guest("-n", 0, "--timeout", 2, "--", "bash", "-c", "echo begun; sleep 1000", cwd=tmp_path)
    assert done.returncode == 124
    assert done.stdout == b"begun\n"
    assert done.stderr == b"soft-roce: the time limit of 2 s is reached; the guest is ended\n"


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
@pytest.mark.slow
def test_signal_leaves_nothing(guest, tmp_path, number, code):
    mark = uuid.uuid4().hex  # is on the command line of each process but the kernel's, which the console file marks
    console = tmp_path / mark
    mounts = Path("/proc/mounts").read_text()
    process = subprocess.Popen(
        [str(SCRIPT), "-n", "0", "--console", str(console), "--", "bash", "-c", f"echo {mark}; sleep 1000"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        assert process.stdout.readline().decode().strip() == mark
        kernels = [pid for pid in processes_with("umid=guest") if opened(pid, console)]
        assert kernels
        process.send_signal(number)
        assert process.wait(30) == code
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    for _ in range(100):
        left = processes_with(mark) + [pid for pid in kernels if opened(pid, console)]
        if not left:
            break
        time.sleep(0.1)
    assert left == []
    assert Path("/proc/mounts").read_text() == mounts


def opened(pid, path):
    try:
        return any(os.readlink(f"/proc/{pid}/fd/{fd}") == str(path) for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:  # ended
        return False


def test_reason_where_there_is_no_kernel(tmp_path):
    done = run("--check", env={"MXRDMA_UML_KERNEL": "", "XDG_CACHE_HOME": str(tmp_path)})
    assert done.returncode == CANNOT_RUN
    assert "missing" in done.stderr.decode() or f"({tmp_path}/mxrdma/linux-uml-" in done.stderr.decode()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments, says",
    [
        ((), "no command"),
        (("ls",), "unknown option 'ls'"),
        (("-n", "x", "--", "ls"), "'x'"),
        (("-n",), "needs a value"),
        (("--timeout", "0", "--", "ls"), "'0'"),
        (("--results=/dev/shm/x", "--", "ls"), "below /dev"),
    ],
)
def test_wrong_usage(arguments, says):
    kernel = {"MXRDMA_UML_KERNEL": "/bin/true"}
    done = run(*arguments, env=kernel)
    if done.returncode == CANNOT_RUN:
        pytest.skip(done.stderr.decode())
    assert done.returncode == 2, done.stderr.decode()
    assert says in done.stderr.decode()


def test_a_given_kernel_must_be_there(tmp_path):
    done = run("--check", env={"MXRDMA_UML_KERNEL": str(tmp_path / "absent")})
    if done.returncode == CANNOT_RUN:
        pytest.skip(done.stderr.decode())
    assert done.returncode == 2
    assert str(tmp_path / "absent") in done.stderr.decode()
