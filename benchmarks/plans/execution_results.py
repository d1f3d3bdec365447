"""What was seen when plans were carried out, and how is it written: as files, as tables, into a page of the docs?"""

from __future__ import annotations

from pathlib import Path

import msgspec

from memfit.units import format_bytes, format_seconds

PROMISE = 0.10
"""How far a measured slowdown may lie from the promised one, in both directions."""
EQUAL = 0.02
"""Two ways of running a step are equally fast when the ratio of their times is within this."""
BEGIN, END = "<!-- execution: begin -->", "<!-- execution: end -->"


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One way of running a step."""

    peak_bytes: int
    slowdown: float
    """Its least seconds over those of the plain step, the update included in both."""
    median: float
    """The same with its median seconds."""
    bit_equal: bool
    differing: str = ""
    calls_as_planned: bool | None = None
    """None where nobody counts: a baseline that is not carried out by memfit."""


class PlanRow(msgspec.Struct, frozen=True, kw_only=True):
    """A plan for a budget."""

    budget_bytes: int
    promised_bytes: int
    promised_slowdown: float
    seen: Seen

    @property
    def within(self) -> bool:
        """Whether the measured peak is within the budget."""
        return self.seen.peak_bytes <= self.budget_bytes

    @property
    def off(self) -> float:
        """Measured over promised slowdown, less one."""
        return self.seen.slowdown / self.promised_slowdown - 1.0

    @property
    def holds(self) -> bool:
        """Whether everything that was promised is so."""
        return self.within and self.seen.bit_equal and bool(self.seen.calls_as_planned) and abs(self.off) <= PROMISE


class PeerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A baseline as it is, and our plan for the peak that the baseline measured."""

    name: str
    seen: Seen | None
    failure: str = ""
    ours: PlanRow | None = None
    ratio: float | None = None
    """Our least seconds over its least seconds."""
    needed_bytes: int | None = None
    """The smallest budget of ours, where the baseline's peak is below it."""

    @property
    def verdict(self) -> str:
        """Whether ours is as fast."""
        if self.ratio is None:
            return "" if self.seen is None else "no plan"
        return "yes" if self.ratio <= 1.0 + EQUAL else "**no**"


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """One model."""

    name: str
    what: str
    plain_peak_bytes: int
    plain_seconds: float
    num_stages: int
    control: float
    """The plain step against itself, as every other way is measured."""
    num_rounds: int
    plans: tuple[PlanRow, ...]
    peers: tuple[PeerRow, ...]
    knob: tuple[PeerRow, ...] = ()


class DropoutRow(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a recomputed dropout drops what it dropped."""

    name: str
    num_dropped: int
    num_wrong: int
    """Dropped positions that got a gradient."""
    failure: str = ""


# ---- files -------------------------------------------------------------------------------------------------------


def write_results(folder: Path, results: Results) -> None:
    """Keep the results of one model, so that models may be run one at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{results.name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))


def read_results(folder: Path, name: str) -> Results | None:
    """What was seen of one model; None when it was not run."""
    path = folder / f"{name}.json"
    return msgspec.json.decode(path.read_bytes(), type=Results) if path.exists() else None


def write_dropout(folder: Path, rows: tuple[DropoutRow, ...]) -> None:
    """Keep what was seen of dropout."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dropout.json").write_bytes(msgspec.json.encode(rows))


def read_dropout(folder: Path) -> tuple[DropoutRow, ...]:
    """What was seen of dropout; empty when it was not run."""
    path = folder / "dropout.json"
    return msgspec.json.decode(path.read_bytes(), type=tuple[DropoutRow, ...]) if path.exists() else ()


def publish(page: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Put the tables between the two marks of a page, in place of the old ones."""
    before, found_begin, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"{page} has no place for the results: it must hold the lines {begin} and {end}")
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")


# ---- tables ------------------------------------------------------------------------------------------------------


def tables(results: Results) -> str:
    """The tables of one model."""
    title = (
        f"**{results.name}** ({results.what}): plain peak {format_bytes(results.plain_peak_bytes)}, plain step "
        f"{format_seconds(results.plain_seconds)}, {results.num_stages} stages; the plain step against itself "
        f"{results.control:.3f}, {results.num_rounds} rounds"
    )
    parts = [title, _plan_table(results), _peer_table("baseline", results.peers)]
    if results.knob:
        parts.append(_peer_table("activation_memory_budget", results.knob))
    return "\n\n".join(parts) + "\n"


def summary(found: list[Results]) -> str:
    """One line for each promise, over all models."""
    plans = [row for results in found for row in results.plans]
    peers = [row for results in found for row in results.peers]
    faster = [row for row in peers if row.ratio is not None and row.ratio <= 1.0 + EQUAL]
    lines = [
        f"- measured peak within the budget: {sum(row.within for row in plans)} of {len(plans)}",
        f"- calls as planned: {sum(bool(row.seen.calls_as_planned) for row in plans)} of {len(plans)}",
        f"- loss, gradients, buffers and random state bit-equal: {sum(row.seen.bit_equal for row in plans)} of "
        f"{len(plans)}",
        f"- measured slowdown within {PROMISE:.0%} of the promise: {sum(abs(row.off) <= PROMISE for row in plans)} of "
        f"{len(plans)}; furthest off {max((row.off for row in plans), key=abs, default=0.0):+.1%}",
        f"- as fast as a baseline, or faster, at the peak that the baseline measures (within {EQUAL:.0%}): "
        f"{len(faster)} of {len(peers)}",
    ]
    return "\n".join(lines) + "\n"


def dropout_table(rows: tuple[DropoutRow, ...]) -> str:
    """Dropped positions that got a gradient."""
    cells = [(row.name, row.failure or f"{row.num_wrong} of {row.num_dropped}") for row in rows]
    return _markdown(("dropout", "dropped positions that get a gradient"), cells) + "\n"


def _plan_table(results: Results) -> str:
    columns = (
        "budget", "of plain", "promised", "measured", "within", "calls as planned", "bit-equal", "slower, promised",
        "measured (median)", "off",
    )  # fmt: skip
    rows = [
        (
            format_bytes(row.budget_bytes), f"{row.budget_bytes / results.plain_peak_bytes:.2f}",
            format_bytes(row.promised_bytes), format_bytes(row.seen.peak_bytes), _yes(row.within),
            _yes(bool(row.seen.calls_as_planned)), _yes(row.seen.bit_equal), f"{row.promised_slowdown:.2f}",
            _slowdown(row.seen), f"{row.off:+.0%}" if abs(row.off) <= PROMISE else f"**{row.off:+.0%}**",
        )
        for row in results.plans
    ]  # fmt: skip
    return _markdown(columns, rows)


def _peer_table(kind: str, peers: tuple[PeerRow, ...]) -> str:
    columns = (kind, "its peak", "slower", "bit-equal", "our peak", "slower", "our time over its", "as fast")
    return _markdown(columns, [_peer_cells(peer) for peer in peers])


def _peer_cells(peer: PeerRow) -> tuple[str, ...]:
    if peer.seen is None:
        return (peer.name, peer.failure, "", "", "", "", "", "")
    theirs = (peer.name, format_bytes(peer.seen.peak_bytes), _slowdown(peer.seen), _equality(peer.seen))
    if peer.ours is None:
        needed = f"none below {format_bytes(peer.needed_bytes or 0)}"
        return (*theirs, needed, "", "", peer.verdict)
    ours = peer.ours.seen
    return (*theirs, format_bytes(ours.peak_bytes), _slowdown(ours), f"{peer.ratio or 0.0:.2f}", peer.verdict)


def _equality(seen: Seen) -> str:
    return "yes" if seen.bit_equal else f"**no**: {seen.differing}"


def _slowdown(seen: Seen) -> str:
    return f"{seen.slowdown:.2f} ({seen.median:.2f})"


def _markdown(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _yes(truth: bool) -> str:
    return "yes" if truth else "**no**"
