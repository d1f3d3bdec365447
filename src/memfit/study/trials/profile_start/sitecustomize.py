"""Start-up hook that runs torch.profiler in an unmodified trial; standard library only until torch.

`memfit study --profile` puts this folder on the trial's path, behind the one of `memfit measure`, which imports the
next `sitecustomize` in line: this one, which does the same for the trial's own. When torch is first imported, the
profiler is hooked to the optimizer's steps: it skips two, warms up for one, records three, and writes one trace in
TensorBoard's layout. The trial never sees an error of it.
"""

import contextlib
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_HOOKED = "torch.optim"


def _chain():
    """Import the trial's own sitecustomize, if there is one."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


class _Finder:
    """Hears of the import of torch's optimizers, once."""

    def find_spec(self, name, path=None, target=None):
        if name != _HOOKED:
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)
        try:
            spec = find_spec(name)
        except Exception:
            return None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # pyright: ignore[reportAttributeAccessIssue]
        return spec


class _Loader:
    """The loader of torch's optimizers, with one thing to do afterwards."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        with contextlib.suppress(Exception):  # the trial goes first: without a trace it still trains
            _load_profile().hook(os.environ["MEMFIT_PROFILE_FOLDER"])


def _load_profile():
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("memfit_torch_profile", os.path.join(_HERE, "torch_profile.py"))
    if spec is None or spec.loader is None:
        raise ImportError("torch_profile")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sys.path[:] = [entry for entry in sys.path if not entry or os.path.abspath(entry) != _HERE]
if os.environ.get("MEMFIT_PROFILE_FOLDER"):
    sys.meta_path.insert(0, _Finder())
_chain()
