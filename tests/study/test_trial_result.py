"""Does the record of a trial hold what its run measured, the memory of a GPU apart from that of the host?"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from memfit.records.run import RunRecord
from memfit.records.study import Proposal, Study, TrialRecord
from memfit.runfolder.reader import read_run
from memfit.show.export.csv_tables import study_csv
from memfit.study.trials.result import conclude
from memfit.testing.made_records.runs import MadeRun, write_made_run
from memfit.testing.made_records.studies import MADE_SETTINGS


def concluded(run: RunRecord) -> TrialRecord:
    return conclude(TrialRecord(proposal=Proposal(number=0, parameters={})), run, ())


@pytest.fixture
def gpu_run(tmp_path: Path) -> RunRecord:
    return read_run(write_made_run(tmp_path / "run", MadeRun(seconds=3.0, gpu=True)))


def test_the_memory_of_a_gpu_stands_beside_that_of_the_host_and_a_note_says_which_is_which(gpu_run: RunRecord):
    trial = concluded(gpu_run)
    held = [sum(process.num_bytes or 0 for process in reading.processes) for reading in gpu_run.gpus]
    assert trial.gpu_peak.value == max(held) > 0
    assert trial.peak == gpu_run.peak
    assert any("peak is the memory of the host" in note for note in trial.notes)
    heads, row = study_csv(Study(study_id="s", settings=MADE_SETTINGS, trials=(trial,))).splitlines()[:2]
    assert row.split(",")[heads.split(",").index("gpu_peak_bytes")] == str(trial.gpu_peak.value)


def test_what_the_driver_does_not_tell_is_unknown_with_its_reason(gpu_run: RunRecord, tmp_path: Path):
    unnamed = tuple(msgspec.structs.replace(reading, processes=()) for reading in gpu_run.gpus)
    inside = concluded(dataclasses.replace(gpu_run, gpus=unnamed))
    assert (inside.gpu_peak.value, "container" in inside.gpu_peak.reason) == (None, True)
    without = concluded(read_run(write_made_run(tmp_path / "cpu", MadeRun(seconds=3.0))))
    assert without.gpu_peak.value is None
    assert without.gpu_peak.reason
    assert not [note for trial in (inside, without) for note in trial.notes if "GPU" in note]
