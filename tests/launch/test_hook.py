"""A script that never imports mxrdma has the store's name, and no other Python notices that mxrdma is installed."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# As much of MXNet as the hook touches.
FAKE_MXNET = {
    "mxnet/__init__.py": "from . import base, kvstore\nfrom .base import MXNetError\nkv = kvstore\ndone = True\n",
    "mxnet/base.py": "class MXNetError(RuntimeError):\n    pass\n",
    "mxnet/gluon.py": "",
    "mxnet/kvstore/__init__.py": "from .base import *\n",
    "mxnet/kvstore/base.py": """
        class KVStoreBase:
            kv_registry = {}
            @staticmethod
            def register(klass):
                assert isinstance(klass, type)
                KVStoreBase.kv_registry[klass.__name__.lower()] = klass
                return klass
        def create(name):
            name = name.lower()
            return KVStoreBase.kv_registry[name]() if name in KVStoreBase.kv_registry else "MXNet's own TCP store"
        """,
}
FAKE_STORE = {
    "mxrdma/__init__.py": "",
    "mxrdma/kvstore.py": """
        import mxnet
        assert mxnet.done, "MXNet has not been imported to its end"
        from mxnet.kvstore.base import KVStoreBase
        @KVStoreBase.register
        class Dist_RDMA:
            pass
        """,
}
CREATE = "print(type(mx.kv.create('dist_rdma')).__name__)"


def put(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def python(folder, script, prefix="import _mxrdma_hook\n", **environment):
    """Runs a script without site-packages, where only the fakes and the hook can be imported."""
    (folder / "_mxrdma_hook.py").write_text((ROOT / "_mxrdma_hook.py").read_text())
    start = f"import sys; sys.path.insert(0, {str(folder)!r})\n{prefix}"
    return subprocess.run(
        [sys.executable, "-S", "-E", "-c", start + textwrap.dedent(script)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **environment}, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("script", [
    f"import mxnet as mx\n{CREATE}",
    f"from mxnet import kvstore\nimport mxnet as mx\n{CREATE}",
    f"import mxnet.gluon\nimport mxnet as mx\n{CREATE}",
    f"import importlib\nmx = importlib.import_module('mxnet')\n{CREATE}",
    f"import mxnet as mx, mxrdma.kvstore\n{CREATE}",
    f"import mxrdma.kvstore, mxnet as mx\n{CREATE}",
    f"import mxnet as mx, importlib\nimportlib.reload(mx)\n{CREATE}",
])  # fmt: skip
def test_the_name_is_there_however_mxnet_is_imported(tmp_path, script):
    put(tmp_path, {**FAKE_MXNET, **FAKE_STORE})
    done = python(tmp_path, script)
    assert (done.returncode, done.stdout) == (0, b"Dist_RDMA\n"), done.stdout.decode()


def test_without_the_hook_mxnet_takes_the_name_for_its_own(tmp_path):
    put(tmp_path, {**FAKE_MXNET, **FAKE_STORE})
    assert python(tmp_path, f"import mxnet as mx\n{CREATE}", prefix="").stdout == b"str\n"


@pytest.mark.parametrize("name", ["dist_rdma", "dist_rdma_sync", "dist_rdma_device_sync", "dist_rdma_async", "Dist_RDMA"])
@pytest.mark.parametrize("broken", ["raise ImportError('libfoo.so is missing')", "1 / 0", None])
def test_a_store_that_cannot_be_imported_says_why_at_create(tmp_path, name, broken):
    files = {"mxrdma/__init__.py": "", "mxrdma/kvstore.py": broken} if broken else {}
    put(tmp_path, {**FAKE_MXNET, **files})
    script = f"""
    import mxnet as mx
    try:
        print('created', mx.kv.create({name!r}))
    except mx.MXNetError as error:
        print(error, '|', type(error.__cause__).__name__)
    print(mx.kv.create('dist_sync'))
    """
    done = python(tmp_path, script)
    text = done.stdout.decode()
    reason = "libfoo.so is missing" if broken and "libfoo" in broken else "division by zero" if broken else "mxrdma"
    assert done.returncode == 0 and reason in text and "created" not in text, text
    assert text.endswith("MXNet's own TCP store\n")


def test_an_mxnet_that_fails_to_import_fails_as_before_and_can_be_tried_again(tmp_path):
    put(tmp_path, {**FAKE_MXNET, **FAKE_STORE})
    (tmp_path / "mxnet/base.py").write_text("import sys\nif not hasattr(sys, 'again'): raise OSError('no libmxnet')\n")
    with open(tmp_path / "mxnet/base.py", "a") as file:
        file.write(FAKE_MXNET["mxnet/base.py"])
    script = f"""
    import sys
    try:
        import mxnet
    except OSError as error:
        print(error)
    sys.again = True
    import mxnet as mx
    {CREATE}
    """
    done = python(tmp_path, script)
    assert done.stdout.decode() == "no libmxnet\nDist_RDMA\n"


@pytest.mark.parametrize(("version", "told"), [("1.24.0", True), ("1.26.4", True), ("2.0.1", True), ("1.23.5", False)])
def test_a_numpy_that_is_too_new_for_mxnet_is_named(tmp_path, version, told):
    put(tmp_path, FAKE_STORE)
    put(tmp_path, {"numpy.py": f"__version__ = {version!r}", "mxnet/__init__.py": "import numpy\nnumpy.bool"})
    done = python(tmp_path, "import mxnet")
    assert done.returncode != 0
    last = done.stdout.decode().strip().splitlines()[-1]
    assert last.startswith("ImportError: MXNet 1.9.1 needs NumPy below 1.24") == told, last
    assert (version in last and "pip install 'numpy<1.24'" in last) == told, last
    assert last.startswith("AttributeError") != told, last


def test_without_mxnet_nothing_is_different(tmp_path):
    done = python(tmp_path, "try:\n    import mxnet\nexcept ModuleNotFoundError as error:\n    print(error.name)\nimport json")
    assert done.stdout == b"mxnet\n"


def test_the_finder_goes_when_it_has_done_its_work_and_leaves_the_loader_as_it_was(tmp_path):
    put(tmp_path, {**FAKE_MXNET, **FAKE_STORE})
    script = """
    before = list(sys.meta_path)
    import mxnet
    print(len(before) - len(sys.meta_path), vars(mxnet.__loader__).keys() & {'exec_module'}, mxnet.__spec__.origin[-17:])
    """
    assert python(tmp_path, script).stdout.decode() == "1 set() mxnet/__init__.py\n"


def test_a_python_that_never_imports_mxnet_imports_nothing_more(tmp_path):
    done = python(tmp_path, "print(len(set(sys.modules) - before))", prefix="before = set(sys.modules)\nimport _mxrdma_hook\n")
    assert done.stdout == b"1\n"


# ---- installed for real


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    """Makes virtual environments that see what is installed beside this interpreter, but not mxrdma itself."""

    def make(name):
        folder = tmp_path_factory.mktemp(name) / "venv"
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=300)
        return folder

    return make


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the tree, without what was built in it; the second test builds on what the first has compiled."""
    folder = tmp_path_factory.mktemp("source")
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in filter(None, subprocess.check_output(listing, cwd=ROOT).decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


def site_packages(folder):
    """By its place in the folder, not by asking an interpreter: nothing outside of the test's folder may be touched."""
    (found,) = (folder / "lib").glob("python3*/site-packages")
    assert str(found.resolve()).startswith(str(folder.resolve()) + os.sep)
    return found


def borrow(folder):
    """Links the packages that mxrdma and MXNet need, so that nothing has to be downloaded."""
    from importlib import metadata

    target = site_packages(folder)
    # The setuptools that venv brought along may be too old to build with.
    for path in [*target.glob("setuptools*"), *target.glob("_distutils_hack"), *target.glob("distutils-precedence.pth")]:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    pending = ["mxnet", "numpy", "click", "cloudpickle", "psutil", "PyYAML", "rich", "pybind11", "setuptools"]
    seen = set()
    while pending:
        name = pending.pop()
        if name.lower() in seen:
            continue
        seen.add(name.lower())
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        for requirement in distribution.requires or []:
            if "extra ==" not in requirement:
                pending.append(requirement.split(";")[0].split()[0].split("<")[0].split(">")[0].split("=")[0].split("!")[0])
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            source, link = Path(distribution.locate_file(top)), target / top
            if source.exists() and not link.exists():
                link.symlink_to(source)


def pip(folder, *arguments):
    done = subprocess.run(
        [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/", check=False, timeout=1500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout.decode()[-3000:]


def inside(folder, script, *options):
    done = subprocess.run(
        [str(folder / "bin/python"), *options, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/",
        check=False, timeout=120,
        env={name: value for name, value in os.environ.items() if not name.startswith(("MXRDMA_", "DMLC_", "PYTHONPATH"))},
    )  # fmt: skip
    return done.returncode, done.stdout.decode()


REFUSED = """
import mxnet as mx
for name in ('dist_rdma', 'dist_rdma_sync'):
    try:
        print('created', mx.kv.create(name))
    except mx.MXNetError as error:
        print(type(error).__name__, 'mxrdma-launch' in str(error))
"""
SPAWNED = """
import multiprocessing
def look(queue):
    import sys, mxnet as mx
    queue.put((mx.kv.KVStoreBase.kv_registry['dist_rdma'].__module__, 'mxrdma' in sys.modules))
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_an_installed_mxrdma_registers_itself_and_goes_without_a_trace(venv, source, tmp_path, kind):
    pytest.importorskip("mxnet")
    folder = venv(kind)
    borrow(folder)
    before = sorted(path.name for path in site_packages(folder).iterdir())
    arguments = ["-e"] if kind == "editable" else []
    pip(folder, "install", "--no-deps", "--no-build-isolation", *arguments, str(source))

    code, text = inside(folder, REFUSED)
    assert (code, text) == (0, "ConfigError True\nConfigError True\n")
    module = tmp_path / "spawned.py"
    module.write_text(SPAWNED)
    code, text = inside(
        folder,
        f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import multiprocessing, spawned
if __name__ == '__main__':
    context = multiprocessing.get_context('spawn')
    queue = context.Queue()
    child = context.Process(target=spawned.look, args=(queue,))
    child.start(); print(queue.get(timeout=60)); child.join()
""",
    )
    assert (code, text) == (0, "('mxrdma.kvstore', True)\n")
    # A Python that does not want MXNet loads one tiny module more (setuptools' own finder of an editable install aside); a
    # sitecustomize of the user's is still his.
    script = "import sys; print(sorted(name for name in sys.modules if name.strip('_').startswith('mxrdma')))"
    code, text = inside(folder, script)
    assert (code, text) == (0, "['_mxrdma_hook']\n")
    (site_packages(folder) / "sitecustomize.py").write_text("import builtins; builtins.customized = 1\n")
    assert inside(folder, "print(customized)")[1] == "1\n"
    (site_packages(folder) / "sitecustomize.py").unlink()
    code, text = inside(folder, "import mxrdma, mxrdma._core as c; print(mxrdma.__version__ == c.__version__)", "-W", "error")
    assert (code, text) == (0, "True\n")
    for command in ("mxrdma-launch", "mxrdma-bench", "mxrdma-doctor"):
        assert subprocess.run([str(folder / "bin" / command), "--help"], stdout=subprocess.DEVNULL, check=False).returncode == 0
    done = subprocess.run(
        [str(folder / "bin/mxrdma-launch"), "-n", "2", "-s", "1", "--", "python", "-c", TRAIN],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/", timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.count(b"value [3.0, 3.0]") == 2, done.stdout.decode()

    if kind == "editable":  # a source tree that has gone must not break every Python
        source.rename(tmp_path / "moved")
        assert inside(folder, "print('fine')") == (0, "fine\n")
        (tmp_path / "moved").rename(source)
    pip(folder, "uninstall", "-y", "mxrdma")
    after = sorted(path.name for path in site_packages(folder).iterdir())
    assert after == before
    assert inside(folder, "import mxnet as mx; print('dist_rdma' in mx.kv.KVStoreBase.kv_registry)") == (0, "False\n")


TRAIN = """
import mxnet as mx
kv = mx.kv.create('dist_rdma')
kv.init(3, mx.nd.zeros((2,)))
kv.push(3, mx.nd.ones((2,)) * (kv.rank + 1))
out = mx.nd.zeros((2,))
kv.pull(3, out=out)
print('value', out.asnumpy().tolist())
"""
