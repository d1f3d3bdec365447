"""Is a prediction laid over a run at its own height and the run's own times?"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from memfit import api
from memfit.errors import NewerFormat, RecordError, UsageError
from memfit.records.figure import Figure
from memfit.records.prediction import PREDICTION_VERSION, AtPeak, Level, LevelName, Prediction, read_prediction
from memfit.records.timeline import LiveSpan, PhaseMark, Timeline
from memfit.runfolder.reader import read_run
from memfit.show.views.run import build_view
from memfit.testing.made_records.runs import MadeRun, write_made_run
from memfit.units import MIB

PARAMETERS, ACTIVATIONS, TEMPORARY, REST = 100 * MIB, 60 * MIB, 20 * MIB, 250 * MIB


def predicted(value: int) -> Figure:
    return Figure(value=value, unit="bytes", source="predicted", method="made")


def level(name: LevelName, value: int) -> Level:
    return Level(name=name, figure=predicted(value), meaning="")


def prediction(device: str = "cpu") -> Prediction:
    """One step of ten events: forward 1-4, backward 4-7, update 7-10."""
    spans = (
        LiveSpan(start=0, end=None, num_bytes=PARAMETERS, category="parameter", phase="setup"),
        LiveSpan(start=2, end=6, num_bytes=ACTIVATIONS, category="activation", phase="forward"),
        LiveSpan(start=5, end=7, num_bytes=TEMPORARY, category="temporary", phase="backward"),
    )
    phases = (
        PhaseMark(start=0, step=1, phase="setup"),
        PhaseMark(start=1, step=1, phase="forward"),
        PhaseMark(start=4, step=1, phase="backward"),
        PhaseMark(start=7, step=1, phase="update"),
    )
    peak = PARAMETERS + ACTIVATIONS + TEMPORARY
    nowhere = AtPeak(
        event=5, step=1, phase="backward", by_category=(), by_module=(), by_phase=(), by_line=(), by_operator=()
    )
    return Prediction(
        target="made",
        device=device,
        route="fake cpu",
        torch_version="2.13.0",
        num_steps=1,
        levels=(level("tensors", peak), level("process", peak + REST)),
        at_peak=nowhere,
        timeline=Timeline(spans=spans, num_events=10, phases=phases),
    )


def drawn(tmp_path: Path) -> tuple[np.ndarray, np.ndarray]:
    run = read_run(write_made_run(tmp_path, MadeRun()))
    (curve,) = [c for c in build_view(run, prediction=prediction()).curves if c.role == "predicted"]
    assert curve.source == "predicted"
    return curve.levels[0].time_seconds, curve.levels[0].high


def test_the_highest_point_is_the_predicted_peak_of_the_process(tmp_path: Path):
    _, heights = drawn(tmp_path)
    assert heights.max() == REST + PARAMETERS + ACTIVATIONS + TEMPORARY
    assert heights.min() == REST + PARAMETERS


def test_the_peak_lies_in_the_backward_of_every_measured_step(tmp_path: Path):
    times, heights = drawn(tmp_path)
    steps = read_run(tmp_path).steps
    at_peak = times[heights == heights.max()]
    row = np.searchsorted(steps.end_seconds, at_peak, side="right")
    assert set(row) == set(range(len(steps)))
    assert (at_peak >= steps.backward_seconds[row]).all()
    assert (at_peak < steps.update_seconds[row]).all()


def test_a_prediction_for_a_gpu_or_a_run_without_steps_is_refused(tmp_path: Path):
    run = read_run(write_made_run(tmp_path / "a", MadeRun()))
    with pytest.raises(UsageError, match="a100"):
        build_view(run, prediction=prediction("a100-40gb"))
    unmarked = read_run(write_made_run(tmp_path / "b", MadeRun(marks=False)))
    with pytest.raises(UsageError, match="no step"):
        build_view(unmarked, prediction=prediction())


def test_a_prediction_is_read_back_and_other_files_are_refused(tmp_path: Path):
    path = tmp_path / "p.json"
    path.write_bytes(msgspec.json.encode(prediction()))
    assert read_prediction(path) == prediction()
    path.write_text('{"target": 3}')
    with pytest.raises(RecordError, match="does not hold a prediction"):
        read_prediction(path)
    with pytest.raises(RecordError, match="cannot be read"):
        api.read_prediction(tmp_path / "nowhere.json")


def test_a_prediction_of_the_first_version_opens_and_one_of_a_newer_memfit_says_so(tmp_path: Path):
    path = tmp_path / "p.json"
    old = msgspec.to_builtins(prediction())
    assert old["format_version"] == PREDICTION_VERSION, "a record says which version it is"
    path.write_bytes(msgspec.json.encode({name: old[name] for name in old if not name.startswith("format")}))
    assert read_prediction(path).levels == prediction().levels
    path.write_bytes(msgspec.json.encode({**old, "format_version": 1}))
    assert read_prediction(path).levels == prediction().levels
    strange = {"name": "a level of tomorrow", "figure": old["levels"][0]["figure"], "meaning": ""}
    path.write_bytes(msgspec.json.encode({**old, "levels": [strange], "format_version": 99}))
    with pytest.raises(NewerFormat, match="99"):
        read_prediction(path)
