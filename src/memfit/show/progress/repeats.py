"""Progress of repeated runs: what is run, a line per run that ended, and a line with the time left."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from memfit.records.difference import RepeatPlan, RepeatProgress
from memfit.show.progress.line import ProgressLine
from memfit.show.wording import command_text
from memfit.units import format_bytes, format_seconds


class RepeatsProgress:
    """Tells the terminal; the line at the bottom only where there is one."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._line = ProgressLine(stream)
        self._quiet = quiet
        self._num_shown = 0

    def begin(self, plan: RepeatPlan, folder: Path) -> None:
        """Say what is going to be run, and where."""
        for label, side in (("A", plan.first), ("B", plan.second)):
            stable = ", with --stable" if side.settings.stable else ""
            self._print(f"{label}  {command_text(side.command)}   (in {side.working_folder}{stable})")
        self._print(f"runs them in the order {' '.join(plan.order)}, below {folder}")

    def show(self, progress: RepeatProgress) -> None:
        """A run goes on, or has ended."""
        if progress.num_done > self._num_shown:
            self._num_shown = progress.num_done
            self._print(ended_line(progress))
        if progress.num_done < progress.num_runs and not self._quiet:
            self._line.draw(standing_line(progress))
        else:
            self._line.clear()

    def _print(self, line: str) -> None:
        if not self._quiet:
            self._line.clear()
            self._line.write(line.replace("\n", " ") + "\n")


def ended_line(progress: RepeatProgress) -> str:
    """'3/8  B  peak 461.2 MiB'."""
    peak = "" if progress.peak_bytes is None else f"  peak {format_bytes(progress.peak_bytes)}"
    return f"{progress.num_done}/{progress.num_runs}  {progress.label}{peak}"


def standing_line(progress: RepeatProgress) -> str:
    """'run 4 of 8 (B) | 12.3 s | about 45.0 s left'."""
    parts = [f"run {progress.num_done + 1} of {progress.num_runs}", format_seconds(progress.seconds)]
    if progress.seconds_left is not None:
        parts.append(f"about {format_seconds(progress.seconds_left)} left")
    return " | ".join(parts)
