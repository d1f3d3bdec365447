"""Opens the storage that an address names: a local SQLite file, or a PostgreSQL database."""

from __future__ import annotations

from pathlib import Path

from memfit.errors import UsageError
from memfit.study.storage.interface import Storage


def open_storage(place: str | Path) -> Storage:
    """A PostgreSQL address, or a local file."""
    text = str(place)
    if text.startswith(("postgresql://", "postgres://")):
        from memfit.study.storage.postgres import PostgresStorage

        return PostgresStorage(text)
    check_address(text)
    from memfit.study.storage.sqlite import SqliteStorage

    return SqliteStorage(Path(text.removeprefix("sqlite:///")))


def check_address(place: str) -> None:
    """Refuse an address of a kind that is not known, before anything is made for it."""
    if "://" in place and not place.startswith(("postgresql://", "postgres://", "sqlite:///")):
        hint = "postgresql://USER@HOST/DATABASE, or nothing for a file in the study's folder"
        raise UsageError("this storage is not known", found=place, hint=hint)


def is_file(place: str) -> bool:
    """Whether a storage is one local file."""
    return not place.startswith(("postgresql://", "postgres://"))
