"""Are users' functions found, and called with what they know?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memfit.errors import UsageError
from memfit.job.description import describe_job
from memfit.job.load import arguments_for, load_function
from memfit.job.training import Training, as_training, loss_of, plain_step


def test_a_function_is_loaded_with_the_files_beside_it(tmp_path: Path):
    (tmp_path / "memfit_test_helper.py").write_text("VALUE = 7\n")
    file = tmp_path / "memfit_test_job.py"
    file.write_text("from memfit_test_helper import VALUE\ndef make():\n    return VALUE\n")
    assert load_function(describe_job(f"{file}:make"))() == 7


def test_a_missing_function_lists_those_that_are_there(tmp_path: Path):
    file = tmp_path / "memfit_test_job2.py"
    file.write_text("def one():\n    pass\ndef two():\n    pass\n")
    with pytest.raises(UsageError, match="has no function 'three'") as raised:
        load_function(describe_job(f"{file}:three"))
    assert "one, two" in str(raised.value)


def test_a_function_gets_the_device_only_when_it_asks_for_it():
    def asks(batch_size: int = 1, device: str = "cpu") -> Any: ...
    def does_not(batch_size: int = 1) -> Any: ...

    assert arguments_for(asks, {"batch_size": 2}, "cuda") == {"batch_size": 2, "device": "cuda"}
    assert arguments_for(does_not, {}, "cuda") == {}


def test_unknown_and_missing_settings_are_named():
    def make(batch_size: int, width: int = 4) -> Any: ...

    with pytest.raises(UsageError, match="no setting 'depth'"):
        arguments_for(make, {"depth": 3}, "cpu")
    with pytest.raises(UsageError, match="needs more settings") as raised:
        arguments_for(make, {}, "cpu")
    assert "batch_size" in str(raised.value)


def test_a_job_may_be_four_things_a_dictionary_or_a_step():
    step = lambda: None  # noqa: E731
    assert as_training(("m", "o", "l", "b"), "job") == Training(model="m", optimizer="o", loss="l", batch="b")  # pyright: ignore[reportArgumentType]
    assert as_training({"model": 1, "optimizer": 2, "batch": 3}, "job").loss is None
    assert plain_step(as_training(step, "job")) is step
    with pytest.raises(UsageError, match="did not return a training"):
        as_training(3, "job")


def test_a_step_is_forward_backward_update_and_dropped_gradients():
    calls: list[str] = []

    class Loss:
        def backward(self) -> None:
            calls.append("backward")

    class Optimizer:
        def step(self) -> None:
            calls.append("step")

        def zero_grad(self) -> None:
            calls.append("zero_grad")

    training = Training(model=lambda x: x, optimizer=Optimizer(), loss=lambda out, target: Loss(), batch=(1, 2))
    plain_step(training)()
    assert calls == ["backward", "step", "zero_grad"]


def test_a_batch_may_be_one_tensor_and_one_of_three_parts_is_refused():
    import torch

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alone = Training(model=model, optimizer=optimizer, loss=lambda outputs: outputs.sum(), batch=torch.ones(2, 3))
    assert loss_of(alone).item() == pytest.approx(model(torch.ones(2, 3)).sum().item())
    three = Training(model=model, optimizer=optimizer, loss=None, batch=(torch.ones(2, 3),) * 3)
    with pytest.raises(UsageError, match="3 parts"):
        loss_of(three)
