"""What happens when the job asks a fake tensor for values?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from memfit.job.training import Training  # noqa: E402
from memfit.predict.fake.recording import Recording, Trace, trace_training  # noqa: E402
from memfit.predict.levels.error_band import earned  # noqa: E402
from memfit.predict.levels.guesses import CHECKED  # noqa: E402


def run(body: Callable[[Any], Any], **options: Any) -> Trace:
    """Trace one step that does `body(linear layer)` and an update."""

    def build() -> Training:
        layer = torch.nn.Linear(6, 6)
        optimizer = torch.optim.SGD(layer.parameters())

        def step() -> None:
            body(layer)
            optimizer.step()

        return Training(step=step)

    return trace_training(build, recording=Recording(**options))


def kinds(trace: Trace) -> set[str]:
    return {item.kind for item in trace.assumptions}


def test_integers_keep_their_values_through_operators():
    seen: list[Any] = []

    def body(layer: Any) -> None:
        lengths = torch.tensor([3, 1, 2])
        mask = torch.arange(4)[None, :] < lengths[:, None]
        seen.append((int(mask.sum()), lengths.max().item(), mask.tolist()[1], mask.nonzero().shape[0]))

    trace = run(body)
    assert seen[0] == (6, 3, [True, False, False, False], 6)
    assert trace.assumptions == []


def test_rows_chosen_by_drawn_numbers_are_no_assumption_and_by_a_drawn_mask_are_one():
    def by_number(layer: Any) -> None:
        layer(torch.randn(8, 6))[torch.randint(8, (4,))].sum().backward()

    def by_mask(layer: Any) -> None:
        layer(torch.randn(8, 6))[torch.rand(8) < 0.5].sum().backward()

    assert kinds(run(by_number)) == set()
    assert kinds(run(by_mask)) == {"assumed value"}


@pytest.mark.parametrize("written", [False, True])
def test_a_matrix_made_of_sparse_entries_has_no_more_of_them_until_somebody_writes(written: bool):
    sizes: list[tuple[int, ...]] = []

    def body(layer: Any) -> None:
        weights = layer(torch.ones(6)).repeat(5)
        places = torch.arange(30).repeat(2, 1)
        dense = torch.sparse_coo_tensor(places, weights.detach(), (200, 200), check_invariants=False).to_dense()
        dense = dense / dense.sum(1, keepdim=True).sqrt().float()
        if written:
            dense.add_(1.0)
        sizes.append((len(dense.nonzero()), len(dense[dense >= 1e-9]), len(dense[dense >= -1.0])))

    assert kinds(run(body)) >= {"upper bound"}
    assert sizes[0] == ((40000, 40000, 40000) if written else (30, 30, 40000))


def test_a_boolean_mask_that_is_known_gives_the_true_size():
    sizes: list[int] = []

    def body(layer: Any) -> None:
        mask = torch.tensor([True, False, True])
        sizes.append(layer(torch.randn(3, 6))[mask].shape[0])

    assert kinds(run(body)) == set()
    assert sizes[0] == 2


def test_an_unknown_mask_takes_the_largest_size_and_says_so():
    sizes: list[int] = []

    def body(layer: Any) -> None:
        out = layer(torch.randn(5, 6))
        sizes.append(out[out > 0].numel())

    trace = run(body)
    assert sizes[0] == 30
    assert kinds(trace) == {"upper bound"}
    assert trace.assumptions[0].line.startswith("test_trace_questions.py:")


@pytest.mark.parametrize("truth", [True, False])
def test_an_unknown_boolean_is_answered_as_asked_for(truth: bool):
    answers: list[bool] = []
    trace = run(lambda layer: answers.append(bool((layer(torch.randn(2, 6)) > 0).any())), truth=truth)
    assert answers[0] is truth
    assert kinds(trace) == {"scalar answer"}


def test_a_loss_can_be_printed_and_is_one():
    printed: list[str] = []
    trace = run(lambda layer: printed.append(f"{layer(torch.randn(2, 6)).mean():.2f}"))
    assert printed[0] == "1.00"
    assert trace.assumptions[0].count == 2


def test_an_integer_written_with_unknown_values_is_unknown_afterwards():
    def body(layer: Any) -> None:
        counts = torch.zeros(6, dtype=torch.long)
        counts[:] = layer(torch.randn(2, 6)).argmax(0)
        counts.sum().item()

    assert kinds(run(body)) == {"scalar answer"}


def test_a_model_can_change_its_type_after_its_optimizer_was_made():
    def build() -> Training:
        layer = torch.nn.Linear(4, 4)
        optimizer = torch.optim.Adam(layer.parameters())
        layer.to(torch.float64)
        return Training(
            model=layer,
            optimizer=optimizer,
            loss=lambda out, _: out.sum(),
            batch=(torch.ones(2, 4, dtype=torch.float64), None),
        )

    trace = trace_training(build, recording=Recording())
    states = [b for b in trace.log.births if b.category == "optimizer state" and b.num_bytes == 4 * 4 * 8]
    assert len(states) == 2


def test_no_operator_runs_for_real_unless_allowed():
    library = torch.library.Library("memfit_test", "DEF")
    library.define("only_real(Tensor x) -> Tensor")
    ran: list[int] = []
    library.impl("only_real", lambda x: (ran.append(1), x.clone())[1], "CPU")

    def body(layer: Any) -> None:
        torch.ops.memfit_test.only_real(torch.randn(3))

    with pytest.raises(Exception, match="only_real"):
        run(body)
    assert ran == []


def test_a_library_that_looks_for_fake_tensors_sees_them_again_after_the_trace():
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.utils import import_utils

    sees, within = import_utils.is_fake_tensor, []
    run(lambda layer: (layer(torch.ones(2, 6)).sum().backward(), within.append(import_utils.is_fake_tensor)))
    assert within[-1] is not sees
    assert import_utils.is_fake_tensor is sees


def test_a_few_unknown_numbers_equal_no_given_one():
    answers: list[bool] = []

    def body(layer: Any) -> None:
        std = layer(torch.randn(50, 6)).std(0)
        answers.extend([bool((std == 0).any()), bool((std != 1.0).all()), bool(std[0] == 0.5)])

    trace = run(body)
    assert answers[:3] == [False, True, False]
    assert {(item.kind, item.text.partition(": ")[2]) for item in trace.assumptions} == {
        ("assumed value", "a number that is not known equals no given one")
    }


def test_many_unknown_numbers_are_still_selected_at_their_most():
    sizes: list[int] = []

    def body(layer: Any) -> None:
        out = layer(torch.randn(50, 6))
        sizes.append(out[out == 0].numel())

    assert kinds(run(body)) == {"upper bound"}
    assert sizes[0] == 300


def test_a_check_with_an_error_behind_it_passes_and_leaves_the_error_band():
    def body(layer: Any) -> None:
        mean, variance = layer(torch.randn(4, 6)), layer(torch.randn(4, 6)).exp()
        torch.nn.functional.gaussian_nll_loss(mean, mean.detach(), variance).backward()
        if not (variance > 0).all():
            raise ValueError
        if variance.sum().item() > 0:
            raise ValueError

    trace = run(body)
    assert all(item.text.startswith(CHECKED) for item in trace.assumptions), trace.assumptions
    assert len(trace.assumptions) == 3
    assert earned("within 1 %", trace.assumptions) == "within 1 %"


@pytest.mark.parametrize("needs_gradient", [True, False])
def test_a_parameter_made_of_one_number_is_moved_and_keeps_it(needs_gradient: bool):
    found: list[float] = []

    def body(layer: Any) -> None:
        layer.scale = torch.nn.Parameter(torch.tensor(0.25), requires_grad=needs_gradient)
        layer.float().to("cpu").double()
        found.append(layer.scale.item())
        (layer(torch.randn(2, 6, dtype=torch.float64)) * layer.scale).sum().backward()
        layer.float()

    trace = run(body)
    assert found == [0.25, 0.25]
    assert trace.assumptions == []
