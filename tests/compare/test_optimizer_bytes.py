"""Do optimizers take what their algorithm says, and is it predicted as it is measured?"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from memfit.api.compare import optimizer_bytes
from memfit.compare.optimizer_table.optimizer_bytes import runs_needed
from memfit.compare.optimizer_table.torch_optimizer_names import LEFT_OUT, TORCH_NAMES, optimizer_names
from memfit.compare.optimizer_table.torch_optimizer_worker import answer
from memfit.errors import UsageError
from memfit.job.recipes.optimizer_names import TORCH_CLASSES, parse_optimizer
from memfit.records.optimizer_bytes import OptimizerRun, RunSource, ShapesName

NUM_TENSORS: dict[ShapesName, int] = {"square": 10, "deep": 18, "tall": 6}
COUNTER_BYTES = 4
"""The step of torch's optimizers, one number for each tensor."""
SAMPLE = [
    ("none", "square"), ("sgd", "square"), ("sgd-momentum", "tall"), ("adam", "square"), ("adam", "tall"),
    ("adam-foreach", "deep"), ("adam-fused", "square"), ("adam-amsgrad", "tall"), ("adafactor", "tall"),
    ("muon+adamw", "square"), ("rmsprop-centered-momentum", "tall"),
]  # fmt: skip


@functools.cache
def run(name: str, shapes: ShapesName, source: RunSource = "measured") -> OptimizerRun:
    found = answer(OptimizerRun(optimizer=name, shapes=shapes, device="cpu", source=source))
    assert not found.reason
    return found


@pytest.mark.parametrize(("name", "shapes"), SAMPLE)
def test_every_step_is_predicted_to_the_byte_as_it_is_measured(name: str, shapes: ShapesName):
    assert run(name, shapes, "predicted").steps == run(name, shapes).steps
    assert len(run(name, shapes).steps) == 6


@pytest.mark.parametrize(
    ("name", "shapes", "num_states"),
    [("sgd", "square", 0), ("sgd-momentum", "tall", 1), ("adam", "square", 2), ("adam-amsgrad", "tall", 3)],
)
def test_states_are_copies_of_the_parameters_and_a_counter_each(name: str, shapes: ShapesName, num_states: int):
    found = run(name, shapes)
    counters = NUM_TENSORS[shapes] * COUNTER_BYTES if num_states > 1 else 0
    assert found.state_bytes == num_states * found.parameter_bytes + counters


def test_fused_steps_take_no_temporaries_of_the_size_of_parameters():
    temporary = run("adam-fused", "square").temporary_bytes
    assert temporary is not None
    assert temporary < 100


def test_foreach_takes_all_at_once_and_a_loop_one_after_the_other():
    loops = [run("adam", shapes).temporary_bytes or 0 for shapes in ("square", "deep")]
    at_once = [run("adam-foreach", shapes).temporary_bytes or 0 for shapes in ("square", "deep")]
    assert loops[0] == loops[1] < at_once[0] < at_once[1]
    assert at_once[1] == pytest.approx(run("adam", "deep").parameter_bytes, rel=1e-4)


def test_a_factored_state_grows_with_rows_and_columns_only():
    square, tall = run("adafactor", "square"), run("adafactor", "tall")
    assert square.state_bytes < 0.01 * square.parameter_bytes
    assert tall.state_bytes / tall.num_parameters > square.state_bytes / square.num_parameters


def test_a_training_without_an_optimizer_keeps_nothing():
    assert run("none", "square").state_bytes == run("none", "square").temporary_bytes == 0
    assert run("none", "square").peak_bytes == run("sgd", "square").peak_bytes


@pytest.mark.slow
def test_on_a_gpu_a_plain_name_means_foreach_fused_is_free_and_a_table_is_resumed(tmp_path: Path):
    kept, told = tmp_path / "runs.jsonl", []
    names = ["adam", "adam-foreach", "adam-fused"]
    table = optimizer_bytes(names, device="cuda", num_processes=1, kept_in=kept, tell=told.append)
    plain, foreach, fused = (table.run_of(name, "square", "cuda", "predicted") for name in names)
    assert plain is not None
    assert foreach is not None
    assert fused is not None
    assert plain.steps == foreach.steps
    assert plain.temporary_bytes == plain.parameter_bytes
    assert fused.temporary_bytes == 0
    assert len(told) == 8
    kept.write_bytes(kept.read_bytes()[:-20])  # the last line was not written to its end
    again = optimizer_bytes(names, device="cuda", num_processes=1, kept_in=kept, tell=told.append)
    assert again == table
    assert len(told) == 9


@pytest.mark.slow
def test_an_optimizer_that_fails_is_a_run_with_a_reason_and_the_others_go_on(tmp_path: Path):
    path = tmp_path / "own.py"
    path.write_text("import os, torch\nclass Dies(torch.optim.SGD):\n    def step(self, closure=None): os.abort()\n")
    told: list[str] = []
    names = [f"{path}:Dies", "no_such_package.Adam", "muon"]
    table = optimizer_bytes(names, device="cpu", measure=False, num_processes=1, tell=told.append)
    reasons = {run.optimizer: run.reason for run in table.runs if run.shapes == "square"}
    assert "SIGABRT" in reasons[f"{path}:Dies"]
    assert "no_such_package is not installed" in reasons["no_such_package.Adam"]
    assert "2D parameters" in reasons["muon"]
    assert reasons["none"] == ""
    assert len(told) == len(table.runs) == 12
    assert "12 of 12" in told[-1]


def test_only_a_cpu_is_measured_and_sparse_adam_has_shapes_of_its_own():
    runs = runs_needed(["adam", "sparseadam"], ["cpu", "cuda"], measure=True)
    assert {run.device for run in runs if run.source == "measured"} == {"cpu"}
    assert {run.shapes for run in runs if run.optimizer == "sparseadam"} == {"sparse"}
    with pytest.raises(UsageError, match="no device"):
        runs_needed(["adam"], ["tpu"], measure=True)


def test_every_optimizer_of_torch_is_in_the_table():
    assert {parse_optimizer(name).base for name in TORCH_NAMES} == TORCH_CLASSES.keys()


def test_every_class_of_a_package_is_in_the_table_or_left_out_with_a_reason():
    package = pytest.importorskip("pytorch_optimizer", reason="pytorch-optimizer is not installed")
    names, left_out = optimizer_names("pytorch_optimizer")
    bases = {parse_optimizer(name).base for name in names} | left_out.keys()
    assert set(package.get_supported_optimizers()) <= {base.rpartition(".")[2].lower() for base in bases}
    assert left_out.keys() <= LEFT_OUT.keys()
