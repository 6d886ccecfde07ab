"""Registers mxrdma's stores with MXNet as soon as a script imports MXNet.

`mxrdma_register.pth` in site-packages imports this module at every start of Python, so it imports nothing itself and
does nothing but put a finder at the head of sys.meta_path. When `mxnet` has been imported completely, `mxrdma.kvstore`
is imported, which registers the stores; the finder is then taken away again.
"""

import sys

STORES = ("dist_rdma", "dist_rdma_sync", "dist_rdma_device_sync", "dist_rdma_async")


class _Finder:
    """Finds `mxnet` as the other finders do, and has its loader call us when it is done."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "mxnet":
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is _Finder or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                _call_after(spec.loader)
                return spec
        return None


def _call_after(loader):
    """The loader object belongs to this one import, so its own attribute is the place that disturbs nobody."""
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module):
        del loader.exec_module
        try:
            execute(module)
        except AttributeError as error:
            raise _explained(error) from error
        if _Finder in sys.meta_path:
            sys.meta_path.remove(_Finder)
        register()

    try:
        loader.exec_module = exec_module
    except AttributeError:
        pass  # a loader without attributes of its own: `import mxrdma.kvstore` still works


def _explained(error):
    """MXNet 1.9.1 uses names that NumPy 1.24 has dropped. A later `pip install` of something else brings such a NumPy."""
    numpy = sys.modules.get("numpy")
    version = getattr(numpy, "__version__", "0.0")
    parts = [int("".join(filter(str.isdigit, part[:3])) or 0) for part in version.split(".")[:2]]
    if parts < [1, 24]:
        return error
    return ImportError(
        f"MXNet 1.9.1 needs NumPy below 1.24, but NumPy {version} is installed ({error}); "
        "mend it by: pip install 'numpy<1.24'"
    )


def register():
    """Registers the stores. If mxrdma cannot be imported, `create` raises the reason: `import mxnet` must go on, but a
    name with "dist" in it that nobody has registered would silently get MXNet's own TCP store."""
    try:
        import mxrdma.kvstore  # noqa: F401
    except Exception as error:
        _refuse(error)


def _refuse(reason):
    from mxnet.base import MXNetError
    from mxnet.kvstore.base import KVStoreBase

    def refuse(self):
        raise MXNetError(
            f"mxrdma is installed, but its store cannot be used: {type(reason).__name__}: {reason}"
        ) from reason

    for name in STORES:
        if name not in KVStoreBase.kv_registry:
            KVStoreBase.register(type(name, (), {"__init__": refuse, "__doc__": "Says why mxrdma cannot be used."}))


if "mxnet" in sys.modules:
    register()
elif _Finder not in sys.meta_path:
    sys.meta_path.insert(0, _Finder)
