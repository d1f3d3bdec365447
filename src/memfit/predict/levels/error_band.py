"""Error band of a prediction, from comparisons with measured runs (docs/accuracy.md); pure.

The band depends on the device, the route and what the job contains. It does not stand where a guess may have decided a
shape, and where something of the job was not seen it stands for the rest alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from memfit.predict.child.messages import COMPILER_LEFT_OUT, TRANSLATED, UNSEEN, TraceReply
from memfit.predict.devices.parse import DeviceSpec
from memfit.predict.gpu_rules.cudnn import MEASURED_CAPABILITIES, WITHOUT_RULE, is_measured
from memfit.predict.gpu_rules.recurrent import WORKSPACE_BY_RULE
from memfit.predict.levels.gpu import CUDA
from memfit.predict.levels.guesses import AS_SET, DECIDES, DRAWN, EARLIER, MAY_DECIDE, OF_SEEN
from memfit.predict.levels.liveness import alive_at, mark_at, peak_of
from memfit.records.prediction import Assumption
from memfit.records.timeline import INSIDE_A_KERNEL, LiveSpan, Timeline
from memfit.units import format_bytes

VALUE_READ = "value read"
SIZE_FOLLOWS = ("taken to be all true", "taken to be all different")
UNKNOWN_WHOLE = ("an unknown bool", "an unknown int", "an unknown uint", "indices from ", "every other rank ")
"""Reads on the phantom GPU (`phantom/in_child/values.py`) that a shape or a branch may follow from."""
CPU_BAND = (
    "tensor level: equal to the byte with the CPU allocator's own events in nearly all checked jobs, below 0.1 % off "
    "in the rest (docs/accuracy.md)"
)
COMPILED_CPU_BAND = (
    "tensor level: of the job as it runs without torch.compile; compiled, its first steps included, checked jobs "
    "took 24 % less to 0.1 % more, and the compiler up to 95 MiB of the process (docs/accuracy.md)"
)
COMPILED_BAND = (
    "allocated: not known, since torch.compile was left out; a compiled job keeps other tensors, and its first steps "
    "may try kernels out"
)
NEGLIGIBLE_SHARE = 1e-3
"""What the band of the CPU allows anyway."""
CUDA_BAND = (
    "allocated: within 1 % of published measurements of transformer steps and operators on real GPUs (docs/accuracy.md)"
)
CUDNN_BAND = (
    "reserved: off by 2 % in the median, 6 % in nine of ten and 19 % at most for measured convolutional networks on "
    "two cards; cuDNN chooses their workspaces (docs/accuracy.md)"
)
UNMEASURED_CUDNN_BAND = (
    "reserved: not known on this card, since the rules for cuDNN's workspaces were compared with real jobs on an RTX "
    "3060 and an RTX 4060 alone (there 2 % in the median, 19 % at most; docs/accuracy.md)"
)
SMALL_CUDNN_BAND = (
    "reserved: not known for a job as small as this, since the rules for cuDNN's workspaces were compared with real "
    "jobs of 674 MiB and more alone (there 2 % in the median, 19 % at most; docs/accuracy.md)"
)
RECURRENT_BAND = (
    "allocated: within 1 % but for the workspaces of recurrent layers, which are by rule: 12 % too small to 28 % too "
    "large in four jobs that trained, 73 % too small in an evaluation of a large batch (docs/accuracy.md)"
)
TRANSLATED_BAND = (
    "allocated: not known, since this route (fake CPU tensors, translated) was not compared with a GPU; attention and "
    "autocast are those of the CPU"
)
RANKS_BAND = (
    "tensors: equal to the byte with real runs of 2 and 4 processes under DDP, FSDP2, tensor parallelism and the "
    "schedules of torch's pipelines (docs/accuracy.md)"
)
OF_RANKS = "of several ranks only the tensors of CPU processes were compared with real runs"


def error_band(device: DeviceSpec, reply: TraceReply, *, with_probes: bool, num_ranks: int) -> str:
    """How far off predictions of this kind were, as far as this one is of that kind."""
    base = _of_one_rank(device, reply, with_probes)
    if num_ranks > 1:
        base = RANKS_BAND if base == CPU_BAND else f"{base}; {OF_RANKS}"
    kept = (
        kept_for_long(reply.timeline, _place_of(device)) if any(_is_guess(item) for item in reply.assumptions) else ""
    )
    return earned(
        f"only as long as no guess decides what is kept: {kept}. Then {base}" if kept else base, reply.assumptions
    )


def _place_of(device: DeviceSpec) -> str:
    """What the device is called in a timeline."""
    return CUDA if device.kind == "cuda" else "cpu"


def kept_for_long(timeline: Timeline, device: str) -> str:
    """What the steps before the last one left that is alive at the peak; empty where that is nothing.

    A script that keeps its best result keeps the graph behind it, or a copy of the state that gave it, and a number
    that is guessed may say which is best.
    """
    peak_bytes, event = peak_of(timeline, device)
    now = mark_at(timeline.phases, event).step
    old = [span for span in alive_at(timeline, device, event) if _is_result_of(timeline, span, before=now - 1)]
    old_bytes = sum(span.num_bytes for span in old)
    if old_bytes <= NEGLIGIBLE_SHARE * peak_bytes:
        return ""
    largest = max(old, key=lambda span: span.num_bytes)
    step = mark_at(timeline.phases, largest.start).step
    return f"{format_bytes(old_bytes)} of results of step {step} ({largest.line}) are alive at the peak, in step {now}"


def _is_result_of(timeline: Timeline, span: LiveSpan, before: int) -> bool:
    """Whether a tensor is a result of a step before this one: of a graph, or a copy (a best state, a snapshot)."""
    mark = mark_at(timeline.phases, span.start)
    is_copy = span.category == "temporary" and mark.phase != "setup"
    return mark.step < before and (span.category == "activation" or is_copy)


def earned(base: str, assumptions: Sequence[Assumption]) -> str:
    """A band, as far as guesses and what was not seen leave it standing."""
    guessed = [item for item in assumptions if item.kind == "upper bound" or _asks(item, DECIDES) or _sizes(item)]
    guessed = [item for item in guessed if not item.text.endswith(AS_SET)]
    if guessed:
        return f"not known, since a guess may have decided a shape or a branch: {_said(guessed[0])}"
    unseen = [item for item in assumptions if item.kind == UNSEEN and not item.text.startswith(COMPILER_LEFT_OUT)]
    if unseen:
        return f"not known for the whole job: {_said(unseen[0])}. For what was seen: {base}"
    whole = [item for item in assumptions if _asks(item, MAY_DECIDE) or _reads_whole(item)]
    if whole:
        return f"only as long as no size follows from this guess: {_said(whole[0])}. Then {base}"
    routed = [item for item in assumptions if item.kind == "routing"]
    if routed:
        return f"for this routing alone ({_said(routed[0])}); with another one ranks hold other sizes. {base}"
    drawn = [item for item in assumptions if item.kind == "assumed value" and item.text.endswith((DRAWN, EARLIER))]
    seen = [item for item in assumptions if item.kind == "assumed value" and item.text.endswith(OF_SEEN)]
    if seen and not drawn:
        return (
            f"only as long as later batches hold no larger value, where sizes follow from it: {_said(seen[0])}. {base}"
        )
    if drawn:
        return f"for the numbers drawn here; where sizes follow from others ({_said(drawn[0])}) it may be more. {base}"
    return base


def _sizes(item: Assumption) -> bool:
    """Whether a read on the phantom GPU was answered by an assumption from which sizes follow."""
    return item.kind == VALUE_READ and any(words in item.text for words in SIZE_FOLLOWS)


def _is_guess(item: Assumption) -> bool:
    """Whether any number was answered by a guess."""
    return item.kind in ("scalar answer", VALUE_READ) and not item.text.endswith(AS_SET)


def _reads_whole(item: Assumption) -> bool:
    """Whether an unknown integer or truth was read on the phantom GPU: printed, or a size follows from it."""
    return item.kind == VALUE_READ and item.text.startswith(UNKNOWN_WHOLE)


def _said(item: Assumption) -> str:
    return f"{item.text} at {item.line}" if item.line else item.text


def _asks(item: Assumption, questions: tuple[str, ...]) -> bool:
    """Whether this is a guess to one of these questions, not the user's own answer."""
    return item.kind == "scalar answer" and item.text.startswith(questions) and not item.text.endswith(AS_SET)


def _of_one_rank(device: DeviceSpec, reply: TraceReply, with_probes: bool) -> str:
    if any(item.text.startswith(COMPILER_LEFT_OUT) for item in reply.assumptions):
        return COMPILED_CPU_BAND if device.kind == "cpu" else COMPILED_BAND
    if device.kind == "cpu":
        return _of_cpu(reply) if with_probes and not reply.num_unprobed else _without_probes(reply, with_probes)
    if reply.route.startswith(TRANSLATED):
        return TRANSLATED_BAND
    if reply.scratches:
        return _of_convolutions(device, reply)
    by_rule = any(span.operator == WORKSPACE_BY_RULE for span in reply.timeline.spans)
    return RECURRENT_BAND if by_rule else CUDA_BAND


def _of_convolutions(device: DeviceSpec, reply: TraceReply) -> str:
    """Workspaces of convolutions are expected in reserved alone, so that tensors and allocated are too low by them."""
    scratches = reply.scratches
    base = SMALL_CUDNN_BAND if device.capability in MEASURED_CAPABILITIES else UNMEASURED_CUDNN_BAND
    if is_measured(device.capability, peak_of(reply.timeline, _place_of(device))[0]):
        base = CUDNN_BAND
    largest_bytes = max(scratch.num_bytes for scratch in scratches)
    by_rule = [f"by rule up to {format_bytes(largest_bytes)} in one call"] if largest_bytes else []
    unknown = [WITHOUT_RULE] if any(scratch.taker == "none" for scratch in scratches) else []
    said = "; ".join(by_rule + unknown)
    return f"{base}; tensors and allocated are without these workspaces, {said} (--engine phantom asks cuDNN itself)"


def _of_cpu(reply: TraceReply) -> str:
    """Scratch memory changes with the number of threads; the band stands for the one, or two, that were looked at."""
    share = scratch_share(reply.timeline)
    if share < NEGLIGIBLE_SHARE or not any("convolution" in span.operator for span in reply.timeline.spans):
        return CPU_BAND
    which = "for this number of threads"
    if reply.here_bytes not in (None, peak_of(reply.timeline, "cpu")[0]):
        which = "for this number of threads, and the end of the range for those of this machine"
    return (
        f"{CPU_BAND}, {which}: {share:.1%} of the peak is scratch memory inside operators, and that of convolutions is "
        "another with another number"
    )


def scratch_share(timeline: Timeline) -> float:
    """How much of the CPU's peak would be gone if operators took nothing inside."""
    peak_bytes, _ = peak_of(timeline, "cpu")
    kept = tuple(span for span in timeline.spans if span.operator != INSIDE_A_KERNEL)
    without_bytes, _ = peak_of(Timeline(spans=kept, num_events=timeline.num_events), "cpu")
    return 1 - without_bytes / peak_bytes if peak_bytes else 0.0


def _without_probes(reply: TraceReply, with_probes: bool) -> str:
    """A band cannot be given where scratch memory was left out: how much that is is unknown."""
    num_calls = reply.num_probed + reply.num_unprobed
    missing = f"{reply.num_unprobed} of {num_calls} distinct operator calls" if with_probes else "operators"
    return f"tensor level: not known, since {missing} were not probed; what they allocate inside counts as zero"
