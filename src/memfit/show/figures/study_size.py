"""Memory of trials against the number of parameters of their networks, with the law of the study drawn in.

The law has a second term, activations times batch: its line is drawn at the smallest, the median and the largest value
of that term, and trials are coloured by it, so that a point can be held against the line it belongs to.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from memfit.records.memory_law import MemoryLaw
from memfit.records.study import Study, TrialRecord
from memfit.show.figures.timeline import ORANGE
from memfit.show.views.study_axes import study_title
from memfit.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

BATCH_NAMES = ("batch_size", "batch", "batchsize")
_INK = "#20262e"


def size_picture(study: Study, law: MemoryLaw | str = "") -> Picture | None:
    """The picture, or None where fewer than two trials reported a number of parameters."""
    from matplotlib.figure import Figure

    trials = [trial for trial in study.trials if trial.kind == "done" and trial.peak.value is not None]
    sized = [trial for trial in trials if _count(trial, "num_parameters") is not None]
    counts = np.array([_count(trial, "num_parameters") for trial in sized], dtype=float)
    if len(sized) < 2 or np.ptp(counts) == 0:
        return None
    sizes = np.array([trial.peak.value for trial in sized], dtype=float)
    activations = np.array([_batch_activations(trial) for trial in sized], dtype=float)
    unit_bytes, unit = (GIB, "GiB") if sizes.max() >= GIB else (MIB, "MiB")
    picture = Figure(figsize=(9, 5.6), layout="constrained", dpi=110)
    panel = picture.add_subplot()
    is_log = counts.min() > 0 and counts.max() / counts.min() >= 50
    panel.set_xscale("log" if is_log else "linear")
    _points(panel, counts, sizes / unit_bytes, activations)
    note = _law_lines(panel, law, counts, activations, unit_bytes, is_log)
    left_out = len(trials) - len(sized)
    title = f"{study_title(study)}: memory against size of the network, {len(sized):,} trials"
    title += f" ({left_out:,} did not report their size)" if left_out else ""
    panel.set_title("\n".join(part for part in (title, note) if part), fontsize=10.5, loc="left")
    panel.set_xlabel("parameters of the network" + (" (log)" if is_log else ""))
    panel.set_ylabel(f"peak, {unit}")
    panel.grid(color="#e9ecef", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    return picture


def _count(trial: TrialRecord, name: str) -> float | None:
    value = trial.others.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _batch_activations(trial: TrialRecord) -> float:
    """Activations of one example times the examples of a batch; NaN where either is not known."""
    values = [trial.parameters.get(name) for name in BATCH_NAMES]
    batch = next((v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)), math.nan)
    each = _count(trial, "num_activations")
    return math.nan if each is None else each * batch


def _points(panel: Axes, counts: np.ndarray, sizes: np.ndarray, activations: np.ndarray) -> None:
    known = ~np.isnan(activations)
    alpha = 0.85 if len(counts) < 300 else 0.5 if len(counts) < 3000 else 0.25
    mark = 22 if len(counts) < 1000 else 8
    if not known.all():
        panel.scatter(counts[~known], sizes[~known], s=mark, color="#8a929c", alpha=alpha, linewidths=0)
    if known.any():
        drawn = panel.scatter(
            counts[known], sizes[known], c=activations[known], s=mark, alpha=alpha, cmap="viridis", linewidths=0
        )
        if np.ptp(activations[known]) > 0:
            bar = panel.figure.colorbar(drawn, ax=panel, pad=0.015)
            bar.set_label("activations of a batch")
            if bar.solids is not None:
                bar.solids.set_alpha(1)


def _law_lines(
    panel: Axes, law: MemoryLaw | str, counts: np.ndarray, activations: np.ndarray, unit_bytes: int, is_log: bool
) -> str:
    """Draw the law; returns it in words, or why there is none."""
    if isinstance(law, str):
        return f"no law is drawn: {law}" if law else ""
    ends = (counts.min(), counts.max())
    across = np.geomspace(*ends, 100) if is_log else np.linspace(*ends, 100)
    known = activations[~np.isnan(activations)]
    has_second = law.bytes_per_activation is not None and len(known) > 0
    terms = [("law", 0.0, "-")]
    if has_second:
        middle = float(np.median(known))
        terms = [("least activations", float(known.min()), ":"), ("median activations", middle, "-")]
        terms.append(("most activations", float(known.max()), "--"))
    for word, second, line in terms:
        values = [law.bytes_of(count, second) / unit_bytes for count in across.tolist()]
        label = word if word == "law" else f"law at {word}"
        panel.plot(across, values, color=ORANGE, linestyle=line, linewidth=1.8, label=label, zorder=5)
    panel.legend(frameon=False, fontsize=8.5)
    return "law: " + law_words(law)


def law_words(law: MemoryLaw) -> str:
    """'371.6 MiB + 15.8 bytes per parameter'."""
    parts = [format_bytes(law.base_bytes)]
    if law.bytes_per_parameter is not None:
        parts.append(f"{law.bytes_per_parameter:.3g} bytes per parameter")
    if law.bytes_per_activation is not None:
        parts.append(f"{law.bytes_per_activation:.3g} bytes per activation of a batch")
    return " + ".join(parts)
