"""Does a model under any nested plan compute what it computes without, as often as planned, and can it be undone?"""

from __future__ import annotations

import copy
import io
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch_fit_models import Drifting, NormedBlock, Remembering, Stack, TupleBlock, TupleStack, job_for, normed_stack

from memfit.apply.checkpoints import apply_nodes
from memfit.apply.recompute import SecondRunDiffers
from memfit.errors import MemfitError
from memfit.model.call_sites import layers_of
from memfit.model.module_state import State
from memfit.model.step import RandomState
from memfit.profile.reference_step import differences, run_once
from memfit.records.plan import Checkpoint, Keep, Node, Stage

NUM_BLOCKS = 5


def stages_of_stack(num_blocks: int = NUM_BLOCKS) -> tuple[Stage, ...]:
    names = [*(f"blocks.{i}" for i in range(num_blocks)), "head"]
    plain = {"forward_seconds": 0.0, "backward_seconds": 0.0, "output_bytes": 0, "saved_bytes": 0}
    return (*(Stage(name=name, **plain) for name in names), Stage(name="the loss", kind="glue", **plain))


@st.composite
def nested_nodes(draw: st.DrawFn, first: int = 0, end: int = NUM_BLOCKS + 1, depth: int = 3) -> tuple[Node, ...]:
    """Any nested plan over consecutive stages."""
    nodes: list[Node] = []
    while first < end:
        if depth and draw(st.booleans()):
            stop = draw(st.integers(first + 1, end))
            nodes.append(Checkpoint(inside=draw(nested_nodes(first, stop, depth - 1))))
            first = stop
        else:
            nodes.append(Keep(stage=first))
            first += 1
    return tuple(nodes)


def planned_calls(nodes: tuple[Node, ...], runs: int = 1) -> Counter[int]:
    """How often each stage runs: once, and once more for every checkpoint around it.

    A checkpoint that is the last thing within another is not run when that other is: what is asked for ends before it.
    """
    counts: Counter[int] = Counter()
    for node in nodes:
        if isinstance(node, Keep):
            counts[node.stage] += runs
            continue
        *inner, last = node.inside
        counts += planned_calls(tuple(inner), runs + 1)
        counts += planned_calls((last,), runs + 1 if isinstance(last, Keep) else runs)
    return counts


def gaps(model: Stack, nodes: tuple[Node, ...], on_call: Callable[[str], None] | None = None) -> dict[str, float]:
    """What differs between the plain and the planned step."""
    job, state = job_for(model), RandomState.now()
    plain = run_once(job, state)
    with apply_nodes(model, stages_of_stack(len(model.blocks)), nodes, on_call):
        return differences(plain, run_once(job, state))


@settings(max_examples=40, deadline=None)
@given(nodes=nested_nodes())
def test_any_nested_plan_is_bit_equal_with_batch_norm_dropout_and_in_place_operations(nodes: tuple[Node, ...]):
    assert gaps(normed_stack(NUM_BLOCKS), (*nodes, Keep(stage=NUM_BLOCKS + 1))) == {}


@settings(max_examples=25, deadline=None)
@given(nodes=nested_nodes(0, NUM_BLOCKS))
def test_every_block_runs_as_often_as_planned(nodes: tuple[Node, ...]):
    counts: Counter[str] = Counter()
    model = normed_stack(NUM_BLOCKS)
    gaps(model, (*nodes, Keep(stage=NUM_BLOCKS), Keep(stage=NUM_BLOCKS + 1)), lambda name: counts.update([name]))
    planned = {f"blocks.{i}": n for i, n in planned_calls(nodes).items() if n > 1}
    assert dict(counts) == planned


WHOLE = (Checkpoint(inside=(Keep(stage=0), Checkpoint(inside=(Keep(stage=1), Keep(stage=2))))),)
REST = (Keep(stage=3), Keep(stage=4))


def test_tuples_and_further_arguments_pass_through_a_run_of_blocks():
    torch.manual_seed(0)
    assert gaps(TupleStack([TupleBlock(16) for _ in range(3)]), WHOLE + REST) == {}


def test_a_block_whose_output_depends_on_a_buffer_it_changes_is_bit_equal():
    torch.manual_seed(0)
    assert gaps(Stack([Remembering(16) for _ in range(3)]), WHOLE + REST) == {}


def test_without_restoring_buffers_the_comparison_would_notice(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(State, "lay_buffers", lambda self: None)
    found = gaps(normed_stack(3), WHOLE + REST)
    assert any(name.startswith("buffer") for name in found)
    with pytest.raises(SecondRunDiffers, match=r"blocks.0 computes something else"):
        gaps(Stack([Remembering(16) for _ in range(3)]), WHOLE + REST)


def test_a_block_that_computes_something_else_the_second_time_is_noticed():
    torch.manual_seed(0)
    with pytest.raises(SecondRunDiffers, match=r"blocks.1 computes something else"):
        gaps(Stack([NormedBlock(16), Drifting(16), NormedBlock(16)]), WHOLE + REST)


def test_autocast_is_the_same_in_both_runs():
    model = normed_stack(3)
    job, state = job_for(model), RandomState.now()
    plain_run = job.run

    def run() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            plain_run()

    job.run = run
    plain = run_once(job, state)
    with apply_nodes(model, stages_of_stack(3), WHOLE + REST):
        assert differences(plain, run_once(job, state)) == {}


class WritesIntoInput(nn.Module):
    """Scales in place what it is given, which the block before it has returned."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(0.9)
        return 1.0 * torch.tanh(self.linear(x))  # the next block may write into a product


@pytest.mark.filterwarnings("ignore:memfit:RuntimeWarning")
@settings(max_examples=20, deadline=None)
@given(nodes=nested_nodes())
def test_blocks_that_write_into_their_input_do_it_once_under_any_nested_plan(nodes: tuple[Node, ...]):
    """A run that is made again within another begins with what the block was given, not with what that had become."""
    torch.manual_seed(0)
    blocks = [NormedBlock(16), *(WritesIntoInput(16) for _ in range(3)), NormedBlock(16)]
    assert gaps(Stack(blocks), nodes) == {}


class TwoWindows(nn.Module):
    """Returns one result twice: as it is, and as one row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = 1.0 * torch.tanh(self.linear(x))
        return x, x.view(-1)


class WritesIntoRow(nn.Module):
    """Changes one value of the row that it is given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, row: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        row[17:18].mul_(0.5)
        return torch.tanh(self.linear(row.view(x.shape))) * x


class OneResultTwice(Stack):
    """Its second block reads what its third writes into by another name."""

    gives_both = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result, row = self.blocks[0](x)
        read = self.blocks[1](result)
        return self.head(self.blocks[2](row, result if self.gives_both else read))


class ReadsOnly(nn.Module):
    """A block that makes what it saves of what it is given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.tanh(1.0 * x))


@pytest.mark.filterwarnings("ignore:memfit:RuntimeWarning")
@pytest.mark.parametrize("gives_both", [False, True])
@pytest.mark.parametrize(
    "nodes",
    [
        (Keep(stage=0), Checkpoint(inside=(Keep(stage=1),)), Keep(stage=2)),
        (Keep(stage=0), Checkpoint(inside=(Keep(stage=1), Keep(stage=2)))),
        (Keep(stage=0), Checkpoint(inside=(Checkpoint(inside=(Keep(stage=1),)), Keep(stage=2)))),
    ],
)
def test_what_is_written_into_by_another_name_is_as_it_was_for_runs_within(nodes: tuple[Node, ...], gives_both: bool):
    """One value is too few for the samples that are compared: a wrong one went unnoticed."""
    torch.manual_seed(0)
    model = OneResultTwice([TwoWindows(16), ReadsOnly(16), WritesIntoRow(16)])
    model.gives_both = gives_both
    assert gaps(model, (Checkpoint(inside=nodes), *REST)) == {}


class LastNegated(nn.Module):
    """Saves a tensor that torch has only marked as negated."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * torch._neg_view(x)  # pyright: ignore[reportPrivateImportUsage]


def test_a_tensor_that_is_only_marked_as_negated_is_sampled():
    torch.manual_seed(0)
    assert gaps(Stack([NormedBlock(16), LastNegated(16), NormedBlock(16)]), WHOLE + REST) == {}


def test_undoing_leaves_no_attribute_and_no_hook():
    model = normed_stack(3)
    before = [dict(module.__dict__) for module in model.modules()]
    apply_nodes(model, stages_of_stack(3), WHOLE + REST).undo()
    assert [module.__dict__.keys() for module in model.modules()] == [d.keys() for d in before]


def test_a_copy_and_a_pickle_of_a_planned_model_are_plain():
    model = normed_stack(3)
    keys = list(model.state_dict())
    with apply_nodes(model, stages_of_stack(3), WHOLE + REST):
        assert list(model.state_dict()) == keys
        copied = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save(model, file)
    file.seek(0)
    x = torch.randn(8, 16)
    for other in (copied, torch.load(file, weights_only=False)):
        state = torch.get_rng_state()
        ours = model(x)
        torch.set_rng_state(state)
        assert torch.equal(other(x), ours)
        assert not any({"forward", "_compiled_call_impl"} & m.__dict__.keys() for m in other.modules())
        assert all(a is not b for a, b in zip(other.modules(), model.modules(), strict=True))


def test_evaluation_without_gradients_is_the_same():
    model = normed_stack(3).eval()
    x = torch.randn(8, 16)
    with torch.no_grad():
        plain = model(x)
        with apply_nodes(model, stages_of_stack(3), WHOLE + REST):
            assert torch.equal(model(x), plain)


def test_a_parent_that_calls_its_blocks_in_another_way_than_planned_is_followed_and_said_once():
    class Changed(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x) * 2.0
            return self.head(x)

    model = Changed([nn.Linear(16, 16) for _ in range(3)])
    with pytest.warns(RuntimeWarning, match="blocks.1 is not called with what the block before it returned") as said:
        assert gaps(model, WHOLE + REST) == {}
    assert len(said) == 1


def test_a_plan_for_another_model_is_refused_and_nothing_is_changed():
    model = normed_stack(2)
    with pytest.raises(MemfitError, match="for another model"):
        apply_nodes(model, stages_of_stack(3), WHOLE + REST)
    assert not any(layers_of(module) for module in model.modules())
