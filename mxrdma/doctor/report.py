"""The doctor's findings as text and as JSON."""

import json
import sys
from typing import Any, Dict, List

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mxrdma.doctor import findings
from mxrdma.doctor.findings import Finding

_STYLES = {findings.GOOD: "green", findings.WARNING: "yellow", findings.PROBLEM: "red"}
_MARKS = {findings.GOOD: "ok     ", findings.WARNING: "warning", findings.PROBLEM: "problem"}

_PIPED_WIDTH = 150


def console() -> Console:
    """Standard output, with long lines where it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)


def as_json(rdma: Dict[str, Any], host: Dict[str, Any], found: List[Finding], version: str) -> str:
    """One object: verdict, exit_code, findings, rdma, host. Bytes are written in hexadecimal."""
    code = findings.exit_code(found)
    return json.dumps(
        {
            "mxrdma": version,
            "verdict": findings.VERDICTS[code],
            "exit_code": code,
            "findings": [finding.as_dict() for finding in found],
            "rdma": rdma,
            "host": host,
        },
        indent=2,
        default=lambda value: value.hex(),
    )


def show(console: Console, rdma: Dict[str, Any], found: List[Finding]) -> None:
    """Devices with their GID tables, then findings with their mends, then the verdict."""
    for device in rdma["devices"]:
        _show_device(console, device)
    for finding in found:
        line = Text()
        line.append(_MARKS[finding.level], style=_STYLES[finding.level])
        line.append(f"  {finding.topic}: {finding.text}")
        console.print(line, soft_wrap=True)
        if finding.mend:
            console.print(Text(f"         -> {finding.mend}"), soft_wrap=True)
    code = findings.exit_code(found)
    console.print(Text(f"RDMA on this host: {findings.VERDICTS[code]}", style="bold"), soft_wrap=True)


def _show_device(console: Console, device: Dict[str, Any]) -> None:
    about = [device["transport"], device["driver"], f"firmware {device['firmware']}" if device["firmware"] else ""]
    if device["numa_node"] >= 0:
        about.append(f"NUMA node {device['numa_node']}")
    name = f"{device['name']}  {device['state']}  ({', '.join(filter(None, about))})"
    console.print(Text(name, style="bold"), soft_wrap=True)
    for port in device["ports"]:
        mtu = f"MTU {port['active_mtu']} of {port['max_mtu']}" if port["active_mtu"] else "MTU unknown"
        lid = f", LID {port['lid']}" if port["link_layer"] == "InfiniBand" else ""
        console.print(
            Text(f"  port {port['number']}: {port['state']} ({port['physical_state']}), {port['link_layer']}, "
                 f"{port['rate'] or 'unknown rate'}, {mtu}{lid}"), soft_wrap=True,
        )
        _show_gids(console, port)
    console.print()


def _show_gids(console: Console, port: Dict[str, Any]) -> None:
    choice = port["choice"]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2))
    for column in ("GID", "type", "address", "interface", ""):
        table.add_column(column, no_wrap=True)
    for gid in port["gids"]:
        why = f"<- {choice['why']}" if choice and choice["gid_index"] == gid["index"] else ""
        table.add_row(str(gid["index"]), gid["type"], gid["gid"], gid["interface"], why)
    console.print(table)
    if choice is None:
        console.print(Text(f"    no entry would be used: {port['choice_problem']}"), soft_wrap=True)
