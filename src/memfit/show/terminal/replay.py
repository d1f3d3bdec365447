"""A replayed memory snapshot in the terminal: peaks and curve, who held memory, other settings."""

from __future__ import annotations

from itertools import pairwise

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memfit.records.cuda.allocator import AllocationCurve, AllocatorRun
from memfit.records.cuda.snapshot import Agreement, FailureFound, Replay
from memfit.show.text_output import render, table
from memfit.units import format_bytes, format_ratio, format_seconds

EIGHTHS = " ▁▂▃▄▅▆▇█"
HEIGHT = 6
MAX_FAILURES = 5
_MEANING = {
    "requested": "asked for by the program",
    "allocated": "blocks in the program's hands (max_memory_allocated)",
    "active": "and blocks another stream still uses",
    "reserved": "taken from the driver (max_memory_reserved)",
}


def replay_text(replay: Replay, *, width: int = 80, color: bool = False) -> str:
    """The whole report as text."""
    parts: list[RenderableType] = [_title(replay), _peaks(replay)]
    if replay.curve.events:
        parts.append(_curve(replay.curve, width))
    parts += [_pools(replay), _lines(replay)]
    if replay.failures:
        parts.append(_failures(replay))
    if replay.what_if:
        parts.append(_what_if(replay))
    parts += [Text(note, style="yellow") for note in replay.notes]
    parts.append(_agreement(replay.agreement))
    return render(Group(*(Padding(part, (0, 0, 1, 0)) for part in parts)), width, color)


def _title(replay: Replay) -> Text:
    span = "" if replay.duration_seconds is None else f" over {format_seconds(replay.duration_seconds)}"
    others = "" if len(replay.devices) < 2 else f" ({replay.why_this_device})"
    settings = {None: "settings not recorded", "": "default settings"}.get(replay.settings, replay.settings)
    text = Text(f"{replay.snapshot}\n", style="bold")
    text.append(f"device {replay.device}{others}, {replay.num_events} events{span}, {settings}", style="not bold")
    for other in replay.other_devices:
        failed = f"{other.num_failures} out of memory" if other.num_failures else "no failure"
        reserved = f"{format_bytes(other.reserved_bytes)} reserved at the end"
        sentence = f"\nnot shown: device {other.device}, {other.num_events} events, {reserved}, {failed}"
        text.append(f"{sentence} (--device {other.device})", style="not bold")
    return text


def _peaks(replay: Replay) -> Table:
    shown = table("peak", ">bytes", "source", "what it counts")
    for name, figure in replay.peaks.items():
        value = "unknown" if figure.value is None else format_bytes(figure.value)
        shown.add_row(name, value, figure.source or "", _MEANING.get(name, ""))
    return shown


def _curve(curve: AllocationCurve, width: int) -> Text:
    """Allocated as bars, reserved as the shaded part above them, over the events of the recording."""
    top = max(max(curve.reserved_bytes), max(curve.allocated_bytes), 1)
    label = format_bytes(top)
    columns = max(width - len(label) - 3, 8)
    allocated = _squeezed(curve.allocated_bytes, columns)
    reserved = _squeezed(curve.reserved_bytes, columns)
    text = Text(no_wrap=True, overflow="crop")
    for row in range(HEIGHT - 1, -1, -1):
        scale = label if row == HEIGHT - 1 else ("0" if row == 0 else "")
        text.append(f"{scale:>{len(label)}} │", style="dim")
        for low, high in zip(allocated, reserved, strict=True):
            bar = _letter(low, top, row)
            text.append("░" if bar == " " and high / top * HEIGHT > row + 0.5 else bar, style="cyan")
        text.append("\n")
    text.append(
        " " * (len(label) + 2) + "█ allocated  ░ reserved and unused, over the events of the recording", style="dim"
    )
    return text


def _squeezed(values: tuple[int, ...], columns: int) -> list[int]:
    """The largest value of each column's stretch; a short curve is stretched."""
    size = len(values)
    bounds = [column * size // columns for column in range(columns + 1)]
    return [max(values[low : max(high, low + 1)]) for low, high in pairwise(bounds)]


def _letter(value: float, top: float, row: int) -> str:
    if value <= 0:
        return " "
    eighths = round(value / top * HEIGHT * 8) - row * 8
    return EIGHTHS[min(max(eighths, 1 if row == 0 else 0), 8)]


def _pools(replay: Replay) -> RenderableType:
    moment = "at the end" if replay.agreement.reason else f"when the most was allocated (event {replay.peak_event})"
    shown = table("pool", ">segments", ">reserved", ">allocated", ">unused", ">largest free block")
    for share in replay.pools_at_peak:
        unused = format_bytes(share.unused_bytes)
        if share.reserved_bytes:
            unused += f" ({format_ratio(share.unused_bytes / share.reserved_bytes)})"
        figures = (format_bytes(share.reserved_bytes), format_bytes(share.allocated_bytes), unused)
        shown.add_row(share.pool, str(share.num_segments), *figures, format_bytes(share.largest_free_bytes))
    return Group(Text(f"Fragmentation {moment}", style="bold"), shown)


def _lines(replay: Replay) -> RenderableType:
    shown = table(">bytes", ">blocks", "source line")
    for share in replay.top_lines:
        shown.add_row(format_bytes(share.num_bytes), str(share.num_blocks), share.line)
    if replay.unknown_lines_bytes:
        shown.add_row(format_bytes(replay.unknown_lines_bytes), "", "from before the recording, or without a stack")
    return Group(Text("Who held memory at the peak", style="bold"), shown)


def _failures(replay: Replay) -> RenderableType:
    text = Text("Out of memory in the recording\n", style="bold")
    for failure in replay.failures[-MAX_FAILURES:]:
        where = f" at {failure.line}" if failure.line else ""
        text.append(
            f"event {failure.event}: {format_bytes(failure.requested_bytes)} asked for{where}, "
            f"the driver had {format_bytes(failure.driver_free_bytes)} left\n",
            style="not bold red",
        )
        text.append(f"  {_at_failure(failure)}\n", style="not bold")
    if len(replay.failures) > MAX_FAILURES:
        text.append(f"and {len(replay.failures) - MAX_FAILURES} before these\n", style="not bold")
    text.rstrip()
    return text


def _at_failure(failure: FailureFound) -> str:
    """What lay free then, and whether it would have been enough in one piece."""
    memory = failure.memory
    if memory is None:
        return f"what lay free then is not known: {failure.reason}"
    unused = memory.reserved_bytes - memory.allocated_bytes
    sentence = (
        f"{format_bytes(memory.reserved_bytes)} reserved, {format_bytes(memory.allocated_bytes)} allocated; of the "
        f"{format_bytes(unused)} in between, the largest block it could take: "
        f"{format_bytes(memory.largest_free_bytes)} "
        f"({memory.num_free_blocks} free blocks in all)."
    )
    missing = failure.requested_bytes - memory.free_bytes - failure.driver_free_bytes
    if missing > 0:
        return f"{sentence} Even in one piece, {format_bytes(missing)} would have been missing."
    return f"{sentence} In one piece it would have been enough: fragmentation."


def _what_if(replay: Replay) -> RenderableType:
    fits = () if replay.available_bytes is None else (f"fits {format_bytes(replay.available_bytes)}",)
    shown = table("settings", ">reserved", ">change", ">segments", ">least memory", *fits)
    base = replay.what_if[0]
    for run in replay.what_if:
        row = _what_if_row(run, base, "recorded" if replay.settings is not None else "taken as recorded")
        shown.add_row(*row, *([_fits(run, replay.available_bytes)] if replay.available_bytes is not None else []))
    head = Text("Other settings, the same requests in an empty allocator (predicted)", style="bold")
    if replay.failures:
        head.append("\nthe failed request counts; what would have come after it is not known", style="not bold dim")
    return Group(head, shown)


def _fits(run: AllocatorRun, available_bytes: int) -> str:
    """Whether the allocator's own memory at the failure would have been enough."""
    if run.smallest_device_bytes is None:
        return "unknown"
    return "yes" if run.smallest_device_bytes <= available_bytes else "no"


def _what_if_row(run: AllocatorRun, base: AllocatorRun, mark: str) -> tuple[str, str, str, str, str]:
    name = (run.settings or "default") + (f" ({mark})" if run is base else "")
    if run.device_bytes is not None:
        name += f" (on {format_bytes(run.device_bytes)})"
    if run.failed is not None:
        return name, "out of memory", f"at event {run.failed.event}", "", ""
    change = run.peak_reserved_bytes - base.peak_reserved_bytes
    difference = "" if run is base else f"{'+' if change >= 0 else ''}{format_bytes(change)}"
    least = "" if run.smallest_device_bytes is None else format_bytes(run.smallest_device_bytes)
    return name, format_bytes(run.peak_reserved_bytes), difference, str(run.num_segments), least


def _agreement(agreement: Agreement) -> Text:
    if agreement.reason:
        return Text(f"Not replayed: {agreement.reason}.", style="dim")
    same = "equal" if agreement.same_reserved else "not equal"
    text = Text(
        f"Replayed: {agreement.num_same_place} of {agreement.num_allocations} allocations at the recorded address, "
        f"{agreement.num_same_segments} of {agreement.num_segments} new segments, reserved bytes at the end {same}.",
        style="dim",
    )
    if agreement.num_same_place < agreement.num_allocations or not agreement.same_reserved:
        text.append(" What is said of free blocks is as uncertain as the placements that differ.", style="yellow")
    return text
