"""What a loop holds of the pass before, and releases: is a step proven with what the program's own pass will have?"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from memfit.api import fitting_loop
from memfit.records.fit import LoopFit

WIDTH, ROWS, OUT = 32, 256, 4000
RESULT_BYTES = ROWS * OUT * 4


class Net(nn.Module):
    """A small body and a large result, in the form that is asked for."""

    def __init__(self, form: Callable[[torch.Tensor], object] = lambda x: x) -> None:
        super().__init__()
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4)))
        self.head = nn.Linear(WIDTH, OUT)
        self.form = form

    def forward(self, x: torch.Tensor) -> object:
        return self.form(self.head(self.body(x)))


class Output(OrderedDict[str, torch.Tensor]):
    """As transformers returns it: a dictionary with attributes."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__(logits=logits)
        self.logits = logits


Loop = Callable[[nn.Module, torch.optim.Optimizer], None]


def stepped(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def in_a_variable(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(5):
        out = model(torch.randn(ROWS, WIDTH))
        stepped(optimizer, out.square().mean())


def in_two_variables(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(5):
        out, half = model(torch.randn(ROWS, WIDTH))
        stepped(optimizer, out.square().mean() + half.mean())


def in_an_object(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(5):
        outputs = model(torch.randn(ROWS, WIDTH))
        stepped(optimizer, outputs.logits.square().mean())


def in_an_object_and_a_variable(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The first variable is assigned by the call, the second one later: its tensor outlives the call."""
    for _ in range(5):
        outputs = model(torch.randn(ROWS, WIDTH))
        half = outputs.logits[:, ::2] * 2
        logits = outputs.logits
        stepped(optimizer, logits.square().mean() + half.mean())


def in_a_view(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(5):
        out = model(torch.randn(ROWS, WIDTH))
        out = out.view(-1, 10)
        stepped(optimizer, out.square().mean())


def a_part_of_it(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(5):
        logits = model(torch.randn(ROWS, WIDTH)).logits
        stepped(optimizer, logits.square().mean())


def moved_on(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The last result is no longer in the variable that the call assigns."""
    before: Any = None
    for _ in range(5):
        out = model(torch.randn(ROWS, WIDTH))
        stepped(optimizer, out.square().mean() + (0 if before is None else before.detach().mean()))
        before = out
        out = None


def deleted_before(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(5):
        out = model(torch.randn(ROWS, WIDTH))
        stepped(optimizer, out.square().mean())
        del out


def kept_by_a_second_variable(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    before: Any = None
    for _ in range(5):
        out = model(torch.randn(ROWS, WIDTH))
        stepped(optimizer, out.square().mean() + (0 if before is None else before.mean()))
        before = out.detach()


def at_the_top_of_a_script(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    text = (
        "for _ in range(5):\n    out = model(torch.randn(ROWS, WIDTH))\n    stepped(optimizer, out.square().mean())\n"
    )
    names = {"torch": torch, "model": model, "optimizer": optimizer, "stepped": stepped, "ROWS": ROWS, "WIDTH": WIDTH}
    exec(compile(text, "train.py", "exec"), names | {"__name__": "__main__"})


def fitted(loop: Loop, form: Callable[[torch.Tensor], object]) -> LoopFit:
    torch.manual_seed(0)
    model = Net(form)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    fitter = fitting_loop(2**30, measure_every=1)
    fitter.start()
    try:
        loop(model, optimizer)
    finally:
        found = fitter.stop()
    return found


@pytest.mark.parametrize(
    ("loop", "form"),
    [
        (in_a_variable, lambda x: x),
        (in_two_variables, lambda x: (x, x[:, ::2] * 2)),
        (in_an_object, Output),
        (in_a_view, lambda x: x),
        (a_part_of_it, Output),
        (deleted_before, lambda x: x),
        (moved_on, lambda x: x),
        (kept_by_a_second_variable, lambda x: x),
        (at_the_top_of_a_script, lambda x: x),
    ],
)
def test_the_proof_measures_what_the_passes_after_it_take(loop: Loop, form: Callable[[torch.Tensor], object]):
    """The result of the pass before was counted to the end of the step, as if no pass would release it."""
    found = fitted(loop, form)
    (fit,) = found.fits
    assert fit.proof is not None
    assert fit.proof.bit_equal
    assert found.measured_peak_bytes is not None
    assert fit.proof.measured_peak_bytes == pytest.approx(found.measured_peak_bytes, abs=2000)


def test_a_result_that_outlives_the_call_counts_to_the_end():
    """Too much rather than too little: that the second variable is assigned before the backward is not known."""
    found = fitted(in_an_object_and_a_variable, Output)
    (fit,) = found.fits
    assert fit.proof is not None
    assert fit.proof.measured_peak_bytes is not None
    assert found.measured_peak_bytes is not None
    assert fit.proof.measured_peak_bytes >= found.measured_peak_bytes


MODEL = """
import torch
from memfit.fit.replaced_results import LastResult

class Model:
    # What is called by a program, and notes what it returns as a loop that is fitted does.
    def __init__(self):
        self.last, self.num_going = LastResult(), []

    def __call__(self):
        self.num_going.append(len(self.last.to_release()))
        result = torch.ones(4)
        self.last.note()
        return result
"""


@pytest.mark.parametrize(
    ("program", "num_going"),
    [
        ("for n in range(2):\n    out = model()\n", [0, 1]),
        ("kept = []\nfor n in range(2):\n    out = model()\n    kept.append(out)\n", [0, 0]),
        ("before = None\nfor n in range(2):\n    out = model()\n    before = out\n", [0, 0]),
        ("out = model()\nout = model()\n", [0, 0]),
        ("for n in range(2):\n    out = model().clone()\n", [0, 0]),
        ("for n in range(2):\n    out = model().view(2, 2)\n", [0, 0]),
        ("for n in range(2):\n    out = model()\n    out = out.view(2, 2)\n", [0, 2]),
        ("for n in range(2):\n    out = model()\n    base = out\n    out = out.view(2, 2)\n", [0, 1]),
        ("for n in range(2):\n    out = model()\n    out = [out, {1: out}]\n", [0, 1]),
        ("before = out = None\nfor n in range(2):\n    out = model()\n    before = out\n    out = None\n", [0, 0]),
        ("for n in range(2):\n    out = model()\n    read = lambda: out\n", [0, 1]),
        ("for n in range(2):\n    out = model()[None]\n", [0, 2]),
        ("outs = {}\nfor n in range(2):\n    outs[0] = model()\n", [0, 0]),
    ],
)
def test_only_what_one_variable_holds_and_the_same_call_assigns_is_released(program: str, num_going: list[int]):
    """At the top of a script and in a function."""
    ours: dict[str, Any] = {"__name__": "memfit.fit.stand_in"}
    exec(MODEL, ours)
    model = ours["Model"]()
    exec(compile(program, "train.py", "exec"), {"__name__": "__main__", "model": model})
    assert model.num_going == num_going
    model = ours["Model"]()
    names: dict[str, Any] = {"__name__": "__main__", "model": model}
    function = "def main():\n" + "".join(f"    {line}\n" for line in program.splitlines()) + "main()\n"
    exec(compile(function, "train.py", "exec"), names)
    assert model.num_going == num_going
