"""The command mxrdma-doctor."""

import sys
from typing import Any, Dict, Optional

import click

from mxrdma import config
from mxrdma.doctor import findings, host, report, second_opinion
from mxrdma.doctor.pair import pair
from mxrdma.errors import ConfigError

# Looks at the host only: the choice is then the first usable device.
NO_ADDRESS = "0.0.0.0"

EPILOG = """\b
exit codes: 0 ready, 1 usable with warnings, 2 not usable or a setting cannot be read.
"""


@click.group(
    invoke_without_command=True,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.option("--json", "as_json", is_flag=True, help="one JSON object instead of text")
@click.option("--address", help="the address that the job will use at this host (default: MXRDMA_BIND_HOST, _INTERFACE)")
@click.option("--device", help="RDMA devices, as for mxrdma-launch (default: MXRDMA_DEVICE)")
@click.option("--gid-index", help="auto or a number (default: MXRDMA_GID_INDEX)")
@click.option("--model-mib", type=click.IntRange(1, 1 << 20), default=256, show_default=True,
              help="size of the model's weights, for the locked memory that the job needs")
@click.version_option(package_name="mxrdma", prog_name="mxrdma-doctor")
@click.pass_context
def main(
    context: click.Context,
    as_json: bool,
    address: Optional[str],
    device: Optional[str],
    gid_index: Optional[str],
    model_mib: int,
) -> None:
    """Show the RDMA devices of this host, which one a job would use and why, and what is missing."""
    if context.invoked_subcommand is not None:
        return
    try:
        settings = config.Settings(_with_options(device, gid_index))
        wish = _wish(settings, address)
        job = _job(settings, model_mib)
    except ConfigError as error:
        print(f"mxrdma-doctor: {error}", file=sys.stderr, flush=True)
        sys.exit(findings.UNUSABLE)
    from mxrdma import _core

    rdma = _core.device_report(**wish)
    surroundings = host.facts()
    found = findings.judge(rdma, surroundings, job)
    found += findings.compare(rdma, second_opinion.listing())
    if as_json:
        print(report.as_json(rdma, surroundings, found, _core.__version__))
    else:
        report.show(report.console(), rdma, found)
    sys.exit(findings.exit_code(found))


def _with_options(device: Optional[str], gid_index: Optional[str]) -> Dict[str, str]:
    environment = config.inherited()
    if device is not None:
        environment["MXRDMA_DEVICE"] = device
    if gid_index is not None:
        environment["MXRDMA_GID_INDEX"] = gid_index
    return environment


def _wish(settings: config.Settings, address: Optional[str]) -> Dict[str, str]:
    return {
        "address": config.own_address(settings, address) or NO_ADDRESS,
        "devices": settings.get("MXRDMA_DEVICE") or "",
        "gid_index": settings.get("MXRDMA_GID_INDEX"),
    }


def _job(settings: config.Settings, model_mib: int) -> Dict[str, Any]:
    return {
        "model_bytes": model_mib << 20,
        "workers": settings.get("MXRDMA_NUM_WORKERS") or 2,
        "servers": settings.get("MXRDMA_NUM_SERVERS") or 1,
        "slot_bytes": settings.get("MXRDMA_SLOT_BYTES"),
        "slots": settings.get("MXRDMA_SLOTS"),
    }


main.add_command(pair)
