"""The launcher's output: labels, whole lines, nothing lost, nothing blocked."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import jobs
import pytest

pytestmark = pytest.mark.needs_core


def test_lines_of_all_are_whole_labelled_and_in_order(trace):
    script = """
import os, sys
for i in range(3000):
    os.write(1, b'line %d ' % i)
    os.write(1, b'x' * (i % 200) + b' end\\n')
"""
    done = jobs.run("-n", "4", "-s", "1", *jobs.python(script), env=trace.environment)
    assert done.code == 0, done
    wanted = [f"line {i} {'x' * (i % 200)} end" for i in range(3000)]
    for rank in range(4):
        assert done.lines(f"worker {rank}") == wanted
    assert len(done.out.splitlines()) == 4 * 3000


def test_stdout_and_stderr_stay_apart(trace):
    script = "import sys; print('to out'); print('to err', file=sys.stderr)"
    done = jobs.run("-n", "1", "-s", "1", *jobs.python(script), env=trace.environment)
    assert (done.out, done.err) == ("[worker 0] to out\n", "[worker 0] to err\n")


def test_bytes_pass_unchanged(trace):
    content = bytes(range(256)).replace(b"\n", b"") + b"\r half \r\n\x00\xff\n\n"
    script = f"import os; os.write(1, {content!r})"
    launcher = jobs.start("-n", "1", "-s", "1", *jobs.python(script), env=trace.environment)
    out, _ = launcher.communicate(timeout=jobs.LIMIT_S)
    assert out == b"".join(b"[worker 0] " + line + b"\n" for line in content.split(b"\n")[:-1])


def test_a_last_line_without_end_is_shown(trace):
    done = jobs.run("-n", "1", "-s", "1", *jobs.python("import os; os.write(1, b'a\\nno end')"), env=trace.environment)
    assert done.out == "[worker 0] a\n[worker 0] no end\n"


def test_a_line_comes_out_while_its_process_runs(trace):
    script = "import time; print('early'); time.sleep(600)"
    launcher = jobs.start("-n", "1", "-s", "1", *jobs.python(script), env=trace.environment)
    assert select.select([launcher.stdout], [], [], jobs.LIMIT_S)[0]
    assert os.read(launcher.stdout.fileno(), 100) == b"[worker 0] early\n"
    launcher.terminate()
    jobs.finish(launcher)


def test_an_endless_line_is_cut_and_not_kept_in_memory(trace):
    script = "import os\nfor _ in range(48): os.write(1, b'z' * (1 << 18))"
    done = jobs.run("-n", "1", "-s", "1", *jobs.python(script), env=trace.environment)
    lines = done.lines("worker 0")
    assert sum(map(len, lines)) == 48 << 18
    assert len(lines) > 4 and set("".join(lines)) == {"z"}


def test_a_reader_that_does_not_read_loses_nothing(trace, tmp_path):
    count = 200_000
    script = f"for i in range({count}): print('number', i)"
    launcher = jobs.start("-n", "2", "-s", "1", *jobs.python(script), env=trace.environment)
    time.sleep(3)  # both pipes are full by now, and so is the launcher's buffer
    assert launcher.poll() is None
    done = jobs.finish(launcher)
    wanted = [f"number {i}" for i in range(count)]
    assert done.code == 0 and done.lines("worker 0") == wanted and done.lines("worker 1") == wanted


def test_signals_are_heard_while_nobody_reads(trace):
    script = "import os\nwhile True: os.write(1, b'x' * 65535 + b'\\n')"
    launcher = jobs.start("-n", "2", "-s", "1", *jobs.python(script), env=trace.environment)
    assert select.select([launcher.stdout], [], [], jobs.LIMIT_S)[0]
    time.sleep(3)  # our pipe, the launcher's buffer and the workers' pipes are full by now
    with open(f"/proc/{launcher.pid}/status", encoding="ascii") as file:
        peak_kib = int(re.search(r"VmHWM:\s*(\d+) kB", file.read()).group(1))
    assert peak_kib < 60 << 10, "what nobody reads is kept in memory"
    launcher.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 10
    while launcher.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)  # without reading
    assert launcher.poll() == 143
    assert trace.left() == []
    launcher.communicate()


def test_training_goes_on_when_the_reader_goes(trace, tmp_path):
    mark = tmp_path / "end"
    script = f"import time\nfor _ in range(40): print('x' * 5000); time.sleep(.02)\nopen({str(mark)!r}, 'w').close()"
    command = " ".join([sys.executable, "-m", "mxrdma.launch", "-n", "1", "-s", "1", "python", "-c", '"$SCRIPT"'])
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"],
        env={**os.environ, **trace.environment, "SCRIPT": script}, stdout=subprocess.PIPE, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and mark.exists()


def on_a_terminal(trace, script, workers=1, **environment):
    """(code, everything that a terminal received)"""
    controller, terminal = pty.openpty()
    launcher = jobs.start(
        "-n", workers, "-s", 1, *jobs.python(script), stdout=terminal, stderr=terminal,
        env={**trace.environment, "TERM": "xterm", **environment},
    )  # fmt: skip
    os.close(terminal)
    received = b""
    deadline = time.monotonic() + jobs.LIMIT_S
    while time.monotonic() < deadline:
        try:
            data = os.read(controller, 65536)
        except OSError:  # all of its users have gone
            break
        if not data:
            break
        received += data
    os.close(controller)
    return launcher.wait(timeout=10), received.decode()


def test_labels_have_colours_on_a_terminal_only(trace):
    code, text = on_a_terminal(trace, "print('hello')")
    assert code == 0
    assert re.search(r"\x1b\[\d+m\[worker 0\] \x1b\[0mhello\r\n", text), repr(text)
    _, text = on_a_terminal(trace, "print('hello')", NO_COLOR="1")
    assert text == "[worker 0] hello\r\n"
    assert "\x1b" not in jobs.run("-n", 1, "-s", 1, *jobs.python("print('x')"), env=trace.environment).out


def test_a_progress_bar_moves_in_place_on_a_terminal(trace):
    script = """
import sys, time
for percent in (10, 50, 100):
    sys.stdout.write('\\r%d %%' % percent); sys.stdout.flush(); time.sleep(.1)
sys.stdout.write('\\nend\\n')
"""
    _, text = on_a_terminal(trace, script, NO_COLOR="1")
    shown = screen(text)
    assert shown == ["[worker 0] 100 %", "[worker 0] end"], repr(text)
    assert "10 %" in text and "50 %" in text


def test_a_prompt_is_seen_on_a_terminal_though_another_prints(trace):
    script = """
import os, sys, time
if os.environ['MXRDMA_RANK'] == '0':
    sys.stdout.write('wait: '); sys.stdout.flush(); time.sleep(2); print('done')
else:
    time.sleep(1); print('other')
"""
    _, text = on_a_terminal(trace, script, workers=2, NO_COLOR="1")
    assert text.index("[worker 0] wait: ") < text.index("[worker 1] other")
    assert screen(text) == ["[worker 1] other", "[worker 0] wait: done"], repr(text)


def screen(text):
    """The lines that a terminal shows: knows newline, carriage return and "erase to the end of the line"."""
    lines, line, column = [], [], 0
    position = 0
    while position < len(text):
        if text.startswith("\x1b[K", position):
            del line[column:]
            position += 3
            continue
        character = text[position]
        if character == "\n":
            lines.append("".join(line))
            line, column = [], 0
        elif character == "\r":
            column = 0
        else:
            line[column : column + 1] = [character]
            column += 1
        position += 1
    return lines + (["".join(line)] if line else [])
