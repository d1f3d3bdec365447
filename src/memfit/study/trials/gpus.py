"""GPUs that a trial sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from memfit.errors import UsageError
from memfit.records.study import GpuWish
from memfit.study.trials.descendants import is_of_study


@dataclass(slots=True)
class GpuPool:
    """Hands out GPUs to trials, each to so many trials at a time."""

    wish: GpuWish
    indices: tuple[int, ...]
    _taken: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def take(self, number: int) -> tuple[int, ...] | None:
        """The GPUs of one trial until they are given back: None leaves them as they are, () hides them all."""
        if self.wish.num_gpus is None:
            return None
        if number in self._taken:
            return self._taken[number]
        uses = self._uses()
        free = [index for index in self.indices if uses[index] < self.wish.trials_per_gpu]
        chosen = tuple(sorted(free, key=lambda index: (uses[index], index))[: self.wish.num_gpus])
        self._taken[number] = chosen
        return chosen

    def hold(self, number: int, indices: tuple[int, ...]) -> tuple[int, ...]:
        """Note the GPUs that a trial of an earlier session runs on."""
        self._taken[number] = indices
        return indices

    def has_room(self) -> bool:
        """Whether another trial gets all the GPUs it wants."""
        uses = self._uses()
        free = sum(uses[index] < self.wish.trials_per_gpu for index in self.indices)
        return not self.wish.num_gpus or free >= self.wish.num_gpus

    def give_back(self, number: int) -> None:
        self._taken.pop(number, None)

    def _uses(self) -> Counter[int]:
        return Counter(index for taken in self._taken.values() for index in taken)


def make_pool(wish: GpuWish) -> GpuPool:
    """The pool of this machine; raises when a trial wants more GPUs than there are."""
    if not wish.num_gpus:
        return GpuPool(wish, ())
    indices = wish.indices if wish.indices is not None else _all_gpus()
    if len(indices) < wish.num_gpus:
        raise UsageError(
            f"each trial wants {wish.num_gpus} GPUs",
            found=f"{len(indices)} on this machine",
            hint="lower the number (trialGpuNumber, or per_trial under gpus), or memfit doctor says what is missing",
        )
    return GpuPool(wish, indices)


def _all_gpus() -> tuple[int, ...]:
    from memfit.measure.counters.nvml import NvmlReader, open_nvml

    reader = open_nvml()
    if not isinstance(reader, NvmlReader):
        return ()
    indices = tuple(device.index for device in reader.devices)
    reader.close()
    return indices


def notes_on_sharing(pool: GpuPool, study_folder: str) -> list[str]:
    """A sentence for each GPU of the pool that other programs use, unless the study says that it may be shared."""
    if not pool.indices or pool.wish.use_active:
        return []
    from memfit.measure.counters.nvml import NvmlReader, open_nvml

    reader = open_nvml()
    if not isinstance(reader, NvmlReader):
        return []
    wanted = {device.index: reader.processes(device) for device in reader.devices if device.index in pool.indices}
    reader.close()
    pids = {index: [each.pid for each in found] for index, found in wanted.items() if isinstance(found, list)}
    return used_by_others(pids, lambda pid: is_of_study(pid, study_folder))


def used_by_others(pids_of: Mapping[int, Sequence[int]], is_ours: Callable[[int], bool]) -> list[str]:
    """A sentence for each GPU with a process that is not ours."""
    notes = []
    for index, pids in pids_of.items():
        others = [str(pid) for pid in pids if not is_ours(pid)]
        if others:
            what = f"GPU {index} is used by other programs (process {', '.join(others)})"
            notes.append(f"{what}: trials share its memory; choose others by gpus.indices, or say use_active")
    return notes
