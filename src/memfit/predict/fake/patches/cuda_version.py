"""`torch.version.cuda` and cuDNN's version, which a build without CUDA does not have, as the user's own files see them.

Torch and libraries get what the build says: they choose compiled code by it.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from unittest.mock import patch

import torch
import torch.backends.cudnn

from memfit.predict.observe.source_files import kind_of_file

CUDA_VERSION, CUDNN_VERSION = "13.0", 91900
"""Of the CUDA builds of torch 2.13; which of them the training will have is not known."""
ANSWERED = f"this torch has no CUDA: its version was asked for and answered with {CUDA_VERSION}"


@contextlib.contextmanager
def cuda_version(note: Callable[[str, str], None]) -> Iterator[None]:
    """Within, a file of the user's own reads the versions of a CUDA build; it is noted that they were asked for."""
    if torch.version.cuda is not None:
        yield
        return

    def is_asked_by_user() -> bool:
        asked = kind_of_file(sys._getframe(2).f_code.co_filename) == 0
        if asked:
            note("script", ANSWERED)
        return asked

    class Version(types.ModuleType):
        """The module, with a version of CUDA."""

        @property
        def cuda(self) -> str | None:
            return CUDA_VERSION if is_asked_by_user() else None

    module, version_of_cudnn = sys.modules["torch.version"], torch.backends.cudnn.version
    kind = module.__class__
    module.__class__ = Version

    def cudnn_version() -> int | None:
        return CUDNN_VERSION if is_asked_by_user() else version_of_cudnn()

    try:
        with patch.object(torch.backends.cudnn, "version", cudnn_version):
            yield
    finally:
        module.__class__ = kind
