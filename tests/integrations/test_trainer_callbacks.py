"""Do the callbacks for the two trainers leave a run that opens, once, and nothing else behind?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_trainings import Net, lightning_fit, transformers_fit
from torch import nn

import memfit
from memfit import inside
from memfit.errors import RunExists

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks, about their own settings


class FailingNet(Net):
    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        raise MemoryError("on purpose")


def evaluated_fit(folder: Path, callback: Any, model: nn.Module) -> None:
    transformers_fit(folder, callback, model, eval_strategy="steps", eval_steps=2)


FITS = {"transformers": evaluated_fit, "lightning": lightning_fit}


@pytest.fixture(params=FITS)
def trainer(request: pytest.FixtureRequest):
    """(fit, the callback's class) of one framework."""
    if request.param == "transformers":
        pytest.importorskip("transformers", reason="transformers is not installed")
        pytest.importorskip("accelerate", reason="transformers trains only with accelerate installed")
        from memfit.integrations.transformers_callback import MemfitCallback
    else:
        pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed")
        from memfit.integrations.lightning_callback import MemfitCallback
    return FITS[request.param], MemfitCallback


def test_a_trainer_leaves_a_run_with_its_steps_and_an_exact_peak(trainer, tmp_path: Path):
    fit, callback = trainer
    fit(tmp_path, callback(tmp_path / "run", ledger_every=2), Net())
    assert not inside.is_recording()
    record = memfit.read_run(tmp_path / "run")
    assert record.steps.total == 4
    assert {phase.name for phase in record.named_phases} >= {"evaluation"}
    assert len(record.processes) == 1, [p.command for p in record.processes]
    assert record.peak.value is not None
    assert (record.peak.low, record.peak.high) == (None, None)
    assert len(record.samples) > 0
    assert list((tmp_path / "run").glob("ledger-*.jsonl"))
    forwards, backwards, updates = (getattr(record.steps, f"{n}_seconds") for n in ("forward", "backward", "update"))
    assert bool((forwards[:3] <= backwards[:3]).all())
    assert bool((backwards[:3] <= updates[:3]).all())


def test_under_a_measurement_there_is_one_record_and_it_has_the_trainers_phases(trainer, tmp_path: Path):
    fit, callback = trainer
    with memfit.measure_run(tmp_path / "around") as run:
        fit(tmp_path, callback(tmp_path / "run"), Net())
        assert inside.is_recording()
    assert not (tmp_path / "run").exists()
    assert run.record is not None
    assert run.record.steps.total == 4
    assert {phase.name for phase in run.record.named_phases} >= {"evaluation"}


def test_a_second_training_gets_a_folder_of_its_own_and_a_strangers_run_is_not_touched(trainer, tmp_path: Path):
    fit, callback = trainer
    twice = callback(tmp_path / "run")
    fit(tmp_path, twice, Net())
    fit(tmp_path, twice, Net())
    assert [memfit.read_run(tmp_path / name).steps.total for name in ("run", "run-2")] == [4, 4]
    with pytest.raises(RunExists):
        fit(tmp_path, callback(tmp_path / "run"), Net())
    assert not inside.is_recording()


def test_a_training_that_runs_out_of_memory_says_so_in_its_record(trainer, tmp_path: Path):
    fit, callback = trainer
    made = callback(tmp_path / "run")
    with pytest.raises(MemoryError):
        fit(tmp_path, made, FailingNet())
    if fit is evaluated_fit:  # it reports no exceptions: the record ends with the process, or the next training
        assert inside.is_recording()
        fit(tmp_path, made, Net())
        assert memfit.read_run(tmp_path / "run-2").steps.total == 4
    else:
        assert memfit.read_run(tmp_path / "run").outcome.kind == "out of memory"
    assert not inside.is_recording()
    assert len(memfit.read_run(tmp_path / "run").steps) == 0
