"""Parser of PYTORCH_ALLOC_CONF: the settings of PyTorch's CUDA allocator.

The grammar is the one of torch 2.13 and 2.14: `key:value,key:[a:1,b:2]`, white space ignored, the last of two equal
keys wins, and a value is judged by the settings in front of it. Whatever torch refuses is refused here. Three texts
that torch misreads in silence are refused as well: negative sizes, sizes with a fraction or in hexadecimal, and a
missing comma.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from memfit.errors import UsageError
from memfit.units import MIB

DEFAULT_LARGE_SEGMENT_BYTES = 20 * MIB
DIRECT_SEGMENT_BYTES = 10 * MIB
NUM_ROUNDUP_INTERVALS = 16

_NOT_SIMULATED = (
    "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "graph_capture_record_stream_reuse",
    "throw_on_cudamalloc_oom", "pinned_use_cuda_host_register", "pinned_use_hip_host_register",
    "pinned_use_background_threads", "pinned_num_register_threads", "pinned_reserve_segment_size_mb",
    "pinned_free_catch_all", "pinned_max_round_threshold_mb", "pinned_max_cached_size_mb",
)  # fmt: skip
_TOKEN = re.compile(r"[,:\[\]]|[^,:\[\]\s]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocatorSettings:
    """Settings of the CUDA caching allocator; the defaults are PyTorch's own."""

    expandable_segments: bool = False
    large_segment_bytes: int = DEFAULT_LARGE_SEGMENT_BYTES
    max_split_bytes: int | None = None
    """Blocks of at least this size are never split; None: every block may be."""
    max_non_split_rounding_bytes: int | None = None
    """How much larger than the request an unsplittable block may be; None: the size of a large segment."""
    roundup_divisions: tuple[int, ...] = (0,) * NUM_ROUNDUP_INTERVALS
    """For each power of two from 1 MiB up: into how many steps it is divided to round sizes up; 0: not at all."""
    garbage_collection_threshold: float | None = None
    memory_fraction: float = 1.0
    """The share of the device this process may reserve; 1 is no limit."""
    ties_by_address: bool = False
    """Which of two equally good blocks is taken: that in the older segment (since May 2026), or the lower address."""
    not_simulated: tuple[str, ...] = field(default=())
    """Keys that were read and have no influence here: pinned memory, locks, graph capture."""

    @property
    def non_split_rounding_bytes(self) -> int:
        """The rounding in force: the one that was set, or the size of a large segment."""
        given = self.max_non_split_rounding_bytes
        return self.large_segment_bytes if given is None else given


def parse_allocator_settings(text: str, base: AllocatorSettings | None = None) -> AllocatorSettings:
    """Read the text of PYTORCH_ALLOC_CONF; an error names the key, what was found and what is allowed."""
    settings = base or AllocatorSettings()
    tokens = _TOKEN.findall(text)
    position = 0
    while position < len(tokens):
        key = tokens[position]
        _expect(tokens, position + 1, ":", key)
        value, position = _value(tokens, position + 2, key)
        settings = _apply(settings, key, value)
        if position < len(tokens):
            _expect(tokens, position, ",", key)
            position += 1
    return settings


def settings_from_environment(environment: Mapping[str, str]) -> AllocatorSettings:
    """The settings a torch started in this environment would run with; where both names are set, the older one wins."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if name in environment:
            return parse_allocator_settings(environment[name])
    return AllocatorSettings()


def _value(tokens: list[str], position: int, key: str) -> tuple[str | list[str], int]:
    if position >= len(tokens) or tokens[position] in {",", ":", "]"}:
        raise _bad(key, "nothing", f"write {key}:VALUE")
    if tokens[position] != "[":
        return tokens[position], position + 1
    if "]" not in tokens[position:]:
        raise _bad(key, "a list without its end", "close the list with ]")
    end = tokens.index("]", position)
    return tokens[position + 1 : end], end + 1


def _expect(tokens: list[str], position: int, wanted: str, key: str) -> None:
    found = tokens[position] if position < len(tokens) else "the end of the text"
    if found != wanted:
        hint = "separate settings by commas: key:value,key:value"
        raise UsageError(f"expected {wanted!r} after {key!r} in the allocator settings", found=repr(found), hint=hint)


def _apply(settings: AllocatorSettings, key: str, value: str | list[str]) -> AllocatorSettings:
    if key in _NOT_SIMULATED:
        return replace(settings, not_simulated=(*settings.not_simulated, key))
    reader = _READERS.get(key)
    if reader is None:
        raise UsageError("unknown allocator setting", found=repr(key), hint=f"known: {', '.join(_READERS)}")
    if isinstance(value, list) and key != "roundup_power2_divisions":
        raise _bad(key, f"a list of {len(value)} tokens", f"write {key}:VALUE")
    return reader(settings, value)  # pyright: ignore[reportArgumentType]


def _bad(key: str, found: str, hint: str) -> UsageError:
    return UsageError(f"the allocator setting {key} cannot be read", found=found, hint=hint)


def _megabytes(key: str, text: str, least_bytes: int) -> int:
    hint = f"a whole number of MiB, at least {-(-least_bytes // MIB)}"
    if not re.fullmatch(r"\+?\d{1,13}", text) or int(text) * MIB < least_bytes:
        raise _bad(key, repr(text), hint)
    return int(text) * MIB


def _number(key: str, text: str, hint: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _bad(key, repr(text), hint) from None


def _read_expandable(settings: AllocatorSettings, text: str) -> AllocatorSettings:
    if text not in {"True", "False"}:
        raise _bad("expandable_segments", repr(text), "True or False, with a capital letter")
    return replace(settings, expandable_segments=text == "True")


def _read_large_segment(settings: AllocatorSettings, text: str) -> AllocatorSettings:
    size_bytes = _megabytes("large_segment_size_mb", text, DIRECT_SEGMENT_BYTES + MIB)
    return replace(settings, large_segment_bytes=size_bytes)


def _read_max_split(settings: AllocatorSettings, text: str) -> AllocatorSettings:
    return replace(settings, max_split_bytes=_megabytes("max_split_size_mb", text, settings.large_segment_bytes))


def _read_rounding(settings: AllocatorSettings, text: str) -> AllocatorSettings:
    size_bytes = _megabytes("max_non_split_rounding_mb", text, settings.large_segment_bytes)
    return replace(settings, max_non_split_rounding_bytes=size_bytes)


def _read_collection(settings: AllocatorSettings, text: str) -> AllocatorSettings:
    hint = "a share between 0 and 1, both excluded, for example 0.8"
    share = _number("garbage_collection_threshold", text, hint)
    if not 0 < share < 1:
        raise _bad("garbage_collection_threshold", repr(text), hint)
    return replace(settings, garbage_collection_threshold=share)


def _read_fraction(settings: AllocatorSettings, text: str) -> AllocatorSettings:
    hint = "a share from 0 to 1, for example 0.9"
    share = _number("per_process_memory_fraction", text, hint)
    if math.isnan(share) or not 0 <= share <= 1:
        raise _bad("per_process_memory_fraction", repr(text), hint)
    return replace(settings, memory_fraction=share)


def _read_backend(settings: AllocatorSettings, text: str) -> AllocatorSettings:
    if text == "cudaMallocAsync":
        hint = "only PyTorch's own allocator can be simulated; leave this setting out"
        raise _bad("backend", f"{text!r}, the driver's own pool", hint)
    if text != "native":
        raise _bad("backend", repr(text), "native")
    return settings


def _read_divisions(settings: AllocatorSettings, value: str | list[str]) -> AllocatorSettings:
    if isinstance(value, str):
        return replace(settings, roundup_divisions=(_power_of_two(value, zero=False),) * NUM_ROUNDUP_INTERVALS)
    return replace(settings, roundup_divisions=_division_list(value))


def _division_list(tokens: list[str]) -> tuple[int, ...]:
    divisions = [0] * NUM_ROUNDUP_INTERVALS
    last, is_first = 0, True
    for interval, steps in _pairs(tokens):
        if interval == ">":
            divisions[last + 1 :] = [steps] * (NUM_ROUNDUP_INTERVALS - last - 1)
            continue
        last = min(_power_of_two(interval, zero=False).bit_length() - 1, NUM_ROUNDUP_INTERVALS - 1)
        if is_first:
            divisions[:last] = [steps] * last
        is_first, divisions[last] = False, steps
    return tuple(divisions)


def _pairs(tokens: list[str]) -> list[tuple[str, int]]:
    groups = [tokens[start : start + 4] for start in range(0, len(tokens), 4)]
    for index, group in enumerate(groups):
        closed = len(group) == 3 if index == len(groups) - 1 else len(group) == 4 and group[3] == ","
        if not closed or group[1] != ":":
            raise _bad("roundup_power2_divisions", repr("".join(tokens)), "a list such as [256:1,512:2,>:8]")
    return [(group[0], _power_of_two(group[2], zero=True)) for group in groups]


def _power_of_two(text: str, *, zero: bool) -> int:
    allowed = "a power of two" + (" or 0" if zero else "") + ", or a list such as [256:1,512:2,>:8]"
    if not text.isdecimal() or (number := int(text)) & (number - 1) or (number == 0 and not zero):
        raise _bad("roundup_power2_divisions", repr(text), allowed)
    return number


_READERS: dict[str, Callable[[AllocatorSettings, str], AllocatorSettings]] = {
    "expandable_segments": _read_expandable,
    "max_split_size_mb": _read_max_split,
    "max_non_split_rounding_mb": _read_rounding,
    "roundup_power2_divisions": _read_divisions,
    "garbage_collection_threshold": _read_collection,
    "per_process_memory_fraction": _read_fraction,
    "large_segment_size_mb": _read_large_segment,
    "backend": _read_backend,
}
