"""Small values under fake tensors: equal to those of real torch, or listed as a guess. Never wrong in silence."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from memfit.predict.fake.recording import Recording  # noqa: E402
from memfit.predict.levels.guesses import Guesses  # noqa: E402

MAKERS: list[Callable[[], Any]] = [
    lambda: torch.tensor([0.5, -1.0, 2.0, 0.0]),
    lambda: torch.arange(6).reshape(2, 3),
    lambda: torch.linspace(0, 1, 4),
    lambda: torch.zeros(4),
    lambda: torch.ones(2, 3, dtype=torch.float64),
    lambda: torch.full((3,), 7),
    lambda: torch.eye(3),
    lambda: torch.empty(4),
    lambda: torch.rand(4),
    lambda: torch.randn(200),
    lambda: torch.tensor([True, False, True]),
    lambda: torch.tensor([1 + 2j, 3 - 1j]),
    lambda: torch.zeros(3, dtype=torch.bfloat16),
]
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "multiply": lambda a, b: a * 3,
    "round": lambda a, b: torch.round(a / 8) * 8,
    "compare": lambda a, b: a > 0,
    "any": lambda a, b: (a == 0).any(),
    "sum": lambda a, b: a.sum(),
    "to int": lambda a, b: a.int(),
    "to half": lambda a, b: a.to(torch.float16),
    "transpose": lambda a, b: a.t() if a.dim() <= 2 else a,
    "first": lambda a, b: a[0] if a.dim() else a,
    "every second": lambda a, b: a.flatten()[::2],
    "expand": lambda a, b: a.expand(2, *a.shape),
    "unique": lambda a, b: a.unique(),
    "nonzero": lambda a, b: a.nonzero(),
    "select": lambda a, b: a[a > 0],
    "sort": lambda a, b: a.flatten().sort()[0],
    "conj": lambda a, b: a.conj(),
    "imag": lambda a, b: torch.view_as_real(a),
    "matmul": lambda a, b: a @ b,
    "stack": lambda a, b: torch.stack([a, b]),
    "deep copy": lambda a, b: copy.deepcopy(a),
    "pickle": lambda a, b: pickle.loads(pickle.dumps(a)),
    "detach": lambda a, b: a.detach(),
    "copy in": lambda a, b: a.copy_(b),
    "fill": lambda a, b: a.fill_(2),
    "fill a view": lambda a, b: a.flatten()[1:].fill_(5),
    "fill the first": lambda a, b: a.view(-1)[:1].fill_(5),
    "fill the rest": lambda a, b: a.view(-1)[1:].copy_(b.flatten()[0]),
    "put": lambda a, b: a.view(-1).__setitem__(torch.tensor([0, 2]), b.flatten()[0]),
    "set first": lambda a, b: a.view(-1)[:1].add_(1),
    "zero": lambda a, b: a.zero_(),
    "random": lambda a, b: a.uniform_(),
    "add in place": lambda a, b: a.add_(b),
    "assign": lambda a, b: a.__setitem__(0, b.flatten()[0]),
    "out": lambda a, b: torch.add(a, 1, out=torch.empty(0, dtype=a.dtype)),
    "swap": lambda a, b: torch.utils.swap_tensors(a, b),
    "data": lambda a, b: setattr(a, "data", b.data),
    "resize": lambda a, b: a.resize_(5),
    "batch norm": lambda a, b: torch.nn.functional.batch_norm(torch.randn(8, 4), a, b, training=True),
    "cumsum": lambda a, b: a.cumsum(0),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "dropout": lambda a, b: torch.nn.functional.dropout(a),
    "isnan": lambda a, b: torch.isnan(a),
    "numpy": lambda a, b: a.numpy().__setitem__(0, 3),
}
Program = list[tuple[str, int, int]]


def play(makers: list[int], program: Program) -> tuple[list[Any], list[bool]]:
    """All tensors of a program, and which of its operations failed: those leave no result."""
    tensors = [MAKERS[index]() for index in makers]
    failed = []
    for name, left, right in program:
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = OPERATIONS[name](tensors[left % len(tensors)], tensors[right % len(tensors)])
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
            made = None
            failed.append(True)
        else:
            failed.append(False)
        if isinstance(made, torch.Tensor):
            tensors.append(made)
    return tensors, failed


def flat(values: Any) -> list[Any]:
    return [leaf for part in values for leaf in flat(part)] if isinstance(values, list) else [values]


def alike(left: Any, right: Any) -> bool:
    return all(
        a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b)) or a == pytest.approx(b, rel=1e-6)
        for a, b in zip(flat(left), flat(right), strict=True)
    )


@settings(max_examples=150, deadline=None)
@given(
    makers=st.lists(st.integers(0, len(MAKERS) - 1), min_size=2, max_size=3),
    program=st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 9), st.integers(0, 9)), max_size=8),
)
def test_a_value_is_that_of_real_torch_or_listed_as_a_guess(makers: list[int], program: Program):
    tensors, failed = play(makers, program)
    real = [(tuple(tensor.shape), tensor.tolist()) for tensor in tensors]
    recording = Recording()
    with recording.running():
        fake, failed_on_fake = play(makers, program)
        if failed_on_fake != failed:  # an operator failed on one side only: from there on the programs differ
            return
        if recording.shadow.answered:  # a size that depends on unknown values was guessed, and that is listed
            return
        for (shape, expected), tensor in zip(real, fake, strict=True):
            before = sum(recording.shadow.answered.values())
            values = tensor.tolist()
            if before == sum(recording.shadow.answered.values()):
                assert (shape, alike(expected, values)) == (tuple(tensor.shape), True), (expected, values)


def known(body: Callable[[], Any]) -> tuple[Any, list[str]]:
    recording = Recording()
    with recording.running():
        return body(), [item.kind for item in recording.shadow.assumptions()]


def test_layer_widths_computed_with_floats_are_true():
    def widths() -> list[int]:
        values = torch.arange(4) * 36.0 + 48
        return (torch.round(values / 8) * 8).int().unique().tolist()

    assert known(widths) == ([48, 80, 120, 160], [])


def test_a_change_of_a_view_changes_its_base():
    def body() -> list[float]:
        base = torch.zeros(4)
        base[1:3].add_(2.5)
        return base.tolist()

    assert known(body) == ([0.0, 2.5, 2.5, 0.0], [])


def test_memory_that_nobody_wrote_to_has_no_values():
    assert known(lambda: torch.empty(3, dtype=torch.long).sum().item())[1] == ["scalar answer"]


def test_a_buffer_that_was_filled_part_by_part_is_known_from_its_last_part_on():
    def body() -> tuple[bool, list[int], list[int]]:
        order = torch.tensor([2, 0, 1])
        buffer, inverse = torch.empty(4, dtype=torch.long), torch.empty_like(order)
        buffer[0] = -1
        buffer[1:] = order
        inverse[order] = torch.arange(3)
        return bool((buffer[1:] > buffer[:-1]).all()), buffer.tolist(), inverse.tolist()

    assert known(body) == ((False, [-1, 2, 0, 1], [1, 2, 0]), [])


@pytest.mark.parametrize("unknown", [lambda: 5, lambda: torch.empty(1).long()], ids=["missing", "unknown"])
def test_a_buffer_with_a_part_that_is_not_known_has_no_values(unknown: Callable[[], Any]):
    def body() -> None:
        buffer = torch.empty(4, dtype=torch.long)
        buffer[0] = unknown()
        buffer[2:] = torch.tensor([1, 2])
        buffer[1:2] = unknown() if isinstance(unknown(), torch.Tensor) else buffer[0]
        buffer.sum().item()

    assert known(body)[1] == ["scalar answer"]


def test_the_number_of_classes_is_that_of_the_labels_which_were_put_together():
    def body() -> int:
        labels = torch.eye(7)[torch.arange(9_000) % 7]
        return int(torch.cat([labels, labels[:500]]).argmax(dim=1).max()) + 1

    assert known(body) == (7, [])


def test_running_statistics_are_forgotten_when_a_batch_is_unknown():
    def body() -> None:
        norm = torch.nn.BatchNorm1d(4)
        norm(torch.randn(64, 4))
        norm.running_mean.sum().item()

    assert known(body)[1] == ["scalar answer"]


def test_a_random_draw_is_listed_when_it_is_read():
    values, kinds = known(lambda: sorted(torch.randperm(5).tolist()))
    assert (values, kinds) == ([0, 1, 2, 3, 4], ["assumed value"])


def test_unknown_numbers_are_taken_as_finite_and_that_is_listed():
    values, kinds = known(
        lambda: (bool(torch.isnan(torch.randn(99)).any()), bool(torch.isfinite(torch.randn(99)).all()))
    )
    assert values == (False, True)
    assert set(kinds) == {"assumed value"}


def test_the_only_element_is_chosen_by_a_mask():
    """torch keeps a tensor made of one number as a constant, and runs operators on constants for real."""

    def body() -> list[list[int]]:
        labels, boxes = torch.tensor([3]), torch.tensor([[1.0, 2.0]])
        keep = boxes[:, 1] > boxes[:, 0]
        return [labels[keep].tolist(), labels[~keep].tolist(), list(boxes[keep].shape)]

    assert known(body) == ([[3], [], [1, 2]], [])


def test_unknown_matrices_are_taken_to_be_factorised_and_that_is_listed():
    def body() -> tuple[list[int], bool]:
        matrix = torch.eye(3) + torch.randn(200, 3).t() @ torch.randn(200, 3)
        made = torch.linalg.cholesky_ex(matrix), torch.linalg.inv_ex(matrix), torch.linalg.lu_factor_ex(matrix)
        return [int(one.info) for one in made], bool(torch.any(made[0].info))

    values, kinds = known(body)
    assert values == ([0, 0, 0], False)
    assert set(kinds) == {"assumed value"}


def test_a_numpy_array_shares_its_memory_with_the_tensor():
    def body() -> tuple[float, float]:
        tensor = torch.zeros(2)
        array = tensor.numpy()
        array[0] = 3
        tensor[1] = 4
        return tensor.tolist()[0], float(array[1])

    assert known(body)[0] == (3.0, 4.0)


def test_a_deep_copied_model_moves_and_keeps_its_own_values():
    def body() -> tuple[bool, int, int]:
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        teacher = copy.deepcopy(model).to(torch.float64)
        model(torch.randn(4, 3))
        counts = [int(each[1].num_batches_tracked) for each in (model, teacher)]
        return isinstance(teacher[0].weight, torch.nn.Parameter), counts[0], counts[1]

    assert known(body)[0] == (True, 1, 0)


def test_an_answer_for_a_line_is_used_and_an_unused_one_is_named():
    recording = Recording(answers={"test_known_values.py:9999": 3.0, "*": 0.25})
    with recording.running():
        assert torch.randn(99).sum().item() == 0.25
    assert any("test_known_values.py:9999" in item.text for item in recording.shadow.assumptions())


def test_the_guesses_nearest_to_a_line_come_first():
    guesses = Guesses()
    for line in ("a.py:1", "b.py:90", "b.py:10", "b.py:14"):
        guesses.add(line, "something")
    assert [guess.line for guess in guesses.nearest("b.py:12")] == ["b.py:14", "b.py:10", "b.py:90"]
    assert "--answer b.py:14=VALUE" in guesses.nearest("b.py:12")[0].with_flag()


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_what_a_storage_holds_is_known_or_guessed():
    def values() -> object:
        known_one = torch.tensor([[1, 2], [3, 4]])
        return [known_one.storage().tolist(), known_one[1].data.storage()[3], list(known_one.storage())]

    assert known(values)[0] == [[1, 2, 3, 4], 4, [1, 2, 3, 4]]
    assert known(lambda: torch.relu(torch.randn(64, 64)).sum().storage()[0])[0] == 1.0
