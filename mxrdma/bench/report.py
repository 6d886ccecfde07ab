"""Tables for people and a picture, from the JSON of a run."""

from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from rich.console import Console
from rich.table import Table


def duration(milliseconds: float) -> str:
    """Three significant digits, in ms."""
    return f"{milliseconds:.3g}" if milliseconds < 100 else f"{milliseconds:.0f}"


def megabytes(count: Optional[int]) -> str:
    """Whole MB (10^6), or a dash."""
    return "-" if count is None else f"{count / 1e6:.0f}"


def ratio_to_default(row: Dict[str, Any], rows: Sequence[Dict[str, Any]]) -> Optional[float]:
    """How many times faster than dist_sync as it starts by default, for the same case and updater."""
    for other in rows:
        same = (other["case"], other["updater"]) == (row["case"], row["updater"])
        if same and other["store"] == "dist_sync" and other["fabric"] == "tcp":
            return float(other["step_ms"]["median"] / row["step_ms"]["median"])
    return None


def share_of_bound(row: Dict[str, Any]) -> Optional[float]:
    """Bound's step over ours: 1 is the bound."""
    bound = row.get("bound")
    return None if bound is None else float(bound["step_ms"] / row["step_ms"]["median"])


def results_table(rows: Sequence[Dict[str, Any]]) -> Table:
    """One line for each case, updater and column."""
    table = Table(title="push + pull of all keys")
    for name in ("case", "updater", "store"):
        table.add_column(name, no_wrap=True)
    for name in (
        "ms/step", "quartiles", "GB/s/worker", "x dist_sync", "of bound", "CPU s/GB", "server MB", "worker MB"
    ):
        table.add_column(name, justify="right", no_wrap=True)
    previous = None
    for row in rows:
        group = (row["case"], row["updater"])
        if previous is not None and group != previous:
            table.add_section()
        previous = group
        step = row["step_ms"]
        speed, share = ratio_to_default(row, rows), share_of_bound(row)
        table.add_row(
            row["case"],
            row["updater"],
            f"{row['store']}:{row['fabric']}",
            duration(step["median"]),
            f"{duration(step['lower_quartile'])}-{duration(step['upper_quartile'])}",
            f"{row['goodput_per_worker_gb_s']:.3g}",
            "-" if speed is None else f"{speed:.2f}",
            "-" if share is None else f"{share:.0%}",
            f"{row['cpu_s_per_gb']:.2f}",
            megabytes(row["peak_memory_bytes"].get("server")),
            megabytes(row["peak_memory_bytes"].get("worker")),
        )
    return table


def memory_table(rows: Sequence[Dict[str, Any]]) -> Optional[Table]:
    """What a server holds by its own account, beside its peak; None if no server gave one."""
    with_account = [row for row in rows if row.get("server_memory")]
    if not with_account:
        return None
    table = Table(title="memory of a server, MB")
    for name in ("case", "updater", "store"):
        table.add_column(name, no_wrap=True)
    parts = ("weights", "accumulators", "optimizer_state", "rings", "sum")
    for name in (*parts, "peak resident"):
        table.add_column(name.replace("_", " "), justify="right")
    for row in with_account:
        memory = row["server_memory"]
        table.add_row(
            row["case"],
            row["updater"],
            f"{row['store']}:{row['fabric']}",
            *(megabytes(memory[part]) for part in parts),
            megabytes(row["peak_memory_bytes"].get("server")),
        )
    return table


def limits_table(limits: Dict[str, float], bounds: Sequence[Dict[str, Any]]) -> Table:
    """What the machine carries, and the bound of each fabric's path."""
    table = Table(title="limits of this machine")
    table.add_column("what", no_wrap=True)
    table.add_column("ms/step", justify="right")
    table.add_column("GB/s", justify="right")
    table.add_column("CPU s/GB", justify="right")
    table.add_row("copy in memory (64 MiB)", "", f"{limits['memcpy_gb_s']:.2f}", "")
    table.add_row("loopback TCP, one stream", "", f"{limits['loopback_tcp_gb_s']:.2f}", "")
    for bound in bounds:
        what = f"{bound['fabric']} path, {bound['case']}, {bound['updater']}"
        table.add_row(what, duration(bound["step_ms"]), f"{bound['gb_s']:.2f}", f"{bound['cpu_s_per_gb']:.2f}")
    return table


def print_report(document: Dict[str, Any], console: Console) -> None:
    """All tables of a run."""
    if document["results"]:
        console.print(results_table(document["results"]))
        memory = memory_table(document["results"])
        if memory is not None:
            console.print(memory)
    if document.get("limits"):
        bounds = document.get("bounds") or [
            {**row["bound"], "case": row["case"], "updater": row["updater"], "fabric": row["fabric"]}
            for row in document["results"]
            if row.get("bound")
        ]
        console.print(limits_table(document["limits"], bounds))


def plot(document: Dict[str, Any], path: Path) -> None:
    """Step times of all cases and columns: medians as points with their values, quartiles as whiskers, logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    rows: List[Dict[str, Any]] = document["results"]
    updaters = list(dict.fromkeys(row["updater"] for row in rows))
    figure, all_axes = pyplot.subplots(
        1, len(updaters), figsize=(7.5 * len(updaters), 4.5), squeeze=False, constrained_layout=True
    )
    for axes, updater in zip(all_axes[0], updaters):
        chosen = [row for row in rows if row["updater"] == updater]
        cases = list(dict.fromkeys(row["case"] for row in chosen))
        stores = list(dict.fromkeys((row["store"], row["fabric"]) for row in chosen))
        width = 0.8 / len(stores)
        for number, (store, fabric) in enumerate(stores):
            mine = [row for row in chosen if (row["store"], row["fabric"]) == (store, fabric)]
            places = [cases.index(row["case"]) + (number - (len(stores) - 1) / 2) * width for row in mine]
            middles = [row["step_ms"]["median"] for row in mine]
            below = [row["step_ms"]["median"] - row["step_ms"]["lower_quartile"] for row in mine]
            above = [row["step_ms"]["upper_quartile"] - row["step_ms"]["median"] for row in mine]
            axes.errorbar(places, middles, yerr=[below, above], fmt="os^Dv"[number % 5], capsize=3, label=f"{store} {fabric}")
            for place, middle in zip(places, middles):
                axes.annotate(
                    duration(middle), (place, middle), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8
                )
        axes.set_xticks(range(len(cases)))
        axes.set_xticklabels(cases, rotation=30, ha="right")
        axes.set_xlim(-0.6, len(cases) - 0.4)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axes.grid(axis="y", which="major", alpha=0.3)
        axes.set_ylabel("milliseconds per step (median, quartiles)")
        axes.set_title("no updater" if updater == "none" else f"{updater} on the servers")
    figure.legend(*all_axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncol=len(stores))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
