"""Values of keys after several rounds, against a NumPy float64 oracle and against MXNet's own dist_sync."""

import numpy as np
import pytest

ROUNDS = 3
LENGTHS = (1, 3, 7, 4097, 1000003)
DTYPES = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64")


def pushed(rank, round_, length, dtype):
    """Small integers: their sums are exact in every type (float16 to 2048, int8 to 127)."""
    values = (np.arange(length) * 7 + rank * 3 + round_ * 5) % 13
    return values.astype(dtype)


EVERY_TYPE = """
from test_values import DTYPES, LENGTHS, ROUNDS, pushed
key = 0
for dtype in %(dtypes)s:
    for length in LENGTHS:
        start = pushed(9, 9, length, dtype)
        value = mx.nd.array(start if rank == 0 else np.zeros(length), dtype=dtype)
        out = mx.nd.zeros((length,), dtype=dtype)
        kv.init(key, value)
        kv.pull(key, out=out)
        seen = [out.asnumpy()]
        for round_ in range(ROUNDS):
            gradient = mx.nd.array(pushed(rank, round_, length, dtype), dtype=dtype)
            if round_ %% 2:
                kv.pushpull(key, gradient, out=out, priority=-key)
            else:
                kv.push(key, gradient, priority=-key)
                kv.pull(key, out=out, priority=-key)
            seen.append(out.asnumpy())
            assert np.array_equal(gradient.asnumpy(), pushed(rank, round_, length, dtype)), "the pushed array changed"
        result[dtype, length] = seen
        key += 1
"""


def check_every_type(job, workers, dtypes):
    for rank in range(workers):
        for dtype in dtypes:
            for length in LENGTHS:
                seen = job.results[rank][dtype, length]
                expected = [pushed(9, 9, length, dtype).astype("float64")]
                for round_ in range(ROUNDS):
                    expected.append(sum(pushed(r, round_, length, dtype).astype("float64") for r in range(workers)))
                for one, (got, want) in enumerate(zip(seen, expected)):
                    assert got.dtype == np.dtype(dtype)
                    assert np.array_equal(got.astype("float64"), want), (rank, dtype, length, one)


@pytest.mark.parametrize("workers, servers, fabric", [(2, 1, "shm"), (2, 2, "tcp"), (3, 3, "auto"), (4, 2, "shm")])
def test_every_type_and_length(run_job, workers, servers, fabric):
    here = __file__.rsplit("/", 1)[0]
    job = run_job(
        EVERY_TYPE % {"dtypes": "DTYPES"}, workers, servers, fabric=fabric, environment={"PYTHONPATH": path_with(here)}
    )
    check_every_type(job, workers, DTYPES)


def path_with(folder):
    import os

    return os.pathsep.join([folder] + [p for p in [os.environ.get("PYTHONPATH")] if p])


@pytest.mark.native
def test_dist_sync_gives_the_same(run_job):
    """MXNet's own store aborts on integer types, so the floats only."""
    dtypes = ("float32", "float64", "float16")
    here = __file__.rsplit("/", 1)[0]
    body = EVERY_TYPE % {"dtypes": repr(dtypes)}
    # Native writes the sum into the pushed array: that check is ours alone.
    native_body = "\n".join(line for line in body.splitlines() if "assert" not in line)
    environment = {"PYTHONPATH": path_with(here)}
    ours = run_job(body, 2, 2, environment=environment)
    native = run_job(native_body, 2, 2, kvstore="dist_sync", environment=environment)
    check_every_type(ours, 2, dtypes)
    for rank in range(2):
        for case, seen in native.results[rank].items():
            for got, want in zip(ours.results[rank][case], seen):
                assert np.array_equal(got, want), case


def test_keys_lists_and_devices(run_job):
    job = run_job(
        """
        def full(value, shape=(2, 3), ctx=mx.cpu()):
            return mx.nd.full(shape, value, ctx=ctx)

        kv.init(["a", "b", "c"], [full(1), full(2, (5,)), full(3)])
        outs = [full(0), full(0, (5,)), full(0)]
        kv.pull(["a", "b", "c"], out=outs)
        result["initial"] = [o.asnumpy().ravel()[0] for o in outs]
        kv.push(["c", "a"], [full(10), full(20)])
        kv.pull(["a", "c"], out=[outs[0], outs[2]])
        result["pushed"] = [outs[0].asnumpy().ravel()[0], outs[2].asnumpy().ravel()[0]]
        # one key, several devices; then several keys, several devices each
        devices = [mx.cpu(i) for i in range(3)]
        values = [full(rank + i, ctx=devices[i]) for i in range(3)]
        targets = [full(-1, ctx=d) for d in devices]
        kv.pushpull("a", values, out=targets)
        result["devices"] = [t.asnumpy().tolist() for t in targets]
        result["values kept"] = [v.asnumpy().ravel()[0] for v in values]
        lists = [[full(1, ctx=d) for d in devices], [full(2, ctx=d) for d in devices]]
        into = [[full(-1, ctx=d) for d in devices] for _ in range(2)]
        kv.push(["a", "c"], lists)
        kv.pull(["a", "c"], out=into)
        result["lists"] = [[t.asnumpy().ravel()[0] for t in one] for one in into]
        # a key named twice is summed, as its devices are; without out= the values are replaced
        kv.pushpull(["a", "a"], [full(1), full(4)], out=[targets[0], targets[1]])
        result["twice"] = [t.asnumpy().ravel()[0] for t in targets[:2]]
        kv.pushpull("a", values)
        result["in place"] = [v.asnumpy().ravel()[0] for v in values]
        value, out = full(rank + 5), full(0)
        kv.broadcast("d", value, out=out)
        result["broadcast"] = [value.asnumpy().ravel()[0], out.asnumpy().ravel()[0]]
        """,
        workers=2,
        servers=2,
    )
    for rank, result in enumerate(job):
        assert result["initial"] == [1, 2, 3]
        assert result["pushed"] == [40, 20]
        assert result["devices"] == [[[9.0] * 3] * 2] * 3
        assert result["values kept"] == [rank, rank + 1, rank + 2]
        assert result["lists"] == [[6] * 3, [12] * 3]
        assert result["twice"] == [10, 10]
        assert result["in place"] == [9, 9, 9]
        assert result["broadcast"] == [rank + 5, 5]


@pytest.mark.parametrize("workers", [2, 4])
def test_pushes_without_pulls_stay_in_their_rounds(run_job, workers):
    job = run_job(
        """
        import random
        random.seed(rank)
        result["seen"] = []
        for key, length in enumerate((3, 1500000)):
            kv.init(key, mx.nd.zeros((length,)))
            out = mx.nd.zeros((length,))
            for repeat in range(20):
                if rank == 1:
                    time.sleep(random.random() / 50)
                for v in 1, 2, 3:
                    kv.push(key, mx.nd.full((length,), v))
                kv.pull(key, out=out)
                result["seen"].append((float(out.min().asscalar()), float(out.max().asscalar())))
        """,
        workers=workers,
        servers=2,
    )
    for result in job:
        assert result["seen"] == [(3 * workers, 3 * workers)] * 40


def test_the_callers_arrays_stay_theirs(run_job):
    job = run_job(
        """
        g, w = mx.nd.array([1, 2, 3]), mx.nd.zeros((3,))
        kv.init(0, mx.nd.zeros((3,)))
        kv.push(0, g)
        kv.pull(0, out=w)
        result["pushed"], result["pulled"] = g.asnumpy().tolist(), w.asnumpy().tolist()
        a = mx.nd.arange(24).reshape((4, 6))
        before = a.asnumpy()
        kv.init(1, mx.nd.zeros((2, 6)))
        kv.init(2, mx.nd.zeros((4, 3)))
        kv.push(1, a[1:3])
        kv.push(2, a[:, ::2])
        b = mx.nd.full((5, 6), -1)
        c = mx.nd.zeros((4, 3))
        kv.pull(1, out=b[1:3])
        kv.pull(2, out=c)
        result["parent"] = np.array_equal(a.asnumpy(), before)
        result["views"] = [np.array_equal(b.asnumpy()[1:3], 2 * before[1:3]), np.array_equal(c.asnumpy(), 2 * before[:, ::2]),
                           bool((b.asnumpy()[[0, 3, 4]] == -1).all())]
        # two views of one parent, both ways, and the same one twice
        p = mx.nd.arange(24).reshape((6, 4))
        kv.init(3, mx.nd.zeros((2, 4)))
        kv.pushpull(3, p[0:2], out=p[4:6])
        kv.pushpull(3, p[2:4], out=p[2:4])
        result["parent of views"] = p.asnumpy()
        big, out = mx.nd.zeros((2000000,)), mx.nd.zeros((2000000,))
        kv.init(4, big)
        result["at call"] = []
        for _ in range(20):
            big[:] = 1
            kv.push(4, big)
            big[:] = -7
            kv.pull(4, out=out)
            result["at call"].append((float(out.min().asscalar()), float(out.max().asscalar())))
        with autograd.record():
            kv.pushpull(0, g, out=w)
            kv.pushpull(0, [g.as_in_context(mx.cpu(1)), g], out=[w, w.as_in_context(mx.cpu(1))])
        result["recording"] = w.asnumpy().tolist()
        """
    )
    parent = np.arange(24).reshape(6, 4)
    parent[4:6], parent[2:4] = 2 * parent[0:2], 2 * parent[2:4]
    for result in job:
        assert result["pushed"] == [1, 2, 3] and result["pulled"] == [2, 4, 6]
        assert result["parent"] and result["views"] == [True] * 3
        assert np.array_equal(result["parent of views"], parent)
        assert result["at call"] == [(2, 2)] * 20
        assert result["recording"] == [4, 8, 12]


def test_wrong_calls_are_refused_before_anything_is_sent(run_job):
    job = run_job(
        """
        import mxrdma
        g, seven = mx.nd.ones((4,)), mx.nd.ones((7,))
        kv.init(0, g)
        result["errors"] = {}
        def refused(name, function):
            try:
                function()
            except mx.MXNetError as error:
                result["errors"][name] = (type(error).__name__, str(error))
        refused("pull shape", lambda: kv.pull(0, out=seven))
        refused("push shape", lambda: kv.push(0, seven))
        refused("push dtype", lambda: kv.push(0, g.astype("float64")))
        refused("pull dtype", lambda: kv.pull(0, out=g.astype("int32")))
        refused("unknown", lambda: kv.push(5, g))
        refused("unknown pull", lambda: kv.pull(5, out=g))
        refused("again", lambda: kv.init(0, g))
        refused("mixed", lambda: kv.init("x", g))
        refused("mixed list", lambda: kv.init([1, "x"], [g, g]))
        refused("bool key", lambda: kv.push(True, g))
        refused("huge key", lambda: kv.init(2**63, g))
        refused("float key", lambda: kv.push(1.5, g))
        refused("no array", lambda: kv.push(0, 3))
        refused("lengths", lambda: kv.push([0, 0], [g]))
        refused("second of two", lambda: kv.push([0, 5], [g, g]))
        refused("sparse", lambda: kv.init(1, g.reshape((2, 2)).tostype("row_sparse")))
        refused("sparse push", lambda: kv.push(0, g.reshape((2, 2)).tostype("row_sparse")))
        refused("row_sparse_pull", lambda: kv.row_sparse_pull(0, out=g, row_ids=g))
        refused("compression", lambda: kv.set_gradient_compression({"type": "2bit"}))
        refused("states", lambda: kv.save_optimizer_states("f"))
        refused("optimizer", lambda: kv.set_optimizer("sgd"))
        refused("async", lambda: mx.kv.create("dist_rdma_async"))
        refused("bool data", lambda: kv.init(7, mx.np.array([True, False], dtype="bool")))
        out = mx.nd.zeros((4,))
        kv.pushpull(0, g, out=out)
        result["good"] = out.asnumpy().tolist()
        for key, dtype in enumerate(("int32", "int64", "uint8"), 10):
            kv.init(key, mx.nd.ones((3,), dtype=dtype))
            one = mx.nd.ones((3,), dtype=dtype)
            kv.pushpull(key, one)
            result[dtype] = one.asnumpy().tolist()
        refused("int update", lambda: kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.5)))
        kv.pushpull(0, g, out=out)
        result["after"] = out.asnumpy().tolist()
        same = mx.kv.create("dist_rdma_sync")
        result["second store"] = (same.rank == kv.rank, same.type, mx.kv.create("dist_rdma_device_sync").type)
        """
    )
    unsupported = {"row_sparse_pull", "compression", "states", "async"}
    for result in job:
        found = result["errors"]
        assert len(found) == 24, sorted(found)
        for name, (kind, text) in found.items():
            assert kind == ("Unsupported" if name in unsupported else "InvalidArgument"), (name, kind, text)
        assert (
            "(7,)" in found["push shape"][1] and "(4,)" in found["push shape"][1] and "key 0" in found["push shape"][1]
        )
        assert "float64" in found["push dtype"][1] and "float32" in found["push dtype"][1]
        assert result["good"] == [2, 2, 2, 2]
        assert result["int32"] == result["int64"] == result["uint8"] == [2, 2, 2]
        assert result["after"] == [2, 2, 2, 2]
        assert result["second store"] == (True, "dist_rdma_sync", "dist_rdma_device_sync")


def test_set_optimizer_in_another_thread_refuses_pushes_until_it_is_done(run_job):
    """It may move keys between servers, which a push of the same worker must not meet half way."""
    job = run_job(
        """
        import threading
        kv.init(0, mx.nd.ones((4,)))
        mx.nd.waitall()
        if rank == 1:
            time.sleep(3)
            kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.5, wd=0.0, rescale_grad=1.0))
        else:
            thread = threading.Thread(target=kv.set_optimizer,
                args=(mx.optimizer.SGD(learning_rate=0.5, wd=0.0, rescale_grad=1.0),))
            thread.start()
            time.sleep(1)
            try:
                kv.push(0, mx.nd.ones((4,)))
            except mx.MXNetError as error:
                result["error"] = str(error)
            thread.join()
        out = mx.nd.zeros((4,))
        kv.pushpull(0, mx.nd.ones((4,)), out=out)
        result["value"] = out.asnumpy()
        """
    )
    assert "set_optimizer is under way in another thread" in job.results[0]["error"]
    for result in job:
        np.testing.assert_array_equal(result["value"], np.zeros(4))


def test_what_fits_a_key_is_told_as_python_would(run_job):
    """Engine.fits, which single arrays are checked by, against MXNet's own properties."""
    job = run_job(
        """
        from mxrdma import _core
        engine = _core.Engine(mx.libinfo.find_lib_path()[0])
        shapes = [(1,), (3,), (2, 3), (3, 2), (1, 2, 3), (6,)]
        flags = {"float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4, "int8": 5, "int64": 6}
        wrong = []
        arrays = [mx.nd.zeros(shape, dtype=dtype, ctx=ctx)
                  for shape in shapes for dtype in flags for ctx in (mx.cpu(), mx.cpu(3))]
        arrays += [mx.nd.zeros((4, 3))[1:3], mx.nd.zeros((6,)).reshape((2, 3)), mx.np.zeros((2, 3))]
        for array in arrays:
            for shape in shapes:
                for dtype, flag in flags.items():
                    expected = tuple(array.shape) == shape and np.dtype(array.dtype) == np.dtype(dtype)
                    if engine.fits(array.handle.value, _core.ArrayLayout(flag, shape)) != expected:
                        wrong.append((array.shape, str(array.dtype), shape, dtype))
        result["wrong"] = wrong
        result["count"] = len(arrays)
        result["sparse"] = engine.fits(mx.nd.sparse.zeros("row_sparse", (2, 3)).handle.value, _core.ArrayLayout(0, (2, 3)))
        """,
        workers=1,
    )
    assert job.results[0]["count"] == 87
    assert job.results[0]["wrong"] == []
    assert job.results[0]["sparse"] is False
