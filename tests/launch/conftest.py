import os
import signal
import uuid

import jobs
import pytest


@pytest.fixture
def trace():
    """A variable that marks every process of a test's job; none may be left at the test's end."""
    name = "TEST_TRACE"
    value = f"{name}={uuid.uuid4().hex}"

    class Trace:
        def __init__(self):
            self.environment = dict([value.split("=")])

        @staticmethod
        def left():
            return jobs.carriers(value)

    yield Trace()
    left = Trace.left()
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    assert not left, f"{len(left)} processes of the job were left behind"


def core_missing():
    try:
        from mxrdma import _core  # noqa: F401
    except ImportError as error:
        return str(error)
    return None


def pytest_collection_modifyitems(items):
    reason = core_missing()
    for item in items:
        if "needs_core" in item.keywords and reason is not None:
            item.add_marker(pytest.mark.skip(reason=f"the core is not built: {reason}"))


def pytest_configure(config):
    config.addinivalue_line("markers", "needs_core: runs scheduler and servers")
