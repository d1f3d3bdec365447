"""Does a model under a plan compute what the plain one would have computed in that very call, whatever its code does?

A plain and a planned copy of a model go through the same steps. Losses, gradients, buffers, attributes, what hooks
saw and the random state must be the same to the last bit, or an error must be raised.
"""

from __future__ import annotations

import copy
import io
import pickle
import random
import subprocess
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch_fit_models import NormedBlock, Stack

from memfit.apply.checkpoints import apply_nodes
from memfit.apply.recompute import SecondRunDiffers
from memfit.errors import PlanBroken
from memfit.model.call_sites import layers_of
from memfit.model.module_calls import watch_calls
from memfit.model.step import job_of, leaving_no_trace
from memfit.records.plan import Checkpoint, Keep, Node, Stage

NUM_BLOCKS, WIDTH, ROWS = 5, 8, 16
STAGES = tuple(
    Stage(name=f"blocks.{i}", forward_seconds=0.0, backward_seconds=0.0, output_bytes=0, saved_bytes=0)
    for i in range(NUM_BLOCKS)
)
PLANS: dict[str, tuple[Node, ...]] = {
    "each alone": tuple(Checkpoint(inside=(Keep(stage=i),)) for i in range(NUM_BLOCKS)),
    "one run": (Checkpoint(inside=tuple(Keep(stage=i) for i in range(NUM_BLOCKS))),),
    "nested": (
        Checkpoint(inside=(Keep(stage=0), Checkpoint(inside=(Keep(stage=1), Keep(stage=2))), Keep(stage=3))),
        Keep(stage=4),
    ),
}


@pytest.fixture(params=PLANS)
def plan(request: pytest.FixtureRequest) -> tuple[Node, ...]:
    return PLANS[request.param]


def trained(model: nn.Module, step: Callable[[nn.Module, torch.Tensor], Any], num_steps: int = 2) -> list[Any]:
    """Everything that some steps of a model leave."""
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    found: list[Any] = []
    for _ in range(num_steps):
        model.zero_grad()
        found.append(step(model, torch.randn(ROWS, WIDTH)))
        found.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
    found += [b.clone() for b in model.buffers()]
    return [*found, torch.get_rng_state(), random.random(), np.random.rand()]


def same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, torch.Tensor):
        return isinstance(theirs, torch.Tensor) and torch.equal(mine, theirs)
    if isinstance(mine, (list, tuple)):
        return len(mine) == len(theirs) and all(same(a, b) for a, b in zip(mine, theirs, strict=True))
    return mine == theirs


def plain_step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    loss.backward()
    return loss.detach()


def check(
    make: Callable[[], nn.Module],
    plan: tuple[Node, ...],
    step: Callable[[nn.Module, torch.Tensor], Any] = plain_step,
    after_planning: Callable[[nn.Module], Any] = lambda _: None,
) -> list[str]:
    """Compare a plain and a planned model; returns what was said on the way."""
    torch.manual_seed(0)
    plain = make()
    torch.manual_seed(0)
    planned = make()
    with warnings.catch_warnings(record=True) as said, apply_nodes(planned, STAGES, plan):
        warnings.simplefilter("always")
        after_planning(plain)
        after_planning(planned)
        theirs, mine = trained(plain, step), trained(planned, step)
        assert same(mine, theirs)
    assert not any(layers_of(module) for module in planned.modules())
    return [str(each.message) for each in said if "memfit" in str(each.message)]


def blocks_of(kind: Callable[[], nn.Module]) -> Callable[[], Stack]:
    return lambda: Stack([kind() for _ in range(NUM_BLOCKS)], WIDTH)


class Block(nn.Module):
    """A layer norm, two linear layers and dropout beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(torch.tanh(self.up(self.norm(x)))))


# ---- control flow --------------------------------------------------------------------------------------------------


class Program(Stack):
    """Calls its blocks as a list says: a number calls a block, a word does something between."""

    words: tuple[int | str, ...] = ()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start, seen = x, []
        for word in self.words:
            if isinstance(word, int):
                x = self.blocks[word](x)
            elif word == "scale":
                x = x * 1.5
            elif word == "in place":
                x = x + 0.0
                x.mul_(0.9)
            elif word == "add start":
                x = x + start
            elif word == "remember":
                seen.append(x)
            elif word == "recall" and seen:
                x = x + seen.pop()
            elif word == "draw":
                x = x * torch.rand(())
            elif word == "restart":
                x = start.clone()
        return self.head(x)


WORDS = st.one_of(
    st.integers(0, NUM_BLOCKS - 1),
    st.sampled_from(["scale", "in place", "add start", "remember", "recall", "draw", "restart"]),
)


@settings(max_examples=60, deadline=None)
@given(programs=st.lists(st.lists(WORDS, max_size=9), min_size=1, max_size=2), name=st.sampled_from(sorted(PLANS)))
def test_any_python_control_flow_is_followed(programs: list[list[int | str]], name: str):
    turn = {"plain": 0}

    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        model.words = tuple(programs[turn["plain"] % len(programs)])  # type: ignore[assignment]
        turn["plain"] += 1
        return plain_step(model, x)

    def start_again(_: nn.Module) -> None:
        turn["plain"] = 0

    torch.manual_seed(0)
    plain = Program([Block() for _ in range(NUM_BLOCKS)], WIDTH)
    planned = copy.deepcopy(plain)
    with warnings.catch_warnings(), apply_nodes(planned, STAGES, PLANS[name]):
        warnings.simplefilter("ignore")
        theirs = trained(plain, step)
        start_again(plain)
        assert same(trained(planned, step), theirs)


def test_a_block_that_is_skipped_is_not_run_and_this_is_said_once():
    class Skips(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for number, block in enumerate(self.blocks):
                if number not in (0, 2):
                    x = block(x)
            return self.head(x)

    calls: list[str] = []
    make = lambda: Skips([Block() for _ in range(NUM_BLOCKS)], WIDTH)  # noqa: E731
    said = check(make, PLANS["one run"])
    assert len(said) == 1
    model = make()
    with pytest.warns(RuntimeWarning), apply_nodes(model, STAGES, PLANS["one run"], on_call=calls.append):
        plain_step(model, torch.randn(ROWS, WIDTH))
    assert set(calls) == {"blocks.1", "blocks.3", "blocks.4"}


# ---- what is done to modules -----------------------------------------------------------------------------------------


def test_hooks_added_and_removed_after_planning_see_what_they_would_see(plan: tuple[Node, ...]):
    def hook(model: Any) -> None:
        model.seen = []
        for number in (1, 3):
            block = model.blocks[number]
            block.register_forward_hook(lambda _m, _i, out: model.seen.append(float(out.detach().sum())))
            block.register_forward_hook(lambda _m, _i, out: out * 1.25)
            block.register_forward_pre_hook(lambda _m, args: (args[0] + 1.0,))
        model.blocks[2].register_forward_hook(lambda _m, _i, out: out * 3.0).remove()

    def step(model: nn.Module, x: torch.Tensor) -> Any:
        return plain_step(model, x), list(model.seen)  # type: ignore[arg-type]

    check(blocks_of(Block), plan, step, hook)


def test_a_hook_that_is_added_inside_a_block_fires_once_and_the_block_is_kept(plan: tuple[Node, ...]):
    def hook(model: nn.Module) -> None:
        model.seen = []  # type: ignore[assignment]
        model.blocks[1].up.register_forward_hook(lambda _m, _i, out: model.seen.append(1))  # type: ignore[index]

    def step(model: nn.Module, x: torch.Tensor) -> Any:
        return plain_step(model, x), list(model.seen)  # type: ignore[arg-type]

    said = check(blocks_of(Block), plan, step, hook)
    assert any("a hook was added inside" in each for each in said)


class OwnGenerator(Block):
    """Draws its noise from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * torch.rand(x.shape, generator=self.generator)


def test_a_generator_that_hangs_on_a_module_draws_the_same_again(plan: tuple[Node, ...]):
    def step(model: nn.Module, x: torch.Tensor) -> Any:
        plain_step(model, x)
        return [block.generator.get_state() for block in model.blocks]  # type: ignore[union-attr]

    check(blocks_of(OwnGenerator), plan, step)


class OwnGenerators(Block):
    """Draws from NumPy's and Python's generators of its own, and keeps a cache that drops its oldest entry."""

    def __init__(self) -> None:
        super().__init__()
        self.new, self.old = np.random.default_rng(3), np.random.RandomState(4)
        self.python, self.recent = random.Random(5), OrderedDict.fromkeys("abc", 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        name = next(iter(self.recent))
        self.recent[name] += 0.1
        self.recent.move_to_end(name)
        drawn = self.new.random() + self.old.rand() + self.python.random()
        return super().forward(x) * (1.0 + drawn + self.recent["a"] + 2 * self.recent["b"])


def test_generators_and_ordered_caches_that_hang_on_a_module_are_laid_back(plan: tuple[Node, ...]):
    def state(block: Any) -> Any:
        old: Any = block.old.get_state()
        return block.new.bit_generator.state, old[1].tolist(), block.python.getstate(), list(block.recent.items())

    def step(model: nn.Module, x: torch.Tensor) -> Any:
        return plain_step(model, x), [state(block) for block in model.blocks]  # type: ignore[union-attr]

    check(blocks_of(OwnGenerators), plan, step)


class Transformed(Block):
    """Runs its layers within transforms of `torch.func`."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Identity()  # vmap does not say what a random number is

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = torch.func.jvp(torch.vmap(super().forward), (x,), (torch.ones_like(x),))
        return both[0] + 0.1 * both[1]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch.func itself uses it
def test_a_block_with_transforms_inside_is_watched_and_run_again(plan: tuple[Node, ...]):
    check(blocks_of(Transformed), plan)
    model = blocks_of(Transformed)()
    job = job_of(model, torch.randn(8, WIDTH), lambda out: out.square().mean(), None)
    assert watch_calls(job).counts[id(model.blocks[0])] == 1  # type: ignore[index]


class Installing(Block):
    """Installs a hook in its first forward, and remembers that it did."""

    @staticmethod
    def louder(_module: nn.Module, _args: Any, output: torch.Tensor) -> torch.Tensor:
        return output * 1.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not getattr(self, "is_installed", False):
            self.is_installed = True
            self.up.register_forward_hook(self.louder)
        return super().forward(x)


def test_a_hook_that_a_forward_installs_once_is_not_installed_again_by_a_second_run(plan: tuple[Node, ...]):
    def step(model: nn.Module, x: torch.Tensor) -> Any:
        plain_step(model, x)
        return [len(module._forward_hooks) for module in model.modules()]

    check(blocks_of(Installing), plan, step)


def test_a_run_that_leaves_no_trace_takes_away_the_hooks_that_it_installed():
    model = blocks_of(Installing)()
    job = job_of(model, torch.randn(ROWS, WIDTH), lambda out: out.square().mean(), None)
    for _ in range(2):
        with leaving_no_trace(job):
            job.run()
            assert len(model.blocks[0].up._forward_hooks) == 1  # type: ignore[union-attr]
    assert not any(m._forward_hooks or hasattr(m, "is_installed") for m in model.modules())


def test_hooks_inside_a_block_that_were_there_before_leave_no_second_trace(plan: tuple[Node, ...]):
    def make() -> Stack:
        model = blocks_of(Block)()
        seen: list[float] = []
        model.seen = seen  # type: ignore[assignment]
        for block in model.blocks:
            block.up.register_forward_hook(lambda _m, _i, out: seen.append(float(out.detach().sum())))  # type: ignore[union-attr]
        return model

    def step(model: nn.Module, x: torch.Tensor) -> Any:
        return plain_step(model, x), list(model.seen)  # type: ignore[arg-type]

    check(make, plan, step)


def test_a_forward_that_is_replaced_on_an_instance_is_called_before_and_after_planning(plan: tuple[Node, ...]):
    def halve(module: nn.Module) -> None:
        old = module.forward
        module.forward = lambda x: old(x) * 0.5

    def make() -> Stack:
        model = blocks_of(Block)()
        for block in model.blocks:
            halve(block)
        return model

    check(make, plan, after_planning=lambda model: halve(model.blocks[1]))  # type: ignore[index]


def test_undoing_leaves_a_forward_that_somebody_set_meanwhile():
    model = blocks_of(Block)()
    applied = apply_nodes(model, STAGES, PLANS["one run"])
    mine = lambda x: x  # noqa: E731
    model.blocks[0].forward = mine
    applied.undo()
    assert model.blocks[0].forward is mine


def test_a_block_whose_parts_are_replaced_after_planning_is_run_with_the_new_parts(plan: tuple[Node, ...]):
    def replace(model: nn.Module) -> None:
        torch.manual_seed(9)
        model.blocks[1].up = nn.Sequential(nn.Linear(WIDTH, 16), nn.BatchNorm1d(16))  # type: ignore[index]

    check(blocks_of(Block), plan, after_planning=replace)


# ---- what a forward changes ------------------------------------------------------------------------------------------


class Stateful(Block):
    """Counts, remembers, replaces a buffer, fills a list and a dictionary, draws from three generators."""

    ema: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ema", torch.zeros(WIDTH))
        self.count, self.history, self.table = 0, [0.0], {"last": 0.0}
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.ema = 0.9 * self.ema + 0.1 * x.mean(0).detach()
        self.history.append(self.history[-1] + 0.01)
        self.table["last"] = self.table["last"] + random.random() + np.random.rand()
        y = super().forward(x) * (1.0 + 0.01 * self.count + self.history[-1] + self.table["last"]) + self.ema
        if self.last is not None:
            y = y + self.last.mean()
        self.last = y.detach()
        return y


def test_counters_lists_replaced_buffers_and_all_generators_are_the_same_in_both_runs(plan: tuple[Node, ...]):
    def step(model: nn.Module, x: torch.Tensor) -> Any:
        loss = plain_step(model, x)
        return loss, [(b.count, list(b.history), dict(b.table), b.last.clone()) for b in model.blocks]  # type: ignore[union-attr]

    check(blocks_of(Stateful), plan, step)


class DrawsLater(Block):
    """Draws from Python's or NumPy's generator from its fourth call on, as a schedule of augmentation does."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.count, self.draw = 0, draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return super().forward(x * (1.0 + (self.draw() if self.count > 3 else 0.0)))


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: random.gauss(0.0, 1.0), np.random.normal])
def test_a_block_that_begins_to_draw_from_python_or_numpy_late_draws_the_same(
    plan: tuple[Node, ...], draw: Callable[[], float]
):
    def steps(model: nn.Module, x: torch.Tensor) -> Any:
        return [plain_step(model, x) for _ in range(3)]

    said = check(blocks_of(lambda: DrawsLater(draw)), plan, steps)
    assert any("began to draw" in each for each in said)


class Cache:
    """As the key-value cache of a language model: every block appends to it."""

    def __init__(self) -> None:
        self.layers: list[list[torch.Tensor]] = []

    def update(self, number: int, value: torch.Tensor) -> torch.Tensor:
        if len(self.layers) <= number:
            self.layers.append([])
        self.layers[number].append(value)
        return torch.cat(self.layers[number])


class Caching(Block):
    number = 0

    def forward(self, x: torch.Tensor, *, cache: Cache | None = None, mask: Any = None) -> dict[str, Any]:  # type: ignore[override]
        y = super().forward(x)
        seen = y if cache is None else cache.update(self.number, y)
        return {"hidden": y + seen.mean(), "extra": (None, [seen.sum()])}


class CachingStack(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cache, total = Cache(), torch.zeros(())
        for number, block in enumerate(self.blocks):
            block.number = number  # type: ignore[assignment]
            found = block(x, cache=cache, mask=None)
            x, total = found["hidden"], total + found["extra"][1][0]
        assert [len(layer) for layer in cache.layers] == [1] * NUM_BLOCKS
        self.cache = cache
        return self.head(x) + total * 1e-3


def test_objects_that_a_forward_changes_and_nested_outputs_and_keywords(plan: tuple[Node, ...]):
    def step(model: nn.Module, x: torch.Tensor) -> Any:
        loss = plain_step(model, x)
        return loss, [len(layer) for layer in model.cache.layers]  # type: ignore[union-attr]

    check(lambda: CachingStack([Caching() for _ in range(NUM_BLOCKS)], WIDTH), plan, step)


def test_a_global_that_nobody_can_lay_back_is_an_error_before_a_gradient_is_wrong():
    calls = [0]

    class Global(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            COUNTS.append(len(COUNTS))
            return torch.tanh(self.up(x) * (1.0 + 0.01 * len(COUNTS)))[:, :WIDTH]

    COUNTS: list[int] = calls
    model = Stack([Global() for _ in range(NUM_BLOCKS)], WIDTH)
    with apply_nodes(model, STAGES, PLANS["one run"]), pytest.raises(SecondRunDiffers, match=r"blocks\.0"):
        plain_step(model, torch.randn(ROWS, WIDTH))
    assert all(p.grad is None for p in model.blocks[0].parameters())


class WritesIntoInput(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(1.01)
        return super().forward(x)


def test_a_block_that_writes_into_its_argument_is_kept_and_right():
    def make() -> Stack:
        model = blocks_of(WritesIntoInput)()
        model.blocks[0] = Block()
        return model

    said = check(make, PLANS["each alone"])
    assert any("wrote into its arguments" in each for each in said)
    check(make, PLANS["one run"])


# ---- how it is trained ---------------------------------------------------------------------------------------------


def test_recurrent_layers_with_tuples_of_outputs(plan: tuple[Node, ...]):
    class Recurrent(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = None
            x = x.unsqueeze(0)
            for block in self.blocks:
                x, hidden = block(x, hidden)
            return self.head(x)

    check(lambda: Recurrent([nn.LSTM(WIDTH, WIDTH) for _ in range(NUM_BLOCKS)], WIDTH), plan)


def test_frozen_blocks_and_tied_weights(plan: tuple[Node, ...]):
    def make() -> Stack:
        model = blocks_of(Block)()
        model.blocks[0].requires_grad_(False)
        model.blocks[2].requires_grad_(False)
        model.blocks[3].up.weight = model.blocks[1].up.weight  # type: ignore[union-attr]
        return model

    check(make, plan)


def test_autocast_a_scaler_accumulation_evaluation_between_and_a_kept_graph(plan: tuple[Node, ...]):
    def step(model: nn.Module, x: torch.Tensor) -> Any:
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            first = model(x).float().square().mean()
        with torch.no_grad():
            evaluated = model(x)
        second = model(x + 1.0).square().mean()
        scaler.scale(first).backward(retain_graph=True)
        scaler.scale(first).backward()
        second.backward()
        return first.detach(), evaluated, second.detach()

    check(blocks_of(lambda: NormedBlock(WIDTH)), plan, step)


def test_gradients_of_gradients(plan: tuple[Node, ...]):
    def step(model: nn.Module, x: torch.Tensor) -> Any:
        x.requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        loss = slope.square().sum()
        loss.backward()
        return loss.detach()

    def make() -> Stack:
        model = blocks_of(Block)()
        for block in model.blocks:
            block.drop.p = 0.0  # type: ignore[union-attr]
        return model

    check(make, plan, step)


def test_an_exception_in_the_middle_leaves_the_next_step_right(plan: tuple[Node, ...]):
    def fail(*_: Any) -> None:
        raise ValueError("middle")

    def broken_step(model: nn.Module, x: torch.Tensor) -> Any:
        handle = model.blocks[2].register_forward_pre_hook(fail)  # type: ignore[index]
        with pytest.raises(ValueError, match="middle"):
            model(x)
        handle.remove()
        return plain_step(model, x)

    check(blocks_of(Block), plan, broken_step)


def test_an_optimizer_step_between_forward_and_backward_is_an_error_as_without_a_plan(plan: tuple[Node, ...]):
    model = blocks_of(Block)()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with apply_nodes(model, STAGES, plan):
        plain_step(model, torch.randn(ROWS, WIDTH))
        loss = model(torch.randn(ROWS, WIDTH)).sum()
        optimizer.step()
        with pytest.raises((PlanBroken, RuntimeError), match=r"parameters of|inplace"):
            loss.backward()


def test_parameters_given_by_functional_call_are_those_of_the_second_run(plan: tuple[Node, ...]):
    model = blocks_of(Block)()
    other = {name: torch.randn_like(p, requires_grad=True) for name, p in model.named_parameters()}
    x = torch.randn(ROWS, WIDTH)
    model.eval()
    theirs = torch.autograd.grad(torch.func.functional_call(model, other, (x,)).sum(), list(other.values()))
    with apply_nodes(model, STAGES, plan):
        ours = torch.autograd.grad(torch.func.functional_call(model, other, (x,)).sum(), list(other.values()))
    assert same(list(ours), list(theirs))


def test_threads_that_train_on_one_model_do_not_disturb_each_other(plan: tuple[Node, ...]):
    torch.manual_seed(0)
    model = Stack([nn.Linear(WIDTH, WIDTH) for _ in range(NUM_BLOCKS)], WIDTH)
    inputs = [torch.randn(ROWS, WIDTH) for _ in range(3)]
    expected = [torch.autograd.grad(model(x).square().sum(), list(model.parameters())) for x in inputs]
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        for _ in range(10):
            loss = model(inputs[number]).square().sum()
            found[number] = torch.autograd.grad(loss, list(model.parameters()))

    with apply_nodes(model, STAGES, plan):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(same(found[number], expected[number]) for number in range(len(inputs)))


class Meeting(nn.Linear):
    """Waits in its forward until another thread is there as well; not when a backward runs it again."""

    barrier: threading.Barrier | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        if Meeting.barrier is not None and torch._C._current_graph_task_id() == -1:
            Meeting.barrier.wait(60)
        return torch.tanh(super().forward(x))


def test_threads_that_are_inside_one_block_at_the_same_time_do_not_disturb_each_other(plan: tuple[Node, ...]):
    torch.manual_seed(0)
    model = Stack([Meeting(WIDTH, WIDTH) for _ in range(NUM_BLOCKS)], WIDTH)
    inputs = [torch.randn(ROWS, WIDTH) for _ in range(2)]
    expected = [torch.autograd.grad(model(x).square().sum(), list(model.parameters())) for x in inputs]
    found: dict[int, Any] = {}
    failed: list[BaseException] = []
    barrier = Meeting.barrier = threading.Barrier(2)

    def work(number: int) -> None:
        try:
            for _ in range(3):
                loss = model(inputs[number]).square().sum()
                barrier.wait(60)
                found[number] = torch.autograd.grad(loss, list(model.parameters()))
        except BaseException as error:
            failed.append(error)
            barrier.abort()

    try:
        with apply_nodes(model, STAGES, plan):
            threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        Meeting.barrier = None
    assert failed == []
    assert all(same(list(found[number]), list(expected[number])) for number in range(2))


# ---- copies ----------------------------------------------------------------------------------------------------------

LOADS_ALONE = """
import sys
sys.modules["memfit"] = None
import torch
from torch import nn
model = torch.load(sys.argv[1], weights_only=False)
assert not any("_compiled_call_impl" in m.__dict__ or "forward" in m.__dict__ for m in model.modules())
print(float(model(torch.ones(2, 8)).sum().detach()))
"""


def test_a_pickle_of_a_planned_model_loads_without_memfit(tmp_path: Any):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)])
    stages = tuple(
        Stage(name=str(i), forward_seconds=0.0, backward_seconds=0.0, output_bytes=0, saved_bytes=0) for i in range(3)
    )
    with apply_nodes(model, stages, (Checkpoint(inside=tuple(Keep(stage=i) for i in range(3))),)):
        torch.save(model, tmp_path / "model.pt")
        expected = float(model(torch.ones(2, 8)).sum().detach())
    command = [sys.executable, "-c", LOADS_ALONE, str(tmp_path / "model.pt")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) == pytest.approx(expected, abs=1e-6)


def test_a_copy_keeps_what_was_on_the_instances():
    model = blocks_of(Block)()
    model.blocks[0].forward = abs
    with apply_nodes(model, STAGES, PLANS["one run"]):
        copied, pickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        torch.save(model, io.BytesIO())
    assert copied.blocks[0].forward is abs
    assert pickled.blocks[0].forward is abs
