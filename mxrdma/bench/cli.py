"""The command mxrdma-bench."""

import json
import platform
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import click
import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mxrdma.bench import bounds, cases, measure, report
from mxrdma.bench.job import BenchFailure

# Tables keep their width where there is no terminal to ask.
PIPED_WIDTH = 150


def _console(to_stderr: bool = False) -> Console:
    stream = sys.stderr if to_stderr else sys.stdout
    return Console(stderr=to_stderr, width=None if stream.isatty() else PIPED_WIDTH)


class _Narrator:
    """A progress bar on a terminal, a line for each turn elsewhere; always on stderr."""

    def __init__(self, total: int) -> None:
        self._console = _console(to_stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=self._console, disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> "_Narrator":
        self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        self._progress.update(self._task, description=text, advance=1 if ": turn " in text else 0)
        if not self._console.is_terminal:
            print(text, file=sys.stderr, flush=True)


def machine() -> Dict[str, Any]:
    """What a reader needs to know to judge the figures."""
    return {
        "cpu_count": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "load_average": list(psutil.getloadavg()),
    }


def run_pushpull(
    chosen: List[cases.Case],
    columns: List[cases.Column],
    workers: int,
    servers: int,
    repeats: int,
    steps: Optional[int],
    with_limits: bool,
    keep: Callable[[Dict[str, Any]], None],
) -> Dict[str, Any]:
    """The document that --json writes. `keep` gets it after each case: a run takes long, and may be interrupted."""
    document: Dict[str, Any] = {
        "schema": measure.SCHEMA,
        "machine": machine(),
        "workers": workers,
        "servers": servers,
        "repeats": repeats,
        "limits": bounds.machine_limits() if with_limits else None,
        "results": [],
    }
    with _Narrator(measure.total_turns(chosen, columns, repeats)) as narrator:
        for case in chosen:
            for updater in dict.fromkeys(column.updater for column in columns):
                mine = [column for column in columns if column.updater == updater]
                turns = bounds.BoundTurns(case, mine if with_limits else [], workers, servers)
                records = measure.measure_case(case, mine, workers, servers, repeats, steps, narrator.say, turns.turn)
                for record in records:
                    bound = turns.median(record.column)
                    document["results"].append({**record.as_json(), **({"bound": bound} if bound else {})})
                keep(document)
    return document


def _write_json(document: Dict[str, Any], target: Optional[str]) -> None:
    if target is None:
        return
    text = json.dumps(document, indent=2) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        Path(target).write_text(text)


def _keeper(target: Optional[str]) -> Callable[[Dict[str, Any]], None]:
    return lambda document: _write_json(document, None if target == "-" else target)


def _finish(document: Dict[str, Any], target: Optional[str]) -> None:
    _write_json(document, target)
    report.print_report(document, _console(to_stderr=target == "-"))


_COMMON = [
    click.option("-n", "--workers", type=click.IntRange(1, 64), default=2, show_default=True),
    click.option("-s", "--servers", type=click.IntRange(1, 64), default=1, show_default=True),
    click.option(
        "--sizes", default=None,
        help=f"list of sizes of one array, as 4KiB,64MiB; empty for none [default: {cases.DEFAULT_SIZES}, none if --models "
        "is given]",
    ),
    click.option(
        "--models", default=None,
        help=f"list of {', '.join(cases.MODELS)}; empty for none [default: all, none if --sizes is given]",
    ),
    click.option("--updater", default="none,sgd", show_default=True, help="none: sums; sgd: SGD on the servers"),
    click.option("--repeats", type=click.IntRange(1, 1000), default=5, show_default=True),
    click.option(
        "--json", "json_target", metavar="FILE|-", help="figures for machines, kept after each case; - writes them to stdout"
    ),
]  # fmt: skip


def _common(command: Any) -> Any:
    for option in reversed(_COMMON):
        command = option(command)
    return command


def _chosen(sizes: Optional[str], models: Optional[str]) -> List[cases.Case]:
    """Neither option given: everything. One given: just that."""
    if sizes is None and models is None:
        sizes, models = cases.DEFAULT_SIZES, ",".join(cases.MODELS)
    chosen = cases.parse_sizes(sizes or "") + cases.parse_models(models or "")
    if not chosen:
        raise ValueError("nothing to measure: --sizes and --models are both empty")
    return chosen


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="mxrdma", prog_name="mxrdma-bench")
def main() -> None:
    """Measures the stores, and what the machine allows."""


@main.command()
@_common
@click.option("--kv", default="dist_rdma,dist_sync", show_default=True, help="of dist_rdma, dist_sync, dist_sync:ipc")
@click.option("--fabric", default="shm,tcp", show_default=True, help="fabrics of dist_rdma: shm, tcp, verbs, auto")
@click.option("--steps", type=click.IntRange(1, 100000), help="steps of a turn; default: about one second")
@click.option("--limits", is_flag=True, help="measure memcpy, loopback TCP and the bound of each fabric too")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="write a picture (PNG)")
def pushpull(
    workers: int,
    servers: int,
    sizes: Optional[str],
    models: Optional[str],
    updater: str,
    repeats: int,
    json_target: Optional[str],
    kv: str,
    fabric: str,
    steps: Optional[int],
    limits: bool,
    plot: Optional[Path],
) -> None:
    """Push and pull of all keys, all stores interleaved in one run. The results are checked."""
    try:
        columns = cases.parse_columns(kv, fabric, updater)
        chosen = _chosen(sizes, models)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    try:
        document = run_pushpull(chosen, columns, workers, servers, repeats, steps, limits, _keeper(json_target))
    except BenchFailure as error:
        raise click.ClickException(str(error)) from error
    _finish(document, json_target)
    if plot is not None:
        report.plot(document, plot)


@main.command(short_help="What the machine allows: memcpy, loopback TCP, each fabric's path.")
@_common
@click.option("--fabric", default="shm,tcp", show_default=True, help="of shm, tcp, verbs")
def limits(
    workers: int,
    servers: int,
    sizes: Optional[str],
    models: Optional[str],
    updater: str,
    repeats: int,
    json_target: Optional[str],
    fabric: str,
) -> None:
    """What the machine allows: memcpy, loopback TCP, and each fabric's path by bare processes with one server."""
    if servers != 1:
        raise click.UsageError("the bound programs have one server")
    try:
        columns = cases.parse_columns("dist_rdma", fabric, updater)
        chosen = _chosen(sizes, models if models is not None or sizes is not None else "resnet50")
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    document: Dict[str, Any] = {"schema": measure.SCHEMA, "machine": machine(), "results": [], "bounds": []}
    try:
        document["limits"] = bounds.machine_limits()
        for case in chosen:
            turns = bounds.BoundTurns(case, columns, workers, servers)
            for _ in range(repeats):
                turns.turn()
            for column in columns:
                bound = turns.median(column)
                if bound is not None:
                    what = {"case": case.name, "updater": column.updater, "fabric": column.fabric}
                    document["bounds"].append({**bound, **what})
    except BenchFailure as error:
        raise click.ClickException(str(error)) from error
    _finish(document, json_target)


if __name__ == "__main__":
    main()
