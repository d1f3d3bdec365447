"""Is the chain found in models of every build, and is nothing joined that must stay apart?"""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_fit_models import (
    Logging,
    NormedBlock,
    Skipping,
    Stack,
    TupleBlock,
    TupleStack,
    job_for,
    normed_stack,
)  # fmt: skip

from memfit.errors import UsageError
from memfit.model.module_calls import watch_calls
from memfit.model.stages import Layout, find_stages
from memfit.model.step import job_of
from memfit.profile.plain_step import profile_plain


def layout_of(model: nn.Module) -> Layout:
    return find_stages(watch_calls(job_for(model)))


def joined(layout: Layout) -> dict[str, bool]:
    return {stage.name: stage.joins_next for stage in layout.modules}


def test_blocks_of_a_module_list_are_stages_in_the_order_of_their_calls():
    layout = layout_of(normed_stack(4))
    assert [s.name for s in layout.modules] == ["blocks.0", "blocks.1", "blocks.2", "blocks.3", "head"]
    assert joined(layout) == {"blocks.0": True, "blocks.1": True, "blocks.2": True, "blocks.3": True, "head": False}
    assert layout.stages[-1].is_glue


def test_a_sequential_within_a_sequential_is_opened():
    model = nn.Sequential(
        nn.Sequential(nn.Linear(16, 32), nn.Tanh()), nn.Sequential(nn.Linear(32, 16), nn.Linear(16, 4))
    )
    assert [s.name for s in layout_of(model).modules] == ["0.0", "0.1", "1.0", "1.1"]


def test_a_wrapper_around_the_blocks_is_opened_and_its_blocks_are_not():
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = normed_stack(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x)

    names = [s.name for s in layout_of(Wrapper()).modules]
    assert names == ["body.blocks.0", "body.blocks.1", "body.blocks.2", "body.head"]


def test_blocks_that_return_tuples_and_share_an_argument_are_joined():
    layout = layout_of(TupleStack([TupleBlock(16) for _ in range(3)]))
    assert joined(layout)["blocks.0"]
    assert joined(layout)["blocks.1"]


def test_an_output_with_another_reader_is_not_crossed_and_the_user_is_told():
    layout = layout_of(Skipping([nn.Linear(16, 16) for _ in range(4)]))
    assert not any(joined(layout)[f"blocks.{i}"] for i in range(3))
    assert any("each of them is decided for itself" in note for note in layout.notes)


def test_a_reader_outside_of_autograd_counts_as_a_reader():
    layout = layout_of(Logging([nn.Linear(16, 16) for _ in range(4)]))
    assert [joined(layout)[f"blocks.{i}"] for i in range(3)] == [True, False, True]


def test_a_module_that_is_called_twice_is_kept():
    block = NormedBlock(16)
    layout = layout_of(Stack([block, NormedBlock(16), block]))
    assert [s.recomputable for s in layout.modules if s.calls[0].module is block] == [False, False]
    assert any("called 2 times" in note for note in layout.notes)


def test_a_module_that_writes_into_its_input_or_returns_a_view_is_fused_with_the_one_before():
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(16, 4))
    assert [s.name for s in layout_of(model).modules] == ["0 + 1 + 2", "3"]


def test_a_first_module_that_writes_into_its_input_is_kept():
    class Writes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.act(self.linear(x) * 1.0)

        def __init__(self) -> None:
            super().__init__()
            self.linear, self.act = nn.Linear(16, 4), nn.ReLU(inplace=True)

    layout = layout_of(Writes())
    assert {s.name: s.recomputable for s in layout.modules} == {"linear": True, "act": False}


class StateBlock(nn.Module):
    """A recurrent block: is given a state and returns the next one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tanh(torch.tanh(self.linear(x)) + state), x.detach().mean(0)


class StatesInACache(Stack):
    """Writes the next state of every block to where the block was given the last one from."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = torch.zeros(len(self.blocks), x.shape[1])
        for block, state in zip(self.blocks, states, strict=True):
            x, following = block(x, state)
            state.copy_(following)
        return self.head(x)


def test_blocks_whose_arguments_are_written_into_after_their_calls_are_kept_and_the_user_is_told():
    torch.manual_seed(0)
    model = StatesInACache([StateBlock(16) for _ in range(3)])
    layout = layout_of(model)
    assert [s.recomputable for s in layout.modules if s.name.startswith("blocks")] == [False] * 3
    assert any("what blocks.1 is given is written into after its call" in note for note in layout.notes)
    profile = profile_plain(job_for(model, rows=512))
    assert [s.recomputable for s in profile.chain.stages if s.name.startswith("blocks")] == [False] * 3


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_a_module_with_a_hook_of_the_user_is_not_joined(kind: str):
    model = normed_stack(3)
    getattr(model.blocks[1], f"register_{kind}_hook")(lambda *_: None)
    assert joined(layout_of(model)) == {"blocks.0": False, "blocks.1": False, "blocks.2": True, "head": False}


def test_a_model_without_modules_to_run_again_is_refused():
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(16, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    with pytest.raises(UsageError, match="no chain of blocks"):
        layout_of(Bare())


class Shelf:
    """Holds tensors, as a cache of keys and values does."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []


class NarrowShelf:
    """One to which no weak reference can be made."""

    __slots__ = ("tensors",)

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []


class GivingShelves(nn.Module):
    """Gives all of its blocks one object, or each of them one of its own."""

    def __init__(self, kind: type[Shelf | NarrowShelf], *, shares: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(GivenShelf() for _ in range(3))
        self.kind, self.shares = kind, shares
        self.seen: list[weakref.ref[Shelf]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shelf = self.kind()
        for block in self.blocks:
            x = block(x, shelf)
            shelf = shelf if self.shares else self.kind()
            if isinstance(shelf, Shelf):
                self.seen.append(weakref.ref(shelf))
        return x


class GivenShelf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, shelf: Shelf) -> torch.Tensor:
        shelf.tensors.append(x)
        return self.inner(x)


@pytest.mark.parametrize("kind", [Shelf, NarrowShelf])
@pytest.mark.parametrize("shares", [True, False])
def test_blocks_that_are_given_one_object_are_joined_and_those_with_several_are_not(
    kind: type[Shelf | NarrowShelf], shares: bool
):
    layout = layout_of(GivingShelves(kind, shares=shares))
    assert joined(layout) == {"blocks.0": shares, "blocks.1": shares, "blocks.2": False}


def test_what_was_watched_holds_no_object_that_the_blocks_were_given():
    model = GivingShelves(Shelf, shares=True)
    seen = model.seen
    model.__dict__["seen"] = _OutOfSight(seen)
    tree = watch_calls(job_for(model))
    assert tree.root.children
    assert seen
    assert not any(reference() for reference in seen)


class _OutOfSight:
    """A list that putting the model back does not reach."""

    def __init__(self, content: list[weakref.ref[Shelf]]) -> None:
        self.append = content.append


def test_watching_leaves_no_trace():
    model = normed_stack(3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    job = job_for(model)
    state = torch.get_rng_state()
    watch_calls(job)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


class TwoStacks(nn.Module):
    """As an encoder and a decoder: two stacks of the same size, neither of which is most of the model."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder, self.head = encoder, decoder, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x) + self.decoder(x))


def test_two_stacks_of_the_same_size_are_both_opened():
    names = [stage.name for stage in layout_of(TwoStacks(normed_stack(3), normed_stack(3))).modules]
    assert [name for name in names if "blocks" in name] == [
        f"{part}.blocks.{i}" for part in ("encoder", "decoder") for i in range(3)
    ]


class Experts(Stack):
    """Blocks that all read the same input: no stack."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(sum((block(x) for block in self.blocks), torch.zeros(())))


def test_a_list_of_blocks_that_do_not_follow_one_another_is_no_stack():
    model = TwoStacks(Experts([NormedBlock(16) for _ in range(3)]), normed_stack(6))
    names = [stage.name for stage in layout_of(model).modules]
    assert "encoder" in names
    assert "decoder.blocks.0" in names


def test_blocks_that_torchs_checkpoint_recomputes_are_not_joined():
    class Checkpointed(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)  # type: ignore[assignment]
            return self.head(x)

    assert not any(joined(layout_of(Checkpointed([nn.Linear(16, 16) for _ in range(3)]))).values())


class Routed(nn.Module):
    """Sends some rows to one expert and the rest to another, by a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(16, 1), nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        here, out = self.gate(x)[:, 0] > 0, torch.zeros_like(x)
        for expert, mask in zip(self.experts, (here, ~here), strict=True):
            out = out.masked_scatter(mask[:, None], expert(x[mask]))
        return x + out


def test_it_is_said_where_sizes_depend_on_values():
    routed, plain = nn.Sequential(*(Routed() for _ in range(3))), nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)))
    assert any("sizes depend on values (aten::index in 0" in note for note in layout_of(routed).notes)
    assert not any("sizes depend" in note for note in layout_of(plain).notes)


class Skips(nn.Linear):
    """Leaves its layer out, by chance."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input if torch.rand(()) < 0.5 else torch.tanh(super().forward(input))


def test_it_is_said_where_values_may_decide_what_a_forward_does():
    skips = layout_of(nn.Sequential(*(Skips(16, 16) for _ in range(3))))
    assert any("Python reads values in the forward (aten::_local_scalar_dense in 0)" in note for note in skips.notes)
    assert not skips.is_sized_by_values
    assert not any("Python reads" in note for note in layout_of(nn.Sequential(nn.Linear(16, 16), nn.ReLU())).notes)


def test_a_step_whose_sizes_depend_on_values_leaves_room_for_others():
    torch.manual_seed(0)
    reserved = []
    for model in (nn.Sequential(*(Routed() for _ in range(3))), nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)))):
        job = job_of(model, torch.randn(64, 16), lambda out: out.square().mean(), None)
        profile = profile_plain(job)
        profile_plain(job)  # a second profile of a job does not add to the first
        reserved.append(job.reserved_bytes / (profile.plain_record_peak_bytes or 1))
    assert 0.015 < reserved[0] <= 0.02
    assert reserved[1] == 0
