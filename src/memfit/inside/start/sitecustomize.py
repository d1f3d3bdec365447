"""Start-up hook: loads memfit into an unmodified Python program through `sitecustomize`.

Python imports a module of this name at start-up when it lies on the path; `memfit measure` puts this folder, and
nothing else, in front of PYTHONPATH. The program must not notice: the folder leaves `sys.path` at once (the
environment keeps it, so that child Pythons are hooked too), nothing is printed, nothing is raised, and the
`sitecustomize` that would have been imported without memfit is imported in its place.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _is_here(entry):
    return isinstance(entry, str) and os.path.abspath(entry or os.curdir) == _HERE


def _load_inside():
    """Load the package in the folder above as `memfit_inside`, without a place for it on the path."""
    from importlib.util import module_from_spec, spec_from_file_location

    folder = os.path.dirname(_HERE)
    spec = spec_from_file_location(
        "memfit_inside", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        raise ImportError("memfit_inside")
    module = module_from_spec(spec)
    sys.modules["memfit_inside"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["memfit_inside"]
        raise
    return module


def _start():
    try:
        if os.environ.get("MEMFIT_MARKS") == "1" and os.environ.get("MEMFIT_RUN_FOLDER"):
            _load_inside().start_from_environment(os.environ)
    except Exception:
        pass  # the job goes first: without marks it still runs, and the sampler still measures it


def _chain():
    """Import the user's own sitecustomize, if there is one; its errors are its own, as they would be without memfit."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


sys.path[:] = [entry for entry in sys.path if not _is_here(entry)]
_start()
_chain()
