"""Remembers which source lines of a job were running when tensors were made, models called and updates made.

Tracing every line would slow a job down; what matters for memory makes a tensor or calls a model, and these are rare
enough to look at the frames above each of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from types import FrameType

from memfit.predict.observe.source_files import kind_of_file

Node = ast.stmt | ast.expr


class LinesThatRan:
    """A set of (file, line) of the user's own frames."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, int]] = set()
        self._is_own: dict[str, bool] = {}

    def note(self, frame: FrameType | None) -> None:
        """Remember the lines at which this frame and those that called it stand."""
        while frame is not None:
            filename = frame.f_code.co_filename
            is_own = self._is_own.get(filename)
            if is_own is None:
                is_own = self._is_own[filename] = is_own_file(filename)
            if is_own:
                self._seen.add((filename, frame.f_lineno))
            frame = frame.f_back

    def has(self, filename: str, node: Node) -> bool:
        """Whether one of the lines of a statement or expression ran."""
        return self.has_any(filename, range(node.lineno, (node.end_lineno or node.lineno) + 1))

    def has_any(self, filename: str, lines: Iterable[int]) -> bool:
        """Whether one of these lines ran."""
        return any((filename, line) in self._seen for line in lines)


def is_own_file(filename: str) -> bool:
    """Whether a file is the user's own."""
    return kind_of_file(filename) == 0
