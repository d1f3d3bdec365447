"""Is what an optimizer's step takes, predicted from a few stand-ins, what the real step takes?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from memfit.model.step import job_of
from memfit.profile.meter.meter import record_events
from memfit.profile.optimizer_update import measure_update

OPTIMIZERS: dict[str, Any] = {
    "AdamW, one after the other": lambda parameters: torch.optim.AdamW(parameters, foreach=False),
    "AdamW as it is": torch.optim.AdamW,
    "Adam, together": lambda parameters: torch.optim.Adam(parameters, foreach=True),
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "RMSprop": torch.optim.RMSprop,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_takes_in_passing_what_was_predicted(name: str):
    model = nn.Sequential(nn.Embedding(400, 256), *(nn.Linear(256, 256) for _ in range(6)), nn.Linear(256, 64))
    optimizer = OPTIMIZERS[name](model.parameters())
    job = job_of(model, torch.randint(0, 400, (8,)), lambda output: output.square().mean(), optimizer)
    predicted = measure_update(job)
    job.run()
    optimizer.step()  # makes the state
    job.run()
    taken_bytes = record_events(optimizer.step, job.device).peak_bytes
    assert predicted.transient_bytes == pytest.approx(taken_bytes, rel=0.15, abs=4096)
    assert predicted.transient_bytes >= 0.95 * taken_bytes
