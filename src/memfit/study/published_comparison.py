"""How do re-run trials stand beside the published ones, and is it true that memory does not change after step two?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from memfit.errors import MemfitError
from memfit.records.figure import Figure, measured, unknown
from memfit.records.reproduction import Rerun, RerunRow, StepEvidence
from memfit.records.study import Study, TrialRecord
from memfit.runfolder.reader import read_run
from memfit.study.published import SOURCE, published_study
from memfit.study.published_rerun import published_name


def compare_with_published(study: Study) -> Rerun:
    """The published table beside the measured one."""
    published = published_study(published_name(study))
    rows = []
    for row, old in enumerate(published.trials):
        new = [trial for trial in study.trials if trial.proposal.memo.get("row") == row and trial.is_finished]
        rows.append(_row(row, old, new))
    steps = study.settings.fixed.get("steps")
    return Rerun(
        title=study.settings.name,
        source=SOURCE,
        rows=tuple(rows),
        evidence=evidence_of(study),
        steps=steps if isinstance(steps, int) else None,
        notes=study.settings.notes,
    )


def _row(row: int, old: TrialRecord, new: list[TrialRecord]) -> RerunRow:
    done = [trial for trial in new if trial.kind == "done"]
    systems = [
        trial.average.value + trial.background.value
        for trial in done
        if trial.average.value is not None and trial.background.value is not None
    ]
    return RerunRow(
        row=row + 1,
        parameters=old.parameters,
        published=old.average,
        peak=mean_of((trial.peak.value for trial in done), "peak"),
        average=mean_of((trial.average.value for trial in done), "average"),
        background=mean_of((trial.background.value for trial in done), "background"),
        system=mean_of(systems, "job and background"),
        num_done=len(done),
        num_trials=len(new),
    )


def mean_of(values: Iterable[float | None], what: str) -> Figure:
    """The mean of replicates, with the smallest and the largest."""
    known = [value for value in values if value is not None]
    if not known:
        return unknown("bytes", "no replicate was measured")
    method = f"mean {what} of {len(known)} replicates"
    return measured(sum(known) / len(known), "bytes", method, low=min(known), high=max(known))


def evidence_of(study: Study) -> StepEvidence:
    """Read the steps of every trial that is done, and how much they grew after the second."""
    found = [growth for trial in study.trials if trial.kind == "done" and (growth := _growth(study, trial))]
    if not found:
        reason = "no trial has three optimizer steps that were seen"
        return StepEvidence(num_trials=0, num_steps=0, growth=unknown("bytes", reason), share=unknown("ratio", reason))
    grown_bytes, share, _ = max(found)
    return StepEvidence(
        num_trials=len(found),
        num_steps=min(steps for _, _, steps in found),
        growth=measured(grown_bytes, "bytes", "largest step peak after step 2, less that of step 2"),
        share=measured(share, "ratio", "the same by the peak of step 2"),
    )


def _growth(study: Study, trial: TrialRecord) -> tuple[float, float, int] | None:
    """Bytes, share and steps of one trial; None when its record has not three steps."""
    try:
        steps = read_run(Path(study.folder) / trial.run_folder).steps
    except MemfitError:
        return None
    if len(steps) < 3:
        return None
    second, later = float(steps.peak_bytes[:2].max()), float(steps.peak_bytes[2:].max())
    grown_bytes = max(0.0, later - second)
    return grown_bytes, grown_bytes / second, steps.total
