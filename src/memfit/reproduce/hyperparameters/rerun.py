"""The published trials on hyperparameters run again: the same networks, or new ones from the same ranges, as a study.

The tables do not say how long memory was read or which optimizer was used; the epochs are theirs, Adam is assumed.
With `steps` every trial is capped, because the memory of a training does not change after its second step: the
first step allocates gradients, its update the optimizer's state, and from then on every step repeats. The report
shows the evidence.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from memfit.errors import MemfitError, UsageError
from memfit.job.data.images import images_said
from memfit.records.figure import Figure, measured, unknown
from memfit.records.reproduction import Rerun, RerunRow, StepEvidence
from memfit.records.study import Study, StudySettings, TrialRecord
from memfit.reproduce.hyperparameters.published_tables import PREFIX, SOURCE, TABLES, published_study
from memfit.reproduce.statements import mean_of
from memfit.runfolder.reader import read_run
from memfit.study.space.space import parameters_of
from memfit.study.tuners.replicated_blocks import NAME as ORDERED
from memfit.study.tuners.replicated_blocks import ordered_tool

NUM_STEPS = 20
"""The usual cap: memory does not change after the second step."""
NUM_REPLICATES = 3


def data_sets_called(names: Iterable[str]) -> tuple[str, ...]:
    """The data sets whose tables are meant, 'mnist' or 'paper-mnist'; all of them when none is named."""
    chosen = tuple(dict.fromkeys(name.removeprefix(PREFIX) for name in names))
    unknown_names = [name for name in chosen if name not in TABLES]
    if unknown_names:
        raise UsageError("there is no such published table", found=", ".join(unknown_names), hint=_hint())
    return chosen or tuple(TABLES)


def _hint() -> str:
    return f"one of {', '.join(TABLES)}"


def rerun_settings(
    data: str,
    *,
    num_random: int | None = None,
    replicates: int = NUM_REPLICATES,
    steps: int | None = None,
    seed: int = 0,
) -> StudySettings:
    """The study that runs a published table again, or `num_random` new points of its ranges."""
    published = published_study(data)
    points = [dict(trial.parameters) for trial in published.trials]
    if num_random is not None:
        points = _drawn(published.settings, num_random, seed)
    fixed = {**published.settings.fixed, **({} if steps is None else {"steps": steps})}
    return msgspec.structs.replace(
        published.settings,
        name=PREFIX + data + ("" if num_random is None else f"-random-{num_random}"),
        fixed=fixed,
        tuner=ordered_tool(points, replicates),
        seed=seed,
        max_trials=len(points) * replicates,
        notes=(*published.settings.notes, *_cap_note(steps), images_said(data)),
    )


def _drawn(settings: StudySettings, count: int, seed: int) -> list[dict[str, object]]:
    from memfit.study.space.random_points import generator_for, random_draws

    space = settings.space
    return [parameters_of(space, random_draws(space, generator_for(seed, number))) for number in range(count)]


def _cap_note(steps: int | None) -> tuple[str, ...]:
    if steps is None:
        return ()
    return (f"Every trial was capped at {steps} optimizer steps.",)


# ---- published beside measured ---------------------------------------------------------------------------------------


def published_data(study: Study) -> str:
    """The data set whose published table, or whose ranges, a study runs again; empty for any other study."""
    name = study.settings.name.removeprefix(PREFIX).partition("-random-")[0]
    return name if study.settings.tuner.name == ORDERED and name in TABLES else ""


def rerun_of(study: Study) -> Rerun:
    """Every point with its replicates, beside the published trial of the same row where there is one."""
    data = published_data(study)
    points = study.settings.tuner.arguments["points"]
    is_table = study.settings.name == PREFIX + data
    published = [trial.average for trial in published_study(data).trials] if is_table else []
    rows = []
    for row, point in enumerate(points):
        new = [trial for trial in study.trials if trial.proposal.memo.get("row") == row and trial.is_finished]
        known = published[row] if is_table else unknown("bytes", "a new point of the published ranges")
        rows.append(_row(row, point, known, new))
    steps = study.settings.fixed.get("steps")
    return Rerun(
        title=study.settings.name,
        data=data,
        folder=study.folder,
        source=SOURCE,
        rows=tuple(rows),
        evidence=evidence_of(study),
        steps=steps if isinstance(steps, int) else None,
        notes=study.settings.notes,
    )


def _row(row: int, point: dict[str, object], published: Figure, new: list[TrialRecord]) -> RerunRow:
    done = [trial for trial in new if trial.kind == "done"]
    systems = [
        trial.average.value + trial.background.value
        for trial in done
        if trial.average.value is not None and trial.background.value is not None
    ]
    return RerunRow(
        row=row + 1,
        parameters=point,
        published=published,
        peak=mean_of((trial.peak.value for trial in done), "peak"),
        average=mean_of((trial.average.value for trial in done), "average"),
        background=mean_of((trial.background.value for trial in done), "background"),
        system=mean_of(systems, "job and background"),
        energy=_energy_of(done),
        num_done=len(done),
        num_trials=len(new),
    )


def _energy_of(done: list[TrialRecord]) -> Figure:
    known = [trial.energy.value for trial in done if trial.energy.value is not None]
    if known:
        return measured(sum(known) / len(known), "joules", f"mean of {len(known)} replicates")
    reasons = [trial.energy.reason for trial in done if trial.energy.reason]
    return unknown("joules", reasons[0] if reasons else "no replicate was measured")


def evidence_of(study: Study) -> StepEvidence:
    """Read the steps of every trial that is done, and how much they grew after the second."""
    seen = [(trial.proposal.memo.get("row"), _growth(study, trial)) for trial in study.trials if trial.kind == "done"]
    found = [growth for _, growth in seen if growth is not None]
    if not found:
        reason = "no trial has three optimizer steps that were seen"
        return StepEvidence(num_trials=0, num_steps=0, growth=unknown("bytes", reason), share=unknown("ratio", reason))
    grown_bytes, share, _ = max(found)
    return StepEvidence(
        num_trials=len(found),
        num_steps=min(steps for _, _, steps in found),
        growth=measured(grown_bytes, "bytes", "largest step peak after step 2, less that of step 2"),
        share=measured(share, "ratio", "the same by the peak of step 2"),
        repeated=repeated_growth([(row, growth[1]) for row, growth in seen if growth is not None]),
    )


def repeated_growth(shares: list[tuple[object, float]]) -> Figure:
    """The growth that all replicates of one network show, of the network where it is largest."""
    by_row: dict[object, list[float]] = {}
    for row, share in shares:
        by_row.setdefault(row, []).append(share)
    least = [min(several) for several in by_row.values() if len(several) > 1]
    if not least:
        return unknown("ratio", "no network was run twice")
    return measured(max(least), "ratio", "least growth of a network's replicates, of the network where that is largest")


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
