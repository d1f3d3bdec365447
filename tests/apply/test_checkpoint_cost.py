"""Is what a checkpoint costs beside its second run measured, without a trace, and counted for every stage?"""

from __future__ import annotations

import time

import torch
from torch import nn
from torch_fit_models import job_for, normed_stack

from memfit.profile.checkpoint_cost import CheckpointCost, CheckpointPrice, checkpoint_cost
from memfit.profile.plain_step import profile_plain


def test_a_checkpoint_costs_microseconds_up_to_a_few_milliseconds():
    seconds = checkpoint_cost().seconds([8])
    assert 1e-6 < seconds < 1e-2


def test_it_is_measured_once():
    assert checkpoint_cost() is checkpoint_cost()


def test_measuring_draws_no_random_numbers():
    before = torch.get_rng_state()
    checkpoint_cost.__globals__["_measured_cost"].__wrapped__()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_price_counts_calls_and_tensors():
    price = CheckpointPrice(call_seconds=2.0, tensor_seconds=0.5)
    assert price.of([4, 2]) == 7.0
    assert price.of([]) == 0.0
    assert CheckpointCost(price, price).seconds([1]) == 5.0


def test_hooks_of_the_user_around_every_module_see_nothing_of_it():
    seen: list[nn.Module] = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, _args, _out: seen.append(module))
    try:
        assert checkpoint_cost() == CheckpointCost()
    finally:
        handle.remove()
    assert not seen


def test_every_stage_that_may_be_recomputed_says_what_its_checkpoint_costs():
    stages = profile_plain(job_for(normed_stack(3)), timed_runs=1).chain.stages
    assert all((stage.checkpoint_seconds > 0) == stage.recomputable for stage in stages)


def test_with_one_thread_of_torch_what_other_programs_take_is_not_counted():
    model = normed_stack(3)
    model.blocks[1].register_forward_pre_hook(lambda *_: time.sleep(0.1))
    stages = profile_plain(job_for(model), timed_runs=1).chain.stages
    assert sum(stage.forward_seconds for stage in stages) < 0.1
