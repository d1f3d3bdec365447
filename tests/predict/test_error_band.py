"""Does the error band stand only where it was earned?"""

from __future__ import annotations

from pathlib import Path

import pytest

from memfit.predict.levels.error_band import earned
from memfit.records.prediction import Assumption

BASE = "within 1 %"


def band(kind: str, text: str) -> str:
    return earned(BASE, [Assumption(kind=kind, text=text, line="train.py:3")])


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("upper bound", "the size of the result of nonzero depends on data; the largest possible was taken"),
        ("scalar answer", "a boolean was asked for and answered with True"),
        ("scalar answer", "whether two tensors are equal was asked for and answered with True"),
    ],
)
def test_a_guess_that_decides_leaves_no_band(kind: str, text: str):
    said = band(kind, text)
    assert BASE not in said
    assert "not known" in said
    assert "train.py:3" in said


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("scalar answer", "a number was asked for and answered with 1.0"),
        ("scalar answer", "an integer was asked for and answered with 7, as set"),
        ("upper bound", "the size of the result of nonzero was taken as 7, as set"),
        ("script", "a checkpoint was not written"),
    ],
)
def test_a_number_and_the_user_s_own_answer_leave_it_standing(kind: str, text: str):
    assert band(kind, text) == BASE


@pytest.mark.parametrize("what", ["an integer", "a list of integers"])
def test_a_guessed_integer_leaves_it_standing_on_a_condition(what: str):
    said = band("scalar answer", f"{what} was asked for and answered with 1")
    assert said.startswith("only as long as no size follows from this guess")
    assert "train.py:3" in said


def test_what_was_not_seen_stands_before_the_band():
    said = band("not seen", "an evaluation was not reached")
    assert said.startswith("not known for the whole job: an evaluation was not reached")
    assert said.endswith(BASE)


def test_a_script_that_fails_after_its_steps_says_so_in_its_band(tmp_path: Path):
    pytest.importorskip("torch")
    import memfit

    script = tmp_path / "train.py"
    script.write_text("""
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x in DataLoader(torch.randn(400, 8), batch_size=8, shuffle=True):
    model(x).sum().backward()
    optimizer.step()
raise ValueError("mine")
""")
    prediction = memfit.predict_peak(str(script), probes=False)
    assert "ValueError: mine" in prediction.error_band
    assert prediction.error_band.startswith("not known for the whole job")
    assert not any(item.kind == "assumed value" for item in prediction.assumptions), "only the order was drawn"


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("a mask of 512 unknown values is taken to be all true", "not known, since a guess"),
        ("indices from topk of unknown values are spread evenly", "only as long as no size follows"),
        ("every other rank is taken to send the same values as this one", "only as long as no size follows"),
        ("an unknown bool was read and answered with 0", "only as long as no size follows"),
        ("an unknown int64 was read and answered with 0", "only as long as no size follows"),
        ("an unknown float32 was read and answered with 0", "the band"),
    ],
)
def test_reads_on_the_phantom_gpu_that_sizes_follow_from_leave_no_band(text: str, begins: str):
    assert earned("the band", [Assumption(kind="value read", text=text)]).startswith(begins)
