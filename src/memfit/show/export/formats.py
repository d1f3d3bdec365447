"""Registry of export formats: which record can be written as what, and the file name of each."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from memfit.errors import UsageError
from memfit.records.grid import Grid
from memfit.records.prediction import Prediction
from memfit.records.run import RunRecord
from memfit.records.study import Study
from memfit.show.as_json import to_json
from memfit.show.export.compare_files import grid_csv
from memfit.show.export.csv_tables import TABLES, study_csv, write_csv
from memfit.show.export.openmetrics import openmetrics
from memfit.show.export.tensorboard import ReadRun, write_run_events, write_study_events
from memfit.show.export.traces.chrome_trace import chrome_trace
from memfit.show.export.traces.memory_viewer import memory_viewer_pickle
from memfit.show.export.traces.perfetto import perfetto_trace
from memfit.show.new_file import check_new, write_bytes

Format = Literal["csv", "json", "chrome-trace", "perfetto", "memory-viewer", "tensorboard", "openmetrics", "figures"]
SUFFIXES: dict[str, str] = {
    "csv": "", "json": ".json", "chrome-trace": ".trace.json", "perfetto": ".pftrace", "memory-viewer": ".pickle",
    "tensorboard": "-tensorboard", "openmetrics": ".prom", "figures": "-figures",
}  # fmt: skip
Exported = RunRecord | Study | Prediction | Grid
FORMATS_OF: dict[str, tuple[str, ...]] = {
    "run": ("csv", "json", "chrome-trace", "perfetto", "memory-viewer", "tensorboard", "openmetrics"),
    "study": ("csv", "json", "tensorboard", "openmetrics", "figures"),
    "prediction": ("json", "openmetrics"),
    "grid": ("csv", "json", "openmetrics"),
}


def kind_of(record: Exported) -> str:
    """'run', 'study', 'prediction' or 'grid'."""
    names = {RunRecord: "run", Study: "study", Prediction: "prediction", Grid: "grid"}
    return names[type(record)]


def check_format(record: Exported, to: str, table: str | None = None) -> None:
    """Refuse a format that this record does not have, and a table that is none."""
    kind = kind_of(record)
    if to not in SUFFIXES:
        raise UsageError(f"there is no format {to!r}", hint=f"one of {', '.join(SUFFIXES)}")
    if to not in FORMATS_OF[kind]:
        raise UsageError(f"a {kind} has no format {to}", hint=f"one of {', '.join(FORMATS_OF[kind])}")
    if table is not None and (to != "csv" or kind != "run" or table not in TABLES):
        what = f"there is no table {table!r}" if to == "csv" and kind == "run" else "only csv of a run has tables"
        raise UsageError(what, hint=f"--to csv --table {'|'.join(TABLES)}")


def export(
    record: Exported, to: str, path: str | Path | None = None, *, table: str | None = None, overwrite: bool = False,
    read_run: ReadRun = lambda trial: None,
) -> list[Path]:  # fmt: skip
    """Write the record in one format; returns the files written. `read_run` gives the runs of a study's trials."""
    check_format(record, to, table)
    content = _content(record, to)
    target = check_new(path or default_path(record, to, table), overwrite=overwrite)
    if content is not None:
        return [write_bytes(target, content)]
    if isinstance(record, Study):
        return write_study_events(record, target, read_run)
    assert isinstance(record, RunRecord)
    return write_run_events(record, target) if to == "tensorboard" else write_csv(record, target, table)


def _content(record: Exported, to: str) -> bytes | None:
    """The whole file, made before anything is touched; None for formats that are a folder."""
    if to == "json":
        return to_json(record)
    if to == "openmetrics":
        return openmetrics(record).encode()
    if isinstance(record, Grid):
        return grid_csv(record).encode()
    if isinstance(record, Study):
        return study_csv(record).encode() if to == "csv" else None
    makers = {"chrome-trace": chrome_trace, "perfetto": perfetto_trace, "memory-viewer": memory_viewer_pickle}
    return makers[to](record) if isinstance(record, RunRecord) and to in makers else None


def default_path(record: Exported, to: str, table: str | None = None) -> Path:
    """A name in the current folder made from the name of the record."""
    name = _name(record)
    if to == "csv" and isinstance(record, RunRecord):
        return Path(f"{name}-{table}.csv" if table else f"{name}-csv")
    return Path(name + (".csv" if to == "csv" else SUFFIXES[to]))


def _name(record: Exported) -> str:
    if isinstance(record, RunRecord):
        return Path(record.folder).resolve().name or record.header.run_id
    if isinstance(record, Study):
        return Path(record.folder).resolve().name if record.folder else record.study_id
    return Path(record.target.partition(":")[0]).stem or kind_of(record)
