"""The command mxrdma-launch."""

import sys
from pathlib import Path
from typing import Dict, List, Optional, Tuple

import click

from mxrdma import config
from mxrdma.errors import ConfigError
from mxrdma.launch import exit_codes
from mxrdma.launch.output import Output
from mxrdma.launch.plan import NATIVE_STORES, STORES, Plan, passed_variables, resolve_command
from mxrdma.launch.supervisor import Supervisor

EPILOG = """\b
COMMAND and everything after it are passed on word by word, without a shell. `python` or `python3` means the interpreter
that runs mxrdma-launch; give a path for another one. Each process' lines come out behind its name. stdin is empty.

\b
The first process that fails ends the job within 10 seconds; its code is that of mxrdma-launch (128 + n for signal n).
Ctrl-C sends an interrupt to the workers and ends what is left; pressed again, it kills at once.

\b
Settings (environment, or --config FILE with the names in lower case and without MXRDMA_):
"""


class _Launch(click.Command):
    """Stops reading options at the first positional word, and lists the settings below the help text."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        rows: List[Tuple[str, str]] = []
        for one in config.SETTINGS:
            default = f" [{one.default}]" if one.default is not None else ""
            also = f" (also {one.alias})" if one.alias else ""
            rows.append((one.name, one.meaning + default + also))
        formatter.write_dl(rows)


@click.command(
    cls=_Launch,
    epilog=EPILOG,
    context_settings={
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
        "max_content_width": 120,
    },
)
@click.option("-n", "--workers", type=click.IntRange(1, 4096), help="number of workers (or MXRDMA_NUM_WORKERS); required")
@click.option("-s", "--servers", type=click.IntRange(1, 4096), help="number of servers (default: one for each worker)")
@click.option("--fabric", type=click.Choice(config.FABRICS), help="how data moves (default: auto)")
@click.option("--device", metavar="NAME[:PORT],...", help="RDMA devices to use, e.g. mlx5_0:1,mlx5_1:1")
@click.option("--gid-index", metavar="auto|N", help="entry of the GID table (default: auto)")
@click.option(
    "--kvstore",
    type=click.Choice(STORES + NATIVE_STORES),
    default="dist_rdma",
    show_default=True,
    metavar="NAME",
    help="a dist_rdma store, or dist_sync and the like to run MXNet's own scheduler and servers; the script reads it "
    "with mxrdma.kvstore_name()",
)
@click.option("--env", "variables", multiple=True, metavar="NAME[=VALUE]", help="set, or demand, a variable for all")
@click.option("--config", "config_file", type=click.Path(dir_okay=False), help="settings as YAML; the environment wins")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="the scheduler's port (default: a free one)")
@click.option("-v", "--verbose", is_flag=True, help="tell about starts and ends")
@click.version_option(package_name="mxrdma", prog_name="mxrdma-launch")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def main(
    workers: Optional[int],
    servers: Optional[int],
    fabric: Optional[str],
    device: Optional[str],
    gid_index: Optional[str],
    kvstore: str,
    variables: Tuple[str, ...],
    config_file: Optional[str],
    port: int,
    verbose: bool,
    command: Tuple[str, ...],
) -> None:
    """Run COMMAND as the workers of a distributed job on this host, with a scheduler and servers beside them."""
    paths = {"MXRDMA_FABRIC": fabric, "MXRDMA_DEVICE": device, "MXRDMA_GID_INDEX": gid_index}
    chosen = {name: value for name, value in paths.items() if value is not None}
    if chosen and kvstore in NATIVE_STORES:
        raise click.UsageError(
            "--fabric, --device and --gid-index are for the dist_rdma stores; "
            f"{kvstore} is MXNet's own and always takes TCP"
        )
    try:
        settings, inherited = _settings(chosen, variables, config_file)
        counts = config.Settings({**inherited, **settings})
        workers = workers or counts.get("MXRDMA_NUM_WORKERS")
        if workers is None:
            raise click.UsageError("say how many workers to start: -n N")
        servers = servers or counts.get("MXRDMA_NUM_SERVERS") or workers
        plan = Plan(resolve_command(command), workers, servers, kvstore, settings, inherited, port)
    except ConfigError as error:
        _refuse(str(error), exit_codes.CONFIG)
    except FileNotFoundError:
        _refuse(f"command not found: {command[0]}{_hint(command)}", exit_codes.NOT_FOUND)
    except PermissionError:
        _refuse(f"not executable: {command[0]}{_hint(command)}", exit_codes.CANNOT_EXECUTE)
    sys.exit(Supervisor(plan, Output(_colours(inherited)), verbose).run())


def _settings(
    chosen: Dict[str, str], variables: Tuple[str, ...], config_file: Optional[str]
) -> Tuple[Dict[str, str], Dict[str, str]]:
    """What the command line sets for all processes, and the environment that they inherit, with the file's below it."""
    inherited = config.inherited()
    if config_file is not None:
        inherited = {**config.from_yaml(config_file), **inherited}
    settings = passed_variables(variables, inherited)
    settings.update(chosen)
    config.check_all({**inherited, **settings})
    for sentence in config.misspelt({**inherited, **settings}):
        click.echo(f"mxrdma-launch: {sentence}", err=True)
    return settings, inherited


def _hint(command: Tuple[str, ...]) -> str:
    script = Path(command[0])
    return f"; did you mean `python {command[0]}`?" if script.suffix == ".py" and script.is_file() else ""


def _colours(environment: Dict[str, str]) -> bool:
    return "NO_COLOR" not in environment and environment.get("TERM", "dumb") != "dumb"


def _refuse(text: str, code: int) -> None:
    print(f"mxrdma-launch: {text}", file=sys.stderr, flush=True)
    sys.exit(code)
