"""Exports: find out what kind of record a path holds, and write it in a format that other tools read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memfit.api.shared.options import checked_options
from memfit.api.study import draw_study, read_study
from memfit.errors import NotARun, RecordError, UsageError

if TYPE_CHECKING:
    from memfit.records.grid import Grid
    from memfit.records.prediction import Prediction
    from memfit.records.run import RunRecord
    from memfit.records.study import Study, TrialRecord
    from memfit.show.export.formats import Format


@checked_options
def read_record(path: str | Path) -> RunRecord | Study | Prediction | Grid:
    """Read what a path holds: the folder of a run, a study or a grid, or a record in a JSON file.

    >>> read_record("memfit-studies/mlp").trials[0].peak.value  # doctest: +SKIP
    """
    from memfit.records.grid import read_grid
    from memfit.runfolder.reader import read_run

    path = Path(path)
    if (path / "where.json").exists():
        return read_study(path)
    if (path / "grid.json").exists() and not (path / "run.json").exists():
        return read_grid(path / "grid.json")
    return read_run(path) if path.is_dir() or not path.exists() else _read_json(path)


def _read_json(path: Path) -> Study | Prediction | Grid | RunRecord:
    """A record that `--json` printed, by the reader that its format names, or by the first one that takes it."""
    from memfit.records.grid import read_grid
    from memfit.records.prediction import read_prediction
    from memfit.serve.catalogue import kind_of
    from memfit.study.json_file import read_study_json

    readers = {"prediction": read_prediction, "grid": read_grid, "study": read_study_json}
    kind = kind_of(path)
    if kind in readers:
        return readers[kind](path)  # its error says what is wrong with it: damaged, or from a newer memfit
    for read in readers.values():
        try:
            return read(path)
        except RecordError:
            continue
    hint = (
        "a folder of `memfit measure`, `study` or `compare`, or what `predict`, `compare` or `study` print with --json"
    )
    raise NotARun(f"{path} is no record of memfit", hint=hint)


@checked_options
def export_record(
    record: RunRecord | Study | Prediction | Grid,
    to: Format,
    path: str | Path | None = None,
    *,
    table: str | None = None,
    trials: Sequence[int] = (),
    beside: str | Path | None = None,
    overwrite: bool = False,
) -> list[Path]:
    """Write a record in a format that another tool reads; returns the files written.

    A run can be written as csv, json, chrome-trace, perfetto, memory-viewer, tensorboard and openmetrics; a study as
    csv, json, tensorboard, openmetrics and figures; a prediction as json and openmetrics; a grid as csv, json and
    openmetrics. `table` is one table of a run's csv, `trials` are those a figure of intermediate results is drawn of;
    `beside` is a trace of torch.profiler that a run's chrome-trace is added to.
    The event files of a study that was read from its folder go there, beside the traces of `--profile`, unless a path
    is given.

    >>> export_record(memfit.read_study("memfit-studies/mlp"), "tensorboard")  # doctest: +SKIP
    """
    from memfit.records.study import Study
    from memfit.show.export.formats import check_format, default_path, export
    from memfit.show.new_file import check_new

    check_format(record, to, table)
    if trials and to != "figures":
        raise UsageError("only figures are drawn of chosen trials", hint="--to figures")
    if beside is not None:
        return [_add_to_trace(record, to, Path(beside), path, overwrite)]
    if isinstance(record, Study) and to == "figures":
        target = check_new(path or default_path(record, to), overwrite=overwrite)
        return list(draw_study(record, target, trials=trials))
    if isinstance(record, Study) and to == "tensorboard":
        own = Path(record.folder, "trials") if path is None and _is_in(record, record.folder) else None
        return export(
            record,
            to,
            own or path,
            overwrite=overwrite or own is not None,
            read_run=lambda trial: _run_of(record, trial),
        )
    return export(record, to, path, table=table, overwrite=overwrite)


def _add_to_trace(
    record: RunRecord | Study | Prediction | Grid, to: str, beside: Path, path: str | Path | None, overwrite: bool
) -> Path:
    """The memory of a run in a trace of torch.profiler, as a new file."""
    import gzip
    import zlib

    import msgspec

    from memfit.records.run import RunRecord
    from memfit.regular_file import read_regular
    from memfit.show.export.formats import default_path
    from memfit.show.export.traces.profiler_trace import profiler_trace_with_memory
    from memfit.show.new_file import check_new, write_bytes

    if to != "chrome-trace" or not isinstance(record, RunRecord):
        raise UsageError("only the chrome-trace of a run is added to another trace", hint="--to chrome-trace")
    try:
        raw = read_regular(beside)
        trace = msgspec.json.decode(gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw, type=dict)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise RecordError(f"{beside} is no trace of torch.profiler", found=str(error)) from None
    content = profiler_trace_with_memory(record, trace)
    return write_bytes(check_new(path or default_path(record, to), overwrite=overwrite), content)


def _is_in(study: Study, folder: str) -> bool:
    """Whether a study is the one in a folder: a JSON file of others may name any."""
    from memfit.study.folder import find

    try:
        where = find(Path(folder)) if folder else None
    except RecordError:
        return False
    return where is not None and where.study_id == study.study_id


def _run_of(study: Study, trial: TrialRecord) -> RunRecord | None:
    """The run of a trial, where it can be read; a trial on another machine may have left none here."""
    from memfit.runfolder.reader import read_run
    from memfit.serve.catalogue import resolve

    if not (study.folder and trial.run_folder and Path(study.folder, trial.run_folder).is_dir()):
        return None
    try:
        return read_run(resolve(Path(study.folder), trial.run_folder))
    except RecordError:
        return None


@checked_options
def metrics_text(*records: RunRecord | Study | Prediction | Grid) -> str:
    """The OpenMetrics text of records, as Prometheus reads it.

    >>> print(metrics_text(memfit.read_run("runs/first")))  # doctest: +SKIP
    """
    from memfit.show.export.openmetrics import openmetrics

    return openmetrics(*records)
