"""Records of trials in NNI's words, and how they are read off a study."""

import json
import os
from dataclasses import dataclass
from datetime import datetime
from typing import Any

STATUSES = {
    "running": "RUNNING",
    "done": "SUCCEEDED",
    "failed": "FAILED",
    "out of memory": "FAILED",
    "over the limit": "FAILED",
    "out of time": "EARLY_STOPPED",
    "stopped early": "EARLY_STOPPED",
    "cancelled": "USER_CANCELED",
}
"""How NNI calls the state of a trial; a point that was rejected by prediction is no trial of NNI's."""


@dataclass
class TrialResult:
    """Parameters and final result of a trial."""

    parameter: dict
    value: Any
    trialJobId: str

    def __init__(self, parameter, value, trialJobId):
        self.parameter, self.value, self.trialJobId = parameter, json.loads(value), trialJobId


@dataclass
class TrialMetricData:
    """One result that a trial reported: PERIODICAL or FINAL."""

    timestamp: int | None
    trialJobId: str
    parameterId: int
    type: str
    sequence: int
    data: Any


@dataclass
class TrialHyperParameters:
    """Parameters of a trial."""

    parameter_id: int
    parameter_source: str
    parameters: dict
    parameter_index: int = 0
    placement_constraint: dict | None = None
    version_info: dict | None = None


@dataclass
class TrialJob:
    """A trial."""

    trialJobId: str
    status: str
    hyperParameters: list[TrialHyperParameters]
    logPath: str
    startTime: int | None
    endTime: int | None
    finalMetricData: list[TrialMetricData]
    stderrPath: str
    sequenceId: int
    message: str


def trials_of(study):
    """The trials of a study that NNI would know."""
    kinds = [(trial.get("outcome", {"kind": "running"})["kind"], trial) for trial in study["trials"]]
    return [trial for kind, trial in kinds if kind in STATUSES]


def status_of(trial):
    """The state of a trial in NNI's words."""
    return STATUSES[trial.get("outcome", {"kind": "running"})["kind"]]


def number_of(trial):
    """The trial's sequence id, which is also its parameter id."""
    return trial["proposal"]["number"]


def final_value(trial):
    """The final result as it was reported, or None."""
    if trial.get("metric") is None:
        return None
    others = trial.get("others", {})
    return {"default": trial["metric"], **others} if others else trial["metric"]


def metrics_of(trial):
    """All results that a trial reported, the final one last."""
    began = milliseconds(trial.get("started_at"))
    found = []
    for report in trial.get("intermediates", []):
        late = report.get("time_seconds")
        moment = None if began is None or late is None else began + round(late * 1000)
        others = report.get("others", {})
        value = {"default": report.get("value"), **others} if others else report.get("value")
        found.append(_metric(trial, "PERIODICAL", report["sequence"], value, moment))
    final = final_value(trial)
    if final is not None:
        found.append(_metric(trial, "FINAL", 0, final, milliseconds(trial.get("ended_at"))))
    return found


def _metric(trial, kind, sequence, value, moment):
    return TrialMetricData(moment, trial["trial_id"], number_of(trial), kind, sequence, value)


def job_of(trial, folder):
    """A trial as NNI lists it."""
    run = trial.get("run_folder", "")
    place = os.path.dirname(os.path.join(folder, run)) if run else ""
    return TrialJob(
        trialJobId=trial["trial_id"],
        status=status_of(trial),
        hyperParameters=[TrialHyperParameters(number_of(trial), "algorithm", trial["proposal"]["parameters"])],
        logPath=place,
        startTime=milliseconds(trial.get("started_at")),
        endTime=milliseconds(trial.get("ended_at")),
        finalMetricData=[metric for metric in metrics_of(trial) if metric.type == "FINAL"],
        stderrPath=os.path.join(place, "stderr.txt") if place else "",
        sequenceId=number_of(trial),
        message=trial.get("outcome", {}).get("message", ""),
    )


def milliseconds(text):
    """A moment in ISO 8601 as NNI writes it; None where there is none."""
    if not text:
        return None
    moment = text[:-3] + text[-2:] if text[-3:-2] == ":" else text  # Python 3.6 reads +0100 only
    form = "%Y-%m-%dT%H:%M:%S.%f%z" if "." in moment else "%Y-%m-%dT%H:%M:%S%z"
    return round(datetime.strptime(moment, form).timestamp() * 1000)
