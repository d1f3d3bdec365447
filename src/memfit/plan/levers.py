"""Other changes that would make a training fit (micro-batches, half precision, another optimizer), with prices.

Each lever rewrites the chain and plans again. The rewriting is an assumption, said with the lever: everything a stage
leaves grows with the batch; half precision halves it; seconds of a part of the batch are that part of the seconds, plus
`FIXED_SHARE` of them for each further pass.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from memfit.plan.case import Case, Planner, judge
from memfit.records.plan import Chain, Ending, Fixed, Lever, Link, Option, Stage

FIXED_SHARE = 0.05
SPLITS = (2, 4, 8)
TEMPORARY_VALUES = 2
"""Assumed of an update, for each gradient."""

Way = Stage | Option
SmallestBudget = Callable[[Case], int]


def split_batch(chain: Chain, num_parts: int) -> Chain:
    """One pass over a part of the batch, with gradients that add up: they are all there from the second pass on."""
    seconds = 1.0 / num_parts + (FIXED_SHARE if num_parts > 1 else 0.0)

    def smaller(stage: Stage) -> Stage:
        scaled = _scaled(stage, 1.0 / num_parts, seconds)
        transient = scaled.backward_transient_bytes + stage.gradient_bytes  # the new gradient beside the sum
        return msgspec.structs.replace(scaled, backward_transient_bytes=transient, gradient_bytes=0)

    grown = chain.fixed.gradient_bytes + sum(stage.gradient_bytes for stage in chain.stages)
    return msgspec.structs.replace(
        chain,
        stages=tuple(smaller(stage) for stage in chain.stages),
        fixed=msgspec.structs.replace(chain.fixed, gradient_bytes=grown),
    )


def half_precision(chain: Chain) -> Chain:
    """Activations at half their size, with a half-size copy of the parameters beside them."""
    other = chain.fixed.other_bytes + chain.fixed.parameter_bytes // 2
    return msgspec.structs.replace(
        chain,
        stages=tuple(_scaled(stage, 0.5, 1.0) for stage in chain.stages),
        fixed=msgspec.structs.replace(chain.fixed, other_bytes=other),
    )


def without_optimizer_state(chain: Chain) -> Chain:
    """Plain gradient descent."""
    return msgspec.structs.replace(chain, fixed=msgspec.structs.replace(chain.fixed, optimizer_state_bytes=0))


def quarter_optimizer_state(chain: Chain) -> Chain:
    """Optimizer state in 8 bits instead of 32."""
    quarter = -(-chain.fixed.optimizer_state_bytes // 4)
    fixed: Fixed = msgspec.structs.replace(chain.fixed, optimizer_state_bytes=quarter)
    return msgspec.structs.replace(chain, fixed=fixed)


def step_in_backward(chain: Chain) -> Chain:
    """Gradients that go as soon as the backward has made them, and have been stepped with."""

    def passing(stage: Stage) -> Stage:
        update = min(chain.update_transient_bytes, TEMPORARY_VALUES * stage.gradient_bytes)
        transient = stage.backward_transient_bytes + stage.gradient_bytes + update
        return msgspec.structs.replace(stage, backward_transient_bytes=transient, gradient_bytes=0)

    stages = tuple(passing(stage) for stage in chain.stages)
    return msgspec.structs.replace(chain, stages=stages, update_transient_bytes=0)


def _scaled(stage: Stage, size: float, seconds: float) -> Stage:
    def change(way: Way) -> dict[str, float | int]:
        return {
            "forward_seconds": way.forward_seconds * seconds,
            "backward_seconds": way.backward_seconds * seconds,
            "saved_bytes": _up(way.saved_bytes, size),
            "forward_transient_bytes": _up(way.forward_transient_bytes, size),
            "backward_transient_bytes": _up(way.backward_transient_bytes, size),
        }

    options = tuple(msgspec.structs.replace(option, **change(option)) for option in stage.options)
    output_bytes, ending = _up(stage.output_bytes, size), stage.ending
    if ending is not None:
        again_seconds, left_bytes = ending.forward_seconds * seconds, _up(ending.saved_bytes, size)
        ending = Ending(forward_seconds=again_seconds, saved_bytes=left_bytes)
    return msgspec.structs.replace(stage, output_bytes=output_bytes, options=options, ending=ending, **change(stage))


def _up(num_bytes: int, size: float) -> int:
    return -int(-num_bytes * size // 1)


# ---- pulling them ----------------------------------------------------------------------------------------------


def consider_levers(
    chain: Chain, budget_bytes: int, link: Link | None, planner: Planner, smallest: SmallestBudget
) -> tuple[Lever, ...]:
    """Every lever that changes something, with the best plan under it."""
    found = []
    for num_parts in SPLITS:
        name = f"split the batch in {num_parts} and add up the gradients"
        price = (
            f"{num_parts} passes for one update; assumed {FIXED_SHARE:.0%} of a pass lost with each; "
            "BatchNorm sees smaller batches"
        )
        found.append(
            _pulled(name, split_batch(chain, num_parts), budget_bytes, link, planner, smallest, price, num_parts)
        )
    if sum(stage.gradient_bytes for stage in chain.stages) and chain.update_seconds:
        price = "gradients cannot be read after the backward: no clipping, no accumulation; applied if allowed"
        name, freed = "the step in the backward (--allow step-in-backward)", step_in_backward(chain)
        found.append(_pulled(name, freed, budget_bytes, link, planner, smallest, price, 1))
    price = "values differ from full precision; seconds are assumed unchanged"
    name = "activations in half precision"
    found.append(_pulled(name, half_precision(chain), budget_bytes, link, planner, smallest, price, 1))
    if chain.fixed.optimizer_state_bytes:
        price = "another training: plain gradient descent"
        leaner = without_optimizer_state(chain)
        found.append(_pulled("an optimizer without state", leaner, budget_bytes, link, planner, smallest, price, 1))
        price = "values differ from a full-precision state"
        leaner = quarter_optimizer_state(chain)
        found.append(_pulled("optimizer state in 8 bits", leaner, budget_bytes, link, planner, smallest, price, 1))
    return tuple(found)


def _pulled(
    name: str,
    chain: Chain,
    budget_bytes: int,
    link: Link | None,
    planner: Planner,
    smallest: SmallestBudget,
    price: str,
    num_passes: int,
) -> Lever:
    case = Case(chain, budget_bytes, link)
    proposal = planner.propose(case)
    outcome = None if proposal is None else judge(case, proposal)
    if outcome is None:
        reason = "does not fit even so"
        return Lever(name=name, peak_bytes=None, seconds=None, smallest_budget_bytes=smallest(case), price=price,
                     reason=reason)  # fmt: skip
    seconds = num_passes * (outcome.replayed.seconds - chain.update_seconds) + chain.update_seconds
    return Lever(
        name=name, peak_bytes=outcome.replayed.peak_bytes, seconds=seconds, smallest_budget_bytes=smallest(case),
        price=price,
    )  # fmt: skip
