import functools

import job
import pytest


@pytest.fixture
def run_job(tmp_path):
    """job.run in a folder of this test; further calls get their own."""
    count = iter(range(1000))
    return functools.wraps(job.run)(lambda *args, **kwargs: job.run(tmp_path / f"job{next(count)}", *args, **kwargs))


def pytest_configure(config):
    config.addinivalue_line("markers", "native: runs MXNet's own dist_sync for comparison")
