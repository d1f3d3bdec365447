"""Loaders that would be ended early: samples spread over the rest are looked at, and data sets that keep go on."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from memfit.predict.fake.recording import Recording  # noqa: E402
from memfit.predict.fake.stand_in_batches import StandInBatches  # noqa: E402
from memfit.predict.fake.unseen_samples import KEPT, UNLIKE, UnseenSamples  # noqa: E402
from memfit.predict.observe.data_loading import loading_here  # noqa: E402


class Samples:
    """A hundred samples, larger ones from an index on; kept or not."""

    def __init__(self, larger_from: int = 100, keeps: bool = False) -> None:
        self.larger_from, self.keeps, self.kept = larger_from, keeps, dict[int, Any]()
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        size = 100 + random.randrange(1) if index < self.larger_from else 200
        made = torch.randn(size)
        if self.keeps:
            self.kept[index] = made
        return made


@contextlib.contextmanager
def followed() -> Iterator[tuple[Recording, UnseenSamples]]:
    recording = Recording()
    batches = StandInBatches(recording.tracker, lambda: False, recording.shadow.note)
    with (
        recording.running(),
        loading_here(contextlib.nullcontext, lambda batch: None, pinned=False, follow=batches.follow),
    ):
        yield recording, UnseenSamples(recording.tracker)


def padded(samples: list[Any]) -> Any:
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


def first_of(loader: Any) -> tuple[Any, list[Any], Any]:
    """An iterator that gave a batch, the shapes of it, and the batch."""
    batches = iter(loader)
    batch = next(batches)
    return batches, [[tuple(batch.shape)]], batch


@pytest.mark.parametrize("collate", [None, padded], ids=["stacked", "padded"])
@pytest.mark.parametrize(("larger_from", "goes_on"), [(100, False), (99, True), (50, True)])
def test_a_loader_goes_on_where_later_samples_are_larger(collate: Any, larger_from: int, goes_on: bool):
    with followed() as (_, unseen):
        batches, shown, _batch = first_of(DataLoader(Samples(larger_from), batch_size=8, collate_fn=collate))  # type: ignore[arg-type]
        assert unseen.has_to_go_on(batches, shown) == goes_on
        assert unseen.missed() == ([UNLIKE] if goes_on else [])
        with contextlib.suppress(RuntimeError):  # stacked, the samples of some batch differ
            assert len(list(batches)) == 12, "none of the batches is lost"
        unseen.reached_the_end(batches)
        assert unseen.missed() == []


def test_a_look_changes_neither_figures_nor_random_numbers():
    samples = Samples()
    with followed() as (recording, unseen):
        batches, shown, _batch = first_of(DataLoader(samples, batch_size=8, shuffle=True))  # type: ignore[arg-type]
        log, outside = recording.tracker.log, recording.tracker.outside
        drawn = torch.get_rng_state().tolist()
        before = log.live_bytes, log.highest_bytes, outside.peak_bytes, random.getstate()
        assert not unseen.has_to_go_on(batches, shown)
        assert (log.live_bytes, log.highest_bytes, outside.peak_bytes, random.getstate()) == before
        assert torch.get_rng_state().tolist() == drawn
        num_asked = len(samples.asked)
        assert max(samples.asked[8:]) >= 98, "the last ones are among them"
        assert not unseen.has_to_go_on(batches, shown)
    assert num_asked == len(samples.asked) == 8 + 32


@pytest.mark.parametrize("collate", [None, padded], ids=["stacked", "padded"])
def test_a_loader_goes_on_while_its_data_set_keeps_samples(collate: Any):
    with followed() as (_, unseen):
        loader = DataLoader(Samples(keeps=True), batch_size=8, collate_fn=collate)  # type: ignore[arg-type]
        batches, shown, _batch = first_of(loader)
        assert unseen.has_to_go_on(batches, shown)
        assert unseen.missed() == [KEPT]
