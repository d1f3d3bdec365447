"""Are the figures of optimizers per parameter, and do text, Markdown and CSV say the same?"""

from __future__ import annotations

import csv
import io

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.records.optimizer_bytes import OptimizerRun, OptimizerTable, RunSource, ShapesName, StepBytes
from memfit.show.export.compare_files import optimizers_csv, optimizers_markdown, per_parameter
from memfit.show.terminal.optimizers import optimizers_text
from memfit.show.views.optimizer_rows import optimizer_lines

SIZES: dict[ShapesName, int] = {"square": 1000, "deep": 2000, "tall": 500}


def run(
    name: str, shapes: ShapesName, source: RunSource, *, state: float = 0, of_model: float = 0, of_largest: float = 0
) -> OptimizerRun:
    """A run whose largest tensor has 250 parameters."""
    size, base = SIZES[shapes], 4 * SIZES[shapes]
    kept, taken = int(state * size), int(of_model * size + of_largest * 250)
    step = StepBytes(
        begin_bytes=base + kept, peak_bytes=2 * base + kept + taken, update_begin_bytes=2 * base + kept,
        update_peak_bytes=2 * base + kept + taken, end_bytes=base + kept,
    )  # fmt: skip
    return OptimizerRun(
        optimizer=name, shapes=shapes, device="cpu", source=source, package="torch 2", torch_version="2",
        num_parameters=size, largest_parameters=250, parameter_bytes=base, base_bytes=base, steps=(step, step),
    )  # fmt: skip


def table_of(*runs: OptimizerRun) -> OptimizerTable:
    none = [run("none", shapes, "measured") for shapes in SIZES]
    return OptimizerTable(runs=(*none, *runs), torch_version="2", packages=(), left_out={"x.Y": "it is too old"})


@given(st.integers(0, 40), st.integers(0, 16), st.integers(0, 16))
def test_what_grows_with_the_model_is_told_from_what_grows_with_its_largest_tensor(
    state: int, of_model: int, of_largest: int
):
    found = [run("a", s, "measured", state=state, of_model=of_model, of_largest=of_largest) for s in SIZES]
    figures = optimizer_lines(table_of(*found))[0].cpu
    assert figures is not None
    assert (figures.state, figures.tall_state) == (state, state)
    assert (figures.model_temporaries, figures.largest_temporaries) == (of_model, of_largest)
    assert figures.added == figures.first_added == state + of_model + of_largest / 4


def test_measured_figures_stand_before_predicted_ones_and_the_difference_is_said():
    runs = [run("a", "square", "predicted", state=7), run("a", "square", "measured", state=8)]
    line = optimizer_lines(table_of(*runs))[0]
    assert line.cpu is not None
    assert (line.cpu.source, line.cpu.state) == ("measured", 8)
    assert line.difference_bytes == -1000


def test_an_optimizer_without_runs_stands_last_with_its_reason():
    failed = msgspec.structs.replace(run("broken", "square", "measured"), steps=(), reason="muon wants matrices")
    lines = optimizer_lines(table_of(failed, run("a", "square", "measured", state=80)))
    assert [line.optimizer for line in lines] == ["a", "broken"]
    assert lines[1].cpu is None
    assert "muon wants matrices" in lines[1].notes[0]
    text = optimizers_text(table_of(failed))
    assert "muon wants matrices" in text
    assert "it is too old" in text


def test_text_markdown_and_csv_say_the_same():
    found = table_of(*(run("a", s, "measured", state=8, of_largest=4) for s in SIZES))
    row = next(csv.DictReader(io.StringIO(optimizers_csv(found))))
    assert float(row["state_bytes_per_parameter"]) == 8
    assert float(row["added_bytes_per_parameter"]) == 9
    assert row["predicted_minus_measured_bytes"] == ""
    assert "| `a` | 8 | 8 | 0 | 4 | 9 | 9 | - |" in optimizers_markdown(found)
    assert "9.00" in optimizers_text(found)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.0, "0"), (-0.001, "0"), (8.0, "8"), (-3.5, "-3.5"), (10.0, "10")]
)
def test_figures_have_two_digits_at_most(value: float | None, text: str):
    assert per_parameter(value) == text
