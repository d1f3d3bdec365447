"""Batches of steps that are passed over: like those before, without their samples, and only where all are alike."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, default_collate  # noqa: E402

from memfit.predict.fake.recording import Recording  # noqa: E402
from memfit.predict.fake.stand_in_batches import ALIKE, StandInBatches  # noqa: E402
from memfit.predict.levels.guesses import EARLIER  # noqa: E402
from memfit.predict.observe.data_loading import loading_here  # noqa: E402
from memfit.predict.observe.known_values import why_assumed  # noqa: E402


class Made:
    """A count that a data set cannot be seen to hold."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def note(self) -> None:
        """One more."""
        self.count += 1


class Samples:
    """Fifty samples, the last ones of another size where they grow; counts how many were made."""

    def __init__(self, grows: bool = False) -> None:
        self.grows, self.size, self.made = grows, 200, Made()

    @property
    def num_made(self) -> int:
        """How many were made."""
        return self.made.count

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> Any:
        self.made.note()
        size = 400 if self.grows and index >= 40 else self.size
        return {"x": torch.randn(size, size), "y": index % 4, "name": f"sample {index}"}


class Run:
    """A prediction that loads batches, and passes over steps from a moment on."""

    def __init__(self) -> None:
        self.recording, self.is_passing = Recording(), False

    @contextlib.contextmanager
    def running(self) -> Iterator[Run]:
        """Within, loaders are followed."""
        batches = StandInBatches(self.recording.tracker, lambda: self.is_passing, self.recording.shadow.note)
        with (
            self.recording.running(),
            loading_here(contextlib.nullcontext, lambda batch: None, pinned=False, follow=batches.follow),
        ):
            yield self

    def epoch(self, loader: Any) -> tuple[list[Any], int]:
        """Shapes and labels of all batches, and the most that was alive beside what was before."""
        log, seen = self.recording.tracker.log, []
        before_bytes, log.highest_bytes = log.live_bytes, log.live_bytes
        for batch in loader:
            seen.append((tuple(batch["x"].shape), batch["y"].shape, batch["y"].tolist()[0] in range(4)))
            batch = None
        return seen, log.highest_bytes - before_bytes


def test_batches_are_made_again_like_those_that_were_loaded():
    samples = Samples()
    with Run().running() as run:
        loader = DataLoader(samples, batch_size=4, shuffle=True)  # type: ignore[arg-type]
        first = run.epoch(loader)
        run.is_passing = True
        later = run.epoch(loader)
        assumed = why_assumed(next(iter(loader))["y"])
    assert first == later
    assert len(first[0]) == 13
    # the first of each batch is looked at; the last, smaller batch was seen once, and is loaded again
    assert samples.num_made == 50 + 12 + 2 + 1
    assert assumed == EARLIER


def test_batches_that_differ_are_loaded():
    samples = Samples(grows=True)
    with Run().running() as run:
        loader = DataLoader(samples, batch_size=4)  # type: ignore[arg-type]
        first = run.epoch(loader)
        run.is_passing = True
        assert run.epoch(loader) == first
    assert samples.num_made == 100


def test_a_data_set_that_is_told_to_give_larger_samples_is_believed():
    samples = Samples()
    with Run().running() as run:
        loader = DataLoader(samples, batch_size=4)  # type: ignore[arg-type]
        run.epoch(loader)
        run.is_passing = True
        run.epoch(loader)
        samples.size = 300
        seen, _ = run.epoch(loader)
    assert [shape[1:] for shape, _, _ in seen] == [(300, 300)] * 13


@pytest.mark.parametrize("habit", ["counts", "keeps", "keeps in its place"])
def test_a_data_set_that_changes_when_it_is_asked_is_asked_for_every_sample(habit: str):
    samples = Samples()
    place: list[Any] = [None] * 50

    class Changes(Samples):
        def __getitem__(self, index: int) -> Any:
            if habit == "counts":
                self.num_asked = getattr(self, "num_asked", 0) + 1
            sample = samples[index]
            if habit != "counts":
                place[index] = sample["x"]
            if habit == "keeps":
                self.__dict__.setdefault("kept", {})[index] = sample["x"]
            return sample

    with Run().running() as run:
        loader = DataLoader(Changes(), batch_size=4)  # type: ignore[arg-type]
        run.epoch(loader)
        run.is_passing = True
        run.epoch(loader)
    assert samples.num_made == 100


def test_a_loader_with_its_own_way_to_collate_loads_all():
    samples = Samples()
    with Run().running() as run:
        loader: Any = DataLoader(samples, batch_size=4, collate_fn=lambda batch: default_collate(batch))  # type: ignore[arg-type]
        run.epoch(loader)
        run.is_passing = True
        run.epoch(loader)
    assert samples.num_made == 100


def test_only_batches_that_were_alike_often_enough_are_made_again():
    samples, num_batches = Samples(), ALIKE - 1
    with Run().running() as run:
        loader: Any = DataLoader(samples, batch_size=50 // num_batches)  # type: ignore[arg-type]
        run.epoch(loader)
        run.is_passing = True
        run.epoch(loader)
    assert samples.num_made == 50 + 50 // num_batches + (num_batches - 1) + 50 % num_batches
