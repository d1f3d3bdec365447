"""Records in a notebook: their HTML is made by a function that the public functions register, records know none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class _Printer(Protocol):
    """What IPython hands over to print into."""

    def text(self, text: str) -> None: ...


_makers: list[Callable[[object], str]] = []


def use_html_maker(maker: Callable[[object], str]) -> None:
    """Have records shown by this function."""
    _makers[:] = [maker]


class NotebookRecord:
    """A record that Jupyter shows as a small table and drawing in place of a page of fields."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        return _makers[0](self) if _makers else None

    def _repr_pretty_(self, printer: _Printer, cycle: bool) -> None:
        """Beside the HTML a notebook keeps the plain text, which for ten thousand trials would be megabytes."""
        name = type(self).__name__
        printer.text(f"<{name}; repr(...) has all of it>" if _makers else repr(self))
