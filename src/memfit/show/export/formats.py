"""Registry of export formats, and the file name of each."""

from __future__ import annotations

from pathlib import Path

from memfit.errors import UsageError
from memfit.records.run import RunRecord
from memfit.show.as_json import to_json
from memfit.show.export.chrome_trace import chrome_trace
from memfit.show.export.csv_tables import TABLES, write_csv
from memfit.show.export.memory_viewer import memory_viewer_pickle
from memfit.show.new_file import check_new, write_bytes

SUFFIXES = {"csv": "", "json": ".json", "chrome-trace": ".trace.json", "memory-viewer": ".pickle"}


def export(
    run: RunRecord, to: str, path: str | Path | None = None, *, table: str | None = None, overwrite: bool = False
) -> list[Path]:
    """Write the run in one format; returns the files written."""
    if to not in SUFFIXES:
        raise UsageError(f"there is no format {to!r}", hint=f"one of {', '.join(SUFFIXES)}")
    if table is not None and (to != "csv" or table not in TABLES):
        what = f"there is no table {table!r}" if to == "csv" else "only csv has tables"
        raise UsageError(what, hint=f"--to csv --table {'|'.join(TABLES)}")
    content = _content(run, to)
    target = check_new(path or default_path(run, to, table), overwrite=overwrite)
    return write_csv(run, target, table) if content is None else [write_bytes(target, content)]


def _content(run: RunRecord, to: str) -> bytes | None:
    """The whole file, made before anything is touched; None for tables, which are streamed."""
    if to == "json":
        return to_json(run)
    if to == "chrome-trace":
        return chrome_trace(run)
    return memory_viewer_pickle(run) if to == "memory-viewer" else None


def default_path(run: RunRecord, to: str, table: str | None = None) -> Path:
    """A name in the current folder made from the run folder's name."""
    name = Path(run.folder).resolve().name or run.header.run_id
    if to == "csv":
        return Path(f"{name}-{table}.csv" if table else f"{name}-csv")
    return Path(name + SUFFIXES[to])
