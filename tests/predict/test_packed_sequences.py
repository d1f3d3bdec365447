"""Packed sequences on fake CPU tensors, against the allocator's own log of a real run; and laws."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from memfit.job.training import Training  # noqa: E402
from memfit.predict.fake.probe.client import result_of  # noqa: E402
from memfit.predict.fake.probe.process import probe  # noqa: E402
from memfit.predict.fake.probe.real_reference import real_tensor_peak  # noqa: E402
from memfit.predict.fake.probe.signatures import Signatures  # noqa: E402
from memfit.predict.fake.recording import Recording, trace_training  # noqa: E402
from memfit.predict.gpu_rules.packing import blocks_of, copied_bytes, in_one_piece  # noqa: E402
from memfit.predict.levels.liveness import peak_of  # noqa: E402
from memfit.predict.observe.storage_log import timeline_of  # noqa: E402

PACKED = torch.nn.utils.rnn
LENGTHS = [30, 30, 17, 9, 2, 1]


def predicted_peak(build: Any) -> int:
    signatures = Signatures()
    trace = trace_training(build, recording=Recording(signatures.sign))
    results = {number: result_of(probe(text)) for text, number in signatures.texts.items()}
    return peak_of(timeline_of(trace.log, trace.root_names, results), "cpu")[0]


def job(kind: str, *, sort: bool = True, first: bool = True, lengths: Any = None, **how: Any) -> Any:
    """A builder of a job over a packed batch."""
    lengths = LENGTHS if lengths is None else lengths

    def build() -> Training:
        layer = getattr(torch.nn, kind)(24, 32, batch_first=first, **how)
        head = torch.nn.Linear(64 if how.get("bidirectional") else 32, 5)
        model = torch.nn.ModuleList([layer, head])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones((6, 30, 24) if first else (30, 6, 24))

        def step() -> None:
            packed = PACKED.pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=sort)
            output, _ = PACKED.pad_packed_sequence(layer(packed)[0], batch_first=first)
            head(output).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return Training(model=model, optimizer=optimizer, batch=(x,), step=step)

    return build


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("LSTM", {}),
        ("GRU", {"num_layers": 2}),
        ("LSTM", {"num_layers": 2, "bidirectional": True}),
        ("RNN", {"first": False}),
        ("LSTM", {"sort": False, "lengths": [1, 30, 9, 17, 30, 2]}),
        ("GRU", {"lengths": [30] * 6}),
    ],
)
def test_a_layer_over_a_packed_batch_is_predicted_to_the_byte(kind: str, how: dict[str, Any]):
    build = job(kind, **how)
    assert predicted_peak(build) == real_tensor_peak(build)


def test_a_batch_that_was_padded_again_has_its_lengths_and_its_shape():
    found: list[Any] = []

    def build() -> Training:
        layer = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        x = torch.ones(3, 7, 4)

        def step() -> None:
            packed = PACKED.pack_padded_sequence(layer(x), [5, 3, 1], batch_first=True)
            with torch.inference_mode():
                PACKED.pad_packed_sequence(PACKED.PackedSequence(packed.data.detach(), packed.batch_sizes))
            output, lengths = PACKED.pad_packed_sequence(packed, batch_first=True, total_length=9)
            found.append((tuple(packed.data.shape), packed.batch_sizes.tolist(), tuple(output.shape), lengths.tolist()))
            output.sum().backward()
            optimizer.step()

        return Training(model=layer, optimizer=optimizer, batch=(x,), step=step)

    trace_training(build, num_steps=1, recording=Recording())
    assert found == [((9, 4), [3, 2, 2, 1, 1], (3, 9, 4), [5, 3, 1])]


@pytest.mark.parametrize(("lengths", "says"), [([3, 5], "sorted"), ([5, 0], "greater than 0"), ([5], "batch_size")])
def test_wrong_lengths_are_refused_in_torchs_own_words(lengths: list[int], says: str):
    def build() -> Training:
        x = torch.ones(2, 5, 4)
        PACKED.pack_padded_sequence(x, lengths, batch_first=True)
        raise AssertionError("it was packed")

    with pytest.raises(RuntimeError, match=says):
        trace_training(build, recording=Recording())


def test_unknown_lengths_are_the_longest_and_that_is_said():
    def build() -> Training:
        layer = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        x = torch.ones(3, 7, 4)

        def step() -> None:
            lengths = layer(x).sum((1, 2)).long()
            packed = PACKED.pack_padded_sequence(layer(x), lengths, batch_first=True)
            assert packed.data.shape == (21, 4)
            packed.data.sum().backward()
            optimizer.step()

        return Training(model=layer, optimizer=optimizer, batch=(x,), step=step)

    trace = trace_training(build, recording=Recording())
    assert any("lengths of a packed batch" in each.text for each in trace.assumptions)


def peaks_of(look: Any, shape: tuple[int, ...]) -> tuple[int, int]:
    """Predicted and real peak of a job whose largest moment is a look at a batch, without gradients."""

    def build() -> Training:
        layer = torch.nn.Linear(64, 512)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        x = torch.ones(shape)

        def step() -> None:
            with torch.no_grad():
                look(layer, x)
            layer(torch.ones(1, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return Training(model=layer, optimizer=optimizer, batch=(x,), step=step)

    return predicted_peak(build), real_tensor_peak(build)


def test_a_linear_layer_adds_its_bias_into_the_product_of_a_batch_in_pieces():
    predicted, real = peaks_of(lambda layer, x: layer(x.transpose(0, 1)), (64, 8, 64))
    assert predicted == real


def test_packing_copies_the_blocks_before_it_joins_them():
    def look(layer: Any, x: Any) -> None:
        PACKED.pack_padded_sequence(x, torch.full((6,), 30), batch_first=True)

    predicted, real = peaks_of(look, (6, 30, 2048))
    assert predicted == real


# ---- laws


@given(st.lists(st.integers(1, 20), min_size=1, max_size=30))
def test_blocks_hold_every_row_once(lengths: list[int]):
    sizes = [sum(length > place for length in lengths) for place in range(max(lengths))]
    assert sum(places * texts for places, texts in blocks_of(sizes)) == sum(lengths)
    assert [texts for places, texts in blocks_of(sizes) for _ in range(places)] == sizes


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 5), st.booleans())
def test_what_is_copied_is_what_torch_would_make_contiguous(lengths: list[int], width: int, batch_first: bool):
    places, texts = max(lengths), len(lengths)
    sizes = [sum(length > place for length in lengths) for place in range(places)]
    made = torch.empty((texts, places, width) if batch_first else (places, texts, width))
    source = made.transpose(0, 1) if batch_first else made
    expected, place = [], 0
    for num_places, num_texts in blocks_of(sizes):
        block = source[place : place + num_places, :num_texts]
        assert block.is_contiguous() == in_one_piece(block.shape, block.stride())
        expected += [] if block.is_contiguous() else [block.numel() * 4]
        place += num_places
    assert copied_bytes(source.shape, source.stride(), sizes, 4) == tuple(expected)
