"""Tells how this process is about to end, which an atexit function cannot see by itself.

Four ways out of a script: its last line, an exception that nobody caught, a SystemExit with a code, and `os._exit` or a
signal, of which nothing here hears. Only what really ends the process counts: an exception that was caught, a `sys.exit`
in a thread, an error in an atexit function or in a forked child do not.
"""

import os
import sys
import threading
from types import TracebackType
from typing import Any, Callable, Optional

from mxrdma import _core

_uncaught: Optional[str] = None


def watch(on_uncaught: Callable[[str], None]) -> None:
    """From now on, `on_uncaught` is called with a text as soon as an exception ends the process."""
    pid = os.getpid()
    previous_hook = sys.excepthook

    def excepthook(kind: Any, value: Any, trace: Any) -> None:
        if os.getpid() == pid and not _interactive() and _left_the_script(trace):
            global _uncaught
            _uncaught = _text(value, kind)
            on_uncaught(_uncaught)
        previous_hook(kind, value, trace)

    sys.excepthook = excepthook
    _watch_exit_codes()


def bad_end() -> Optional[str]:
    """For an atexit function: why the process ends with another code than 0, or None if it does not, as far as known."""
    if _uncaught is not None:
        return _uncaught
    code = _core.system_exit_code()
    if code is not None:
        return f"the script ended with exit code {code}" if code else None
    # Somebody may have put another hook in the place of ours.
    value = getattr(sys, "last_value", None)
    trace = getattr(sys, "last_traceback", None)
    if value is not None and trace is not None and not _interactive() and _left_the_script(trace):
        return _text(value, type(value))
    return None


def _text(value: Any, kind: Any) -> str:
    return f"uncaught {kind.__name__}: {value}"


def _interactive() -> bool:
    """A prompt outlives every exception."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _left_the_script(trace: Optional[TracebackType]) -> bool:
    """Whether this exception has ended the outermost frame: hooks are also called to print one that was caught."""
    if trace is None:
        return True
    frame = trace.tb_frame
    return frame.f_back is None and frame.f_lasti == trace.tb_lasti


def _watch_exit_codes() -> None:
    """The builtin sys.exit() raises a bare number, which the core could not see: ours makes an exception of it."""
    _core.watch_system_exit(threading.main_thread().ident or 0)
    previous = sys.exit
    if getattr(previous, "of_mxrdma", False):
        return

    def exit_by_an_exception(status: Any = None) -> None:
        """sys.exit()"""
        try:
            previous(status)
        except SystemExit:
            raise  # to be caught once is what makes it a whole exception

    exit_by_an_exception.of_mxrdma = True  # type: ignore[attr-defined]
    sys.exit = exit_by_an_exception  # type: ignore[assignment]
    for module in list(sys.modules.values()):  # `from sys import exit` came earlier, perhaps under another name
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict) or module is sys:
            continue
        for name in [name for name, value in names.items() if value is previous]:
            names[name] = exit_by_an_exception
