"""Bytes of one of N ranks under DDP, ZeRO or FSDP, from the timeline of the unsharded training; pure.

Arithmetic on the spans of one rank with its own batch, in the terms of the ZeRO paper (Rajbhandari et al. 2020) and of
PyTorch's DDP and FSDP2:

  ddp    everything whole, and the reducer's buckets (25 MiB each) beside the gradients
  zero1  optimizer state, and what the update makes for a moment, divided by N
  zero2  also gradients, from the moment the block that made them is reduced
  zero3  also parameters; a block's are gathered while it runs, forward and backward, and the next block's with them
  fsdp   as zero3

A block is a numbered child of the model (`layers.0`), everything else is a block of its own. Limits: parts are not
padded to whole rows, the parameters are taken to be made in parts (on the meta device), and what the network library
holds (NCCL's buffers) lies outside of the allocator and is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from memfit.job.sharding import Sharding
from memfit.predict.levels.savings import block_of
from memfit.records.timeline import LiveSpan, Phase, PhaseMark, Timeline

BUCKET_BYTES = 25 * 1024**2
SCALAR_BYTES = 64
"""Smaller states (a step counter) are kept whole by every rank."""
PASSES = ("forward", "backward", "recompute")


def shard(timeline: Timeline, num_ranks: int, sharding: Sharding) -> Timeline:
    """The timeline of one rank of many."""
    if num_ranks == 1:
        return timeline
    if sharding == "ddp":
        spans = [*timeline.spans, *_buckets(timeline)]
    else:
        ends = _block_ends(timeline) if sharding != "zero1" else {}
        spans = [part for span in timeline.spans for part in _parts(span, num_ranks, sharding, ends)]
        if sharding in ("zero3", "fsdp"):
            spans += _gathered(timeline)
    return replace(timeline, spans=tuple(sorted(spans, key=lambda span: span.start)))


def _parts(span: LiveSpan, num_ranks: int, sharding: Sharding, ends: dict[str, list[int]]) -> Iterator[LiveSpan]:
    """One storage as a rank holds it: whole, a part, or whole until it is reduced and a part from then on."""
    part = replace(span, num_bytes=-(-span.num_bytes // num_ranks))
    in_update = span.category == "temporary" and span.phase == "update"
    is_state = span.category == "optimizer state" and span.num_bytes > SCALAR_BYTES
    if is_state or in_update or (span.category == "parameter" and sharding in ("zero3", "fsdp")):
        yield part
    elif span.category == "gradient" and sharding != "zero1":
        reduced = next((end for end in ends.get(block_name(span.module), []) if end > span.start), span.start)
        if span.end is not None and span.end <= reduced:
            yield span
        else:
            yield replace(span, end=reduced)
            yield replace(part, start=reduced)
    else:
        yield span


def block_name(module: str) -> str:
    """The block a module belongs to: the numbered one, or its outermost part."""
    return block_of(module) or module.partition(".")[0]


def _block_ends(timeline: Timeline) -> dict[str, list[int]]:
    """When each block's gradients have been reduced: when its stretch of a backward ends."""
    ends: dict[str, list[int]] = {}
    for name, phase, _, end in _stretches(timeline):
        if phase == "backward":
            ends.setdefault(name, []).append(end)
    return ends


def _gathered(timeline: Timeline) -> list[LiveSpan]:
    """Whole parameters of the block that runs, from the start of the block before it, since they are fetched ahead."""
    sizes: dict[str, int] = {}
    for span in timeline.spans:
        if span.category == "parameter":
            sizes[block_name(span.module)] = sizes.get(block_name(span.module), 0) + span.num_bytes
    device = next((span.device for span in timeline.spans if span.category == "parameter"), "cpu")
    found, before = [], None
    for name, phase, start, end in _stretches(timeline):
        if sizes.get(name):
            found.append(
                LiveSpan(
                    start=start if before is None else before, end=end, num_bytes=sizes[name], category="temporary",
                    phase=phase, module=name, operator="all-gather", device=device,
                )
            )  # fmt: skip
        before = start
    return found


def _stretches(timeline: Timeline) -> Iterator[tuple[str, Phase, int, int]]:
    """The blocks in the order they run: name, phase, first event, event after the last."""
    current: tuple[str, Phase] | None = None
    start = 0
    for span in timeline.spans:
        if span.category == "parameter" or span.phase not in PASSES or not span.module:
            continue
        here = (block_name(span.module), span.phase)
        if here == current:
            continue
        if current is not None:
            yield (*current, start, span.start)
        current, start = here, span.start
    if current is not None:
        yield (*current, start, timeline.num_events - 1)


def _buckets(timeline: Timeline) -> list[LiveSpan]:
    """The reducer's flat buffers, made before the first step and kept."""
    sizes = [span.num_bytes for span in timeline.spans if span.category == "parameter"]
    device = next((span.device for span in timeline.spans if span.category == "parameter"), "cpu")
    start = _first_step(timeline.phases)
    found, filled = [], 0
    for number, size in enumerate(reversed(sizes), start=1):
        filled += size
        if filled >= BUCKET_BYTES or number == len(sizes):
            found.append(
                LiveSpan(
                    start=start, end=None, num_bytes=filled, category="gradient", phase="setup",
                    operator="gradient bucket", device=device,
                )
            )  # fmt: skip
            filled = 0
    return found


def _first_step(marks: tuple[PhaseMark, ...]) -> int:
    return next((mark.start for mark in marks if mark.phase != "setup"), 0)
