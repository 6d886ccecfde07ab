"""Ends of processes and jobs: normal, by an error, by a lost node, around a fork."""

import re

import pytest


def test_uneven_rounds_end_with_the_name_of_who_is_missing(run_job):
    job = run_job(
        """
        kv.init(0, mx.nd.zeros((4,)))
        out = mx.nd.zeros((4,))
        for i in range(5 if rank else 3):
            kv.push(0, mx.nd.ones((4,)))
            kv.pull(0, out=out)
            out.wait_to_read()
        """,
        timeout=60,
        ok=False,
    )
    assert job.returncode != 0
    assert "worker 0" in job.output and re.search("key '?0", job.output)


def test_servers_outlive_the_first_to_leave(run_job):
    job = run_job(
        """
        kv.init(0, mx.nd.full((4,), 7))
        if rank:
            time.sleep(3)
            out = mx.nd.zeros((4,))
            kv.pull(0, out=out)
            result["pulled"] = out.asnumpy().tolist()
        """
    )
    assert job.results[1]["pulled"] == [7] * 4


def test_a_killed_server_is_named(run_job):
    job = run_job(
        """
        import signal, psutil
        kv.init([0, 1], [mx.nd.zeros((500000,))] * 2)
        out = mx.nd.zeros((500000,))
        if rank == 0:
            own = psutil.Process().parent()
            servers = [p for p in own.children(recursive=True) if p.environ().get("MXRDMA_ROLE") == "server"]
            result["servers"] = len(servers)
        for i in range(100000):
            kv.pushpull([0, 1], [out, out], out=[out, out])
            out.wait_to_read()
            if rank == 0 and i == 20:
                servers[0].send_signal(signal.SIGKILL)
        """,
        servers=2,
        timeout=90,
        ok=False,
    )
    assert job.returncode != 0
    assert "server" in job.output and "lost" in job.output.lower()


START = "kv.init(0, mx.nd.zeros((1000000,)))\nbig, out = mx.nd.ones((1000000,)), mx.nd.zeros((1000000,))\n"
ENDS = {
    "plain": ("", 0),
    "outstanding": ("for _ in range(20): kv.push(0, big)", 0),
    "outstanding pulls": ("for _ in range(20): kv.pushpull(0, big, out=out)", 0),
    "deleted": ("kv.pushpull(0, big, out=out)\ndel kv", 0),
    "cycle": ("loop = [kv]\nloop.append(loop)\nglobals()['held'] = loop", 0),
    "garbage cycle": ("kv.pushpull(0, big, out=out)\nloop = [kv]\nloop.append(loop)\ndel loop, kv", 0),
    "global dict": ("kv.pushpull(0, big, out=out)\nkept = {'kv': kv}\ndel kv", 0),
    "sys.exit(0)": ("kv.push(0, big)\nsys.exit(0)", 0),
    "sys.exit in a thread": (
        "import threading\nkv.pushpull(0, big, out=out)\nt = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()",
        0,
    ),
}


@pytest.mark.parametrize("name", sorted(ENDS))
def test_a_normal_end_is_silent(run_job, name):
    body, code = ENDS[name]
    job = run_job(START + body, ok=False)
    assert job.returncode == code, job.output
    for word in ("terminate called", "Segmentation", "Traceback", "Error", "had failed"):
        assert word not in job.output


@pytest.mark.parametrize(
    "body, code, word",
    [
        ("for _ in range(20): kv.push(0, big)\nundefined_name", 1, "undefined_name"),
        ("if rank == 1: sys.exit(3)\nkv.pushpull(0, big, out=out); out.wait_to_read()", 3, ""),
        ("if rank == 1: raise RuntimeError('boom-1')\nkv.pushpull(0, big, out=out); out.wait_to_read()", 1, "boom-1"),
    ],
)
def test_an_error_ends_all_with_its_own_code(run_job, body, code, word):
    job = run_job(
        START + body,
        timeout=60,
        ok=False,
    )
    assert job.returncode == code, job.output
    assert word in job.output


@pytest.mark.parametrize("engine", ["ThreadedEnginePerDevice", "NaiveEngine"])
def test_a_failure_stays(run_job, engine):
    """Rank 1 ends by an error; rank 0 swallows what it is told, is told again at each call, and ends non-zero."""
    job = run_job(
        """
        kv.init(0, mx.nd.zeros((4,)))
        out = mx.nd.full((4,), -1)
        if rank == 1:
            os._exit(9)
        told = []
        for attempt in range(3):
            try:
                kv.pushpull(0, mx.nd.ones((4,)), out=out)
                out.wait_to_read()
                told.append("nothing")
            except mx.MXNetError as error:
                told.append(type(error).__name__)
        print("told:", told, flush=True)
        """,
        timeout=60,
        ok=False,
        environment={"MXNET_ENGINE_TYPE": engine},
    )
    assert job.returncode != 0
    assert "nothing" not in job.output


@pytest.mark.parametrize("engine", ["ThreadedEnginePerDevice", "NaiveEngine"])
def test_forks(run_job, engine):
    """Data loaders forked after the store exists; a child that uses the store; a fork with operations outstanding."""
    job = run_job(
        """
        from mxnet.gluon.data import ArrayDataset, DataLoader
        kv.init(0, mx.nd.zeros((100000,)))
        out = mx.nd.zeros((100000,))
        total = 0
        for epoch in range(3):
            for batch in DataLoader(ArrayDataset(np.arange(64, dtype="float32")), batch_size=8, num_workers=2):
                kv.push(0, mx.nd.full((100000,), batch.sum().asscalar()))
                kv.pull(0, out=out)
                total += out[0].asscalar()
        result["total"] = float(total)
        for _ in range(5):
            kv.pushpull(0, out, out=out)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                kv.pull(0, out=out)
            except mx.MXNetError as error:
                code = 42 if "forked" in str(error) else 2
            os._exit(code)
        result["child"] = os.WEXITSTATUS(os.waitpid(pid, 0)[1])
        kv.pushpull(0, mx.nd.ones((100000,)), out=out)
        result["after"] = float(out[99999].asscalar())
        """,
        environment={"MXNET_ENGINE_TYPE": engine},
    )
    for result in job:
        assert result["total"] == 12096
        assert result["child"] == 42
        assert result["after"] == 2


def test_ranks_and_barriers(run_job):
    job = run_job(
        """
        kv.barrier()
        start = time.time()
        if rank == 3:
            time.sleep(3)
        kv._barrier()
        result["waited"] = time.time() - start
        result["rank"], result["size"] = rank, size
        """,
        workers=8,
        servers=2,
    )
    assert sorted(result["rank"] for result in job) == list(range(8))
    assert all(result["size"] == 8 and result["waited"] >= 2.9 for result in job)


def test_a_barrier_that_one_rank_skips_names_it(run_job):
    job = run_job(
        """
        if rank != 2:
            kv._barrier()
        else:
            time.sleep(30)
        """,
        workers=3,
        timeout=60,
        ok=False,
        environment={"MXRDMA_BARRIER_TIMEOUT": "3"},
    )
    assert job.returncode != 0
    assert "worker 2" in job.output or "rank 2" in job.output


@pytest.mark.parametrize("call", ["kv.barrier()", "kv.pushpull(0, out, out=out); out.wait_to_read()"])
def test_a_scheduler_that_hangs_is_lost(run_job, call):
    """Its process is stopped, so its connections stay. Nobody else ends a collective."""
    job = run_job(
        f"""
        import signal, psutil
        kv.init(0, mx.nd.zeros((4,)))
        out = mx.nd.zeros((4,))
        kv.barrier()
        if rank == 0:
            own = psutil.Process().parent()
            [scheduler] = [p for p in own.children(recursive=True) if p.environ().get("MXRDMA_ROLE") == "scheduler"]
            scheduler.send_signal(signal.SIGSTOP)
        else:
            time.sleep(1)
        try:
            while True:
                {call}
                time.sleep(0.1)
        except mx.MXNetError as error:
            print("told", type(error).__name__, error, flush=True)
            raise
        """,
        timeout=60,
        ok=False,
        environment={"MXRDMA_HEARTBEAT_TIMEOUT": "3"},
    )
    assert job.returncode != 0
    assert "told SchedulerLost" in job.output and "no sign of life for 3 s" in job.output, job.output


CALLS = {
    "barrier": ("kv.barrier()", "kv.init(1, one)"),
    "init": ("kv.init(1, one)", "kv.barrier()"),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupted_call_is_repeated(run_job, name):
    """Rank 0 leaves a call by an exception of a signal handler, as by Ctrl-C in a notebook, and makes it again."""
    call, other = CALLS[name]
    job = run_job(
        f"""
        import signal
        class Alarm(Exception):
            pass
        def alarm(*_):
            raise Alarm
        signal.signal(signal.SIGALRM, alarm)
        one = mx.nd.ones((4,)) * (rank + 1)
        if rank == 0:
            signal.alarm(1)
            try:
                {call}
                result["interrupted"] = False
            except Alarm:
                result["interrupted"] = True
            try:
                {other}
            except mx.MXNetError as error:
                result["other"] = str(error)
        else:
            time.sleep(3)
        {call}
        {other}
        out = mx.nd.zeros((4,))
        kv.pull(1, out=out)
        result["pulled"] = out.asnumpy().tolist()
        """,
        timeout=60,
    )
    assert job.results[0]["interrupted"]
    assert "was interrupted" in job.results[0]["other"] and "repeat that call" in job.results[0]["other"]
    assert all(result["pulled"] == [1] * 4 for result in job)


def test_an_interrupted_set_optimizer_ends_the_job(run_job):
    job = run_job(
        """
        import signal
        class Alarm(Exception):
            pass
        def alarm(*_):
            raise Alarm
        signal.signal(signal.SIGALRM, alarm)
        kv.init(0, mx.nd.ones((4,)))
        if rank == 0:
            signal.alarm(1)
        else:
            time.sleep(3)
        try:
            kv.set_optimizer(mx.optimizer.SGD())
        except Alarm:
            print("interrupted", flush=True)
        kv.barrier()
        """,
        timeout=60,
        ok=False,
    )
    assert job.returncode != 0
    assert "interrupted" in job.output and "set_optimizer was interrupted half-way" in job.output, job.output


def test_without_a_job_the_error_says_how_to_start_one():
    import os
    import subprocess
    import sys

    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MXRDMA_", "DMLC_"))}
    done = subprocess.run(
        [sys.executable, "-c", "import mxnet as mx; mx.kv.create('dist_rdma')"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert b"mxrdma-launch" in done.stdout and b"ConfigError" in done.stdout
