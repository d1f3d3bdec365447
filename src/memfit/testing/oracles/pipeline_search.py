"""Exhaustive search for the best contiguous pipeline, and made chains; shares no code with the planners.

Every cut is tried with every vector of multiples j (how many whole periods the delay of an element spans). For given
multiples the shortest period is known in closed form: for every pair of elements s <= t

    T >= (sum of loads from s to t) / (j_s + 1 - j_t)

so that no bisection and no rule for delays is needed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from random import Random

from memfit.records.pipeline import Layer, PipelineChain, RankLink


def made_layer(random: Random, index: int) -> Layer:
    """A small random layer."""
    size = random.randint(0, 8)
    return Layer(
        name=f"layer{index}", forward_seconds=random.randint(1, 9) / 4, backward_seconds=random.randint(1, 17) / 4,
        parameter_bytes=size, gradient_bytes=size, optimizer_bytes=random.choice((0, size)),
        output_bytes=random.randint(0, 6), saved_bytes=random.randint(1, 9), transient_bytes=random.choice((0, 0, 2)),
    )  # fmt: skip


def made_pipeline_chain(random: Random, num_layers: int) -> PipelineChain:
    """A random chain of a few bytes and seconds."""
    return PipelineChain(
        layers=tuple(made_layer(random, index) for index in range(num_layers)), input_bytes=random.randint(0, 5),
        target="made",
    )  # fmt: skip


def best_contiguous(
    chain: PipelineChain, limits_bytes: Sequence[int], link: RankLink, most_multiples: int = 9
) -> float:
    """The shortest period of all cuts and schedules, by trying all; infinity when nothing fits. Flush, two buffers."""
    best = math.inf
    for ranks in _used_ranks(len(limits_bytes)):
        for ends in itertools.combinations(range(len(chain.layers) - 1), len(ranks) - 1):
            stages = list(zip([0, *(e + 1 for e in ends)], [*ends, len(chain.layers) - 1], strict=True))
            loads, shared, most = [], [], []
            for (first, last), rank in zip(stages, ranks, strict=True):
                if first:
                    loads.append(2 * link.seconds_for(chain.layers[first - 1].output_bytes))
                    shared.append(not link.full_duplex)
                    most.append(None)
                loads.append(sum(x.forward_seconds + x.backward_seconds for x in chain.layers[first : last + 1]))
                shared.append(True)
                most.append(_most_copies(chain, first, last, limits_bytes[rank]))
            best = min(best, _shortest(loads, shared, most, most_multiples))
    return best


def _used_ranks(num_ranks: int) -> Iterator[tuple[int, ...]]:
    for number in range(1, num_ranks + 1):
        yield from itertools.combinations(range(num_ranks), number)


def _most_copies(chain: PipelineChain, first: int, last: int, limit_bytes: int) -> int:
    """Copies that fit: tried one after another on the bytes of a stage, counted from its layers."""
    layers = chain.layers[first : last + 1]
    received = chain.layers[first - 1].output_bytes if first else chain.input_bytes
    fixed = sum(x.parameter_bytes + x.gradient_bytes + x.optimizer_bytes for x in layers)
    fixed += max(x.transient_bytes for x in layers)
    fixed += 2 * received if first else 0
    fixed += 2 * layers[-1].output_bytes if last + 1 < len(chain.layers) else 0
    copy = received + sum(x.saved_bytes for x in layers)
    copies = 0
    while copies < 50 and fixed + (copies + 1) * copy <= limit_bytes:
        copies += 1
    return copies


def _shortest(loads: Sequence[float], shared: Sequence[bool], most: Sequence[int | None], most_multiples: int) -> float:
    if any(each == 0 for each in most):
        return math.inf
    floor = max(load if own else load / 2 for load, own in zip(loads, shared, strict=True))
    best = math.inf
    for multiples in _falling(len(loads), shared, most, most_multiples):
        period = floor
        for start in range(len(loads)):
            if not shared[start]:
                continue
            for end in range(start, len(loads)):
                if shared[end]:
                    period = max(period, sum(loads[start : end + 1]) / (multiples[start] + 1 - multiples[end]))
        best = min(best, period)
    return best


def _falling(
    number: int, shared: Sequence[bool], most: Sequence[int | None], most_multiples: int
) -> Iterator[tuple[int, ...]]:
    """Vectors of multiples that fall from the first element to the last one, which has none."""

    def before(tail: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        index = number - len(tail) - 1
        if index < 0:
            yield tail
            return
        allowed = most[index]
        rise = tail[0] + (2 if all(shared) else 3)  # transfers beside each other add to a delay without a resource
        top = rise if allowed is None else min(rise, allowed - 1)
        for value in range(tail[0], min(top, most_multiples) + 1) if shared[index] else (tail[0],):
            yield from before((value, *tail))

    yield from before((0,))
