"""Finds out whether steps of a job take different amounts: with other random numbers, or because the model holds more.

A step can differ from the one that is measured only if its forward asks: if Python reads a value, if a size depends on
values, or if it draws from Python's or NumPy's generator. Only then is it run with other random numbers; where its
operators differ, the step that makes the most is the one that is profiled and proven, and what every stage took in
any of the steps is what plans are made for. Blocks that a step leaves out as a whole have room in every plan. A model
that is not the same after a step is run some steps in a row: it may hold more then, and run other operators.
Variation that random numbers do not cause (other data, other weights) is not found here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from memfit.model.module_calls import CallTree, watch_calls, watching_calls
from memfit.model.random_and_autocast import seed_all
from memfit.model.stages import find_stages
from memfit.model.step import Job, RandomState, hanging_bytes, leaving_no_trace
from memfit.profile.reference_step import Reference, StepOutcome
from memfit.units import format_bytes

FIRST_SEEDS = (31, 32)
MORE_SEEDS = (33, 34)
"""Tried where the first ones make a difference."""
STEPS_IN_A_ROW = 3
ROOM_FOR_STEPS = 100
"""Where every step leaves more, room for so many is left free."""
NEGLIGIBLE_BYTES = 64
"""Left on a model by a step: a loss that is kept for a log."""
OTHER_OPERATORS = (
    "later steps run other operators than the first, for it leaves something on the model: plans are held to what they "
    "promise, with every block as large as in either"
)


@dataclass(frozen=True, slots=True)
class Variation:
    """Steps with other random numbers."""

    largest: RandomState
    """Where the step begins that makes the most."""
    others: tuple[RandomState, ...]
    least_bytes: int
    most_bytes: int
    """Made in the forward by the smallest and by the largest step."""
    reorders: bool = False
    """Whether blocks come in another order."""

    def note(self) -> str:
        """For the user."""
        return (
            f"steps differ with random numbers: in {1 + len(self.others)} of them the forward made "
            f"{format_bytes(self.least_bytes)} to {format_bytes(self.most_bytes)}; plans are held to what they "
            "promise, with every block as large as in any of them"
        )


def variation_of(job: Job, reference: Reference, calls: CallTree) -> Variation | None:
    """How steps differ with random numbers; None where they cannot, or do not. `calls` are those of the reference."""
    if not _may_differ(reference, calls):
        return None
    seen = [(reference.state, calls)]
    for seeds in (FIRST_SEEDS, MORE_SEEDS):
        seen += [_other_step(job, seed) for seed in seeds]
        if _differ_by_whole_blocks([tree for _, tree in seen]):
            return None
    largest = max(range(len(seen)), key=lambda index: seen[index][1].root.made_bytes)
    made = [tree.root.made_bytes for _, tree in seen]
    others = tuple(state for index, (state, _) in enumerate(seen) if index != largest)
    reorders = _reordered([_made_by_calls(tree) for _, tree in seen])
    return Variation(seen[largest][0], others, min(made), max(made), reorders)


def _differ_by_whole_blocks(trees: list[CallTree]) -> bool:
    """Whether steps are the same but for blocks of a list that are not called, for which every plan leaves room."""
    made = [_made_by_calls(tree) for tree in trees]
    if _reordered(made):
        return False
    for name in set().union(*made):
        if len({each[name] for each in made if name in each}) > 1:
            return False
    for tree, each in zip(trees, made, strict=True):
        missing = set().union(*made) - each.keys()
        left_out = find_stages(tree, needs_blocks=False).uncalled if missing else ()
        if not all(any(f"{name}.".startswith(f"{block}.") for block in left_out) for name in missing):
            return False
    return True


def _reordered(made: list[dict[str, tuple[int, ...]]]) -> bool:
    """Whether calls that are made in two steps come in another order."""
    first = made[0]
    for other in made[1:]:
        if [name for name in first if name in other] != [name for name in other if name in first]:
            return True
    return False


def _made_by_calls(tree: CallTree) -> dict[str, tuple[int, ...]]:
    """By the name of a module, in the order of first calls, what each made itself, calls below it left out.

    What runs outside of the model is left out: in one of the steps, memfit's own copies of buffers are among it.
    """
    found: dict[str, tuple[int, ...]] = {}
    waiting = list(reversed(tree.root.children))
    while waiting:
        call = waiting.pop()
        own_bytes = call.made_bytes - sum(below.made_bytes for below in call.children)
        found[call.name] = (*found.get(call.name, ()), own_bytes)
        waiting += reversed(call.children)
    return found


def _may_differ(reference: Reference, calls: CallTree) -> bool:
    drew = not reference.state.same_beside_torch(reference.outcome.random)
    return bool(calls.decided_by_values or calls.sized_by_values or drew)


def _other_step(job: Job, seed: int) -> tuple[RandomState, CallTree]:
    with RandomState.now().in_place():  # afterwards all generators are where they were
        seed_all(seed)
        state = RandomState.now()
        return state, watch_calls(job)


# ---- what a model holds ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LaterSteps:
    """Steps after the first, which find what it left on the model."""

    left_bytes: int = 0
    """Of tensors that they find there and the first step did not."""
    differ: bool = False
    """Whether they run other operators than the first one."""
    notes: tuple[str, ...] = ()


def later_steps_of(job: Job, first: StepOutcome, calls: CallTree | None) -> LaterSteps:
    """Run steps in a row where the first one left something on the model. `calls` are those of the first one."""
    grows = first.left_bytes > NEGLIGIBLE_BYTES
    if not grows and not first.carries_on:
        return LaterSteps()
    left: list[int] = []
    trees: list[CallTree] = []
    before_bytes = hanging_bytes(job.whole)
    with leaving_no_trace(job):
        for _ in range(STEPS_IN_A_ROW if grows else 2):
            watches = len(left) == 1  # the second step is the first that finds something
            with watching_calls(job.model, trees) if watches else contextlib.nullcontext():
                job.run()
            left.append(hanging_bytes(job.whole) - before_bytes)
    differ = calls is not None and trees[0].graph != calls.graph
    notes = (OTHER_OPERATORS,) if differ else ()
    if not grows:
        return LaterSteps(0, differ, notes)
    left_bytes, note = _growth(first.left_bytes, left)
    return LaterSteps(left_bytes, differ, (note, *notes))


def _growth(first_bytes: int, left: list[int]) -> tuple[int, str]:
    """What later steps find on the model that the first one did not, and a note.

    `first_bytes` is what the first run left. Of a cache that belongs to a class, nothing is taken away after a run, so
    that later runs leave nothing more.
    """
    each_bytes = max(0, left[-1] - left[-2])
    most_bytes = max(first_bytes, *left)
    if not each_bytes:
        return most_bytes, f"the model holds {format_bytes(most_bytes)} from one step to the next; room is left for it"
    note = (
        f"the model holds {format_bytes(each_bytes)} more after every step: room is left for {ROOM_FOR_STEPS} steps, "
        "later ones take more than the budget if it goes on"
    )
    return most_bytes + ROOM_FOR_STEPS * each_bytes, note


@contextlib.contextmanager
def after_a_step(job: Job) -> Iterator[None]:
    """Let the model be as the first step leaves it for a while."""
    with leaving_no_trace(job):
        job.run()
        for parameter in job.whole.parameters():
            parameter.grad = None
        yield
