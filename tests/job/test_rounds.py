"""Is what was built trained as long as asked for, and is every epoch told?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from memfit.errors import UsageError
from memfit.job import run
from memfit.job.epochs import USUAL_STEPS, Extent, Reporter, Round, as_record, for_study, train_all
from memfit.job.training import Fitting, Training


class Counting:
    """A training that counts its steps; its loss is the batch."""

    def __init__(self, feed: list[float] | None = None) -> None:
        self.seen: list[float] = []
        self.training = Training(batch=1.0, step=self.step)
        if feed is not None:
            self.training.feed = lambda epoch: iter(value * epoch for value in feed)

    def step(self) -> None:
        self.seen.append(self.training.batch)
        if self.training.on_loss is not None:
            self.training.on_loss(self.training.batch)


def rounds_of(built: Any, **extent: int) -> list[Round]:
    told: list[Round] = []
    last = train_all(built, "job", Extent(**extent), told.append)
    assert last == (told[-1] if told else None)
    return told


@pytest.mark.parametrize(
    ("extent", "steps"),
    [
        ({}, [3]),
        ({"epochs": 2}, [3, 3]),
        ({"steps": 2}, [2]),
        ({"steps": 7}, [3, 3, 1]),
        ({"epochs": 2, "steps": 4}, [3, 1]),
        ({"epochs": 1, "steps": 9}, [3]),
    ],
)
def test_epochs_and_steps_end_a_training_whichever_comes_first(extent: dict[str, int], steps: list[int]):
    assert [each.num_steps for each in rounds_of(Counting([1.0, 2.0, 3.0]).training, **extent)] == steps


@pytest.mark.parametrize(("extent", "total"), [({}, USUAL_STEPS), ({"steps": 7}, 7), ({"epochs": 2}, 2 * USUAL_STEPS)])
def test_without_data_the_one_batch_is_seen_again_and_again(extent: dict[str, int], total: int):
    counting = Counting()
    rounds_of(counting.training, **extent)
    assert counting.seen == [1.0] * total


def test_every_epoch_tells_the_mean_loss_over_its_own_batches():
    told = rounds_of(Counting([1.0, 3.0]).training, epochs=2)
    assert [each.metrics["loss"] for each in told] == [2.0, 4.0]


def test_evaluation_is_what_counts_where_there_is_one():
    counting = Counting([5.0])
    counting.training.evaluate = lambda: {"loss": 0.5, "accuracy": 0.9}
    assert rounds_of(counting.training)[0].metrics == {"training loss": 5.0, "loss": 0.5, "accuracy": 0.9}


def test_a_step_of_the_users_own_may_return_its_loss():
    values = iter([4.0, 2.0])
    assert rounds_of(lambda: next(values), steps=2)[0].metrics["loss"] == 3.0


def test_a_fitting_ends_after_its_rounds():
    rounds: list[int] = []
    fitting = Fitting(
        name="f", step=lambda: rounds.append(1), num_rounds=3, evaluate=lambda: {"loss": float(len(rounds))}
    )
    assert [each.metrics["loss"] for each in rounds_of(fitting)] == [1.0, 2.0, 3.0]
    assert len(rounds_of(fitting, epochs=2)) == 2


def test_a_function_that_trains_itself_yields_or_returns_its_metrics():
    def trains() -> Iterator[float]:
        yield from (3.0, 2.0, 1.0)

    assert [each.metrics for each in rounds_of(trains(), epochs=2)] == [{"default": 3.0}, {"default": 2.0}]
    assert rounds_of({"loss": 1, "accuracy": 2})[0].metrics == {"loss": 1.0, "accuracy": 2.0}
    assert rounds_of(0.25)[0].metrics == {"default": 0.25}
    assert rounds_of(None) == []


def test_data_without_a_batch_are_refused_and_not_waited_for():
    with pytest.raises(UsageError, match="gave no batch"):
        rounds_of(Counting([]).training, steps=3)


@pytest.mark.parametrize("built", ["text", {"loss": "high"}, iter(()), object()])
def test_what_is_no_training_is_refused(built: Any):
    with pytest.raises(UsageError):
        rounds_of(built)


def test_a_study_is_told_the_loss_unless_the_training_names_its_own():
    assert for_study({"accuracy": 0.5, "loss": 2.0})["default"] == 2.0
    assert for_study({"default": 7.0, "loss": 2.0})["default"] == 7.0
    assert for_study({}) == {}


def test_records_are_json_even_when_the_loss_is_not_a_number():
    result = Round(number=1, num_steps=2, seconds=0.5, metrics={"loss": float("nan"), "other": float("-inf")})
    assert json.loads(json.dumps(as_record(result), allow_nan=False))["metrics"] == {"loss": "nan", "other": "-inf"}


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    file = tmp_path / "memfit_rounds_job.py"
    file.write_text(
        "def train(lr=0.5, rounds=3):\n"
        "    value = 8.0\n"
        "    for _ in range(rounds):\n"
        "        value *= 1 - lr\n"
        "        yield {'loss': value}\n"
    )
    return file


def test_the_command_prints_a_line_per_epoch(job_file: Path, capsys: pytest.CaptureFixture[str]):
    assert run.main([f"{job_file}:train", "--set", "lr=0.75", "--epochs", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[:2] for line in lines[1:]] == [["epoch 1", "loss 2"], ["epoch 2", "loss 0.5"]]


def test_the_command_prints_one_json_object_per_epoch(job_file: Path, capsys: pytest.CaptureFixture[str]):
    assert run.main([f"{job_file}:train", "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["metrics"]["loss"] for each in told] == [4.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "is no job"),
        (["{file}"], "a script is run by itself"),
        (["{file}:train", "--set", "depth=3"], "no setting 'depth'"),
        (["{file}:train", "--epochs", "0"], "whole number above zero"),
        (["{file}:train", "--set", "steps=1.5"], "whole number above zero"),
    ],
)
def test_a_wrong_request_is_refused_with_exit_code_two(
    job_file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
):
    assert run.main([each.format(file=job_file) for each in arguments]) == 2
    assert says in capsys.readouterr().err


def test_in_a_study_parameters_come_from_it_and_results_go_to_it(job_file: Path, monkeypatch: pytest.MonkeyPatch):
    told: list[tuple[str, dict[str, float]]] = []
    nni: Any = ModuleType("nni")
    nni.get_next_parameter = lambda: {"lr": 0.75, "epochs": 1}
    nni.report_intermediate_result = lambda value: told.append(("intermediate", value))
    nni.report_final_result = lambda value: told.append(("final", value))
    monkeypatch.setitem(__import__("sys").modules, "nni", nni)
    monkeypatch.setenv("NNI_PLATFORM", "local")
    assert run.main([f"{job_file}:train", "--set", "lr=0.1"]) == 0
    assert told == [("intermediate", {"default": 2.0, "loss": 2.0}), ("final", {"default": 2.0, "loss": 2.0})]


def test_outside_of_a_study_nni_is_not_touched(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NNI_PLATFORM", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "nni", None)
    assert run.proposed_settings() == {}
    Reporter(quiet=True)
