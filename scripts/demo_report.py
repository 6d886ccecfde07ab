"""Puts the figures of two runs of train_digits.py side by side: a table, and a picture if matplotlib is there."""

import argparse
import json
import re
import statistics
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

WARM_UP_STEPS = 5


def communication_ms(run):
    """Median milliseconds from Trainer.step until all weights are readable, the first steps left out."""
    times = run["communication_s"]
    return statistics.median(times[WARM_UP_STEPS:] or times) * 1e3


def epoch_seconds(run):
    """Median; the first epoch warms up."""
    return statistics.median(run["epoch_s"][1:] or run["epoch_s"])


def fabric(run):
    """What carries the data: the kinds that the store names behind its servers, else the text itself."""
    kinds = re.findall(r"server \d+: (\w+)", run["fabric"])
    return ", ".join(dict.fromkeys(kinds)) or run["fabric"]


def table_of(runs):
    table = Table(title="the same script, seed and launcher")
    table.add_column("")
    for run in runs:
        table.add_column(run["kvstore"], justify="right")
    table.add_row("held-out accuracy", *(f"{run['accuracy'][-1]:.2%}" for run in runs))
    table.add_row("seconds per epoch", *(f"{epoch_seconds(run):.2f}" for run in runs))
    table.add_row("communication, ms per step", *(f"{communication_ms(run):.2f}" for run in runs))
    table.add_row("fabric", *(fabric(run) for run in runs))
    return table


def plot(runs, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    # Both curves are there even where they are one: the second is thinner, dashed and drawn over the first.
    styles = [{"linewidth": 4, "marker": "o", "markersize": 9}, {"linewidth": 1.5, "linestyle": "--", "marker": "x"}]
    for run, style in zip(runs, styles):
        left.plot(range(1, len(run["accuracy"]) + 1), run["accuracy"], label=run["kvstore"], **style)
    left.set_xlabel("epoch")
    left.set_ylabel("held-out accuracy")
    left.legend()
    right.boxplot([[s * 1e3 for s in run["communication_s"][WARM_UP_STEPS:]] for run in runs], showfliers=False)
    right.set_xticklabels([run["kvstore"] for run in runs])
    right.set_ylabel("communication, ms per step")
    right.set_ylim(bottom=0)
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--min-accuracy", type=float, default=0.0, help="fail if a run ends below it")
    arguments = parser.parse_args()
    runs = [json.loads(path.read_text()) for path in arguments.results]
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table_of(runs))
    console.print("Communication: from the call of Trainer.step, with all gradients ready, until all new weights can be read.")
    if arguments.plot:
        plot(runs, arguments.plot)
        console.print(f"picture: {arguments.plot}")
    for run in runs:
        if run["accuracy"][-1] < arguments.min_accuracy:
            sys.exit(f"demo: {run['kvstore']} reached {run['accuracy'][-1]:.2%}, less than {arguments.min_accuracy:.0%}")


if __name__ == "__main__":
    main()
