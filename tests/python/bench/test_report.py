"""Figures, the document for machines, and the tables for people."""

import io
import json
import socket

import pytest
from rich.console import Console

from mxrdma.bench import measure, report
from mxrdma.bench.cases import Case, Column
from mxrdma.bench.channel import Channel, ChannelClosed
from mxrdma.bench.job import BenchFailure

CASE = Case("1KiB", ((256,),))
ROW_KEYS = {
    "case",
    "arrays",
    "bytes",
    "store",
    "fabric",
    "updater",
    "steps",
    "step_ms",
    "turn_medians_ms",
    "goodput_per_worker_gb_s",
    "cpu_s_per_gb",
    "peak_memory_bytes",
    "counters",
    "connections",
    "server_memory",
}


class FakeJob:
    """Answers with the times given; the counters grow by what two workers would write."""

    def __init__(self, times, written_per_step):
        self.warm = False
        self.counters = {}
        self.verified = 0
        self._times = times
        self._written_per_step = written_per_step
        self._written = 0

    def run(self, steps):
        self._written += steps * self._written_per_step
        ms = (self._times * steps)[:steps]
        counters = [{"write_bytes": self._written // 2}] * 2
        return {"ms": ms, "cpu_s": 0.5, "transport": counters, "summary": "server 0 over shm"}

    def verify(self):
        self.verified += 1

    def peak_memory_bytes(self):
        return {"server": 200_000_000, "worker": 150_000_000}


def record_of(store, fabric, times, written_per_step=2048):
    record = measure.Record(Column(store, fabric, "none"), CASE, workers=2)
    job = FakeJob(times, written_per_step)
    record.turn(job, fixed_steps=4)
    record.turn(job, fixed_steps=4)
    assert job.verified == 1
    return record


def document():
    fast = record_of("dist_rdma", "shm", [2.0])
    fast.server_reports = [
        {"weights_bytes": 10, "accumulators_peak_bytes": 20, "optimizer_state_bytes": 0, "ring_bytes": 4_000_000}
    ]
    rows = [fast.as_json(), record_of("dist_sync", "tcp", [8.0]).as_json()]
    rows[0]["bound"] = {"step_ms": 1.0, "gb_s": 2.0, "cpu_s_per_gb": 0.25}
    return {"results": rows, "limits": {"memcpy_gb_s": 4.0, "loopback_tcp_gb_s": 2.0}}


def test_a_row_has_its_keys_and_survives_json():
    row = record_of("dist_rdma", "shm", [1.0, 3.0]).as_json()
    assert set(row) == ROW_KEYS
    assert json.loads(json.dumps(row)) == row
    assert row["step_ms"] == {"median": 2.0, "lower_quartile": 1.0, "upper_quartile": 3.0, "min": 1.0, "max": 3.0}
    assert row["goodput_per_worker_gb_s"] == pytest.approx(2 * 1024 / 2e-3 / 1e9)
    assert row["cpu_s_per_gb"] == pytest.approx(1.0 / (8 * 4 * 1024 / 1e9))
    assert row["counters"]["write_bytes"] == 8 * 2048  # the warm-up is not in it


def test_bytes_that_did_not_cross_the_fabric_fail_the_run():
    record_of("dist_rdma", "shm", [1.0]).check_transport()
    record_of("dist_sync", "tcp", [1.0], written_per_step=0).check_transport()
    with pytest.raises(BenchFailure, match="workers wrote 0 bytes"):
        record_of("dist_rdma", "shm", [1.0], written_per_step=0).check_transport()


def test_ratio_and_share_are_of_the_same_case_and_updater():
    rows = document()["results"]
    assert report.ratio_to_default(rows[0], rows) == 4.0
    assert report.ratio_to_default({**rows[0], "updater": "sgd"}, rows) is None
    assert report.share_of_bound(rows[0]) == 0.5
    assert report.share_of_bound(rows[1]) is None


def test_tables_show_every_column_without_a_terminal():
    text = io.StringIO()
    report.print_report(document(), Console(file=text, width=150))
    printed = text.getvalue()
    for word in ("dist_rdma:shm", "dist_sync:tcp", "4.00", "50%", "memory of a server", "accumulators", "loopback TCP"):
        assert word in printed, printed
    assert "…" not in printed


def test_a_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    report.plot(document(), tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_memory_of_the_fullest_server_is_shown():
    small = {"weights_bytes": 1, "accumulators_peak_bytes": 1, "optimizer_state_bytes": 1, "ring_bytes": 1}
    large = {"weights_bytes": 5, "accumulators_peak_bytes": 6, "optimizer_state_bytes": 7, "ring_bytes": 8}
    assert measure.server_memory([small, large]) == {
        "weights": 5,
        "accumulators": 6,
        "optimizer_state": 7,
        "rings": 8,
        "sum": 26,
    }
    assert measure.server_memory([]) is None


def test_steps_of_a_turn_follow_the_warm_up():
    assert measure.steps_for([900.0, 10.0], None) == 100
    assert measure.steps_for([1e6], None) == measure.MIN_TURN_STEPS
    assert measure.steps_for([1e-9], None) == measure.MAX_TURN_STEPS
    assert measure.steps_for([1.0], 7) == 7


def test_a_channel_ends_with_a_reason():
    left, right = socket.socketpair()
    with left, right:
        here, there = Channel(left, 5.0), Channel(right, 0.05)
        here.say({"do": "run"})
        assert there.hear() == {"do": "run"}
        with pytest.raises(ChannelClosed, match="nothing heard"):
            there.hear()
    left, right = socket.socketpair()
    with left:
        right.sendall(b'{"half')
        right.close()
        with pytest.raises(ChannelClosed, match="closed"):
            Channel(left, 5.0).hear()
