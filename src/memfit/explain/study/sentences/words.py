"""Findings of a study as plain sentences."""

from __future__ import annotations

from memfit.records.figure import Figure
from memfit.records.files.only_text import quoted_if_unclear
from memfit.units import format_bytes, format_ratio

SIZELESS = {
    "lr", "learning_rate", "epochs", "num_epochs", "seed", "weight_decay", "beta1", "beta2", "eps", "patience",
}  # fmt: skip
"""Hyperparameters that change the size of no tensor."""

SIZED = {
    "width", "widths", "hidden", "hidden_size", "hidden_dim", "layers", "num_layers", "units", "nodes", "depth",
    "blocks", "channels", "filters", "embedding_dim", "d_model", "d_ff",
}  # fmt: skip
"""Hyperparameters that decide how many parameters a network has."""
METHOD = "least squares, HC3, calibrated by simulation on the same design"

Interval = tuple[float, float, float]


def signed_bytes(num_bytes: float) -> str:
    """'+12.0 MiB'; what rounds to nothing has no sign."""
    text = format_bytes(abs(num_bytes))
    return text if text == "0 B" else f"{'+' if num_bytes >= 0 else '-'}{text}"


def interval_text(change: Interval) -> str:
    """'+120.0 MiB (95 % interval +100.0 MiB to +140.0 MiB)'."""
    middle, low, high = change
    return f"{signed_bytes(middle)} (95 % interval {signed_bytes(low)} to {signed_bytes(high)})"


def change_figure(change: Interval, method: str) -> Figure:
    """A change of memory with its 95 % interval."""
    middle, low, high = change
    return Figure(value=middle, unit="bytes", source="measured", method=method, low=low, high=high)


def value_text(value: object) -> str:
    """A value of a hyperparameter, short."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = quoted_if_unclear(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def span_text(labels: tuple[int, ...], start: int, end: int) -> str:
    """Trials from one row up to, but without, another: 'trials 1-5'."""
    first, last = labels[start], labels[end - 1]
    part = labels[start:end]
    if first == last:
        return f"trial {first}"
    if part == tuple(range(first, last + 1)):
        return f"trials {first}-{last}"
    return f"the {len(part)} trials from {first} to {last}"


def counted_trials(count: int) -> str:
    """'1 trial', '12 trials'."""
    return "1 trial" if count == 1 else f"{count} trials"


def p_text(p: float) -> str:
    """'p = 0.012'."""
    return f"p = {p:.2g}" if p < 1 else "p = 1"


def share_text(share: float) -> str:
    """A share of the variance; below zero means none."""
    return format_ratio(max(share, 0.0))


def listed(names: tuple[str, ...] | list[str]) -> str:
    """'a, b and c'."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def is_sized(name: str) -> bool:
    """Whether a hyperparameter decides how many parameters a network has, by its name."""
    return name.rpartition("/")[2].rpartition(": ")[2].lower() in SIZED


def is_sizeless(name: str) -> bool:
    """Whether a hyperparameter changes the size of no tensor, by its name."""
    return name.rpartition("/")[2].lower() in SIZELESS
