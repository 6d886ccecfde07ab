"""Takes turns between the jobs of all columns and turns what they say into figures."""

import math
import statistics
from typing import Any, Callable, Dict, List, Optional, Sequence

import psutil

from mxrdma.bench.cases import Case, Column
from mxrdma.bench.job import BenchFailure, Job

SCHEMA = "mxrdma-bench/1"
WARM_UP_STEPS = 3
TURN_TARGET_S = 1.0
MIN_TURN_STEPS, MAX_TURN_STEPS = 3, 400
# Resident bytes of a process that has imported MXNet, and how many copies of the list a role holds at most.
PROCESS_BYTES = 150 << 20
COPIES_OF_SERVER, COPIES_OF_WORKER = 5, 4

Say = Callable[[str], None]


def steps_for(warm_ms: Sequence[float], fixed: Optional[int]) -> int:
    """Steps of one turn: as asked for, or about a second by the last warm-up step."""
    if fixed is not None:
        return fixed
    return int(min(MAX_TURN_STEPS, max(MIN_TURN_STEPS, TURN_TARGET_S * 1e3 / max(warm_ms[-1], 1e-3))))


def moved_bytes(case: Case, workers: int) -> int:
    """Pushed and pulled in one step by all workers."""
    return 2 * case.bytes * workers


def needed_bytes(case: Case, workers: int, servers: int, columns: int) -> int:
    """Memory that all jobs of a case hold when they are kept alive together, on the safe side."""
    lists = case.bytes * (COPIES_OF_SERVER + COPIES_OF_WORKER * workers)
    return columns * (lists + PROCESS_BYTES * (workers + servers + 1))


def summarise(values: Sequence[float]) -> Dict[str, float]:
    """Median, quartiles and extremes."""
    ordered = sorted(values)
    quartiles = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else [ordered[0]] * 3
    return {
        "median": statistics.median(ordered),
        "lower_quartile": quartiles[0],
        "upper_quartile": quartiles[2],
        "min": ordered[0],
        "max": ordered[-1],
    }


class Record:
    """What is known of one column of one case."""

    def __init__(self, column: Column, case: Case, workers: int) -> None:
        self.column = column
        self.case = case
        self.workers = workers
        self.steps: Optional[int] = None
        self.turn_medians: List[float] = []
        self.ms: List[float] = []
        self.cpu_s = 0.0
        self.counters: Dict[str, int] = {}
        self.summary: Optional[str] = None
        self.peaks: Dict[str, int] = {}
        self.server_reports: List[Dict[str, int]] = []

    def turn(self, job: Job, fixed_steps: Optional[int]) -> None:
        """One turn of the job. The first of a job is preceded by warm-up and a check of the result."""
        if not job.warm:
            warm = job.run(WARM_UP_STEPS)
            job.verify()
            job.warm = True
            if self.steps is None:
                self.steps = steps_for(warm["ms"], fixed_steps)
            job.counters = _sum_counters(warm["transport"])
        assert self.steps is not None
        result = job.run(self.steps)
        self.ms += result["ms"]
        self.turn_medians.append(statistics.median(result["ms"]))
        self.cpu_s += result["cpu_s"]
        self.summary = result["summary"]
        counters = _sum_counters(result["transport"])
        for name, value in counters.items():
            self.counters[name] = self.counters.get(name, 0) + value - job.counters.get(name, 0)
        job.counters = counters
        for role, peak in job.peak_memory_bytes().items():
            self.peaks[role] = max(self.peaks.get(role, 0), peak)

    def check_transport(self) -> None:
        """BenchFailure unless the core itself counted the bytes: a store's name proves nothing."""
        if self.column.store != "dist_rdma":
            return
        expected = self.case.bytes * self.workers * len(self.ms)
        written = self.counters.get("write_bytes", 0)
        if written < expected:
            raise BenchFailure(
                f"{self.column.name}, {self.case.name}: workers wrote {written} bytes through the fabric, but pushed "
                f"{expected}"
            )

    def as_json(self) -> Dict[str, Any]:
        step_s = statistics.median(self.ms) / 1e3
        gigabytes = moved_bytes(self.case, self.workers) * len(self.ms) / 1e9
        return {
            "case": self.case.name,
            "arrays": len(self.case.shapes),
            "bytes": self.case.bytes,
            "store": self.column.store,
            "fabric": self.column.fabric,
            "updater": self.column.updater,
            "steps": len(self.ms),
            "step_ms": summarise(self.ms),
            "turn_medians_ms": self.turn_medians,
            "goodput_per_worker_gb_s": 2 * self.case.bytes / step_s / 1e9,
            "cpu_s_per_gb": self.cpu_s / gigabytes,
            "peak_memory_bytes": self.peaks,
            "counters": self.counters,
            "connections": self.summary,
            "server_memory": server_memory(self.server_reports),
        }


def _sum_counters(transport: Sequence[Optional[Dict[str, int]]]) -> Dict[str, int]:
    total: Dict[str, int] = {}
    for counters in transport:
        for name, value in (counters or {}).items():
            total[name] = total.get(name, 0) + value
    return total


def server_memory(reports: Sequence[Dict[str, int]]) -> Optional[Dict[str, int]]:
    """The servers' own account, of the one with the most, with the sum that a server's memory should be."""
    if not reports:
        return None
    parts = [
        {
            "weights": report["weights_bytes"],
            "accumulators": report["accumulators_peak_bytes"],
            "optimizer_state": report["optimizer_state_bytes"],
            "rings": report["ring_bytes"],
        }
        for report in reports
    ]
    largest = max(parts, key=lambda part: sum(part.values()))
    return {**largest, "sum": sum(largest.values())}


def measure_case(
    case: Case,
    columns: Sequence[Column],
    workers: int,
    servers: int,
    repeats: int,
    fixed_steps: Optional[int],
    say: Say,
    between: Callable[[], None],
) -> List[Record]:
    """All columns of one case, interleaved: each repeat gives every column one turn.

    Jobs stay alive and sleep between their turns, unless they would not fit into memory together: then each turn has a
    fresh job. `between` is called once for each repeat, to measure something else in the same minutes.
    """
    records = [Record(column, case, workers) for column in columns]
    keep = needed_bytes(case, workers, servers, len(columns)) < psutil.virtual_memory().available
    if keep:
        _kept_alive(records, case, workers, servers, repeats, fixed_steps, say, between)
    else:
        say(f"{case.name}: {len(columns)} jobs do not fit into memory together; each turn starts its own")
        for repeat in range(repeats):
            for record in records:
                say(f"{case.name} {record.column.name} {record.column.updater}: turn {repeat + 1} of {repeats}")
                _kept_alive([record], case, workers, servers, 1, fixed_steps, _silent, _nothing)
            between()
    for record in records:
        record.check_transport()
    return records


def _silent(_: str) -> None:
    pass


def _nothing() -> None:
    pass


def _kept_alive(
    records: Sequence[Record],
    case: Case,
    workers: int,
    servers: int,
    repeats: int,
    fixed_steps: Optional[int],
    say: Say,
    between: Callable[[], None],
) -> None:
    jobs = [Job(record.column, case, workers, servers) for record in records]
    try:
        for job in jobs:
            say(f"{case.name} {job.column.name} {job.column.updater}: starting")
            job.start()
        for repeat in range(repeats):
            for record, job in zip(records, jobs):
                say(f"{case.name} {record.column.name} {record.column.updater}: turn {repeat + 1} of {repeats}")
                record.turn(job, fixed_steps)
            between()
        for record, job in zip(records, jobs):
            job.verify()
            job.stop()
            record.server_reports = job.server_reports
    finally:
        for job in jobs:
            job.close()


def total_turns(cases: Sequence[Case], columns: Sequence[Column], repeats: int) -> int:
    """For a progress bar."""
    return math.prod((len(cases), len(columns), repeats))
