"""What pyverbs, where it is installed, sees of the same devices. Runs as a script too, by a Python without mxrdma."""

import ipaddress
import json
from typing import Dict, Optional

Listing = Dict[str, Dict[str, Dict[str, str]]]


def listing() -> Optional[Listing]:
    """device -> port -> index -> GID in hexadecimal; None without pyverbs. Devices that it cannot open are left out."""
    try:
        from pyverbs.device import Context, get_device_list
        from pyverbs.pyverbs_error import PyverbsError
    except ImportError:
        return None
    try:
        names = [device.name.decode() for device in get_device_list()]
    except PyverbsError:
        return {}  # it has no other way to say that there is no device
    found: Listing = {}
    for name in names:
        try:
            with Context(name=name) as context:
                ports = range(1, context.query_device().phys_port_cnt + 1)
                found[name] = {str(port): _gids(context, port) for port in ports}
        except PyverbsError:
            continue
    return found


def _gids(context: "Context", port: int) -> Dict[str, str]:  # type: ignore[name-defined]  # noqa: F821
    gids = {}
    for index in range(context.query_port(port).gid_tbl_len):
        gid = ipaddress.IPv6Address(context.query_gid(port, index).gid).packed
        if any(gid):
            gids[str(index)] = gid.hex()
    return gids


if __name__ == "__main__":
    print(json.dumps(listing()))
