"""How a worker's process ends: with the code that Python gives it, and with a word to the others when it is a bad one."""

import signal

import by_hand
import pytest

# Rank 0 is in a call that only rank 1 can end; rank 1 leaves a pull behind that only rank 0 could end.
MISSING = """
if rank == 0:
    kv.barrier()
kv.push(0, big)
kv.pull(0, out=out)
"""
BAD = {
    "raised": ("raise SystemExit(3)", 3, "exit code 3"),
    "raised with a text": ("raise SystemExit('some text')", 1, "exit code 1"),
    "from within": ("def f(): raise SystemExit(4)\n[f() for _ in range(1)]", 4, "exit code 4"),
    "negative": ("raise SystemExit(-1)", 255, "exit code 255"),
    "called": ("sys.exit(5)", 5, "exit code 5"),
    "called while another is handled": ("try: sys.exit(6)\nexcept SystemExit: sys.exit(7)", 7, "exit code 7"),
    "by site": ("exit(8)", 8, "exit code 8"),
    "in a signal handler": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\nos.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
        9, "exit code 9",
    ),
    "uncaught": ("for _ in range(20): kv.push(0, big)\nundefined_name", 1, "NameError: name 'undefined_name'"),
    "uncaught, another hook": (
        "sys.excepthook = lambda *_: print('hooked')\nraise ValueError('boom-1')", 1, "ValueError: boom-1",
    ),
    "interrupted": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", -signal.SIGINT, "KeyboardInterrupt"),
    "os._exit": ("os._exit(10)", 10, "worker 1"),
    "atexit after an error": ("import atexit\natexit.register(sys.exit, 0)\nraise SystemExit(11)", 11, "exit code 11"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_a_bad_end_is_told_and_waits_for_nothing(tmp_path, name):
    body, code, words = BAD[name]
    ended = by_hand.run(tmp_path, MISSING + body)
    assert ended[1].code == code, ended
    assert "waiting for" not in ended[1].output
    assert ended[0].code == 1 and "WorkerLost" in ended[0].output and words in ended[0].output, ended
    assert "worker 1" in ended[0].output.split("WorkerLost")[-1]
    assert ended["server"].code == ended["scheduler"].code == 69, ended  # PEER_LOST


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exit", "bye"])
def test_sys_exit_imported_before_the_store(run_job, name):
    job = run_job(
        f"""
        from sys import exit as {name}
        import mxnet as mx
        kv = mx.kv.create('dist_rdma')
        kv.init(0, mx.nd.zeros((4,)))
        if kv.rank == 0:
            kv.barrier()
        kv.push(0, mx.nd.ones((4,)))
        kv.pull(0, out=mx.nd.zeros((4,)))
        {name}(12)
        """,
        create=False,
        ok=False,
    )
    assert job.returncode == 12, job.output


# Nothing of this ends the process, so none of it is a failure.
HARMLESS = """
import atexit, multiprocessing, threading

def quiet(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()

quiet(lambda: sys.exit(3))
for how in (lambda: sys.exit(3), lambda: exit(3), lambda: (_ for _ in ()).throw(SystemExit(3))):
    try:
        how()
    except SystemExit as end:
        assert end.code == 3
try:
    raise ValueError("caught and printed")
except ValueError:
    sys.excepthook(*sys.exc_info())
assert SystemExit(1, 2).code == (1, 2) and SystemExit().code is None
end = SystemExit(3)
end.code = 4
assert end.code == 4 and end.args == (3,)
child = multiprocessing.get_context("fork").Process(target=sys.exit, args=(7,))
child.start()
child.join()
assert child.exitcode == 7
pid = os.fork()
if pid == 0:
    os._exit(5)
assert os.WEXITSTATUS(os.waitpid(pid, 0)[1]) == 5
atexit.register(lambda: sys.exit(3))
for _ in range(20):
    kv.pushpull(0, big, out=out)
"""
GOOD = {"falls off": "", "sys.exit()": "sys.exit()", "0": "raise SystemExit(0)", "256": "raise SystemExit(256)"}


@pytest.mark.slow
@pytest.mark.parametrize("name", GOOD)
def test_what_does_not_end_the_process_is_no_failure(tmp_path, name):
    ended = by_hand.run(tmp_path, HARMLESS + GOOD[name])
    assert {name: one.code for name, one in ended.items()} == {"scheduler": 0, "server": 0, 0: 0, 1: 0}, ended
    for rank in (0, 1):
        assert "caught and printed" in ended[rank].output and "MXNetError" not in ended[rank].output, ended


@pytest.mark.slow
def test_a_clean_end_waits_for_late_ranks_and_says_so(tmp_path):
    ended = by_hand.run(
        tmp_path,
        """
        if rank == 0:
            time.sleep(5)
        kv.pushpull(0, big, out=out)
        """,
        environment={"MXRDMA_STALL_REPORT": "1"},
    )
    assert {name: one.code for name, one in ended.items()} == {"scheduler": 0, "server": 0, 0: 0, 1: 0}, ended
    assert "waiting for outstanding operations" in ended[1].output and "pull of key 0" in ended[1].output, ended
    assert "waiting for" not in ended[0].output


@pytest.mark.slow
def test_a_clean_end_waits_no_longer_than_a_round_may_take(tmp_path):
    ended = by_hand.run(
        tmp_path,
        """
        if rank == 0:
            time.sleep(60)
        kv.pushpull(0, big, out=out)
        """,
        environment={"MXRDMA_ROUND_TIMEOUT": "3"},
    )
    assert ended[1].code == 1 and "round 1 of key 0" in ended[1].output and "worker 0" in ended[1].output, ended


@pytest.mark.slow
def test_a_failure_that_the_script_swallowed_still_ends_it_with_1(tmp_path):
    ended = by_hand.run(
        tmp_path,
        """
        if rank == 1:
            raise SystemExit(3)
        try:
            kv.barrier()
        except mx.MXNetError as error:
            print("told:", type(error).__name__)
        raise SystemExit(0)
        """,
    )
    assert (ended[0].code, ended[1].code) == (1, 3), ended
    assert "told: WorkerLost" in ended[0].output and "the job had failed" in ended[0].output


@pytest.mark.slow
@pytest.mark.parametrize("workers", [3])
def test_an_updaters_error_is_raised_as_such_on_all_ranks(tmp_path, workers):
    ended = by_hand.run(
        tmp_path,
        """
        def update(key, received, stored):
            raise ArithmeticError("refused by the updater")
        kv._set_updater(update)
        if rank == 2:
            time.sleep(1)
        if rank != 0:
            kv.push(0, big)
            kv.pull(0, out=out)
        else:
            kv.push(0, big)  # asks for no result, so only the others hear of it by themselves
        try:
            while True:
                out.wait_to_read()
                kv.barrier()
                time.sleep(0.05)
        except mx.MXNetError as error:
            print("raised", type(error).__name__, error, flush=True)
            raise
        """,
        workers=workers,
    )
    for rank in range(workers):
        assert ended[rank].code == 1, ended
        assert "raised UpdaterError" in ended[rank].output, ended
        assert "ArithmeticError: refused by the updater" in ended[rank].output, ended
        assert "server 0 on host" in ended[rank].output, ended
