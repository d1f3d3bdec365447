"""Import finder for code that a predicted script writes and then imports; standard library only."""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from unittest.mock import patch

from memfit.predict.sandbox.scratch_files import ScratchFiles


class ScratchFinder:
    """A finder of modules, asked after all others."""

    def __init__(self, files: ScratchFiles) -> None:
        self._files = files

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module in the files that the script has written."""
        for folder in sys.path if path is None else path:
            place = self._files.written(folder or ".")
            loader = (importlib.machinery.SourceFileLoader, importlib.machinery.SOURCE_SUFFIXES)
            spec = importlib.machinery.FileFinder(place, loader).find_spec(name)
            if spec is not None and (spec.loader is not None or spec.submodule_search_locations):
                return spec
        return None

    def invalidate_caches(self) -> None:
        """Nothing is kept."""

    @contextlib.contextmanager
    def asked_last(self) -> Iterator[None]:
        """Within, imports find what was written, also those that name a file (`torch.hub`)."""
        read = importlib.machinery.SourceFileLoader.get_data
        sys.meta_path.append(self)  # type: ignore[arg-type]
        try:
            with patch.object(
                importlib.machinery.SourceFileLoader,
                "get_data",
                lambda loader, path: read(loader, os.fspath(self._files.seen(path))),
            ):
                yield
        finally:
            sys.meta_path.remove(self)  # type: ignore[arg-type]
