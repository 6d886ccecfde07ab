"""Errors are MXNet's wherever MXNet is, in whatever order things are imported."""

import subprocess
import sys

import pytest

from mxrdma import errors


def python(script):
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, done.stdout.decode()
    return done.stdout.decode().strip()


def test_every_code_of_the_core_has_a_class():
    import re
    from pathlib import Path

    header = (Path(__file__).resolve().parents[2] / "cpp/base/status.h").read_text()
    body = re.search(r"enum class Code[^{]*\{(.*?)\};", header, re.DOTALL).group(1)
    names = set(re.findall(r"^\s*(\w+),", body, re.MULTILINE)) - {"ok"}
    assert names == set(errors.BY_CODE)


@pytest.mark.parametrize(
    "klass, also",
    [
        (errors.InvalidArgument, ValueError),
        (errors.ConfigError, ValueError),
        (errors.Unsupported, NotImplementedError),
        (errors.WorkerLost, errors.NodeLost),
        (errors.ServerLost, errors.NodeLost),
        (errors.SchedulerLost, errors.NodeLost),
    ],
)
def test_classes_are_what_users_expect_too(klass, also):
    assert issubclass(klass, also) and issubclass(klass, errors.Error)
    assert str(klass("text")) == "text"


def test_import_needs_no_mxnet():
    assert python("import sys, mxrdma; print('mxnet' in sys.modules, issubclass(mxrdma.Error, RuntimeError))") == "False True"


@pytest.mark.slow
@pytest.mark.parametrize(
    "order", ["import mxnet as mx, mxrdma.kvstore", "import mxrdma; import mxnet as mx, mxrdma.kvstore"]
)
def test_errors_are_mxnets_in_either_order(order):
    pytest.importorskip("mxnet")
    script = f"""
{order}
from mxrdma import errors
for klass in set(errors.BY_CODE.values()) | {{errors.Error}}:
    try:
        raise klass('text')
    except mx.MXNetError as error:
        assert type(error) is klass and str(error) == 'text'
print('caught')
"""
    assert python(script) == "caught"
