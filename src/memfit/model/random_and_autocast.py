"""Notes under which random numbers and which autocast a call runs, and brings both back for its second run."""

from __future__ import annotations

import _random
import contextlib
import ctypes
import random
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.checkpoint import get_device_states, set_device_states

if TYPE_CHECKING:
    from numpy import ndarray

OtherGenerators = tuple[tuple[object, ...], tuple[str, "ndarray", int, int, float]]
"""States of the generators of Python and of NumPy."""
_LEARNING_CALLS = 2
"""Of so many calls, the states of Python's and NumPy's generators, slow to read, are kept whether it draws or not."""


_NEVER_DRAW = frozenset({"_DummyThread", "TMonitor", "_EventLoggerThread"})
"""Threads that torch has made, those of tqdm and of TensorBoard."""


class Drawing:
    """Whether a module draws from the generators of Python or NumPy, whose states are slow to read.

    Every call is looked at, by the bytes of the generators where they lie. Their states, which a second run needs, are
    kept of a module's first calls, and of all its calls as soon as one has drawn.
    """

    def __init__(self) -> None:
        self.num_calls, self.draws = 0, False

    def before(self) -> tuple[OtherGenerators | None, bytes | None]:
        """The state before a call, where it is kept, and the bytes of the generators."""
        memory = _memory_of_generators()
        kept = self.draws or memory is None or self.num_calls < _LEARNING_CALLS
        return (_other_generators() if kept else None), memory

    def after(self, before: tuple[OtherGenerators | None, bytes | None]) -> tuple[OtherGenerators | None, bool]:
        """What to keep of the state before a call, None when it drew nothing; and whether it drew unexpectedly."""
        self.num_calls += 1
        state, memory = before
        drew = memory != _memory_of_generators() if state is None else not _same(state, _other_generators())
        if drew and _others_may_draw():  # who drew is unknown, and what another thread drew must not come again
            return None, True
        self.draws = self.draws or drew
        return (state if drew else None), drew and state is None


def _others_may_draw() -> bool:
    """Whether another thread of the program could draw from the generators that all threads share."""
    if threading.active_count() == 1:
        return False
    here = threading.current_thread()
    others = [each for each in threading.enumerate() if each is not here and type(each).__name__ not in _NEVER_DRAW]
    return bool(others)


def seed_all(seed: int) -> None:
    """Let all generators begin somewhere else; those of a device that is not in use yet are left alone."""
    from numpy import random as numpy_random

    torch.default_generator.manual_seed(seed)  # `torch.manual_seed` notes a seed for devices that come later
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    numpy_random.seed(seed)


def _memory_of_generators() -> bytes | None:
    """The bytes of the generators of Python and NumPy, only to see whether they change; None where they are unknown.

    Reading them takes a twentieth of the time of `random.getstate` and `numpy.random.get_state`. The layout does
    not matter; that NumPy's generator is the usual one, of 624 words and a position, does.
    """
    from numpy import random as numpy_random

    numpy_of_any_version: Any = numpy_random  # its stubs leave out what is asked for here
    python: Any = getattr(random, "_inst", None)
    theirs = getattr(numpy_random.mtrand, "_rand", None)
    words = numpy_of_any_version.get_bit_generator()
    known = isinstance(python, random.Random) and isinstance(theirs, numpy_random.RandomState)
    if sys.implementation.name != "cpython" or not known or not isinstance(words, numpy_random.MT19937):
        return None
    # Of the pairs that `gauss` and `normal` draw, one is kept: in an attribute, and in NumPy's object itself.
    kept = repr(getattr(python, "gauss_next", None)).encode() + _memory_of(theirs, type(theirs))
    return _memory_of(python, _random.Random) + kept + ctypes.string_at(words.ctypes.state_address, 625 * 4)


def _memory_of(value: object, kind: type) -> bytes:
    return ctypes.string_at(id(value) + object.__basicsize__, kind.__basicsize__ - object.__basicsize__)


def _other_generators() -> OtherGenerators:
    from numpy import random as numpy_random

    return cast("OtherGenerators", (random.getstate(), numpy_random.get_state()))


def _same(one: OtherGenerators, other: OtherGenerators) -> bool:
    mine, theirs = one[1], other[1]
    return one[0] == other[0] and mine[2:] == theirs[2:] and bool((mine[1] == theirs[1]).all())


def _lay_other_generators(state: OtherGenerators) -> None:
    from numpy import random as numpy_random

    random.setstate(state[0])
    numpy_random.set_state(state[1])


class Autocast:
    """The autocast of some kinds of devices at one moment."""

    __slots__ = ("kinds", "states")

    def __init__(self, kinds: Sequence[str]) -> None:
        self.kinds, self.states = tuple(kinds), _autocast_of(kinds)

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Run under it."""
        if self.states == _autocast_of(self.kinds):
            yield
            return
        *states, cache = self.states
        with contextlib.ExitStack() as stack:
            for kind, (enabled, dtype) in zip(self.kinds, states, strict=True):
                stack.enter_context(torch.autocast(kind, enabled=enabled, dtype=dtype, cache_enabled=cache))
            yield


class Circumstances:
    """The generators and the autocast of one call."""

    __slots__ = ("autocast", "cpu", "devices", "others")

    def __init__(self, given: Sequence[torch.Tensor], before: Circumstances | None = None) -> None:
        state = cpu_state()
        same = before is not None and before.cpu == state
        self.cpu = before.cpu if before is not None and same else state  # one copy for all calls that draw nothing
        self.devices: tuple[list[int], list[torch.Tensor]] | None = None
        kinds = ("cpu", *sorted({t.device.type for t in given if t.device.type not in ("cpu", "meta")}))
        if len(kinds) > 1:  # never run on the machine this was written on
            self.devices = get_device_states(*given)
        self.autocast = Autocast(kinds)
        self.others: OtherGenerators | None = None
        """State of the generators of Python and NumPy, where the call draws from them."""

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Run under them, then leave the generators as they are."""
        now = cpu_state()
        devices = get_device_states(*_on(self.devices)) if self.devices is not None else None
        others = _other_generators() if self.others is not None else None
        lay_cpu_state(self.cpu)
        if self.devices is not None:
            set_device_states(*self.devices)
        if self.others is not None:
            _lay_other_generators(self.others)
        try:
            with self.autocast.again():
                yield
        finally:
            lay_cpu_state(now)
            if devices is not None:
                set_device_states(*devices)
            if others is not None:
                _lay_other_generators(others)


def cpu_state() -> bytearray:
    """The state of torch's generator, as memory of Python: it is compared faster, and takes none of the budget."""
    return bytearray(torch.get_rng_state().numpy().data)


def lay_cpu_state(state: bytearray) -> None:
    """Let torch's generator go on from a state."""
    torch.set_rng_state(torch.frombuffer(state, dtype=torch.uint8))


def _on(devices: tuple[list[int], list[torch.Tensor]]) -> list[torch.Tensor]:
    return [torch.empty(0, device=f"{torch.accelerator.current_accelerator()}:{i}") for i in devices[0]]


def _autocast_of(kinds: Sequence[str]) -> tuple[Any, ...]:
    states = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds]
    return (*states, torch.is_autocast_cache_enabled())
