"""Puts the lines of all processes on the launcher's own output, each behind its process' label, none torn.

Nothing here blocks: what the reader of our output has not taken yet waits in a bounded buffer, and while that is full the
processes' pipes are not read, so that a slow reader slows the job as it would slow a single program.

On a terminal, a line that is not complete yet (a prompt, a progress bar that ends in a carriage return) is shown in place
and written over by what follows. Elsewhere bytes pass unchanged, in whole lines.
"""

import errno
import os
import select
import stat
import time
from typing import Dict, List, Optional, Tuple

BUFFER_BYTES = 1 << 20  # of each output; beyond it the processes wait
LINE_BYTES = 1 << 20  # a longer line is cut
READ_BYTES = 64 << 10
# poll(2) calls a pipe writable when one page of it is free, so that a write of up to PIPE_BUF bytes does not block.
WRITE_BYTES = select.PIPE_BUF
PARTIAL_S = 0.2  # an incomplete line shows on a terminal after this time

_CLEAR_LINE = b"\r\x1b[K"
_COLOURS = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)


class Sink:
    """One output of the launcher."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.terminal = os.isatty(descriptor)
        self.closed = False
        self._buffer = bytearray()
        self._transient = False

    @property
    def pending(self) -> int:
        """Bytes that the reader has not taken yet."""
        return len(self._buffer)

    @property
    def full(self) -> bool:
        """Whether those who write here should wait."""
        return len(self._buffer) >= BUFFER_BYTES

    def line(self, text: bytes) -> None:
        """Adds a whole line."""
        if self._transient:
            self._add(_CLEAR_LINE)
            self._transient = False
        self._add(text)

    def transient(self, text: bytes) -> None:
        """On a terminal: shows text that the next line, or the next such text, writes over."""
        self._add((_CLEAR_LINE if self._transient else b"") + text)
        self._transient = True

    def _add(self, text: bytes) -> None:
        if not self.closed:
            self._buffer += text

    def write_some(self) -> None:
        """Writes what goes out without blocking; to be called when poll says so."""
        try:
            count = os.write(self.descriptor, self._buffer[:WRITE_BYTES])
        except InterruptedError:
            return
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
                return
            # The reader has gone (`| head`), the terminal has closed, the disk is full: the training goes on.
            self.closed = True
            self._buffer.clear()
            return
        del self._buffer[:count]


def make_sinks() -> Tuple[Sink, Sink]:
    """For stdout and stderr: one and the same if they lead to the same place, so that their lines do not mix."""
    out, err = os.fstat(1), os.fstat(2)
    same = (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino)
    if stat.S_ISCHR(out.st_mode) and stat.S_ISCHR(err.st_mode):
        same = same or out.st_rdev == err.st_rdev
    first = Sink(1)
    return first, first if same else Sink(2)


class Label:
    """`[worker 0] `, in a colour of its own on a terminal."""

    def __init__(self, name: str, number: int, colours: bool) -> None:
        plain = f"[{name}] "
        self._plain = plain.encode()
        self._coloured = f"\x1b[{_COLOURS[number % len(_COLOURS)]}m{plain}\x1b[0m".encode() if colours else self._plain

    def on(self, sink: Sink) -> bytes:
        return self._coloured if sink.terminal else self._plain


class Stream:
    """The read end of one process' stdout or stderr."""

    def __init__(self, descriptor: int, name: str, label: Label, sink: Sink) -> None:
        self.descriptor = descriptor
        self.name = name
        self._label = label.on(sink)
        self.sink = sink
        self._partial = bytearray()
        self._changed_at: Optional[float] = None  # when the partial line grew and has not been shown since
        self._muted = False
        os.set_blocking(descriptor, False)

    def read(self) -> bool:
        """Takes what is there; False at its end."""
        try:
            data = os.read(self.descriptor, READ_BYTES)
        except BlockingIOError:
            return True
        if not data:
            self.close()
            return False
        if not self._muted:
            self._feed(data)
        return True

    def mute(self) -> None:
        """Takes what was written until now; drops what follows."""
        while not self._muted and not self.sink.full:
            try:
                data = os.read(self.descriptor, READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                break
            self._feed(data)
        self._muted = True

    def _feed(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._partial += line
            self._end_line()
        self._partial += rest
        if len(self._partial) > LINE_BYTES:
            self._end_line()
        elif self.sink.terminal and self._partial:
            if b"\r" in rest:
                self._show_partial()
            elif self._changed_at is None:
                self._changed_at = time.monotonic()

    def _end_line(self) -> None:
        text = _shown(self._partial) if self.sink.terminal else bytes(self._partial)
        self.sink.line(self._label + text + b"\n")
        self._partial.clear()
        self._changed_at = None

    def _show_partial(self) -> None:
        self.sink.transient(self._label + _shown(self._partial))
        self._partial = bytearray(_shown(self._partial))  # a progress bar would grow without end
        self._changed_at = None

    def idle(self, now: float) -> Optional[float]:
        """Shows an incomplete line that has waited; seconds until there is one to show, or None."""
        if self._changed_at is None:
            return None
        left = self._changed_at + PARTIAL_S - now
        if left <= 0:
            self._show_partial()
            return None
        return left

    def close(self) -> None:
        """A last line without its end is shown all the same."""
        if self._partial:
            self._end_line()
        os.close(self.descriptor)


def _shown(text: bytearray) -> bytes:
    """What a terminal would show of text with carriage returns in it."""
    parts = [part for part in bytes(text).split(b"\r") if part]
    return parts[-1] if parts else b""


class Output:
    """All streams and sinks; `poll` moves bytes between them."""

    def __init__(self, colours: bool) -> None:
        self._colours = colours
        self._out, self._err = make_sinks()
        self._streams: Dict[int, Stream] = {}
        self._count = 0

    def add(self, name: str, out: int, err: int) -> None:
        """Takes over the read ends of a process' stdout and stderr."""
        label = Label(name, self._count, self._colours)
        self._count += 1
        for descriptor, sink in ((out, self._out), (err, self._err)):
            self._streams[descriptor] = Stream(descriptor, name, label, sink)

    def say(self, text: str) -> None:
        """A line of the launcher's own, on stderr."""
        self._err.line(f"mxrdma-launch: {text}\n".encode(errors="backslashreplace"))

    def mute(self, name: str) -> None:
        """Shows what this process has written until now, and nothing of what follows."""
        for stream in self._streams.values():
            if stream.name == name:
                stream.mute()

    @property
    def open(self) -> bool:
        """Whether a process may still write."""
        return bool(self._streams)

    @property
    def pending(self) -> bool:
        """Whether something is not written yet."""
        return bool(self._out.pending or self._err.pending)

    def interests(self) -> List[Tuple[int, int]]:
        """What to poll for."""
        wanted = [(one.descriptor, select.POLLIN) for one in self._streams.values() if not one.sink.full]
        sinks = {id(sink): sink for sink in (self._out, self._err)}
        wanted += [(sink.descriptor, select.POLLOUT) for sink in sinks.values() if sink.pending]
        return wanted

    def handle(self, descriptor: int) -> bool:
        """Acts on one event; False if the descriptor is none of ours."""
        stream = self._streams.get(descriptor)
        if stream is not None:
            if not stream.read():
                del self._streams[descriptor]
            return True
        for sink in (self._out, self._err):
            if sink.descriptor == descriptor:
                if sink.pending:
                    sink.write_some()
                return True
        return False

    def idle(self) -> Optional[float]:
        """Seconds until something is due without an event, or None."""
        now = time.monotonic()
        waits = [wait for wait in (stream.idle(now) for stream in self._streams.values()) if wait is not None]
        return min(waits, default=None)

    def close_streams(self) -> None:
        """Gives up on pipes that a process outside of the job still holds."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
