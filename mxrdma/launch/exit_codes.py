"""What exit codes mean: of the scheduler and the servers, and of mxrdma-launch.

mxrdma-launch ends with 0 if every worker did, otherwise with the code of the process that failed first, 128 + n if signal
n ended it. A worker's code is its script's own. After Ctrl-C it is 130, after TERM 143, after HUP 129. What follows is for
the rest; the numbers are those of sysexits(3) where it has one.

One failure makes others: who misses the first fails too. Which was the first is decided by
1. the scheduler, which hears of every end before the others do (if that process has not ended, it gets some seconds to
   end with its own code; if it has to be killed, or ended with 0 while others needed it, the job's code is PEER_LOST);
2. without the scheduler's word, the order in which processes ended. Ends within half a second count as simultaneous:
   then one by a signal comes before exits, since nobody is killed because of another's failure;
3. servers and the scheduler come after workers if their code says only that they missed another node.
"""

from typing import Dict, Type

from mxrdma import errors

OK = 0
FAILED = 1  # any other error; the message says which
USAGE = 2  # the command line cannot be understood
PEER_LOST = 69  # another node of the job was lost, failed or left while it was needed
INTERNAL = 70  # a bug of mxrdma
TIMEOUT = 75  # not all nodes joined, or a round or a barrier was not complete in time
AUTH = 77  # a token was refused
CONFIG = 78  # a setting cannot work, is missing, or nodes disagree on it
CANNOT_EXECUTE = 126  # the command was found but cannot be run
NOT_FOUND = 127  # the command was not found
SIGNAL_BASE = 128

_BY_CLASS: Dict[Type[BaseException], int] = {
    errors.NodeLost: PEER_LOST,
    errors.InternalError: INTERNAL,
    errors.JoinTimeout: TIMEOUT,
    errors.RoundTimeout: TIMEOUT,
    errors.BarrierTimeout: TIMEOUT,
    errors.AuthError: AUTH,
    errors.ConfigError: CONFIG,
}


def of_error(error: BaseException) -> int:
    """The exit code of a scheduler or server that ends with this error."""
    for klass, code in _BY_CLASS.items():
        if isinstance(error, klass):
            return code
    return FAILED


def of_wait_status(returncode: int) -> int:
    """A shell's view of a return code as Python gives it (negative for a signal)."""
    return returncode if returncode >= 0 else SIGNAL_BASE - returncode
