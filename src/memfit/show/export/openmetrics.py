"""OpenMetrics text of records, for Prometheus: one pure function, for a file and for the address of a server.

A figure that is not known has no sample, which Prometheus shows as absent; it is never a zero. The peaks of a study's
trials are one summary, not a series per trial: ten thousand trials stay a handful of series.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from memfit.records.figure import Figure
from memfit.records.files.only_text import only_text
from memfit.records.grid import Grid
from memfit.records.prediction import Prediction
from memfit.records.run import RunRecord
from memfit.records.study import Study
from memfit.show.views.study_ranking import rank_trials
from memfit.show.wording import command_text

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
MetricRecord = RunRecord | Study | Prediction | Grid
Labels = Mapping[str, str]
_QUANTILES = (0.0, 0.5, 0.9, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFamily:
    """One metric: its samples stand together, whichever record they are of."""

    kind: Literal["gauge", "info", "summary"]
    unit: str
    words: str


FAMILIES = {
    "memfit_records": MetricFamily(
        kind="gauge", unit="", words="Records of a served folder, by kind and by whether they could be read."
    ),
    "memfit_run": MetricFamily(kind="info", unit="", words="A measured run."),
    "memfit_run_peak_bytes": MetricFamily(kind="gauge", unit="bytes", words="Peak memory of the job."),
    "memfit_run_average_bytes": MetricFamily(kind="gauge", unit="bytes", words="Mean memory of the job over time."),
    "memfit_run_background_bytes": MetricFamily(
        kind="gauge", unit="bytes", words="Mean memory that other programs held meanwhile."
    ),
    "memfit_run_duration_seconds": MetricFamily(kind="gauge", unit="seconds", words="From start to end."),
    "memfit_run_steps": MetricFamily(kind="gauge", unit="", words="Optimizer steps that were seen."),
    "memfit_run_energy_joules": MetricFamily(kind="gauge", unit="joules", words="Energy, by domain."),
    "memfit_process_peak_bytes": MetricFamily(
        kind="gauge", unit="bytes", words="Peak resident memory of one process of a run."
    ),
    "memfit_study": MetricFamily(kind="info", unit="", words="A study."),
    "memfit_study_trials": MetricFamily(kind="gauge", unit="", words="Trials of a study, by what became of them."),
    "memfit_study_best_metric": MetricFamily(kind="gauge", unit="", words="Metric of the best trial that is done."),
    "memfit_study_trial_peak_bytes": MetricFamily(
        kind="summary", unit="bytes", words="Peak memory of the trials that are done."
    ),
    "memfit_predicted_peak_bytes": MetricFamily(kind="gauge", unit="bytes", words="Predicted peak, by level."),
    "memfit_predicted_limit_bytes": MetricFamily(kind="gauge", unit="bytes", words="What the device has."),
    "memfit_grid_peak_bytes": MetricFamily(
        kind="gauge", unit="bytes", words="Peak of an optimizer under a technique, predicted or measured."
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSample:
    """One line."""

    family: str
    suffix: str = ""
    labels: Labels
    value: float


def openmetrics(*records: MetricRecord) -> str:
    """The text of these records; no two samples of it have the same name and labels.

    >>> openmetrics(memfit.read_run("runs/train-1"))  # doctest: +SKIP
    """
    return metrics_text(sample for record in records for sample in metric_samples(record))


def metrics_text(found: Iterable[MetricSample]) -> str:
    """The text of samples, those of one metric together; of two with the same name and labels the first one counts."""
    samples: dict[tuple[str, str, str], MetricSample] = {}
    for sample in found:
        samples.setdefault((sample.family, sample.suffix, _labels_text(sample.labels)), sample)
    lines = []
    for name, family in FAMILIES.items():
        own = [sample for sample in samples.values() if sample.family == name]
        if own:
            lines += [f"# TYPE {name} {family.kind}", *([f"# UNIT {name} {family.unit}"] if family.unit else [])]
            lines += [f"# HELP {name} {family.words}", *(_line(sample) for sample in own)]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _line(sample: MetricSample) -> str:
    value = int(sample.value) if float(sample.value).is_integer() and abs(sample.value) < 2**63 else sample.value
    return f"{sample.family}{sample.suffix}{_labels_text(sample.labels)} {value!r}"


def _labels_text(labels: Labels) -> str:
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


def _escaped(value: str) -> str:
    return only_text(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def metric_samples(record: MetricRecord) -> Iterator[MetricSample]:
    """Everything that is known of a record in numbers."""
    if isinstance(record, RunRecord):
        return _run_samples(record)
    if isinstance(record, Study):
        return _study_samples(record)
    return _prediction_samples(record) if isinstance(record, Prediction) else _grid_samples(record)


def _gauge(family: str, labels: Labels, value: float | Figure | None) -> Iterator[MetricSample]:
    number = value.value if isinstance(value, Figure) else value
    if number is not None and math.isfinite(number):
        yield MetricSample(family=family, labels=labels, value=number)


def _run_samples(run: RunRecord) -> Iterator[MetricSample]:
    named = {"run": Path(run.folder).name or run.header.run_id, "id": run.header.run_id}
    about = {"command": command_text(run.header.command), "outcome": run.outcome.kind}
    yield MetricSample(family="memfit_run", suffix="_info", labels={**named, **about}, value=1)
    yield from _gauge("memfit_run_peak_bytes", named, run.peak)
    yield from _gauge("memfit_run_average_bytes", named, run.tree.mean_bytes())
    if run.system_summary is not None:
        yield from _gauge("memfit_run_background_bytes", named, run.system_summary.mean_background_bytes)
    yield from _gauge("memfit_run_duration_seconds", named, run.duration_seconds)
    yield from _gauge("memfit_run_steps", named, run.steps.total)
    for reading in run.energy:
        yield from _gauge("memfit_run_energy_joules", {**named, "domain": reading.domain}, reading.figure)
    for process in run.processes:
        yield from _gauge("memfit_process_peak_bytes", {**named, "process": str(process.index)}, process.peak)


def _study_samples(study: Study) -> Iterator[MetricSample]:
    named = {"study": study.settings.name or Path(study.folder).name or study.study_id, "id": study.study_id}
    about = {"tuner": study.settings.tuner.name or study.settings.tuner.class_name}
    yield MetricSample(family="memfit_study", suffix="_info", labels={**named, **about}, value=1)
    for kind, count in Counter(trial.kind for trial in study.trials).items():
        yield from _gauge("memfit_study_trials", {**named, "outcome": kind}, count)
    best = rank_trials(study, "metric").ranked
    yield from _gauge("memfit_study_best_metric", named, best[0].metric if best else None)
    sized = [trial.peak.value for trial in study.trials if trial.kind == "done" and trial.peak.value is not None]
    yield from _summary("memfit_study_trial_peak_bytes", named, sized)


def _summary(family: str, labels: Labels, values: Sequence[float]) -> Iterator[MetricSample]:
    for quantile in _QUANTILES if values else ():
        own = {**labels, "quantile": f"{quantile:.1f}"}
        yield MetricSample(family=family, labels=own, value=float(np.quantile(values, quantile, method="higher")))
    yield MetricSample(family=family, suffix="_count", labels=labels, value=len(values))
    yield MetricSample(family=family, suffix="_sum", labels=labels, value=math.fsum(values))


def _prediction_samples(prediction: Prediction) -> Iterator[MetricSample]:
    words = [*(f"{name}={value}" for name, value in prediction.settings.items()), *(prediction.arguments or ())]
    settings = " ".join(words)
    named = {"target": prediction.target, "device": prediction.device, "settings": settings}
    for level in prediction.levels:
        yield from _gauge("memfit_predicted_peak_bytes", {**named, "level": level.name}, level.figure)
    yield from _gauge("memfit_predicted_limit_bytes", named, prediction.memory_limit_bytes)


def _grid_samples(grid: Grid) -> Iterator[MetricSample]:
    for cell in grid.cells:
        named = {"target": grid.target, "device": grid.device, "optimizer": cell.optimizer, "technique": cell.technique}
        for source, figures in (("predicted", cell.predicted), ("measured", cell.measured)):
            if figures is not None:
                yield from _gauge("memfit_grid_peak_bytes", {**named, "source": source}, figures.peak)
