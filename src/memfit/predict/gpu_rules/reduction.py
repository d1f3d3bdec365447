"""Scratch bytes of a sum or mean on a GPU: partial sums of several blocks, and their counters; pure.

A reduction with much to add and few results is spread over many blocks of threads. They meet in a buffer in global
memory, allocated and given back within the call. How many blocks there are follows from the shape in memory and from
the number of multiprocessors. Read in torch 2.13 and 2.14 (the reduction template and the iterator before it, both in
the wheels' headers); tests/predict compares with sizes that torch asked for on the phantom GPU. Cost: a few dozen
operations per call, whatever the size. Limits: one input, results of the same type, and an address of the input that
is a multiple of four elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

MOST_THREADS = 512
WARP = 32
MOST_OFFSET = 2**31 - 1
LEAST_VALUES, MOST_VALUES = 16, 256
"""What one thread adds at least, and from how many on the work is divided among blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """How many multiprocessors a GPU has, and how many threads each holds."""

    count: int = 108
    threads: int = 2048


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension in memory: how long, how far apart in bytes in the input and in the result (0: added up)."""

    length: int
    step: int
    result_step: int


@dataclass(slots=True)
class _Work:
    """How the adding is divided so far."""

    num_inputs: int
    num_outputs: int
    inputs_at_once: int = 1
    outputs_at_once: int = 1
    wide: int = 1

    def values(self) -> int:
        """What is left for one thread."""
        return _up(self.num_inputs, self.inputs_at_once)

    def blocks(self) -> int:
        """Blocks for all results."""
        return _up(self.num_outputs // self.wide, self.outputs_at_once)


def reduction_scratch(
    shape: Sequence[int],
    strides: Sequence[int],
    reduced: Sequence[int],
    *,
    item_bytes: int,
    partial_bytes: int,
    processors: Processors,
) -> list[tuple[int, int]]:
    """Bytes of the buffer and of the counters of every kernel of one call; empty when no kernel needs any.

    `strides` are in elements, `reduced` the dimensions that are added up, `partial_bytes` the size of a partial sum.
    """
    if not shape or 0 in shape:
        return []
    axes = _merged(_ordered(_axes(shape, strides, reduced, item_bytes)))
    found = (_of_kernel(part, item_bytes, partial_bytes, processors) for part in _in_small_parts(axes))
    return [sizes for sizes in found if sizes is not None]


def _axes(shape: Sequence[int], strides: Sequence[int], reduced: Sequence[int], item_bytes: int) -> list[Axis]:
    """Dimensions from the last to the first, the result being in plain order."""
    gone = {dim % len(shape) for dim in reduced}
    axes, step = [], item_bytes
    for dim in reversed(range(len(shape))):
        axes.append(Axis(shape[dim], strides[dim] * item_bytes, 0 if dim in gone else step))
        step *= 1 if dim in gone else shape[dim]
    return axes


def _ordered(axes: list[Axis]) -> list[Axis]:
    """Those that are added up first, then by distance in memory: an insertion sort, since not all can be compared."""
    axes = list(axes)
    for place in range(1, len(axes)):
        here = place
        for before in range(place - 1, -1, -1):
            verdict = _comes_after(axes[before], axes[here])
            if verdict > 0:
                axes[before], axes[here] = axes[here], axes[before]
                here = before
            elif verdict < 0:
                break
    return axes


def _comes_after(left: Axis, right: Axis) -> int:
    """1 when they should change places, -1 when not, 0 when nothing says so."""
    if (left.result_step == 0) != (right.result_step == 0):
        return 1 if right.result_step == 0 else -1
    for one, other in ((left.result_step, right.result_step), (left.step, right.step)):
        if not one or not other:
            continue
        if one != other:
            return -1 if one < other else 1
        if left.length > right.length:
            return 1
    return 0


def _merged(axes: list[Axis]) -> list[Axis]:
    """Neighbours that lie in memory as one become one."""
    result = [axes[0]]
    for axis in axes[1:]:
        last = result[-1]
        follows = last.length * last.step == axis.step and last.length * last.result_step == axis.result_step
        if last.length == 1:
            result[-1] = axis
        elif axis.length == 1 or follows:
            result[-1] = replace(last, length=last.length * axis.length)
        else:
            result.append(axis)
    return result


def _in_small_parts(axes: list[Axis]) -> Iterator[list[Axis]]:
    """Halves, and halves of those, until every offset fits into 32 bits."""
    reach = [1 + sum((axis.length - 1) * step(axis) for axis in axes) for step in (_step, _result_step)]
    count = 1
    for axis in axes:
        count *= axis.length
    if count <= MOST_OFFSET and max(reach) <= MOST_OFFSET:
        yield axes
        return
    widest = max(range(len(axes) - 1, -1, -1), key=lambda place: (axes[place].length - 1) * max(_step(axes[place]), 1))
    half = axes[widest].length // 2
    for length in (half, axes[widest].length - half):
        yield from _in_small_parts([*axes[:widest], replace(axes[widest], length=length), *axes[widest + 1 :]])


def _step(axis: Axis) -> int:
    return axis.step


def _result_step(axis: Axis) -> int:
    return axis.result_step


def _of_kernel(axes: list[Axis], item_bytes: int, partial_bytes: int, processors: Processors) -> tuple[int, int] | None:
    """Divide the work of one kernel among lanes, warps and blocks; the buffer that blocks meet in, if they do."""
    added = [axis for axis in axes if axis.result_step == 0]
    kept = axes[len(added) :]
    work = _Work(_product(added), _product(kept))
    along = not kept or (bool(added) and added[0].step < kept[0].step)
    across, down = (work.num_inputs, work.num_outputs) if along else (work.num_outputs, work.num_inputs)
    fastest = axes[0] if along else kept[0]
    if fastest.step == item_bytes:
        if along and across >= 128 and len(added) == 1:
            across //= 4
        elif not along:
            work.wide = _width(axes, len(added), item_bytes)
            across //= work.wide
    width, height = _block(across, down, MOST_THREADS // work.wide)
    if along:
        work.inputs_at_once *= width
    else:
        work.outputs_at_once *= width
    if work.values() < min(height * 16, MOST_VALUES):
        return None
    work.inputs_at_once *= height
    num_blocks = _blocks_per_result(work, processors, width * height)
    if num_blocks <= 1:
        return None
    buffer_bytes = partial_bytes * work.num_outputs * num_blocks * (1 if along else width * work.wide)
    return buffer_bytes, 4 * work.blocks()


def _blocks_per_result(work: _Work, processors: Processors, num_threads: int) -> int:
    """Over how many blocks one result is spread: enough to fill the GPU, each with enough to do."""
    wanted = processors.count * (processors.threads // num_threads)
    if work.values() < MOST_VALUES or work.blocks() > wanted:
        return 1
    filling, most = _up(wanted, work.blocks()), _up(work.values(), LEAST_VALUES)
    return max(min(filling, most), _up(work.values(), MOST_VALUES))


def _width(axes: list[Axis], first_kept: int, item_bytes: int) -> int:
    """How many results one thread makes at once: four when all distances are multiples of four."""
    width = 4
    others = [axis.step // item_bytes for place, axis in enumerate(axes) if place != first_kept]
    for number in (axes[first_kept].length, *others):
        while number % width:
            width //= 2
    return width


def _block(across: int, down: int, most: int) -> tuple[int, int]:
    """Width and height of a block of threads, powers of two."""
    wide, high = (_power(number) if number < most else most for number in (across, down))
    height = min(high, most // min(wide, WARP))
    return min(wide, most // height), height


def _power(number: int) -> int:
    """The largest power of two that is not above; one for nothing."""
    return 1 << max(number.bit_length() - 1, 0)


def _up(number: int, by: int) -> int:
    return -(-number // by)


def _product(axes: Sequence[Axis]) -> int:
    result = 1
    for axis in axes:
        result *= axis.length
    return result
