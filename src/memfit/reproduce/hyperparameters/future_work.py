"""Answers to what the published study of hyperparameters leaves to future work, as far as it was measured here."""

from __future__ import annotations

from collections.abc import Sequence

from memfit.records.reproduction import FutureAnswer, LayerShare, Learner, Rerun
from memfit.units import format_bytes, format_seconds

LAYERS = "which layer causes the memory?"
GANS = "how much do generative adversarial networks take?"
LEARNERS = "how much do learners take that are no neural networks?"
ENERGY = "how much energy does a training take?"
MOST_LAYERS = 6


def answers_of(
    layers: Sequence[LayerShare], learners: Sequence[Learner], reruns: Sequence[Rerun]
) -> tuple[FutureAnswer, ...]:
    """Every question with what was found, or why nothing is known."""
    return (
        _answered(LAYERS, _layer_lines(layers), "the networks were not predicted"),
        _answered(GANS, _learner_lines([each for each in learners if each.name == "gan"]), "no GAN was run"),
        _answered(LEARNERS, _learner_lines([each for each in learners if each.name != "gan"]), "none was run"),
        _energy(learners, reruns),
    )


def _answered(question: str, lines: list[str], reason: str) -> FutureAnswer:
    return FutureAnswer(question=question, evidence=tuple(lines), reason="" if lines else reason)


def _layer_lines(layers: Sequence[LayerShare]) -> list[str]:
    """The largest layers of each network, with their share of what all of them hold."""
    lines = []
    for network in dict.fromkeys(layer.network for layer in layers):
        own = [(each.layer, each.held.value or 0.0) for each in layers if each.network == network]
        total = sum(held for _, held in own) or 1.0
        largest = sorted(own, key=lambda pair: -pair[1])[:MOST_LAYERS]
        parts = ", ".join(f"{_named(name)} {format_bytes(held)} ({held / total:.0%})" for name, held in largest)
        lines.append(f"{network}, tensors at the peak of a step, predicted: {parts}")
    return lines


def _named(layer: str) -> str:
    """Layers of a torch.nn.Sequential are numbers."""
    return f"layer {layer}" if layer.isdigit() else layer


def _learner_lines(learners: Sequence[Learner]) -> list[str]:
    lines = []
    for each in learners:
        if each.peak.value is None:
            lines.append(f"{each.name} ({each.settings}): unknown, {each.peak.reason}")
            continue
        took = "" if each.duration.value is None else f" in {format_seconds(each.duration.value)}"
        lines.append(f"{each.name} ({each.settings}): peak {format_bytes(each.peak.value)}{took}")
    return lines


def _energy(learners: Sequence[Learner], reruns: Sequence[Rerun]) -> FutureAnswer:
    rows = [(f"{rerun.data} row {row.row}", row.energy) for rerun in reruns for row in rerun.rows]
    rows += [(f"{each.name} ({each.settings})", each.energy) for each in learners]
    lines = [f"{name}: {energy.value:.0f} J" for name, energy in rows if energy.value is not None]
    reasons = [energy.reason for _, energy in rows if energy.reason]
    return _answered(ENERGY, lines, reasons[0] if reasons else "nothing was run")
