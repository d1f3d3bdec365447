"""State of a child Python that is run in this process: it leaves files to the script, and nothing else.

A child has modules of its own (a `config` of another folder), its own default type, threads and random numbers. What
libraries hold beside these is shared.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from types import ModuleType
from unittest.mock import patch

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from memfit.predict.observe.source_files import kind_of_file


def threads_of_its_own() -> contextlib.AbstractContextManager[object]:
    """Within, another process is at work: the number of threads that it sets is not the job's."""
    return patch.object(torch, "set_num_threads", lambda count: None)


@contextlib.contextmanager
def state_of_its_own() -> Iterator[None]:
    """Within, the user's modules are imported anew, and what is set in torch counts until the end."""
    modules, dtype = _own_modules(), torch.get_default_dtype()
    drawn, drawn_by_numpy = random.getstate(), np.random.get_state()
    with _disable_current_modes():
        drawn_by_torch = torch.default_generator.get_state()
    for name in modules:
        del sys.modules[name]
    torch.set_default_dtype(torch.float32)
    try:
        with torch.enable_grad(), threads_of_its_own():
            yield
    finally:
        torch.set_default_dtype(dtype)
        random.setstate(drawn)
        np.random.set_state(drawn_by_numpy)
        with _disable_current_modes():
            torch.default_generator.set_state(drawn_by_torch)
        for name in _own_modules():
            del sys.modules[name]
        sys.modules.update(modules)


def _own_modules() -> dict[str, ModuleType]:
    """Modules that are the user's own, by name."""
    return {
        name: module
        for name, module in sys.modules.items()
        if name != "__main__" and (path := getattr(module, "__file__", None)) and kind_of_file(path) == 0
    }
