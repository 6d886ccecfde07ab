"""What reaches the command: its arguments, its environment, its interpreter."""

import json
import os
import stat
import sys

import jobs
import pytest

pytestmark = pytest.mark.needs_core

ARGV = "import json, sys; print(json.dumps(sys.argv[1:]))"


def test_arguments_are_verbatim(trace):
    wanted = ["-n", "5", "--env", "X", "a b", "it's", "", "*", "x;echo HI", "--", "--lr=0.1", "$HOME", "\\n", "ü", "--help"]
    done = jobs.run("-n", "2", "-s", "1", *jobs.python(ARGV), *wanted, env=trace.environment)
    assert done.code == 0, done
    for rank in (0, 1):
        assert [json.loads(line) for line in done.lines(f"worker {rank}")] == [wanted]
    assert len(done.out.splitlines()) == 2
    assert done.err == ""


def test_two_dashes_before_the_command_are_the_launchers(trace):
    done = jobs.run("-n", "1", "-s", "1", "--", *jobs.python(ARGV), "--", "x", env=trace.environment)
    assert [json.loads(line) for line in done.lines("worker 0")] == [["--", "x"]]


def test_environment_arrives_byte_for_byte(trace):
    values = {"T": "a b;$HOME'x'\"q\" `id` \\ * \n second line", "EMPTY": "", "UMLAUT": "äöü"}
    script = "import json, os; print(json.dumps({n: os.environ.get(n) for n in ('T', 'EMPTY', 'UMLAUT', 'FROM_HERE')}))"
    done = jobs.run(
        "-n", "2", "-s", "1",
        *[word for name, value in values.items() for word in ("--env", f"{name}={value}")], "--env", "FROM_HERE",
        *jobs.python(script), env={**trace.environment, "FROM_HERE": "x=y=z"},
    )  # fmt: skip
    assert done.code == 0, done
    for rank in (0, 1):
        assert [json.loads(line) for line in done.lines(f"worker {rank}")] == [{**values, "FROM_HERE": "x=y=z"}]


def test_a_variable_that_is_not_there_is_refused(trace):
    done = jobs.run("-n", "1", "--env", "NO_SUCH_VARIABLE", *jobs.python("print('ran')"), env=trace.environment)
    assert done.code == 78
    assert "NO_SUCH_VARIABLE" in done.err and "--env" in done.err
    assert "ran" not in done.out


def test_variables_of_a_job_cannot_be_given(trace):
    done = jobs.run("-n", "1", "--env", "MXRDMA_RANK=7", *jobs.python("print('ran')"), env=trace.environment)
    assert done.code == 78 and "MXRDMA_RANK" in done.err


def test_the_surroundings_of_another_job_do_not_reach_this_one(trace):
    script = (
        "import json, os; print(json.dumps([os.environ.get('DMLC_ROLE'), os.environ['MXRDMA_ROLE'],"
        " os.environ['MXRDMA_RANK'], os.environ['MXRDMA_NUM_WORKERS'], os.environ.get('DMLC_PS_ROOT_URI'),"
        " len(os.environ['MXRDMA_TOKEN']), 'MXRDMA_STATUS_FD' in os.environ]))"
    )
    outer = {"DMLC_ROLE": "server", "DMLC_PS_ROOT_URI": "elsewhere", "MXRDMA_ROLE": "server", "MXRDMA_RANK": "9"}
    outer.update({"MXRDMA_TOKEN_FILE": "/nonexistent", "MXRDMA_NUM_WORKERS": "40", "MXRDMA_SCHEDULER_PORT": "1"})
    done = jobs.run("-n", "2", "-s", "1", *jobs.python(script), env={**trace.environment, **outer})
    assert done.code == 0, done
    for rank in (0, 1):
        assert [json.loads(line) for line in done.lines(f"worker {rank}")] == [
            [None, "worker", str(rank), "2", None, 64, False]
        ]


def test_the_token_is_on_no_command_line_and_new_each_time(trace, tmp_path):
    script = "import os; print(os.environ['MXRDMA_TOKEN'])"
    tokens = [
        jobs.run("-n", "1", "-s", "1", *jobs.python(script), env=trace.environment).lines("worker 0")[0] for _ in range(2)
    ]
    assert tokens[0] != tokens[1] and all(len(bytes.fromhex(token)) == 32 for token in tokens)
    ready = tmp_path / "ready"
    script = f"import os, time; open({str(ready)!r}, 'w').write(os.environ['MXRDMA_TOKEN']); time.sleep(600)"
    launcher = jobs.start("-n", "1", "-s", "1", *jobs.python(script), env=trace.environment)
    token = jobs.wait_for(lambda: ready.exists() and ready.read_text(), "token")
    for pid in trace.left():
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            assert token.encode() not in file.read()
    launcher.terminate()
    done = jobs.finish(launcher)
    assert token not in done.err + done.out


def test_python_is_the_launchers_own(trace, tmp_path):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho WRONG\nexit 1\n")
    fake.chmod(0o755)
    (tmp_path / "python3").symlink_to(fake)
    path = f"{tmp_path}:{os.environ['PATH']}"
    for name in ("python", "python3"):
        done = jobs.run(
            "-n", "1", "-s", "1", name, "-c", "import sys; print(sys.executable)", env={**trace.environment, "PATH": path}
        )
        assert done.code == 0 and done.lines("worker 0") == [sys.executable], done
    done = jobs.run("-n", "1", "-s", "1", str(fake), env=trace.environment)
    assert done.code == 1 and done.lines("worker 0") == ["WRONG"], done


@pytest.mark.parametrize("name", ["no-such-command-here", "./no/such/file"])
def test_a_command_that_is_not_there(trace, name):
    done = jobs.run("-n", "2", "-s", "1", name, env=trace.environment)
    assert done.code == 127 and name in done.err, done


def test_a_command_that_cannot_be_run(trace, tmp_path):
    script = tmp_path / "script"
    script.write_text("print(1)\n")
    done = jobs.run("-n", "2", "-s", "1", script, env=trace.environment)
    assert done.code == 126 and str(script) in done.err, done
    script.chmod(script.stat().st_mode | stat.S_IXUSR)  # but it names no interpreter
    done = jobs.run("-n", "2", "-s", "1", script, env=trace.environment)
    assert done.code == 126 and str(script) in done.err, done


def test_stdin_is_empty_and_the_folder_is_ours(trace, tmp_path):
    script = "import os, sys; print(repr(sys.stdin.read()), os.getcwd())"
    done = jobs.run("-n", "1", "-s", "1", *jobs.python(script), env=trace.environment, cwd=tmp_path)
    assert done.lines("worker 0") == [f"'' {tmp_path}"], done


def test_the_number_of_workers_is_needed(trace):
    done = jobs.run(*jobs.python("print('ran')"), env=trace.environment)
    assert done.code == 2 and "-n" in done.err and "ran" not in done.out


def test_settings_of_a_file_are_below_the_environment(trace, tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("num_workers: 2\nnum_servers: 1\nlog_level: error\nslot_bytes: 64K\n")
    script = "import os; print(os.environ['MXRDMA_LOG_LEVEL'], os.environ['MXRDMA_SLOT_BYTES'])"
    done = jobs.run("--config", path, *jobs.python(script), env={**trace.environment, "MXRDMA_SLOT_BYTES": "32K"})
    assert done.code == 0, done
    assert done.lines("worker 0") == done.lines("worker 1") == ["error 32K"]


@pytest.mark.parametrize(
    "content, words",
    [
        ("fabrik: tcp\n", ["fabrik", "fabric"]),
        ("fabric: smoke\n", ["MXRDMA_FABRIC", "smoke", "tcp"]),
        ("- a\n", ["must map"]),
        ("token: abc\n", ["token", "secret"]),
    ],
)
def test_a_file_with_mistakes_is_refused(trace, tmp_path, content, words):
    path = tmp_path / "job.yaml"
    path.write_text(content)
    done = jobs.run("-n", "1", "--config", path, *jobs.python("print('ran')"), env=trace.environment)
    assert done.code == 78 and "ran" not in done.out
    for word in words:
        assert word in done.err, done


def test_a_setting_that_cannot_be_used_is_refused_before_anything_starts(trace):
    done = jobs.run("-n", "1", *jobs.python("print('ran')"), env={**trace.environment, "MXRDMA_SLOT_BYTES": "7"})
    assert done.code == 78 and "MXRDMA_SLOT_BYTES" in done.err and "'7'" in done.err and "ran" not in done.out


def test_help_lists_every_setting():
    from mxrdma import config

    done = jobs.run("--help")
    assert done.code == 0
    for setting in config.SETTINGS:
        assert setting.name in done.out


def test_the_stores_name_is_told(trace):
    script = "import mxrdma; print(mxrdma.kvstore_name())"
    done = jobs.run("-n", "1", "-s", "1", *jobs.python(script), env=trace.environment)
    assert done.lines("worker 0") == ["dist_rdma"], done


def test_a_script_in_the_place_of_a_command_is_met_with_a_hint(tmp_path, trace):
    script = tmp_path / "train.py"
    script.write_text("print('ran')\n")
    for given in (str(script), "train.py"):
        done = jobs.run("-n", "1", given, env=trace.environment, cwd=tmp_path)
        assert done.code in (126, 127), done
        assert f"did you mean `python {given}`?" in done.err, done
    done = jobs.run("-n", "1", "no-such.py", env=trace.environment, cwd=tmp_path)
    assert "did you mean" not in done.err, done


def test_device_and_gid_index_reach_the_workers(trace):
    script = "import os; print(os.environ['MXRDMA_FABRIC'], os.environ['MXRDMA_DEVICE'], os.environ['MXRDMA_GID_INDEX'])"
    done = jobs.run(
        "-n", 1, "-s", 1, "--fabric", "tcp", "--device", "mlx5_0:1,mlx5_1:1", "--gid-index", "3", *jobs.python(script),
        env=trace.environment,
    )
    assert done.code == 0 and done.lines("worker 0") == ["tcp mlx5_0:1,mlx5_1:1 3"], done
    done = jobs.run("-n", 1, "--device", "mlx5_0:one", *jobs.python(script), env=trace.environment)
    assert done.code == 78 and "MXRDMA_DEVICE" in done.err, done
