"""Does a checkpoint leave the last module of a stage outside only where that costs nothing, and exactly then?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch_fit_models import job_for

from memfit.apply.checkpoints import apply_nodes
from memfit.fit.proof import base_bytes_of, prove
from memfit.model.step import RandomState
from memfit.plan.recompute.nested import NestedPlanner
from memfit.profile.plain_step import profile_plain
from memfit.profile.reference_step import reference_of
from memfit.records.plan import Chain, Checkpoint, Keep

ROWS = 4096


def layered(*tails: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [layer for tail in tails for layer in (nn.Linear(16, 16), tail)]
    return nn.Sequential(*layers, nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


def ending_names(model: nn.Module) -> list[str]:
    chain = profile_plain(job_for(model, rows=ROWS), 1).chain
    return [stage.name for stage in chain.stages if stage.ending is not None]


def test_a_module_that_keeps_nothing_but_its_output_is_left_outside():
    assert ending_names(layered(nn.ReLU(), nn.Sigmoid(), nn.Tanh())) == ["0 + 1", "2 + 3", "4 + 5"]


@pytest.mark.parametrize("tail", [nn.Dropout(0.5), nn.GELU(), nn.BatchNorm1d(16)], ids=lambda tail: type(tail).__name__)
def test_a_module_that_keeps_more_or_has_parameters_is_not(tail: nn.Module):
    assert ending_names(layered(nn.ReLU(), tail)) == ["0 + 1"]


def noisy() -> nn.Sequential:
    """A dropout before a ReLU leaves its noise, as large as the output, while its output passes away."""
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.Dropout(0.2), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(16, 4))


def test_noise_as_large_as_the_output_is_not_taken_for_it():
    modules = dict(noisy().named_modules())
    chain = chain_of(noisy())
    lasts = [stage.name.split(" + ")[-1] for stage in chain.stages if stage.ending is not None]
    assert not [name for name in lasts if isinstance(modules[name], nn.Dropout)]


def test_the_last_stage_and_one_before_a_smaller_output_have_no_ending():
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU())
    assert ending_names(model) == []


def chain_of(model: nn.Module) -> Chain:
    return profile_plain(job_for(model, rows=ROWS), 1).chain


def test_a_second_run_stops_before_the_last_layer_and_skips_the_module_outside():
    model = layered(*(nn.ReLU() for _ in range(5)))
    chain = chain_of(model)
    calls: Counter[str] = Counter()
    nodes = (Checkpoint(inside=tuple(Keep(stage=k) for k in range(3))), *(Keep(stage=k) for k in range(3, 7)))
    job = job_for(model, rows=ROWS)
    with apply_nodes(model, chain.stages, nodes, lambda name: calls.update([name])):
        job.run()
    assert calls == Counter(dict.fromkeys("01234", 2))  # and the ReLU called 5 ran by itself, once
    for stage in chain.stages[:3]:
        assert stage.ending is not None
        assert stage.ending.saved_bytes == 0
        assert stage.ending.forward_seconds <= stage.forward_seconds


@pytest.mark.parametrize("make", [lambda: layered(*(nn.ReLU() for _ in range(8))), noisy], ids=["ReLU", "noisy"])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8])
def test_plans_with_endings_are_bit_equal_and_stay_within_their_promise(share: float, make: Callable[[], nn.Module]):
    model = make()
    chain = chain_of(model)
    planner = NestedPlanner.of(chain)
    low, high = planner.least.peak_bytes, planner.plain.peak_bytes
    found = planner.best(round(low + share * (high - low)))
    assert found is not None
    job, state = job_for(model, rows=ROWS), RandomState.now()
    reference = reference_of(job, state)
    with apply_nodes(model, chain.stages, found.nodes):
        proof = prove(job, reference, state, base_bytes_of(job, 0), found.peak_bytes)
    assert proof.bit_equal
    assert proof.measured_peak_bytes is not None
    assert proof.measured_peak_bytes <= found.peak_bytes


def test_checkpoints_within_checkpoints_each_leave_their_own_module_outside():
    model = layered(*(nn.ReLU() for _ in range(6)))
    chain = chain_of(model)
    inner = Checkpoint(inside=(Keep(stage=0), Keep(stage=1)))
    ending = Checkpoint(inside=(Keep(stage=3), Keep(stage=4)))
    nodes = (Checkpoint(inside=(inner, Keep(stage=2), ending)), *(Keep(stage=k) for k in range(5, 8)))
    job, state = job_for(model, rows=ROWS), RandomState.now()
    reference = reference_of(job, state)
    with apply_nodes(model, chain.stages, nodes):
        proof = prove(job, reference, state, base_bytes_of(job, 0), 2**40)
    assert proof.bit_equal
    assert proof.measured_peak_bytes is not None
    assert proof.measured_peak_bytes <= NestedPlanner.of(chain).found(nodes).peak_bytes
