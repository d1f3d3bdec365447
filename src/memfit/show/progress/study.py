"""Progress of a running study: a line per finished trial, and one that says how far it is."""

from __future__ import annotations

from typing import TextIO

from memfit.records.study import Standing, TrialRecord
from memfit.show.progress.line import ProgressLine
from memfit.show.wording import cut
from memfit.units import format_bytes, format_seconds


def ended_line(trial: TrialRecord, standing: Standing) -> str:
    """'12/40  done  peak 461.2 MiB  metric 0.91  3.20 s  lr=0.01 batch=32'."""
    wanted = "" if standing.num_wanted is None else f"/{standing.num_wanted}"
    parts = [f"{standing.num_finished}{wanted}", trial.kind]
    if trial.peak.value is not None:
        parts.append(f"peak {format_bytes(trial.peak.value)}")
    if trial.metric is not None:
        parts.append(f"metric {trial.metric:.6g}")
    if trial.duration.value is not None:
        parts.append(format_seconds(trial.duration.value))
    if trial.kind not in ("done", "running") and trial.outcome.message:
        parts.append(f"({cut(trial.outcome.message, 80)})")
    settings = " ".join(f"{name}={_short(value)}" for name, value in trial.flat_parameters.items())
    return "  ".join([*parts, settings])


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else cut(str(value), 40)


def standing_line(standing: Standing) -> str:
    """'8 of 40 trials | 2 running, 912.0 MiB | 12.3 s | about 45 s left'."""
    wanted = "" if standing.num_wanted is None else f" of {standing.num_wanted}"
    held_bytes = sum(trial.state.tree_bytes for trial in standing.live if trial.state is not None)
    running = f"{standing.num_running} running" + (f", {format_bytes(held_bytes)}" if held_bytes else "")
    parts = [f"{standing.num_finished}{wanted} trials", running, format_seconds(standing.seconds)]
    if standing.is_ending:
        parts.append("ending")
    elif standing.seconds_left is not None:
        parts.append(f"about {format_seconds(standing.seconds_left)} left")
    return " | ".join(parts)


class StudyProgress:
    """Tells the terminal; the line at the bottom only where there is one."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._line = ProgressLine(stream)
        self._quiet = quiet
        self.has_line = not quiet and self._line.is_drawable

    def ended(self, trial: TrialRecord, standing: Standing) -> None:
        if not self._quiet:
            self._print(ended_line(trial, standing))
            self.tick(standing)

    def note(self, sentence: str) -> None:
        self._print(f"memfit: {sentence}")

    def tick(self, standing: Standing) -> None:
        if self.has_line:
            self._line.draw(standing_line(standing))

    def close(self) -> None:
        """Take the line away."""
        self._line.clear()

    def _print(self, line: str) -> None:
        self._line.clear()
        self._line.write(line.replace("\n", " ") + "\n")
