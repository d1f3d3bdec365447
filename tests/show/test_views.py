"""Does what is drawn agree with the record, number by number?"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import pytest

from memfit.explain.run.ledger import explain_peak
from memfit.records.figure import Figure, measured
from memfit.records.run import NamedPhase
from memfit.runfolder.reader import read_run
from memfit.show.as_json import to_json
from memfit.show.terminal.run import summary_text
from memfit.show.views.run import RunView, build_view, highest_drawn_bytes
from memfit.testing.made_records.runs import MadeRun, write_made_run
from memfit.units import GIB, MIB


def view_of(folder: Path, **plan) -> RunView:
    return build_view(read_run(write_made_run(folder, MadeRun(**plan))))


def all_figures(value: object) -> list[Figure]:
    """Every figure anywhere inside of a view."""
    if isinstance(value, Figure):
        return [value]
    if isinstance(value, (tuple, list)):
        return [figure for item in value for figure in all_figures(item)]
    if dataclasses.is_dataclass(value):
        return [figure for field in dataclasses.fields(value) for figure in all_figures(getattr(value, field.name))]
    if isinstance(value, msgspec.Struct):
        return [figure for name in value.__struct_fields__ for figure in all_figures(getattr(value, name))]
    return []


@pytest.mark.parametrize("ending", ["done", "failed", "killed", "out of memory", "over the limit", "lost"])
def test_every_number_has_a_unit_and_either_a_source_or_a_reason(tmp_path: Path, ending: str):
    figures = all_figures(view_of(tmp_path, ending=ending, num_workers=1, gpu=True, energy="assumed"))
    assert len(figures) > 20
    for figure in figures:
        assert figure.unit
        assert (figure.value is None) == bool(figure.reason)
        assert figure.value is None or figure.source in ("measured", "predicted", "assumed")


def test_the_peak_of_a_tight_budget_is_the_peak_of_the_record(tmp_path: Path):
    run = read_run(write_made_run(tmp_path, MadeRun(num_workers=2)))
    for max_rows in (1, 7, 300):
        view = build_view(run, max_rows=max_rows)
        tree = next(curve for curve in view.curves if curve.role == "tree")
        assert tree.levels[0].high.max() == run.tree.tree_bytes.max()
        for curve in (curve for curve in view.curves if curve.role == "process"):
            own = run.samples.of_process(curve.index).resident_bytes
            assert curve.levels[0].high.max() == own.max()


def test_the_headline_places_an_exact_peak_in_its_step_and_phase(tmp_path: Path):
    run = read_run(write_made_run(tmp_path))
    view = build_view(run)
    row = int(np.argmax(run.steps.peak_bytes))
    assert view.headline.peak_step == run.steps.step[row]
    assert view.headline.peak_phase == "backward"
    assert view.headline.peak_seconds is not None
    assert run.steps.backward_seconds[row] <= view.headline.peak_seconds <= run.steps.update_seconds[row]


def test_a_group_of_short_steps_is_counted_placed_and_named_as_a_group(tmp_path: Path):
    run = read_run(write_made_run(tmp_path))
    num_rows, nothing = len(run.steps), np.full(len(run.steps), np.nan)
    sizes = np.full(num_rows, 5)
    phases = {f"{name}_peak_bytes": nothing for name in ("data", "forward", "backward", "update")}
    times = {f"{name}_seconds": nothing for name in ("forward", "backward", "update")}
    steps = dataclasses.replace(run.steps, group_size=sizes, step=np.cumsum(sizes), **phases, **times)
    view = build_view(dataclasses.replace(run, steps=steps))
    last = 5 * (int(np.argmax(steps.peak_bytes)) + 1)
    assert (view.steps.num_steps, view.steps.largest_group) == (5 * num_rows, 5)
    assert (view.headline.peak_first_step, view.headline.peak_step, view.headline.peak_phase) == (last - 4, last, "")
    each, span = view.steps.median_seconds, run.steps.end_seconds - run.steps.begin_seconds
    assert each.value == pytest.approx(np.median(span[1:]) / 5)
    text = summary_text(view, width=120)
    assert f"steps {last - 4} to {last}" in text
    assert "short ones share one exact peak, up to 5 of them" in text


def test_a_peak_in_an_evaluation_is_placed_there_and_its_span_is_drawn(tmp_path: Path):
    run = read_run(write_made_run(tmp_path))
    begin, end = float(run.steps.end_seconds[4]), float(run.steps.forward_seconds[5])
    peak_bytes = int(run.peak.value or 0) + 50 * MIB
    evaluation = NamedPhase(process=0, time_seconds=begin, name="evaluation", peak_bytes=peak_bytes)
    run = dataclasses.replace(run, named_phases=(evaluation,), peak=measured(peak_bytes, "bytes", "made"))
    view = build_view(run)
    assert (view.headline.peak_step, view.headline.peak_phase) == (None, "evaluation")
    assert begin <= (view.headline.peak_seconds or 0) <= end
    (span,) = view.spans
    assert (span.begin_seconds, span.end_seconds) == (begin, end)


def test_the_peak_of_a_tree_is_placed_where_its_curve_is_highest(tmp_path: Path):
    run = read_run(write_made_run(tmp_path, MadeRun(num_workers=2)))
    view = build_view(run)
    assert view.headline.peak_seconds == run.tree.time_seconds[run.tree.tree_bytes.argmax()]


def test_phase_rows_are_the_medians_and_maxima_of_the_exact_peaks(tmp_path: Path):
    run = read_run(write_made_run(tmp_path))
    rows = {row.phase: row for row in build_view(run).phases}
    assert list(rows) == ["data", "forward", "backward", "update"]
    assert rows["backward"].median_peak.value == np.median(run.steps.backward_peak_bytes)
    assert rows["backward"].highest_peak.value == run.steps.backward_peak_bytes.max()
    lengths = sum(row.median_seconds.value or 0 for row in rows.values())
    assert lengths == pytest.approx(np.median(run.steps.end_seconds - run.steps.begin_seconds), rel=0.02)


def test_a_run_without_marks_has_no_steps_and_says_why(tmp_path: Path):
    view = view_of(tmp_path, marks=False)
    assert view.steps.num_steps == 0
    assert view.phases == ()
    assert "no optimizer step" in view.steps.median_seconds.reason


def test_an_empty_run_can_still_be_drawn_as_data(tmp_path: Path):
    folder = write_made_run(tmp_path / "run")
    for name in ("samples.bin", "events.jsonl", "marks-4711.txt"):
        (folder / name).unlink()
    view = build_view(read_run(folder))
    assert view.curves == ()
    assert view.headline.peak.value is None
    assert highest_drawn_bytes(view) > 0


def test_assumed_and_measured_energy_are_never_added_up(tmp_path: Path):
    measured_view = view_of(tmp_path / "a", energy="measured")
    assert measured_view.energy.per_step.source == "measured"
    assert view_of(tmp_path / "b", energy="assumed").energy.per_step.source == "assumed"
    folder = write_made_run(tmp_path / "c", MadeRun(energy="measured"))
    line = '{"kind":"energy","time_us":1,"domain":"assumed","joules":9,"source":"assumed","window_seconds":1}\n'
    with open(folder / "events.jsonl", "a") as stream:
        stream.write(line)
    assert build_view(read_run(folder)).energy.per_step.value is None


def test_only_the_largest_of_very_many_processes_are_drawn_and_the_rest_is_counted(tmp_path: Path):
    view = view_of(tmp_path, num_workers=30, seconds=3.0)
    assert sum(curve.role == "process" for curve in view.curves) == 24
    assert view.num_hidden_processes == 7
    assert len(view.processes) == 31
    assert any(curve.index == 0 for curve in view.curves if curve.role == "process")


def test_the_json_of_a_view_has_null_for_what_is_unknown(tmp_path: Path):
    folder = write_made_run(tmp_path)
    marks = folder / "marks-4711.txt"
    marks.write_text("\n".join(line for line in marks.read_text().splitlines() if not line.startswith("B ")) + "\n")
    raw = to_json(build_view(read_run(folder)))
    assert b"NaN" not in raw
    decoded = msgspec.json.decode(raw)
    assert decoded["steps"]["backward_seconds"][0] is None
    assert decoded["headline"]["peak"]["unit"] == "bytes"


def test_a_limit_is_told_as_what_the_user_gave(tmp_path: Path):
    assert view_of(tmp_path, limit_bytes=2 * GIB).headline.limit_bytes == 2 * GIB


def test_a_made_run_is_the_same_bytes_every_time(tmp_path: Path):
    first, second = (write_made_run(tmp_path / name, MadeRun(num_workers=1, ledger=True)) for name in "ab")
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()


def test_a_made_run_without_scatter_repeats_its_peak_exactly(tmp_path: Path):
    run = read_run(write_made_run(tmp_path, MadeRun(jitter_bytes=0, base_bytes=200 * MIB, step_rise_bytes=100 * MIB)))
    assert run.peak.value == 300 * MIB


def test_imports_are_one_bar_that_opens_into_its_lines_and_one_band_below_the_curve(tmp_path):
    run = read_run(write_made_run(tmp_path / "run", MadeRun(ledger=True)))
    ledgers = explain_peak(run)
    view = build_view(run, ledgers=ledgers)
    (bar,) = [bar for bar in view.ledgers[0].bars if bar.kind in ("interpreter", "imports", "library files")]
    lines = [line for line in ledgers[0].lines if line.kind in ("interpreter", "imports", "library files")]
    assert len(lines) > 2
    assert bar.num_bytes == sum(line.num_bytes for line in lines)
    assert sorted((part.kind, part.name, part.num_bytes) for part in bar.parts) == sorted(
        (line.kind, line.name, line.num_bytes) for line in lines
    )
    (band,) = [curve for curve in view.curves if curve.role == "imports"]
    (job,) = [curve for curve in view.curves if curve.role == "tree"]
    for own, whole in zip(band.levels, job.levels, strict=True):
        assert own.high.max() == bar.num_bytes
        assert (own.high <= whole.high).all()


def test_without_a_ledger_nothing_is_said_of_imports(tmp_path):
    view = build_view(read_run(write_made_run(tmp_path / "run", MadeRun())))
    assert not [curve for curve in view.curves if curve.role == "imports"]
