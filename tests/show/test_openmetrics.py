"""Does Prometheus' own parser take the text of every record, with every number and every odd name in it?"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from memfit.records.run import RunRecord
from memfit.runfolder.reader import read_run
from memfit.show.export.openmetrics import openmetrics
from memfit.testing.made_records.runs import MadeRun, write_made_run
from memfit.testing.made_records.studies import made_study

parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason="prometheus_client is not installed")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return read_run(write_made_run(tmp_path_factory.mktemp("run"), MadeRun(energy="measured", seconds=3.0)))


def samples_of(text: str) -> dict[tuple[str, str], float]:
    families = list(parser.text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    return {
        (
            sample.name,
            "|".join(value for key, value in sorted(sample.labels.items()) if key not in ("id",)),
        ): sample.value
        for family in families
        for sample in family.samples
    }


def test_the_numbers_of_a_run_and_a_study_come_back(run: RunRecord):
    study = made_study(500)
    found = samples_of(openmetrics(run, study))
    assert found["memfit_run_peak_bytes", Path(run.folder).name] == run.peak.value
    done = [trial for trial in study.trials if trial.kind == "done"]
    assert found["memfit_study_trials", "done|made study"] == len(done)
    assert found["memfit_study_best_metric", "made study"] == min(trial.metric or 9e9 for trial in done)
    peaks = [trial.peak.value or 0 for trial in done]
    assert found["memfit_study_trial_peak_bytes", "1.0|made study"] == max(peaks)
    assert found["memfit_study_trial_peak_bytes_count", "made study"] == len(done)
    assert found["memfit_study_trial_peak_bytes_sum", "made study"] == pytest.approx(sum(peaks))


def test_many_trials_stay_a_handful_of_series():
    assert len(samples_of(openmetrics(made_study(2000)))) < 20


def test_the_same_record_twice_gives_every_sample_once(run: RunRecord):
    assert openmetrics(run, run) == openmetrics(run)


def test_names_with_quotes_backslashes_and_line_ends_are_taken(run: RunRecord):
    study = made_study(3)
    odd = msgspec.structs.replace(study.settings, name='a"b\\c\nd\ud800 {x="y"} # EOF')
    found = samples_of(openmetrics(msgspec.structs.replace(study, settings=odd)))
    assert any(labels.startswith('a"b\\c\nd\ufffd {x="y"} # EOF') for name, labels in found if name.endswith("_metric"))


def test_what_is_not_known_has_no_sample():
    study = made_study(0)
    assert "memfit_study_best_metric" not in openmetrics(study)
    assert openmetrics() == "# EOF\n"
