"""Log of storage events of a traced job, and its conversion to a timeline.

The log decides nothing while it is written. What a storage was (a gradient, an activation, ...) is often known only
after its birth, so categories are put on afterwards, strongest first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from memfit.predict.gpu_rules.cudnn import Scratch
from memfit.records.timeline import INSIDE_A_KERNEL, Category, LiveSpan, Phase, PhaseMark, Timeline

STRENGTH: tuple[Category, ...] = (
    "parameter", "buffer", "optimizer state", "gradient", "input", "workspace", "activation", "temporary",
)  # fmt: skip
"""When a storage was seen as several things, the first of these wins."""


@dataclass(slots=True)
class Birth:
    """One storage, as far as it was known when it was made."""

    num_bytes: int
    device: str
    operator: str
    phase: Phase
    step: int
    module: tuple[int, str]
    """Which root module it was born in, and the path below it; (-1, '') outside of modules."""
    line: str
    category: Category = "temporary"
    dtype: str = ""
    """Of the tensor that was seen first, 'float32'; empty where there is none."""
    stream: int = 0
    """The CUDA stream it was made on; 0 is the default one."""


@dataclass(slots=True)
class ProbedCall:
    """One call of an operator whose scratch memory the fake kernel does not show."""

    signature: int
    outputs: tuple[int, ...]
    phase: Phase
    module: tuple[int, str]
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What one distinct call took when it was run for real."""

    inside_bytes: int
    """The most it held at once above what lived before, its results included."""
    output_bytes: tuple[int, ...]
    """The true sizes of its results, in order; empty when they are not to be corrected."""
    touched_bytes: tuple[int, ...] = ()
    """How much of each result was written to; empty when that is not known."""
    filled_bytes: int = 0
    """What it wrote to for the first time in blocks that were there before."""

    @property
    def is_touched(self) -> bool:
        """Whether all it took was written to."""
        return not self.filled_bytes and self.touched_bytes in ((), self.output_bytes)

    def as_touched(self) -> ProbeResult:
        """The same call, counting only what was written to."""
        if self.is_touched:
            return self
        left = sum(self.output_bytes) - sum(self.touched_bytes or self.output_bytes)
        inside = max(0, self.inside_bytes - left) + self.filled_bytes
        return ProbeResult(inside_bytes=inside, output_bytes=self.touched_bytes or self.output_bytes)


Entry = tuple[Literal["alloc", "free", "call", "phase", "scratch"], int]


@dataclass(slots=True)
class TraceLog:
    """Births, deaths, calls to probe and phase changes, in the order they happened."""

    births: list[Birth] = field(default_factory=list)
    calls: list[ProbedCall] = field(default_factory=list)
    phases: list[tuple[int, Phase]] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    scratches: list[Scratch] = field(default_factory=list)
    """Calls of cuDNN; their place in the timeline is known only when it is made."""
    live_bytes: int = 0
    highest_bytes: int = 0
    """Of all devices, about: while the log is written."""
    recent_bytes: int = 0
    """The highest since somebody asked for that last, who sets it to `live_bytes`."""
    stream: int = 0
    """The CUDA stream on which the program works now."""

    def alloc(self, birth: Birth) -> int:
        """A storage came to life; its number is returned."""
        uid = self.born(birth)
        self.entries.append(("alloc", uid))
        self.live_bytes += birth.num_bytes
        self.recent_bytes = max(self.recent_bytes, self.live_bytes)
        self.highest_bytes = max(self.highest_bytes, self.live_bytes)
        return uid

    def born(self, birth: Birth) -> int:
        """Number a storage whose place among the entries is given by someone else."""
        if self.stream and birth.device.startswith("cuda"):
            birth.stream = self.stream
        self.births.append(birth)
        return len(self.births) - 1

    def free(self, uid: int) -> None:
        """A storage died."""
        self.entries.append(("free", uid))
        self.live_bytes -= self.births[uid].num_bytes

    def call(self, call: ProbedCall) -> None:
        """An operator with unknown scratch memory is about to run."""
        self.calls.append(call)
        self.entries.append(("call", len(self.calls) - 1))

    def scratch(self, scratch: Scratch, position: int | None = None) -> None:
        """A call of cuDNN ends here, or at this place among the entries."""
        self.scratches.append(scratch)
        self.entries.insert(len(self.entries) if position is None else position, ("scratch", len(self.scratches) - 1))

    def phase(self, step: int, phase: Phase) -> None:
        """From here on the program is in this phase of this step."""
        if not self.phases or self.phases[-1] != (step, phase):
            self.phases.append((step, phase))
            self.entries.append(("phase", len(self.phases) - 1))

    def claim(self, uid: int, category: Category) -> None:
        """Say what a storage is; a weaker claim never replaces a stronger one."""
        birth = self.births[uid]
        if STRENGTH.index(category) < STRENGTH.index(birth.category):
            birth.category = category


def timeline_of(log: TraceLog, root_names: list[str], probes: dict[int, ProbeResult] | None = None) -> Timeline:
    """Turn a log into spans; a probed call becomes a workspace that lives for that one call."""
    probes = probes or {}
    sizes = _true_sizes(log, probes)
    opened: dict[int, int] = {}
    starts: dict[int, tuple[int, int | None]] = {}
    order: list[tuple[str, int, int]] = []
    marks: list[PhaseMark] = []
    now = 0
    for kind, index in log.entries:
        if kind == "alloc":
            opened[index] = len(order)
            order.append(("birth", index, now))
            now += 1
        elif kind == "free" and index in opened:
            starts[index] = (now, now)
            now += 1
        elif kind == "phase":
            step, phase = log.phases[index]
            marks.append(PhaseMark(start=now, step=step, phase=phase))
        elif kind == "call" and _workspace_bytes(log.calls[index], probes):
            order.append(("call", index, now))
            now += 2
    spans = []
    for kind, index, start in order:
        if kind == "birth":
            end = starts.get(index, (0, None))[1]
            spans.append(_span(log.births[index], sizes[index], start, end, root_names))
        else:
            spans.append(_workspace(log.calls[index], probes, start, root_names))
    return Timeline(spans=tuple(spans), num_events=now, phases=tuple(marks))


def scratches_of(log: TraceLog) -> tuple[Scratch, ...]:
    """The calls of cuDNN, each with its place in the timeline of this log (made without probes)."""
    found: list[Scratch] = []
    opened: set[int] = set()
    now = 0
    for kind, index in log.entries:
        if kind == "scratch":
            found.append(msgspec.structs.replace(log.scratches[index], event=now))
        elif kind == "alloc" or (kind == "free" and index in opened):
            opened.add(index)
            now += 1
    return tuple(found)


def _true_sizes(log: TraceLog, probes: dict[int, ProbeResult]) -> list[int]:
    """The size of every storage, corrected where a probe saw the real result."""
    sizes = [birth.num_bytes for birth in log.births]
    for call in log.calls:
        result = probes.get(call.signature)
        if result and len(result.output_bytes) == len(call.outputs):
            for uid, num_bytes in zip(call.outputs, result.output_bytes, strict=True):
                if uid >= 0:
                    sizes[uid] = num_bytes
    return sizes


def _workspace_bytes(call: ProbedCall, probes: dict[int, ProbeResult]) -> int:
    result = probes.get(call.signature)
    return result.inside_bytes if result else 0


def _workspace(call: ProbedCall, probes: dict[int, ProbeResult], start: int, root_names: list[str]) -> LiveSpan:
    return LiveSpan(
        start=start,
        end=start + 1,
        num_bytes=_workspace_bytes(call, probes),
        category="workspace",
        phase=call.phase,
        module=module_name(call.module, root_names),
        operator=INSIDE_A_KERNEL,
        line=call.line,
    )


def _span(birth: Birth, num_bytes: int, start: int, end: int | None, root_names: list[str]) -> LiveSpan:
    return LiveSpan(
        start=start,
        end=end,
        num_bytes=num_bytes,
        category=birth.category,
        phase=birth.phase,
        module=module_name(birth.module, root_names),
        operator=birth.operator,
        device=birth.device,
        line=birth.line,
        dtype=birth.dtype,
        stream=birth.stream,
    )


def module_name(module: tuple[int, str], root_names: list[str]) -> str:
    """The path a person knows: as in `named_modules()` below the only model, with the class first below several."""
    root, path = module
    if root < 0:
        return ""
    prefix = root_names[root]
    if not path:
        return prefix.strip("()") if prefix.startswith("(") else prefix
    return path if prefix.startswith("(") else f"{prefix}.{path}"
