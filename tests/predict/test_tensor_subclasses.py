"""Tensors of a library's class (`as_subclass`, as torchvision's pictures are made) under fake tensors."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from memfit.job.description import describe_job  # noqa: E402
from memfit.predict.child.messages import TraceReply, TraceRequest  # noqa: E402
from memfit.predict.fake.child_main import answer  # noqa: E402
from memfit.predict.fake.probe.real_reference import real_script_peak  # noqa: E402
from memfit.predict.fake.recording import Recording  # noqa: E402
from memfit.predict.levels.liveness import peak_of  # noqa: E402
from memfit.predict.options import PredictOptions  # noqa: E402

TRAINS_ON_PICTURES = """
import copy
import torch

class Noted(torch.Tensor):
    @staticmethod
    def __new__(cls, values, note=""):
        return torch.as_tensor(values).as_subclass(cls)
    def __init__(self, values, note=""):
        self.__dict__.update({"note": note})
    def new_empty(self, *size, **options):
        raise TypeError("kernels must not come here")
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        made = super().__torch_function__(func, types, args, kwargs or {})
        given = next((one for one in args if isinstance(one, Noted)), None)
        if isinstance(made, Noted) and given is not None:
            made.__dict__ = {name: copy.deepcopy(value) for name, value in given.__dict__.items()}
        return made

class Plain(torch.Tensor):
    pass

model = torch.nn.Sequential(torch.nn.Linear(24, 48), torch.nn.ReLU(), torch.nn.Linear(48, 8))
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    picture = Noted(torch.randn(4, 3, 24, 24), "first") * 2
    assert isinstance(picture, Noted) and picture.note == "first"
    other = picture.as_subclass(torch.Tensor).as_subclass(Plain)
    assert isinstance(other.relu(), Plain) and not isinstance(other, Noted)
    optimizer.zero_grad()
    loss = sum(model(one).sum().as_subclass(torch.Tensor) for one in (picture, other))
    loss.backward()
    optimizer.step()
"""


def test_a_training_on_tensors_of_a_librarys_class_is_predicted_to_the_byte(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(TRAINS_ON_PICTURES)
    (tmp_path / "scratch").mkdir()
    reply = answer(
        TraceRequest(
            job=describe_job(str(script), {}, ()), device="cpu", scratch_folder=str(tmp_path / "scratch"),
            options=PredictOptions(num_steps=3, probes=False),
        )
    )  # fmt: skip
    assert isinstance(reply, TraceReply), reply
    assert peak_of(reply.timeline, "cpu")[0] == real_script_peak(str(script), (), num_steps=3)


class Picture(torch.Tensor):
    """Has a method of its own, and copies itself."""

    def count(self) -> int:
        return self.shape[-1]

    def __deepcopy__(self, memo: object) -> Any:
        return self.detach().clone().as_subclass(type(self))


class Strict(torch.Tensor):
    """Its own way to make new tensors is not for kernels."""

    def new_empty(self, *size: Any, **options: Any) -> Any:
        raise TypeError("a kernel came here")


class Unasked(torch.Tensor):
    """Not asked before functions of torch; made in the older way."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: Any) -> Any:
        return torch.Tensor._make_subclass(cls, values, False)


def of_classes() -> list[Any]:
    """What the tensors say of themselves."""
    numbers = torch.arange(6).reshape(2, 3).as_subclass(Picture)
    copied, weight = copy.deepcopy(numbers), torch.nn.Parameter(torch.ones(2)).as_subclass(Picture)
    unasked = Unasked(torch.ones(3))
    twice = numbers.as_subclass(type(copied)) + numbers
    numbers[0, 0] = 7
    strict = torch.nn.functional.conv1d(torch.ones(1, 1, 9).as_subclass(Strict), torch.ones(1, 1, 2))
    return [
        [strict.shape, isinstance(strict, Strict)],
        [isinstance(one, Picture) for one in (numbers, copied, numbers * 2, numbers.sum(), numbers.t()[0], weight * 2)],
        [numbers.count(), numbers.tolist(), copied.tolist(), twice.tolist(), int(numbers.max())],
        [isinstance(unasked, Unasked), isinstance(unasked + 1, Unasked), unasked.requires_grad, unasked.is_leaf],
        [weight.requires_grad, weight.is_leaf],
        isinstance(numbers.as_subclass(torch.Tensor), Picture),
    ]


def test_classes_attributes_and_values_of_fake_tensors_are_those_of_real_ones():
    real = of_classes()
    with Recording().running():
        fake = of_classes()
    assert fake == real
