"""Do the built-in workloads train on data, as processes of their own, and learn something?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from memfit.errors import UsageError  # noqa: E402
from memfit.job.epochs import Extent, train_all  # noqa: E402
from memfit.job.network_size import NetworkSize  # noqa: E402
from memfit.job.training import loss_of, plain_step  # noqa: E402
from memfit.job.workloads.registry import WORKLOADS, build_workload  # noqa: E402

ON_DATA: dict[str, dict[str, Any]] = {
    "mlp": {"data": "synthetic-mnist", "batch_size": 16, "hidden": "24-16"},
    "cnn": {"data": "synthetic-mnist", "batch_size": 8, "width": 4, "blocks": 2},
    "resnet18": {"data": "synthetic-mnist", "batch_size": 2, "size": 32},
    "gan": {"data": "synthetic-mnist", "batch_size": 2, "width": 4},
    "lstm": {"data": "synthetic", "batch_size": 4, "length": 8, "words": 20, "width": 8},
    "gpt": {"data": "synthetic", "batch_size": 4, "length": 8, "words": 20, "width": 16, "heads": 2, "layers": 1},
}


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMFIT_DATA", str(tmp_path / "cache"))
    torch.manual_seed(0)


@pytest.mark.parametrize("name", list(ON_DATA))
def test_batches_of_the_data_have_the_shape_of_the_batch_a_prediction_sees(name: str):
    training = build_workload(name, ON_DATA[name])
    first = [(part.shape, part.dtype) for part in training.batch]
    batches = iter(training.feed(1))
    fed, other = next(batches), next(batches)
    if name == "gan":
        first, fed = first[:1], fed[:1]
    assert [(part.shape, part.dtype) for part in fed] == first
    assert not torch.equal(fed[0], other[0])


@pytest.mark.parametrize("name", list(ON_DATA))
def test_every_workload_trains_on_data(name: str):
    result = train_all(build_workload(name, ON_DATA[name]), name, Extent(steps=2), lambda each: None)
    assert result is not None
    assert result.num_steps == 2
    assert result.metrics["loss"] > 0


def test_a_network_learns_the_synthetic_images():
    training = build_workload("mlp", {**ON_DATA["mlp"], "lr": 0.01})
    result = train_all(training, "mlp", Extent(steps=150), lambda each: None)
    assert result is not None
    assert result.metrics["accuracy"] > 0.5


def test_the_same_epoch_gives_the_same_batches_and_the_next_epoch_others():
    training = build_workload("mlp", ON_DATA["mlp"])
    first, again, later = (next(iter(training.feed(epoch)))[0] for epoch in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)


def test_building_reads_no_data(monkeypatch: pytest.MonkeyPatch):
    """A prediction builds the same training; it must not load a data set for that."""
    from memfit.job.data import torch_feeds

    monkeypatch.setattr(torch_feeds, "load_images", lambda name: pytest.fail("data was read"))
    training = build_workload("mlp", ON_DATA["mlp"])
    plain_step(training)()
    assert training.data_bytes == 70_000 * 785


@pytest.mark.parametrize("hidden", ["20-10", [20, 10], "20,10"])
def test_hidden_layers_are_given_as_text_or_list(hidden: Any):
    training = build_workload("mlp", {"features": 6, "classes": 3, "hidden": hidden, "batch_size": 2})
    assert [tuple(p.shape) for p in training.model.parameters() if p.dim() == 2] == [(20, 6), (10, 20), (3, 10)]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"hidden": "20-ten"}, "no widths of layers"),
        ({"data": "imagenet"}, "no data set 'imagenet'"),
        ({"data": "mnist", "batch_size": 70_000}, "does not fit the data set"),
    ],
)
def test_what_cannot_be_built_is_refused(settings: dict[str, Any], says: str):
    with pytest.raises(UsageError, match=says):
        build_workload("mlp", settings)


def test_the_learning_rate_reaches_the_optimizer():
    assert build_workload("mlp", {"hidden": 8, "lr": 0.25}).optimizer.param_groups[0]["lr"] == 0.25


def test_the_size_of_a_network_is_counted_in_its_first_pass_and_no_hook_stays():
    training = build_workload("mlp", {"features": 6, "classes": 3, "hidden": "20-10", "batch_size": 4})
    size = NetworkSize(training.model)
    assert size.num_activations is None
    for _ in range(2):
        loss_of(training)
    assert size.known() == {
        "num_parameters": 6 * 20 + 20 + 20 * 10 + 10 + 10 * 3 + 3,
        "num_activations": 2 * 20 + 2 * 10 + 3,
    }
    assert not any(module._forward_hooks for module in training.model.modules())


def test_distilbert_has_its_66_million_parameters():
    pytest.importorskip("transformers")
    with torch.device("meta"):
        training = build_workload("distilbert", {"batch_size": 1, "length": 8, "device": "meta"})
    assert NetworkSize(training.model).num_parameters == 66_364_418


def test_distilbert_trains_on_questions(tmp_path: Path):
    pytest.importorskip("transformers")
    answer = {"text": "old cat", "answer_start": 4}
    qas = [{"id": str(i), "question": "Who sat?", "answers": [answer]} for i in range(4)]
    (tmp_path / "q.json").write_text(
        json.dumps({"data": [{"paragraphs": [{"context": "The old cat sat.", "qas": qas}]}]})
    )
    settings = {"data": str(tmp_path / "q.json"), "batch_size": 2, "length": 16, "layers": 1}
    training = build_workload("distilbert", settings)
    batch = next(iter(training.feed(1)))
    assert batch["start_positions"].tolist() == [6, 6]
    training.batch = batch
    plain_step(training)()


@pytest.mark.parametrize("name", ["forest", "boosting", "linear", "svm"])
def test_estimators_of_scikit_learn_are_fitted_and_better_than_chance(name: str):
    pytest.importorskip("sklearn")
    settings = {"examples": 300, "data": "synthetic-mnist"}
    result = train_all(build_workload(name, settings), name, Extent(epochs=2), lambda each: None)
    assert result is not None
    assert result.metrics["accuracy"] > 0.3


def test_an_estimator_is_no_neural_network_for_a_prediction():
    pytest.importorskip("sklearn")
    from memfit.job.training import as_training

    with pytest.raises(UsageError, match="can be measured, not predicted"):
        as_training(build_workload("forest", {"examples": 10}), "forest")


@pytest.mark.parametrize("name", ["forest", "svm"])
def test_an_estimator_refuses_settings_that_make_no_sense(name: str):
    pytest.importorskip("sklearn")
    with pytest.raises(UsageError, match="above zero"):
        build_workload(name, {"examples": 0})


def test_a_workload_trains_as_a_process_of_its_own(tmp_path: Path):
    environment = {**os.environ, "MEMFIT_DATA": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "memfit.job.run",
        "mlp",
        "--set",
        "data=mnist",
        "--set",
        "hidden=16",
        "--steps",
        "3",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=150)
    assert done.returncode == 0, done.stderr
    assert "synthetic data (for the real one: memfit data fetch mnist)" in done.stdout
    assert "3 steps in" in done.stdout
    assert done.stderr == ""


def test_every_workload_can_be_imported_by_its_name():
    from memfit.job.workloads.registry import workload_function

    assert all(callable(workload_function(name)) for name in WORKLOADS)
