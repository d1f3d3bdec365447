"""Does a step compute the same when any of its saved tensors are dropped and made again, and take what was promised?

Random programs of operators, modules, in-place writes, views, dropout and branches are traced. Any set of tensors that
may be dropped or moved to a disk is, not only what a planner would choose. Loss, gradients, buffers and random state
must be those of the plain step to the last bit, and the peak must be no higher than the replay of the trace says.
"""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import memfit
from memfit.apply.checkpoints import AppliedPlan
from memfit.apply.operators import attach_operators
from memfit.apply.recompute import SecondRunDiffers
from memfit.errors import DoesNotFit, PlanBroken
from memfit.model.call_sites import layers_of
from memfit.model.step import Job, job_of
from memfit.plan.operators import OperatorPlanner, ReplayedOperators
from memfit.profile.meter.meter import record_events
from memfit.profile.operators import trace_operators
from memfit.records.operators import OperatorTrace
from memfit.records.plan import Link

WIDTH, ROWS = 32, 64
A_DISK = Link(name="disk", out_bytes_per_second=1e9, in_bytes_per_second=1e9)
SMALL_COPIES = 4096
"""Buffers that are copied, and states of random generators in passing, are not in a replay."""


class Program(nn.Module):
    """Runs words one after another on a tensor; some look back at what earlier words made."""

    moving: torch.Tensor

    def __init__(self, words: tuple[str, ...]) -> None:
        super().__init__()
        self.words = words
        self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in words)
        self.norm, self.batch_norm, self.drop = nn.LayerNorm(WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.2)
        self.wide, self.narrow = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH)
        self.register_buffer("moving", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        seen = [x]
        for number, word in enumerate(self.words):
            x = self.run(word, number, x, seen[number // 2])
            seen.append(x)
        return x

    def run(self, word: str, number: int, x: torch.Tensor, earlier: torch.Tensor) -> torch.Tensor:
        linear = self.linears[number]
        with_gate = lambda: torch.sigmoid(linear(x)) * earlier  # noqa: E731
        ways: dict[str, Callable[[], torch.Tensor]] = {
            "linear": lambda: linear(x),
            "gelu": lambda: F.gelu(linear(x)),
            "norm": lambda: self.norm(x) * 1.5,
            "batch norm": lambda: F.relu(self.batch_norm(linear(x)), inplace=True),
            "dropout": lambda: self.drop(torch.tanh(x)),
            "in place": lambda: linear(x).mul_(1.1).add_(0.1).tanh_(),
            "cat": lambda: self.wide(torch.cat([torch.tanh(x), earlier], 1)),
            "gate": with_gate,
            "residual": lambda: x + F.silu(linear(x)),
            "views": lambda: (linear(x).view(ROWS, 2, -1).transpose(0, 1).reshape(ROWS, -1) * x).contiguous(),
            "chunk": lambda: torch.cat([part.exp() * 0.1 for part in torch.tanh(x).chunk(2, 1)], 1),
            "wide": lambda: self.narrow(x).view(ROWS, 4, WIDTH).softmax(-1).amax(1),
            "random": lambda: x * torch.rand_like(x) + torch.randn(WIDTH),
            "detached": lambda: x + torch.sin(earlier.detach()) * x,
            "buffer": self.with_buffer(x),
            "checkpoint": lambda: checkpoint(self.block(linear), x, use_reentrant=False),  # type: ignore[return-value]
            "lstm": lambda: self.lstm(x[None])[0][0],
            "no grad": lambda: x * self.frozen(earlier),
        }
        return ways[word]()

    def with_buffer(self, x: torch.Tensor) -> Callable[[], torch.Tensor]:
        def run() -> torch.Tensor:
            with torch.no_grad():
                self.moving.mul_(0.9).add_(x.mean(0), alpha=0.1)
            return x + torch.tanh(x + self.moving.clone())

        return run

    def block(self, linear: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: x + self.drop(F.gelu(linear(self.norm(x))))

    @torch.no_grad()
    def frozen(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) * 2.0


WORDS = (
    "linear", "gelu", "norm", "batch norm", "dropout", "in place", "cat", "gate", "residual", "views", "chunk", "wide",
    "random", "detached", "buffer", "checkpoint", "lstm", "no grad",
)  # fmt: skip


def job_for(model: nn.Module, seed: int = 1) -> Job:
    torch.manual_seed(seed)
    batch = torch.randn(ROWS, WIDTH), torch.randint(0, 5, (ROWS,))
    return job_of(model, batch, lambda out, target: F.cross_entropy(out[:, :5], target), None)


@contextmanager
def carrying_out(
    model: nn.Module, planner: OperatorPlanner, found: ReplayedOperators, disk: str | None = None
) -> Iterator[list[str]]:
    """A model under a choice; what is said on the way."""
    applied = AppliedPlan(model, [], ())
    attach_operators(applied, planner.choice(found, 0), disk)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        texts: list[str] = []
        try:
            yield texts
        finally:
            applied.undo()
            texts += [str(each.message) for each in said if "memfit" in str(each.message)]
    assert not any(layers_of(module) for module in model.modules())


def outcome(job: Job, seed: int = 3) -> tuple[list[Any], int]:
    """What a step leaves, and the most it held above what was there before."""
    job.model.zero_grad()
    torch.manual_seed(seed)
    gc.collect()
    record = record_events(job.run, torch.device("cpu"))
    left = [job.seen["loss"], *(p.grad for p in job.model.parameters()), *job.model.buffers(), torch.get_rng_state()]
    left = [None if each is None else each.clone() for each in left]
    job.model.zero_grad()
    return left, record.peak_bytes


def same(mine: list[Any], theirs: list[Any]) -> bool:
    pairs = zip(mine, theirs, strict=True)
    return all(b is None if a is None else b is not None and torch.equal(a, b) for a, b in pairs)


def traced(job: Job) -> OperatorTrace:
    found = trace_operators(job)
    assert found is not None
    return found


# ---- any program, any set ------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_set_of_dropped_tensors_computes_the_same_within_what_is_promised(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
):
    words = tuple(data.draw(st.lists(st.sampled_from(WORDS), min_size=2, max_size=8)))
    torch.manual_seed(0)
    model = Program(words)
    plain, job = job_for(copy.deepcopy(model)), job_for(model)
    planner = OperatorPlanner(traced(job), A_DISK)
    dropped, passing, moved = set[int](), set[int](), set[int]()
    for number, tensor in enumerate(planner.trace.tensors):
        ways: list[set[int] | None] = [None]
        ways += [dropped, passing] if tensor.may_drop else []
        ways += [moved] if tensor.may_move else []
        chosen = data.draw(st.sampled_from(ways))
        if chosen is not None:
            chosen.add(number)
            dropped.add(number)
    found = planner.replayer.replay(frozenset(dropped), frozenset(passing), frozenset(moved))
    theirs, _ = outcome(plain)
    with carrying_out(model, planner, found, str(tmp_path_factory.getbasetemp())) as said:
        mine, peak_bytes = outcome(job)
    assert same(mine, theirs)
    assert peak_bytes <= found.peak_bytes + SMALL_COPIES
    assert not said


def test_small_tensors_on_the_way_to_a_dropped_one_are_made_again_and_not_held():
    torch.manual_seed(0)
    model = Program(("no grad", "chunk", "buffer", "linear"))  # two of 4096 bytes are joined
    job = job_for(model)
    planner = OperatorPlanner(traced(job))
    names = [planner.trace.operators[each.operator].name for each in planner.trace.tensors]
    last = max(n for n, name in enumerate(names) if name == "aten::tanh")
    found = planner.replayer.replay(frozenset({last}))
    with carrying_out(model, planner, found):
        _, peak_bytes = outcome(job)
    assert peak_bytes <= found.peak_bytes + SMALL_COPIES


@settings(max_examples=10, deadline=None)
@given(words=st.lists(st.sampled_from(WORDS), min_size=3, max_size=8), share=st.floats(0.3, 1.0))
def test_what_is_planned_for_a_budget_is_within_it(words: list[str], share: float):
    torch.manual_seed(0)
    job = job_for(Program(tuple(words)))
    planner = OperatorPlanner(traced(job))
    budget_bytes = int(share * planner.plain.peak_bytes)
    found = planner.within(budget_bytes)
    least = planner.least()
    assert least.peak_bytes <= planner.plain.peak_bytes
    if found is None:
        return
    assert found.peak_bytes <= budget_bytes
    with carrying_out(job.model, planner, found):
        _, peak_bytes = outcome(job)
    assert peak_bytes <= budget_bytes + SMALL_COPIES


# ---- the law -------------------------------------------------------------------------------------------------------


class Whims(nn.Module):
    """Layers with whatever a test lets happen between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.between: Callable[[torch.Tensor], torch.Tensor] = lambda x: x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.first(x))
        x = self.between(x)
        x = F.gelu(self.second(x)) + x
        return self.third(torch.tanh(x))


def everything_dropped(model: nn.Module) -> tuple[Job, OperatorPlanner, ReplayedOperators]:
    job = job_for(model)
    planner = OperatorPlanner(traced(job))
    may = frozenset(n for n, each in enumerate(planner.trace.tensors) if each.may_drop)
    assert len(may) >= 4
    return job, planner, planner.replayer.replay(may)


def compared(after_planning: Callable[[Whims], Any], step: Callable[[Job], Any] | None = None) -> list[str]:
    """A plain model and one that drops everything it may go through the same; what was said."""
    torch.manual_seed(0)
    model = Whims()
    plain = job_for(copy.deepcopy(model))
    job, planner, found = everything_dropped(model)
    with carrying_out(model, planner, found) as said:
        after_planning(model)
        after_planning(plain.model)  # type: ignore[arg-type]
        for each in (plain, job):
            if step is not None:
                torch.manual_seed(3)
                each.run = lambda each=each: step(each)
        theirs, mine = outcome(plain), outcome(job)
    assert same(mine[0], theirs[0])
    return said


def let_between(run: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Whims], None]:
    def change(model: Whims) -> None:
        model.between = run

    return change


def test_other_operators_than_planned_are_kept_and_that_is_said():
    said = compared(let_between(lambda x: torch.sin(x) * 2.0))
    assert len(said) == 1
    assert "aten::sin" in said[0]


def test_another_operator_of_the_same_name_is_run_again_as_it_was_called():
    assert compared(let_between(lambda x: x)) == []
    compared(let_between(lambda x: x.mul_(1.5)))


def test_a_forward_that_depends_on_random_numbers_is_not_planned():
    torch.manual_seed(0)
    model = Whims()
    model.between = lambda x: x if torch.rand(()) < 0.5 else torch.sin(x)
    job, found = job_for(model), []
    for seed in range(6):
        torch.manual_seed(seed)
        found.append(trace_operators(job))
    assert any(each is None for each in found)


def alive_bytes() -> int:
    gc.collect()
    kinds = (torch.Tensor, nn.Parameter)
    tensors = [each for each in gc.get_objects() if type(each) in kinds]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def test_what_no_backward_reaches_is_gone_after_the_step_and_after_tracing():
    """Functions that save their own output, beside the way to the loss, as the spread of an unused posterior."""
    torch.manual_seed(0)
    model = Whims()
    model.between = lambda x: x + 0.0 * torch.exp(x).detach() * float(torch.sigmoid(x).tanh().exp().sum() > 0)
    job = job_for(model)
    before = alive_bytes()
    planner = OperatorPlanner(traced(job))
    found = planner.replayer.replay(frozenset(n for n, each in enumerate(planner.trace.tensors) if each.may_drop))
    job.seen.clear()
    assert alive_bytes() == before
    with carrying_out(model, planner, found):
        for _ in range(2):
            job.run()
            model.zero_grad()
            job.seen.clear()
    assert alive_bytes() == before


def test_a_kept_tensor_that_is_written_into_before_the_backward_ends_it_as_without_a_plan():
    torch.manual_seed(0)
    model = Whims()
    made: list[torch.Tensor] = []

    def between(x: torch.Tensor) -> torch.Tensor:
        made.append(torch.exp(x))
        return made[0] + x

    model.between = between
    job = job_for(model)
    planner = OperatorPlanner(traced(job))
    nothing_dropped = planner.replayer.replay(frozenset())

    def step() -> None:
        made.clear()
        out = model(job.batch[0])
        with torch.no_grad():
            made[0].zero_()
        out.sum().backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        step()
    with carrying_out(model, planner, nothing_dropped), pytest.raises(RuntimeError, match="modified by an inplace"):
        step()


def test_a_graph_that_is_kept_is_run_backward_twice():
    def step(job: Job) -> None:
        loss = F.cross_entropy(job.model(job.batch[0])[:, :5], job.batch[1])
        job.seen["loss"] = loss.detach()
        loss.backward(retain_graph=True)
        loss.backward()

    assert compared(lambda _: None, step) == []


def test_two_forwards_before_their_backwards():
    def step(job: Job) -> None:
        one, two = job.model(job.batch[0]), job.model(job.batch[0] * 2.0)
        job.seen["loss"] = two.detach().sum()
        (one.square().mean() + two.mean()).backward()

    assert compared(lambda _: None, step) == []


def test_gradients_of_gradients():
    def step(job: Job) -> None:
        inputs = job.batch[0].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(job.model(inputs).square().sum(), inputs, create_graph=True)
        job.seen["loss"] = gradient.detach().sum()
        gradient.square().mean().backward()

    compared(lambda _: None, step)


def test_evaluation_autocast_and_a_failing_forward_in_between():
    def step(job: Job) -> None:
        with torch.no_grad():
            job.model(job.batch[0])
        with pytest.raises(RuntimeError):
            job.model(job.batch[0][:, :3])
        with torch.autocast("cpu", torch.bfloat16):
            value = job.model(job.batch[0]).float().square().mean()
        job.seen["loss"] = value.detach()
        value.backward()

    compared(lambda _: None, step)


def test_threads_that_are_inside_one_model_at_the_same_time_get_what_they_get_without_a_plan():
    torch.manual_seed(0)
    model = Whims()
    meeting = threading.Barrier(2)
    inputs = [torch.randn(ROWS, WIDTH) for _ in range(2)]
    expected = [torch.autograd.grad(model(x).square().sum(), list(model.parameters())) for x in inputs]
    _, planner, found = everything_dropped(model)
    gradients: dict[int, Any] = {}
    failed: list[BaseException] = []

    def meet(x: torch.Tensor) -> torch.Tensor:
        meeting.wait(60)
        return x

    def work(number: int) -> None:
        try:
            for _ in range(5):
                loss = model(inputs[number]).square().sum()
                meeting.wait(60)
                gradients[number] = torch.autograd.grad(loss, list(model.parameters()))
        except BaseException as error:
            failed.append(error)
            meeting.abort()

    with carrying_out(model, planner, found):
        model.between = meet
        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []
    assert all(same(list(gradients[number]), list(expected[number])) for number in range(2))


def test_a_backward_in_another_thread():
    def step(job: Job) -> None:
        value = job.model(job.batch[0]).square().mean()
        job.seen["loss"] = value.detach()
        thread = threading.Thread(target=value.backward)
        thread.start()
        thread.join()

    assert compared(lambda _: None, step) == []


def test_a_parameter_that_changes_before_the_backward_ends_it():
    torch.manual_seed(0)
    job, planner, found = everything_dropped(Whims())
    with carrying_out(job.model, planner, found):
        value = job.model(job.batch[0]).square().mean()
        with torch.no_grad():
            next(job.model.parameters()).add_(1.0)
        with pytest.raises((PlanBroken, RuntimeError)):
            value.backward()


def test_an_operator_that_makes_something_else_ends_the_backward():
    torch.manual_seed(0)
    job, planner, found = everything_dropped(Whims())
    with carrying_out(job.model, planner, found):
        value = job.model(job.batch[0]).square().mean()
        with torch.no_grad():
            next(job.model.parameters()).data.add_(1.0)  # past torch's own count of versions
        with pytest.raises(SecondRunDiffers, match="aten::"):
            value.backward()


def test_a_forward_that_goes_another_way_and_is_then_written_into_ends_the_backward():
    """The source of a dropped tensor would have been saved later on in the plan's forward; here nobody saves it."""

    class Returns(nn.Module):
        """Takes the square of its hidden values, or hands them out."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.hands_out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x)
            y = self.second(hidden + 1.0)
            self.hidden = hidden.detach()
            return y + (hidden * 2.0 if self.hands_out else hidden.square())

    torch.manual_seed(0)
    model = Returns()
    job = job_for(model)
    planner = OperatorPlanner(traced(job))
    may = frozenset(n for n, each in enumerate(planner.trace.tensors) if each.may_drop)
    sums = frozenset(
        n for n in may if planner.trace.operators[planner.trace.tensors[n].operator].name == "aten::add.Tensor"
    )
    assert sums
    with carrying_out(model, planner, planner.replayer.replay(sums)):
        for hands_out in (False, True):
            model.hands_out = hands_out
            theirs = outcome(job_for(copy.deepcopy(model)))
            assert same(outcome(job)[0], theirs[0])
        value = model(job.batch[0]).square().mean()
        model.hidden[0, 1] = 7.0  # one value, that no sample would see
        with pytest.raises(PlanBroken, match="written into"):
            value.backward()


class SquareSum(torch.autograd.Function):
    """Saves what it is given; its backward may write into that."""

    factor: float | None = None

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x.square().sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        found = 2.0 * x * gradient
        if SquareSum.factor is not None:
            x[0, 1] *= SquareSum.factor  # one value, that no sample would see
        return found


def test_a_backward_that_writes_into_what_was_made_again_ends_it_for_who_reads_it_after(
    monkeypatch: pytest.MonkeyPatch,
):
    class SavesTwice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x) * 1.5 + 1.0
            early = hidden.square()
            return self.second(F.gelu(hidden)) + early + SquareSum.apply(hidden)  # type: ignore[operator]

    torch.manual_seed(0)
    model = SavesTwice()
    job = job_for(model)
    planner = OperatorPlanner(traced(job))
    may = frozenset(n for n, each in enumerate(planner.trace.tensors) if each.may_drop)
    theirs = outcome(job_for(copy.deepcopy(model)))
    with carrying_out(model, planner, planner.replayer.replay(may)):
        assert same(outcome(job)[0], theirs[0])
        monkeypatch.setattr(SquareSum, "factor", 3.0)
        with pytest.raises(PlanBroken, match="written into"):
            model(job.batch[0]).square().mean().backward()
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            copy.deepcopy(model)(job.batch[0]).square().mean().backward()


class WritesIntoOne(nn.Module):
    """Writes into one of two tensors, whose squares it made before."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.into_first = self.cuts_off = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = self.first(x) * 1.5, self.second(x) * 1.5
        squares = one.square()
        written = one if self.into_first else other
        written.mul_(1.1)
        result = self.third(F.gelu(written) + torch.tanh(one + other))
        return result + (squares.detach() if self.cuts_off else squares) * 2.0


def test_a_tensor_that_is_saved_before_and_after_it_is_written_into_is_the_one_or_ends_the_backward():
    torch.manual_seed(0)
    model = WritesIntoOne()
    job = job_for(model)
    planner = OperatorPlanner(traced(job))
    may = frozenset(n for n, each in enumerate(planner.trace.tensors) if each.may_drop)
    with carrying_out(model, planner, planner.replayer.replay(may)):
        model.into_first = model.cuts_off = True  # the same operators by name
        theirs = outcome(job_for(copy.deepcopy(model)))
        assert same(outcome(job)[0], theirs[0])
        model.cuts_off = False
        with pytest.raises(PlanBroken, match="after autograd had saved it"):
            model(job.batch[0]).square().mean().backward()
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            copy.deepcopy(model)(job.batch[0]).square().mean().backward()


def test_copies_and_pickles_are_plain_and_nothing_is_left():
    torch.manual_seed(0)
    model = Functions()
    _, planner, found = everything_dropped(model)
    with carrying_out(model, planner, found):
        assert layers_of(model)
        assert not layers_of(copy.deepcopy(model))
        assert not layers_of(pickle.loads(pickle.dumps(model)))
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        assert b"memfit" not in file.getvalue()
    assert "_compiled_call_impl" not in model.__dict__


# ---- fitting -------------------------------------------------------------------------------------------------------


class Functions(nn.Module):
    """Layers without a module."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(WIDTH, WIDTH) / 6 for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = F.gelu(x @ weight)
        return x


class WritesIntoItsInput(nn.Module):
    """Blocks of which each changes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x.mul_(1.1)
            x = x + F.gelu(block(x))
        return x


@pytest.mark.parametrize("kind", [Functions, WritesIntoItsInput])
def test_a_model_without_blocks_to_recompute_is_fitted(kind: type[nn.Module], tmp_path: Any):
    torch.manual_seed(0)
    model = kind()
    plain = copy.deepcopy(model)
    batch = torch.randn(1024, WIDTH), torch.randint(0, 5, (1024,))

    def loss(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out[:, :5], target)

    with pytest.raises(DoesNotFit) as refusal:
        memfit.fit_to_budget(model, batch, loss, budget=400_000)
    needed_bytes = refusal.value.needed_bytes or 0
    fitted = memfit.fit_to_budget(model, batch, loss, budget=needed_bytes)
    assert fitted.plan.solver == "operators"
    assert fitted.fit.proof is not None
    assert fitted.fit.proof.bit_equal
    theirs, plain_bytes = outcome(job_of(plain, batch, loss, None))
    mine, peak_bytes = outcome(job_of(model, batch, loss, None))
    assert same(mine, theirs)
    assert peak_bytes < 0.75 * plain_bytes
    fitted.write_plan(tmp_path / "plan.json")
    fitted.undo()
    again = copy.deepcopy(plain)
    with memfit.apply_plan(again, tmp_path / "plan.json"):
        found, again_bytes = outcome(job_of(again, batch, loss, None))
    assert same(found, theirs)
    assert again_bytes == peak_bytes


class Cached(Whims):
    """Makes a table in its first forward and keeps it; draws a mask beside it in every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.table: torch.Tensor | None = None
        self.between = self.added

    def added(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.arange(WIDTH).mul(0.1).sin() + copy.deepcopy(self.first.bias).detach()
        return x * torch.rand(len(x), WIDTH).gt(0.2) + self.table


@pytest.mark.parametrize("is_there", [False, True])
def test_a_table_that_a_forward_keeps_for_the_next_does_not_end_the_plan(is_there: bool):
    """Made while the table is not there and carried out while it is, or the other way round."""
    torch.manual_seed(0)
    model = Cached()
    if is_there:
        model(torch.randn(ROWS, WIDTH))
    plain = job_for(copy.deepcopy(model))
    job, planner, found = everything_dropped(model)
    if is_there:
        model.table = plain.model.table = None  # type: ignore[assignment]
    with carrying_out(model, planner, found) as said:
        steps = [(outcome(plain, seed), outcome(job, seed)) for seed in (3, 4)]
    assert all(same(mine[0], theirs[0]) for theirs, mine in steps)
    assert said == []
    assert steps[1][1][1] <= steps[0][1][1]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch.func itself uses it
def test_a_forward_with_a_transform_is_not_planned_operator_by_operator():
    model = Whims()
    model.between = lambda x: torch.func.jvp(model.second, (x,), (torch.ones_like(x),))[1]
    assert trace_operators(job_for(model)) is None
