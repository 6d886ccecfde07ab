"""mxrdma-doctor pair: two hosts against each other, over the fabrics that jobs use."""

import json
import sys
import threading
from typing import Any, Dict, List, Optional, Tuple

import click
from rich.console import Console
from rich.table import Table

from mxrdma import config, errors
from mxrdma.doctor import findings, host, report

PORT = 9190
JOIN_S = 0.2
SIZES = (8, 4096, 65536, 1 << 20, 4 << 20)
FABRICS = ("tcp", "shm", "verbs")
# Counters of ports that tell of a network that loses or stops packets; names of the standard and of vendors.
TELLING = (
    "symbol_error", "link_downed", "port_rcv_errors", "port_xmit_discards", "port_xmit_wait", "out_of_seq",
    "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "np_cnp_sent", "np_ecn_marked_roce_packets",
    "rp_cnp_handled", "roce_adp_retrans", "rx_prio", "tx_prio", "pause", "retry", "retrans", "rcvd_rnr", "send_rnr",
    "rcvd_seq_err", "duplicate_request", "retry_exceeded", "completer_retry_err", "ack_deferred", "rdma_sends",
    "sent_pkts", "rcvd_pkts", "port_xmit_data", "port_rcv_data",
)


def snapshot(rdma: Dict[str, Any]) -> Dict[str, Dict[str, int]]:
    """Counters of all ports: "mlx5_0/1" -> name -> value."""
    return {
        f"{device['name']}/{port['number']}": host.counters(device["name"], port["number"])
        for device in rdma["devices"] for port in device["ports"]
    }


def changes(before: Dict[str, Dict[str, int]], after: Dict[str, Dict[str, int]]) -> Dict[str, Dict[str, Tuple[int, int]]]:
    """Telling counters that changed: port -> name -> (before, after)."""
    changed: Dict[str, Dict[str, Tuple[int, int]]] = {}
    for port, values in after.items():
        for name, value in values.items():
            was = before.get(port, {}).get(name, 0)
            if value != was and any(part in name for part in TELLING):
                changed.setdefault(port, {})[name] = (was, value)
    return changed


def _options(settings: config.Settings, fabric: str, token: bytes) -> Any:
    from mxrdma import _core

    options = _core.NodeOptions()
    options.fabric = fabric
    options.token = token
    options.devices = settings.get("MXRDMA_DEVICE") or ""
    options.gid_index = settings.get("MXRDMA_GID_INDEX")
    options.spin_us = settings.get("MXRDMA_SPIN_US")
    return options


@click.command("pair", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("peer", metavar="[HOST]", required=False)
@click.option("--listen", is_flag=True, help="wait for the other host; Ctrl-C ends it")
@click.option("--once", is_flag=True, help="with --listen: end after the first pair")
@click.option("--bind", metavar="ADDRESS", help="with --listen: the address (default: MXRDMA_BIND_HOST, _INTERFACE)")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="TCP port of the listener")
@click.option("--fabric", "fabrics", type=click.Choice(FABRICS), multiple=True, help="measure only this one; repeatable")
@click.option("--json", "as_json", is_flag=True, help="one JSON object instead of text")
def pair(
    peer: Optional[str], listen: bool, once: bool, bind: Optional[str], port: int, fabrics: Tuple[str, ...], as_json: bool
) -> None:
    """Check this host against another: `pair --listen` there, `pair HOST` here.

    Both need the same secret in MXRDMA_TOKEN or in the file that MXRDMA_TOKEN_FILE names. Each fabric that both have is
    connected and measured; the counters of RDMA ports are shown where they changed. Exit code: 0 if every fabric that
    was asked for worked (without --fabric: if any did), else 2.
    """
    if listen == (peer is not None):
        raise click.UsageError("say either --listen or the host that listens")
    try:
        settings = config.Settings()
        token = settings.token()
        if listen:
            _listen(settings, token, config.own_address(settings, bind), port, once)
            return
        assert peer is not None
        result = _measure(settings, token, config.split_host(peer), port, fabrics)
    except errors.Error as error:
        print(f"mxrdma-doctor: {error}", file=sys.stderr, flush=True)
        sys.exit(findings.UNUSABLE)
    print(json.dumps(result, indent=2)) if as_json else _show(result)
    sys.exit(result["exit_code"])


def _listen(settings: config.Settings, token: bytes, address: Optional[str], port: int, once: bool) -> None:
    from mxrdma import _core

    if address is None:
        raise errors.ConfigError("say which address to listen on: --bind ADDRESS, or set MXRDMA_INTERFACE")
    listener = _core.PairListener(_options(settings, "auto", token))
    host_name, real_port = listener.listen(address, port)
    rdma = _report(settings, address)
    before = snapshot(rdma)
    print(f"listening on {host_name}, port {real_port}", flush=True)
    failure: List[BaseException] = []

    def run() -> None:
        try:
            listener.run(once)
        except errors.Error as error:
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    shown = 0
    try:
        while thread.is_alive():
            thread.join(JOIN_S)
            lines = listener.log()
            for line in lines[shown:]:
                print(line, flush=True)
            shown = len(lines)
    except KeyboardInterrupt:
        pass
    finally:
        listener.stop()
        thread.join()
    _show_changes(report.console(), changes(before, snapshot(rdma)))
    if failure:
        raise failure[0]


def _report(settings: config.Settings, address: str) -> Dict[str, Any]:
    from mxrdma import _core

    facts: Dict[str, Any] = _core.device_report(
        address=address, devices=settings.get("MXRDMA_DEVICE") or "", gid_index=settings.get("MXRDMA_GID_INDEX")
    )
    return facts


def _measure(
    settings: config.Settings, token: bytes, peer: str, port: int, fabrics: Tuple[str, ...]
) -> Dict[str, Any]:
    from mxrdma import _core

    rdma = _report(settings, "0.0.0.0")
    before = snapshot(rdma)
    wanted = fabrics or FABRICS
    runs: List[Dict[str, Any]] = []
    for fabric in wanted:
        problem = _core.fabric_viable(fabric)
        try:
            if problem is not None:
                raise errors.FabricError(problem)
            runs.append(_core.measure_pair(_options(settings, fabric, token), peer, port, SIZES, False))
        except errors.AuthError:
            raise  # it is the same for all
        except errors.Error as error:
            runs.append({"fabric": fabric, "problem": str(error)})
    worked = [run for run in runs if "problem" not in run]
    if worked:
        _core.measure_pair(_options(settings, worked[0]["fabric"], token), peer, port, (), True)
    enough = len(worked) == len(wanted) if fabrics else bool(worked)
    return {
        "peer": peer,
        "fabrics": runs,
        "counters": changes(before, snapshot(rdma)),
        "exit_code": findings.READY if enough else findings.UNUSABLE,
    }


def _show(result: Dict[str, Any]) -> None:
    console = report.console()
    for run in result["fabrics"]:
        if "problem" in run:
            console.print(f"{run['fabric']}: {run['problem']}", markup=False, soft_wrap=True)
            continue
        console.print(
            f"{run['fabric']}: connected in {run['connect_ms']:.1f} ms, {run['path']}", markup=False, soft_wrap=True
        )
        table = Table(box=None, padding=(0, 2, 0, 2))
        for column in ("bytes", "latency (us)", "slowest (us)", "MB/s"):
            table.add_column(column, justify="right")
        for step in run["steps"]:
            table.add_row(
                str(step["bytes"]), f"{step['latency_us']:.1f}", f"{step['slowest_us']:.1f}",
                f"{step['bytes_per_s'] / 1e6:.1f}",
            )
        console.print(table)
    _show_changes(console, result["counters"])


def _show_changes(console: Console, changed: Dict[str, Dict[str, Tuple[int, int]]]) -> None:
    for port, counters in changed.items():
        for name, (was, value) in counters.items():
            console.print(f"counter {port} {name}: {was} -> {value}", markup=False, soft_wrap=True)
