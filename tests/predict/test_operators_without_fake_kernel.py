"""Do operators that fake tensors do not know, or whose result is a value, answer and cost what they cost for real?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import memfit  # noqa: E402
from memfit.job.training import Training  # noqa: E402
from memfit.predict.fake.choose_route import can_fake_cuda  # noqa: E402
from memfit.predict.fake.probe import signatures as signatures_of_calls  # noqa: E402
from memfit.predict.fake.probe.client import result_of  # noqa: E402
from memfit.predict.fake.probe.process import probe  # noqa: E402
from memfit.predict.fake.probe.real_reference import real_tensor_peak  # noqa: E402
from memfit.predict.fake.probe.signatures import Signatures  # noqa: E402
from memfit.predict.fake.recording import Recording, Trace, trace_training  # noqa: E402
from memfit.predict.levels.liveness import peak_of  # noqa: E402
from memfit.predict.observe import known_values  # noqa: E402
from memfit.predict.observe.storage_log import timeline_of  # noqa: E402

F = torch.nn.functional


def job(body: Callable[[Any], Any]) -> Callable[[], Training]:
    """A job whose step does `body(linear layer)`, then an update."""

    def build() -> Training:
        layer = torch.nn.Linear(40, 30)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            body(layer)
            optimizer.step()

        return Training(step=step)

    return build


def traced(body: Callable[[Any], Any], **options: Any) -> Trace:
    return trace_training(job(body), recording=Recording(**options))


def predicted_and_real(body: Callable[[Any], Any]) -> tuple[int, int]:
    """The tensor peaks of both, with probes."""
    signatures = Signatures()
    trace = traced(body, sign=signatures.sign)
    results = {number: result_of(probe(text)) for text, number in signatures.texts.items()}
    predicted_bytes = peak_of(timeline_of(trace.log, trace.root_names, results), "cpu")[0]
    return predicted_bytes, real_tensor_peak(job(body))


@pytest.mark.parametrize("truth", [True, False])
def test_whether_unknown_tensors_are_close_is_answered_and_listed(truth: bool):
    answers: list[bool] = []
    trace = traced(lambda layer: answers.append(torch.allclose(layer.weight, layer.weight + 1)), truth=truth)
    assert answers[0] is truth
    assert [(item.kind, item.line.partition(":")[0]) for item in trace.assumptions] == [
        ("scalar answer", "test_operators_without_fake_kernel.py")
    ]


def test_whether_known_tensors_are_close_is_no_guess():
    answers: list[bool] = []
    known = torch.tensor([1.0, 2.0])
    trace = traced(lambda layer: answers.extend(torch.allclose(known, known + delta) for delta in (0.0, 1.0)))
    assert answers[:2] == [True, False]
    assert trace.assumptions == []


def test_what_a_comparison_of_all_elements_allocates_is_predicted_to_the_byte():
    def body(layer: Any) -> None:
        large = torch.randn(300, 300)
        torch.allclose(large, large + 1)
        layer(torch.randn(2, 40)).sum().backward()

    predicted_bytes, real_bytes = predicted_and_real(body)
    assert predicted_bytes == real_bytes


def test_counts_of_unknown_numbers_have_their_least_length():
    sizes: list[tuple[int, ...]] = []

    def body(layer: Any) -> None:
        classes = layer(torch.randn(8, 40)).argmax(1)
        sizes.append(tuple(torch.bincount(classes, minlength=30).shape))

    trace = traced(body)
    assert sizes[0] == (30,)
    assert {item.kind for item in trace.assumptions} == {"upper bound"}


def test_unknown_rows_are_all_different():
    sizes: list[tuple[int, ...]] = []
    trace = traced(lambda layer: sizes.append(tuple(torch.unique(layer(torch.randn(8, 40)), dim=0).shape)))
    assert sizes[0] == (8, 30)
    assert {item.kind for item in trace.assumptions} == {"upper bound"}


SIZED = """
import torch
layer = torch.nn.Linear(4, 6)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(3):
    out = layer(torch.randn(5, 4))
    how_often = out.argmax(1)
    rows = torch.repeat_interleave(out, how_often, dim=0)
    assert rows.shape[0] == 7
    rows.sum().backward()
    optimizer.step()
"""


def test_a_size_without_a_bound_is_asked_for_with_the_option_that_gives_it(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(SIZED)
    with pytest.raises(memfit.MemfitError) as failed:
        memfit.predict_peak(str(script))
    assert "--answer train.py:8=SIZE" in str(failed.value)
    prediction = memfit.predict_peak(str(script), answer=("train.py:8=7",))
    assert any("taken as 7, as set" in item.text for item in prediction.assumptions)


@pytest.mark.parametrize(
    "body",
    [
        lambda x: torch.distributions.Beta(x.exp(), x.exp()).rsample(),
        lambda x: torch.distributions.Dirichlet(x.exp()).rsample(),
        lambda x: torch.histogram(x.detach(), 10).hist + x.sum(),
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
    ],
    ids=["beta", "dirichlet", "histogram", "fake quantization"],
)
def test_an_operator_of_torch_without_a_fake_kernel_is_predicted_to_the_byte(body: Callable[[Any], Any]):
    def step(layer: Any) -> None:
        body(layer(torch.randn(200, 40))).sum().backward()

    predicted_bytes, real_bytes = predicted_and_real(step)
    assert predicted_bytes == real_bytes
    assert any("has no fake kernel" in item.text for item in traced(step).assumptions)


def speech(layer: Any) -> None:
    """A step of a recogniser: probabilities of letters at 100 places, and targets of 9 letters."""
    device = layer.weight.device
    scores = layer(torch.randn(8, 100, 40, device=device)).log_softmax(-1).transpose(0, 1)
    targets = torch.randint(1, 30, (8, 20), device=device)
    F.ctc_loss(scores, targets, torch.full((8,), 100), torch.full((8,), 9), zero_infinity=True).backward()


def test_a_ctc_loss_is_predicted_to_the_byte():
    predicted_bytes, real_bytes = predicted_and_real(speech)
    assert predicted_bytes == real_bytes
    assert not [item for item in traced(speech).assumptions if item.kind == "upper bound"]


def test_unknown_lengths_of_targets_are_the_longest():
    shapes: list[int] = []

    def body(layer: Any) -> None:
        scores = layer(torch.randn(8, 100, 40)).log_softmax(-1).transpose(0, 1)
        lengths = (scores.mean((0, 2)) > 0).long() + 5
        loss = F.ctc_loss(scores, torch.randint(1, 30, (8, 20)), torch.full((8,), 100), lengths, reduction="none")
        shapes.append(loss.numel())

    trace = traced(body)
    assert shapes[0] == 8
    assert [item.text for item in trace.assumptions if item.kind == "upper bound"] == [
        "the lengths of the targets of a CTC loss are not known; each was taken as 20"
    ]


CUDA = """
import torch
layer = torch.nn.Linear(40, 30).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(3):
    scores = layer(torch.randn(8, 100, 40, device="cuda")).log_softmax(-1).transpose(0, 1)
    targets, lengths = torch.randint(1, 30, (8, 20), device="cuda"), torch.full((8,), 9)
    torch.nn.functional.ctc_loss(scores, targets, torch.full((8,), 100), lengths).backward()
    optimizer.step()
"""


@pytest.mark.skipif(bool(can_fake_cuda()), reason="fake CUDA tensors do not work with this build of torch")
def test_lengths_on_the_host_do_for_a_loss_on_a_gpu(tmp_path: Path):
    (tmp_path / "train.py").write_text(CUDA)
    prediction = memfit.predict_peak(str(tmp_path / "train.py"), device="cuda:a100-40gb", engine="fake")
    assert prediction.num_steps == 3
    assert prediction.timeline is not None
    table_bytes = 8 * 100 * (2 * 9 + 1) * 4
    spans = [span for span in prediction.timeline.spans if span.device.startswith("cuda")]
    assert {span.category for span in spans if span.num_bytes == table_bytes} == {"activation", "workspace"}


def test_the_best_boxes_are_at_most_all_of_them():
    library = torch.library.Library("torchvision", "FRAGMENT")
    if not hasattr(torch.ops.torchvision, "nms"):  # torchvision's own, where it is not installed
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

        def fake(boxes: Any, scores: Any, threshold: float) -> Any:
            return boxes.new_empty((torch.library.get_ctx().new_dynamic_size(),), dtype=torch.int64)

        torch.library.register_fake("torchvision::nms", fake, lib=library)
    sizes: list[int] = []

    def body(layer: Any) -> None:
        boxes = layer(torch.randn(50, 40))[:, :4].detach()
        sizes.append(len(torch.ops.torchvision.nms(boxes, boxes[:, 0].contiguous(), 0.5)))

    trace = traced(body)
    assert sizes[0] == 50
    assert {item.kind for item in trace.assumptions} == {"upper bound", "not seen"}


def test_a_mask_and_not_what_it_selects_from_bounds_a_selection():
    """A diagonal matrix has few elements that differ from zero; a mask may choose all of them."""

    def select(layer: Any) -> None:
        table = layer(torch.ones(300, 40)) @ torch.ones(30, 300)
        chosen = torch.masked_select(torch.diag(table.diagonal()), table > -1e9)
        ((chosen * 2 + 1).square().sum() + table.mean()).backward()

    predicted, real = predicted_and_real(select)
    assert predicted == pytest.approx(real, abs=64)


@pytest.mark.parametrize("expanded", [True, False])
def test_the_gradient_of_what_a_mask_selects_takes_the_places_of_its_elements(expanded: bool):
    """It is written in place; on a subclass of tensors torch makes another one."""
    mask = torch.arange(64 * 16).reshape(64, 16, 1) % 5 > 0

    def pick(layer: Any) -> None:
        hidden = layer(torch.ones(64, 16, 40))
        wide = mask.expand_as(hidden)
        hidden[wide if expanded else wide.contiguous()].square().mean().backward()

    predicted, real = predicted_and_real(pick)
    assert predicted == real


def test_as_many_elements_are_written_as_the_user_says_that_a_mask_selects(tmp_path: Path):
    script = tmp_path / "masked.py"
    script.write_text(
        "import torch\nlayer = torch.nn.Linear(40, 30)\noptimizer = torch.optim.SGD(layer.parameters(), 0.1)\n"
        "for _ in range(3):\n    hidden = layer(torch.randn(64, 40))\n"
        "    hidden[hidden.sum(1) > 0].square().mean().backward()\n    optimizer.step()\n"
    )
    found = memfit.predict_peak(str(script), answer=(f"{script.name}:6=9",))
    assert not any("not probed" in each.text for each in found.assumptions)


def test_a_mask_that_is_expanded_over_the_features_is_probed():
    """As where the tokens of a batch that are no padding are picked: `hidden[mask.unsqueeze(-1).expand_as(hidden)]`."""
    mask = torch.arange(64 * 16).reshape(64, 16) % 5 > 0

    def pick(layer: Any) -> None:
        hidden = layer(torch.ones(64, 16, 40))
        hidden[mask.unsqueeze(-1).expand_as(hidden)].view(-1, 30).square().mean().backward()

    signatures = Signatures()
    traced(pick, sign=signatures.sign)
    masked = [text for text in signatures.texts if text.startswith('["aten.index.')]
    assert masked
    assert all(probe(text)["inside_bytes"] > 0 for text in masked)
    predicted, real = predicted_and_real(pick)
    assert predicted == real


@pytest.mark.parametrize(("num_sparse", "rows"), [(1, 50), (2, 50)])
def test_each_element_of_a_diagonal_may_lie_in_a_row_of_its_own(num_sparse: int, rows: int):
    counts: list[int] = []

    def count(layer: Any) -> None:
        entries = torch.diag(layer(torch.ones(50, 40))[:, 0]).to_sparse(num_sparse)
        counts.append(entries._nnz())
        entries.values().sum().backward()

    traced(count)
    assert counts
    assert set(counts) == {rows}


def test_one_element_written_under_several_names_fills_no_buffer():
    asked: list[bool] = []

    def fill(layer: Any) -> None:
        buffer = torch.empty(4, dtype=torch.long)
        buffer.as_strided((4,), (0,)).fill_(7)
        asked.append(known_values.shadow_of(buffer) is None)
        layer(torch.ones(2, 40)).sum().backward()

    traced(fill)
    assert asked
    assert all(asked)


def test_different_entries_of_a_sparse_matrix_are_counted_alike_for_small_and_huge_shapes():
    places = torch.randint(0, 9, (3, 500), generator=torch.Generator().manual_seed(1))
    expected = len({tuple(column) for column in places.t().tolist()})
    assert signatures_of_calls._num_different(places, [9, 9, 9, 4]) == expected
    assert signatures_of_calls._num_different(places, [2**40, 2**40, 9]) == expected


SPARSE_WORDS = """
import torch
words = torch.nn.Embedding(1000, 64, sparse=True).to(DEVICE)
layer = torch.nn.Linear(64, 8).to(DEVICE)
optimizers = torch.optim.SparseAdam(words.parameters()), torch.optim.Adam(layer.parameters())
for step in range(4):
    for optimizer in optimizers:
        optimizer.zero_grad()
    layer(words(torch.arange(200, device=DEVICE))).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
"""


def test_sparse_gradients_of_words_are_followed_on_a_gpu_as_on_the_cpu(tmp_path: Path):
    script = tmp_path / "train.py"
    peaks: list[float] = []
    for name, device in (("cpu", "cpu"), ("cuda", "cuda:a100-40gb")):
        script.write_text(SPARSE_WORDS.replace("DEVICE", repr(name)))
        prediction = memfit.predict_peak(str(script), device=device, engine="fake")
        level = prediction.level("tensors")
        assert level is not None
        assert any("sparse tensors take inside" in item.text for item in prediction.assumptions)
        peaks.append(level.value or 0)
    assert abs(peaks[1] - peaks[0] - 2 * 8519680) < 2**18
