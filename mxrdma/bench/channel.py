"""Lines of JSON between the conductor of a benchmark and the workers that it started, over loopback."""

import json
import socket
from typing import Any, Dict

MAX_LINE_BYTES = 1 << 20


class ChannelClosed(Exception):
    """The other side ended or said nothing within the limit."""


class Channel:
    """One end. A wait ends after `timeout_s`."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        connection.settimeout(timeout_s)
        self._socket = connection
        self._lines = connection.makefile("rb")

    def say(self, message: Dict[str, Any]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def hear(self) -> Dict[str, Any]:
        """The next message; ChannelClosed if none comes."""
        try:
            line = self._lines.readline(MAX_LINE_BYTES)
        except socket.timeout as error:
            raise ChannelClosed(f"nothing heard for {self._socket.gettimeout():.0f} s") from error
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if not line.endswith(b"\n"):
            raise ChannelClosed("the connection was closed")
        message: Dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        self._lines.close()
        self._socket.close()
