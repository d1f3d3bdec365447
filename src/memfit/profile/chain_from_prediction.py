"""Chain of stages from a predicted timeline, for a device that is not here; pure.

The timeline says which storage lived from when to when and which module made it. Laid out as the events of an
allocator, with marks where the stages begin and end, it is read in the same way as a measured step. What a
prediction does not know is assumed on the safe side: what a block holds in passing when nothing is kept is taken as
its three largest values. Seconds are the coarse step time, shared out by what each stage was predicted to take, or else
by the bytes it makes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from memfit.errors import PredictionFailed, UsageError
from memfit.profile.meter.events import AllocatorEvent, Mark, Record
from memfit.profile.meter.stage_sizes import measure_stage, windows_of
from memfit.records.plan import Chain, Fixed, Link, Stage
from memfit.records.prediction import Prediction
from memfit.records.timeline import LiveSpan, Timeline

FORWARD_SHARE = 1 / 3
LARGEST = 3
PINNED_BYTES_PER_SECOND = 12e9


def budget_of(budget_bytes: int | None, prediction: Prediction, device: str) -> int:
    """The budget that was given, or else the memory of the device."""
    limit = budget_bytes or prediction.memory_limit_bytes
    if not limit:
        raise UsageError("there is no budget", found=f"the memory of {device} is not known", hint="--budget 24GiB")
    return limit


def host_link(prediction: Prediction) -> tuple[Link | None, tuple[str, ...]]:
    """Pinned memory behind PCI Express at a speed that most machines reach; none where a step's seconds are unknown."""
    if prediction.step_time is None or prediction.step_time.value is None:
        why = "no rates are known for this device: seconds are shares of one second, and nothing is moved to the host"
        return None, (f"{why}; a GPU of the table has rates: --device cuda:a100-40gb",)
    return Link(
        name="host memory", out_bytes_per_second=PINNED_BYTES_PER_SECOND, in_bytes_per_second=PINNED_BYTES_PER_SECOND,
        latency_seconds=2e-5, source="assumed",
    ), ("plans that move to the host were written for CUDA and have not been run on a GPU",)  # fmt: skip


def chain_from(prediction: Prediction, draft: Sequence[Stage], shares: Sequence[float] | None = None) -> Chain:
    """The chain of the last predicted step; the draft has the names, the outputs and what may be run again.

    `shares` are what the forwards of the stages take, in any unit.
    """
    timeline = prediction.timeline
    if timeline is None or not timeline.phases:
        raise PredictionFailed("the prediction has no timeline to plan from", kind="timeline", hint="--engine fake")
    device = max((span.device for span in timeline.spans), key=lambda d: d != "cpu", default="cpu")
    first, turn, update, end = _bounds(timeline)
    spans = [span for span in timeline.spans if span.device == device]
    record = _record(spans, draft, first, turn, update)
    step_seconds = prediction.step_time.value if prediction.step_time is not None else None
    return Chain(
        stages=_stages(record, draft, step_seconds or 1.0, shares),
        input_bytes=_alive(spans, first, "input"),
        fixed=Fixed(
            parameter_bytes=_alive(spans, first, "parameter"),
            gradient_bytes=_alive(spans, first, "gradient"),
            optimizer_state_bytes=_alive(spans, first, "optimizer state"),
            other_bytes=_alive(spans, first, "buffer", "workspace", "activation", "temporary")
            + _context_bytes(prediction),
        ),
        update_transient_bytes=_peak_above(spans, update, end),
        target=prediction.target,
        device=prediction.device,
        source="predicted",
        time_source="assumed",
    )


def _context_bytes(prediction: Prediction) -> int:
    """What the driver takes beside the tensors."""
    context = prediction.level("context")
    return int(context.value) if context is not None and context.value is not None else 0


def _bounds(timeline: Timeline) -> tuple[int, int, int, int]:
    """Where forward, backward and update of the last step begin, and where it ends."""
    last = max(mark.step for mark in timeline.phases)
    starts: dict[str, int] = {}
    for mark in timeline.phases:
        if mark.step == last:
            starts.setdefault(mark.phase, mark.start)
    if "forward" not in starts or "backward" not in starts:
        raise UsageError("the predicted step has no forward and backward", hint="a training of one model")
    return starts["forward"], starts["backward"], starts.get("update", timeline.num_events), timeline.num_events


def _alive(spans: Sequence[LiveSpan], moment: int, *categories: str) -> int:
    return sum(s.num_bytes for s in spans if s.category in categories and s.start < moment and _ends_after(s, moment))


def _ends_after(span: LiveSpan, moment: int) -> bool:
    return span.end is None or span.end > moment


def _peak_above(spans: Sequence[LiveSpan], start: int, end: int) -> int:
    """The most alive in a range above what is alive at its start, of what is born in it."""
    born = [span for span in spans if start <= span.start < end and span.category != "gradient"]
    changes = sorted(
        [(s.start, s.num_bytes) for s in born] + [(s.end, -s.num_bytes) for s in born if s.end is not None]
    )
    alive = peak = 0
    for _, change in changes:
        alive += change
        peak = max(peak, alive)
    return peak


def _record(spans: Sequence[LiveSpan], draft: Sequence[Stage], first: int, turn: int, update: int) -> Record:
    """The step as events of an allocator, with the marks of its stages."""
    changes: list[tuple[int, int, int]] = []
    for address, span in enumerate(spans):
        if first <= span.start < update:
            changes.append((span.start, address, span.num_bytes))
            stays = span.category == "gradient"  # until the update, which may leave no mark of its own
            if span.end is not None and span.end < update and not stays:
                changes.append((span.end, address, -span.num_bytes))
    changes.sort(key=lambda change: change[0])
    times = [time for time, _, _ in changes]
    marks = [Mark("begin", 0), Mark("turn", _count(times, turn)), Mark("done", len(times))]
    marks += _stage_marks(spans, draft, (first, turn, update), times)
    return Record([AllocatorEvent(address, num_bytes) for _, address, num_bytes in changes], marks)


def _count(times: Sequence[int], moment: int) -> int:
    from bisect import bisect_left

    return bisect_left(times, moment)


def _stage_marks(
    spans: Sequence[LiveSpan], draft: Sequence[Stage], bounds: tuple[int, int, int], times: Sequence[int]
) -> list[Mark]:
    """A stage begins with the first storage that its modules make, and ends where the next one begins."""
    first, turn, update = bounds
    marks = []
    for index, stage in enumerate(draft):
        if stage.kind == "glue":
            continue
        names = stage.name.split(" + ")
        own = [s.start for s in spans if _made_by(s, names)]
        forward = [start for start in own if first <= start < turn]
        backward = [start for start in own if turn <= start < update]
        if forward:
            marks += [
                Mark(f"start {index}", _count(times, min(forward))),
                Mark(f"end {index}", _count(times, max(forward)) + 1),
            ]
        if backward:
            marks.append(Mark(f"gradient {index}", _count(times, min(backward))))
            if index and draft[index - 1].kind == "glue":  # glue has no storages of its own name: its turn comes after
                marks.append(Mark(f"gradient {index - 1}", _count(times, max(backward)) + 1))
    return marks


def _made_by(span: LiveSpan, names: Sequence[str]) -> bool:
    return any(span.module == name or span.module.startswith(name + ".") for name in names)


def _stages(
    record: Record, draft: Sequence[Stage], step_seconds: float, shares: Sequence[float] | None
) -> tuple[Stage, ...]:
    windows = windows_of(record, len(draft))
    if shares is None or sum(shares) <= 0:
        shares = [sum(b.num_bytes for b in record.made_between(*w.forward)) + 1 for w in windows]
    stages = []
    for index, (stage, window) in enumerate(zip(draft, windows, strict=True)):
        size = measure_stage(record, window, [])
        largest = sorted((b.num_bytes for b in record.made_between(*window.forward)), reverse=True)[:LARGEST]
        before = draft[index - 1].output_bytes if index else 0
        seconds = step_seconds * shares[index] / sum(shares)
        stages.append(
            msgspec.structs.replace(
                stage,
                forward_seconds=seconds * FORWARD_SHARE,
                backward_seconds=seconds * (1 - FORWARD_SHARE),
                saved_bytes=max(size.saved_bytes, stage.output_bytes),
                forward_transient_bytes=max(size.forward_transient_bytes, sum(largest) - stage.output_bytes, 0),
                backward_transient_bytes=max(0, size.backward_extra_bytes - before - size.gradient_bytes),
                gradient_bytes=size.gradient_bytes,
            )
        )
    return tuple(stages)
