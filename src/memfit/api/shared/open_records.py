"""Openers of records for the page: each reads a kind, explains it, and makes its document.

A new kind of record gets a line in `OPENERS`, a document in `show/page/documents` and a section in `show/page/app`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from memfit.api.measure import explain_run

if TYPE_CHECKING:
    from memfit.records.fit import Fit, LoopFit
    from memfit.records.plan import Plan
    from memfit.records.prediction import Prediction, RankPredictions, Saving
    from memfit.records.run import RunRecord
    from memfit.records.run_parts.ledger import LedgerFacts
    from memfit.records.study import Study
    from memfit.records.study_findings import StudyFindings
    from memfit.serve.metrics import ReadRecord
    from memfit.serve.opened_records import Opened, Opener
    from memfit.show.page.documents.document import Body, Document
    from memfit.show.page.documents.run import RunDetails

T = TypeVar("T")
INLINE_CURVES = 2000
"""A served study with more trials gives their intermediate results only when asked for."""
EXPLAINED_TRIALS = 5000
"""A study with more trials is not explained while a page waits; `memfit explain` does it."""
MOST_BESIDE = 200
MOST_COMPARED = 12
"""Predictions and plans beside a run that are read to find the one of the same training."""
LARGE_SNAPSHOT_BYTES = 32 * 2**20
"""Of a larger snapshot the segments are shown first, and the events when they are read."""


def open_run(path: Path, root: Path, *, fine: bool = False) -> Opened:
    """A run folder; `fine` keeps detail to zoom into within the document itself."""
    from memfit.api.report import view_run
    from memfit.runfolder.reader import read_growing_run
    from memfit.serve.opened_records import Opened
    from memfit.show.page.documents.run import run_document
    from memfit.show.views.curves import curves_of

    run = explain_run(read_growing_run(path))
    details = _details(path, root, run.record)
    document = run_document(run.record, view_run(run, fine=fine), details)
    whole = max(len(run.record.samples), len(run.record.tree.time_seconds), 1)
    return Opened(document=document, curves=() if fine else curves_of(run.record, max_rows=whole)[0])


def _details(path: Path, root: Path, run: RunRecord) -> RunDetails:
    """What lies beside a run and is of the same training: a prediction and a plan, where there is one such of each."""
    from memfit.show.page.documents.run import RunDetails, traced_facts

    beside = _beside(path) if path != root else {}
    is_only = not beside.get("run")
    command = run.header.command
    predictions = [
        one
        for one in _readable(beside.get("prediction", []), _one_prediction)
        if _same(command, one.target, one.arguments, is_only=is_only)
    ]
    plans = [
        one
        for one, _, loop in _readable(beside.get("plan", []), read_plan_or_fit)
        if _same(command, one.chain.target, None if loop is None else loop.arguments, is_only=is_only)
    ]
    prediction, plan = _only(predictions), _only(plans)
    return RunDetails(savings=_savings(traced_facts(run.ledger_facts), prediction), prediction=prediction, plan=plan)


def _same(command: Sequence[str], target: str, arguments: Sequence[str] | None, *, is_only: bool) -> bool:
    """Whether a command runs what a record names; where the record does not tell, the only run of a folder is meant."""
    name = Path(target.partition(":")[0]).name
    if not name or not any(word.endswith(".py") or word == target for word in command):
        return is_only
    places = [place for place, word in enumerate(command) if name in (word, Path(word).name)]
    if not places or arguments is None:
        return bool(places) and is_only
    return tuple(command[places[0] + 1 :]) == tuple(arguments)


def _savings(traced: list[LedgerFacts], prediction: Prediction | None) -> tuple[Saving, ...]:
    """From the traced step where there is one, else those of the prediction."""
    from memfit.predict.levels.savings import savings_of

    for one in traced:
        if one.timeline is not None and one.timeline.spans:
            return savings_of(one.timeline, one.device)
    return () if prediction is None else prediction.savings


def _beside(path: Path) -> dict[str, list[Path]]:
    """Records in the folder of a run, without the run itself, by kind."""
    from itertools import islice

    from memfit.serve.catalogue import kind_of

    found: dict[str, list[Path]] = {}
    for one in sorted(islice(path.parent.iterdir(), MOST_BESIDE)):
        kind = None if one.is_symlink() or one == path or not (one.is_dir() or one.suffix == ".json") else kind_of(one)
        if kind is not None:
            found.setdefault(kind, []).append(one)
    return found


def _readable(paths: list[Path], read: Callable[[Path], T]) -> list[T]:
    """The records of a few files; those that cannot be read are not there."""
    from memfit.errors import MemfitError

    found: list[T] = []
    for path in paths[:MOST_COMPARED]:
        with suppress(MemfitError):
            found.append(read(path))
    return found


def _one_prediction(path: Path) -> Prediction:
    from memfit.records.prediction import read_prediction

    return read_prediction(path)


def _only(found: list[T]) -> T | None:
    return found[0] if len(found) == 1 else None


def open_study(path: Path, root: Path, *, whole: bool = False) -> Opened:
    """A study's folder or JSON file; `whole` puts all intermediate results into the document."""
    from functools import cache

    from memfit.serve.opened_records import Opened
    from memfit.show.as_json import plain
    from memfit.show.page.documents.study import study_document

    study, is_running = _read_study(path, root), _is_running(path)
    if whole:
        findings, reason = _findings(study)
        document = study_document(study, findings, findings_reason=reason, is_running=is_running)
        return Opened(document=document, study=study)
    inline = len(study.trials) <= INLINE_CURVES

    @cache
    def findings_later() -> Body:
        found, reason = _findings(study)
        return {"findings": plain(found), "findings_reason": reason}

    later = {"findings": findings_later}
    document = study_document(study, with_curves=inline, is_running=is_running)
    return Opened(document=document, study=study, later=later)


def _is_running(path: Path) -> bool | None:
    """Whether somebody runs the trials of a study's folder; unknown of a file."""
    from memfit.study.control import coordinator_of

    return coordinator_of(path) is not None if path.is_dir() else None


def _read_study(path: Path, root: Path) -> Study:
    """The study of a path below a folder; one that was named by itself may keep its facts wherever it says."""
    from memfit.api.study import find_study

    if path.is_dir() and path != root:
        _refuse_elsewhere(path)
    return find_study(str(path))


def _refuse_elsewhere(folder: Path) -> None:
    """A folder of others may name any file or server as its database: only a file in it is read."""
    from memfit.errors import RecordError
    from memfit.study.folder import find
    from memfit.study.storage.open import is_file

    where = find(folder)
    inside = where is not None and is_file(where.storage) and Path(where.storage).name == where.storage
    inside = inside and where is not None and not (folder / where.storage).is_symlink()
    if where is not None and not inside:
        hint = "name the study itself: memfit serve STUDY"
        raise RecordError("the study's database is not in its folder", found=where.storage[:200], hint=hint)


def _findings(study: Study) -> tuple[StudyFindings | None, str]:
    """What drives memory, where enough trials are done; or why that is not on the page."""
    from memfit.api.study import explain_study
    from memfit.errors import MemfitError

    if len(study.trials) > EXPLAINED_TRIALS:
        most = f"{EXPLAINED_TRIALS:,}"
        return None, f"a study with more than {most} trials is not explained here; `memfit explain` does it"
    try:
        return explain_study(study), ""
    except MemfitError as error:
        return None, str(error)


def open_prediction(path: Path, root: Path) -> Opened:
    """A file that `memfit predict --json` printed, of one process or of every rank."""
    from memfit.records.prediction import RankPredictions
    from memfit.serve.opened_records import Opened
    from memfit.show.page.documents.prediction import prediction_document, ranks_document

    found = _read_prediction(path)
    return Opened(document=ranks_document(found) if isinstance(found, RankPredictions) else prediction_document(found))


def _read_prediction(path: Path) -> Prediction | RankPredictions:
    """Whichever of the two a file holds; what is neither is refused as no prediction."""
    from memfit.errors import NotARun
    from memfit.records.prediction import read_prediction, read_ranks

    try:
        return read_ranks(path)
    except NotARun:
        return read_prediction(path)


def open_plan(path: Path, root: Path) -> Opened:
    """A plan, or the whole fit that `memfit fit --json` printed."""
    from memfit.serve.opened_records import Opened
    from memfit.show.page.documents.plan import plan_document

    return Opened(document=plan_document(*read_plan_or_fit(path)))


def open_pipeline(path: Path, root: Path) -> Opened:
    """The plan.json of `memfit pipeline -o FOLDER`."""
    from memfit.records.pipeline import read_pipeline
    from memfit.serve.opened_records import Opened
    from memfit.show.page.documents.pipeline import pipeline_document

    return Opened(document=pipeline_document(read_pipeline(path)))


def open_grid(path: Path, root: Path) -> Opened:
    """The grid.json of `memfit compare`."""
    from memfit.records.grid import read_grid
    from memfit.serve.opened_records import Opened
    from memfit.show.page.documents.grid import grid_document

    return Opened(document=grid_document(read_grid(path)))


def open_snapshot(path: Path, root: Path) -> Opened:
    """A CUDA memory snapshot, read without running anything in it; the events of a large one come later."""
    from functools import cache

    from memfit.predict.snapshot.quick_segments import read_segments
    from memfit.serve.opened_records import Opened
    from memfit.show.page.documents.snapshot import snapshot_document

    first = read_segments(path) if path.stat().st_size > LARGE_SNAPSHOT_BYTES else None
    if first is None or not first.devices:
        return Opened(document=_whole_snapshot(path))
    fullest = max(first.devices, key=lambda one: sum(segment.num_bytes for segment in one.segments))
    later = {"whole": cache(lambda: _whole_snapshot(path).body)}
    return Opened(document=snapshot_document(first, fullest, None), later=later)


def open_dropped(path: Path) -> Opened:
    """A snapshot that was dropped on the page: all of it at once, because the file does not stay."""
    from memfit.serve.opened_records import Opened

    return Opened(document=_whole_snapshot(path))


def _whole_snapshot(path: Path) -> Document:
    from memfit.predict.snapshot.reader import read_snapshot
    from memfit.predict.snapshot.report import choose_device, replay
    from memfit.show.page.documents.snapshot import snapshot_document

    snapshot = read_snapshot(path)
    device, _ = choose_device(snapshot, None)
    return snapshot_document(snapshot, device, replay(snapshot))


OPENERS: Mapping[str, Callable[..., Opened]] = {
    "run": open_run,
    "study": open_study,
    "prediction": open_prediction,
    "plan": open_plan,
    "pipeline": open_pipeline,
    "grid": open_grid,
    "snapshot": open_snapshot,
}
"""By the kind that `serve.catalogue` gives a path."""


def served_openers() -> dict[str, Opener]:
    """Openers for a server: curves and intermediate results stay there until they are asked for."""
    return dict(OPENERS)


def metric_readers() -> dict[str, ReadRecord]:
    """Readers of the kinds of records whose numbers Prometheus gets."""
    from memfit.records.grid import read_grid
    from memfit.runfolder.reader import read_growing_run

    return {
        "run": lambda path, root: read_growing_run(path),
        "study": _read_study,
        "prediction": lambda path, root: _fullest(_read_prediction(path)),
        "grid": lambda path, root: read_grid(path),
    }


def _fullest(found: Prediction | RankPredictions) -> Prediction:
    """Of a training over several ranks, the prediction of the fullest one: it decides whether the training fits."""
    from memfit.records.prediction import RankPredictions

    return found.fullest.prediction if isinstance(found, RankPredictions) else found


def report_openers() -> dict[str, Opener]:
    """Openers for a file: everything that can be zoomed into is in it."""
    from functools import partial

    return {**OPENERS, "run": partial(open_run, fine=True), "study": partial(open_study, whole=True)}


class PlanFile(NamedTuple):
    """A plan, the fit around it and the training loop around that, where the file has them."""

    plan: Plan
    fit: Fit | None = None
    loop: LoopFit | None = None


def read_plan_or_fit(path: Path) -> PlanFile:
    """The plan in a file that `memfit fit` wrote, or printed with --json; of a loop with several, the last one."""
    import msgspec

    from memfit.errors import DamagedRecord, RecordError
    from memfit.records.fit import Fit, LoopFit
    from memfit.records.plan import PLAN_FORMAT, decode_plan
    from memfit.regular_file import describe_error, read_regular

    try:
        raw = read_regular(path)
        content = msgspec.json.decode(raw)
        if isinstance(content, dict) and content.get("format") == PLAN_FORMAT:
            return PlanFile(decode_plan(raw, str(path)))
        if isinstance(content, dict) and content.get("fits"):
            loop = msgspec.convert(content, LoopFit)
            return PlanFile(loop.fits[-1].plan, loop.fits[-1], loop)
        fit = msgspec.convert(content, Fit)
    except OSError as error:
        raise RecordError(f"{path} cannot be read", found=describe_error(error), hint="check the path") from None
    except (ValueError, RecursionError) as error:
        raise DamagedRecord(f"{path} holds no plan", found=str(error), hint="write the plan again") from None
    return PlanFile(fit.plan, fit)
