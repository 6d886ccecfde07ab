"""Limits of the machine and of each fabric's path: the same traffic and sums by bare processes (cpp/bench)."""

import json
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Optional

from mxrdma.bench.cases import Case, Column
from mxrdma.bench.job import BenchFailure

BOUND_TIMEOUT_S = 300
MIN_STEPS = 12  # the first touches its memory for the first time and counts in the CPU seconds
PROGRAM = Path(__file__).resolve().parent.parent / "mxrdma_bound"


def program() -> Path:
    """The compiled program; BenchFailure if this installation has none."""
    if not PROGRAM.is_file():
        raise BenchFailure(
            f"{PROGRAM} is not there: this package was built without its bench programs; "
            "build it with -DMXRDMA_BUILD_BENCH=ON, or leave --limits out"
        )
    return PROGRAM


def run_bound(*arguments: str) -> Dict[str, Any]:
    """One run of the program: its line of JSON."""
    try:
        done = subprocess.run(
            [str(program()), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=BOUND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BenchFailure(f"mxrdma_bound {' '.join(arguments)} did not end in {BOUND_TIMEOUT_S} s") from error
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip()
        raise BenchFailure(f"mxrdma_bound {' '.join(arguments)} ended with code {done.returncode}: {words}")
    answer: Dict[str, Any] = json.loads(done.stdout)
    return answer


def machine_limits() -> Dict[str, float]:
    """GB/s of a copy in memory and of one TCP stream over loopback."""
    return {
        "memcpy_gb_s": run_bound("memcpy")["gb_s"],
        "loopback_tcp_gb_s": run_bound("loopback")["gb_s"],
    }


def fabric_bound(fabric: str, case: Case, workers: int, updater: str, steps: int) -> Dict[str, Any]:
    """Milliseconds a step and CPU seconds per GB of one fabric's path with one server, without MXNet or Python."""
    return run_bound(
        fabric,
        "--workers",
        str(workers),
        "--bytes",
        str(case.bytes),
        "--rule",
        "sum" if updater == "none" else "sgd",
        "--steps",
        str(steps),
    )


class BoundTurns:
    """The bounds of a case's columns, measured between the turns of the jobs."""

    def __init__(self, case: Case, columns: List[Column], workers: int, servers: int) -> None:
        self._case = case
        self._workers = workers
        # The bound programs have one server; with more there is nothing to compare with.
        self._wanted = []
        if servers == 1:
            for column in columns:
                if column.store == "dist_rdma" and column.fabric in ("shm", "tcp", "verbs"):
                    self._wanted.append((column.fabric, column.updater))
        self._results: Dict[Any, List[Dict[str, Any]]] = {}

    def turn(self) -> None:
        steps = max(MIN_STEPS, min(200, int(1e9 / (2 * self._case.bytes * self._workers))))
        for fabric, updater in self._wanted:
            result = fabric_bound(fabric, self._case, self._workers, updater, steps)
            self._results.setdefault((fabric, updater), []).append(result)

    def median(self, column: Column) -> Optional[Dict[str, Any]]:
        """The turn with the median step; None if this column has no bound."""
        results = sorted(self._results.get((column.fabric, column.updater), []), key=lambda result: result["step_ms"])
        if column.store != "dist_rdma" or not results:
            return None
        return results[(len(results) - 1) // 2]
