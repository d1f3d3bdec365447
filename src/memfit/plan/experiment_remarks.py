"""What does a comparison of planners say about the two claims that are published: do the heuristics beat earlier rules,
and how much of the price of recomputing does moving take away?

Beaumont, Eyraud-Dubois and Shilova (2020) report that their two heuristics are better than earlier approaches; the same
authors (2021) that moving as well removes a third of the overhead of recomputing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from memfit.records.reproduction import Network, Panel

EARLIER = ("offload all", "vDNN all", "vDNN conv", "vDNN++", "AutoSwap", "TFLMS")
HEURISTICS = ("offload prefix", "offload fluid")


def remarks_on(panels: Sequence[Panel], networks: Sequence[Network]) -> tuple[str, ...]:
    """Sentences with figures, for as much as the comparison holds."""
    speeds = dict.fromkeys(panel.link.out_bytes_per_second for panel in panels)
    spared = [_spared(speed, panels, networks) for speed in speeds]
    return tuple(line for line in (_heuristics(panels), *spared) if line)


def _heuristics(panels: Sequence[Panel]) -> str:
    ratios = []
    for seconds in _answers(panels):
        earlier, ours = _least(seconds, EARLIER), _least(seconds, HEURISTICS)
        if earlier is not None and ours is not None:
            ratios.append(earlier / ours)
    if not ratios:
        return ""
    return (
        f"the better of the two heuristics against the best earlier rule that only moves: x{fmean(ratios):.3f} as fast "
        f"on average over {len(ratios)} cases, from x{min(ratios):.3f} to x{max(ratios):.3f}"
    )


def _spared(speed: float, panels: Sequence[Panel], networks: Sequence[Network]) -> str:
    """The share of the recomputing planner's overhead that is gone when it may move as well."""
    overheads = []
    for network in networks:
        own = [p for p in panels if p.network == network.name and p.link.out_bytes_per_second == speed]
        for seconds in _answers(own):
            if "nested" in seconds and "combined" in seconds:
                overheads.append([seconds[name] / network.plain_seconds - 1 for name in ("nested", "combined")])
    recomputing = sum(pair[0] for pair in overheads)
    if recomputing <= 0:
        return ""
    share = 1 - sum(pair[1] for pair in overheads) / recomputing
    return f"moving over {speed / 1e9:g} GB/s takes away {share:.0%} of the time that recomputing alone adds"


def _answers(panels: Sequence[Panel]) -> Iterator[Mapping[str, float]]:
    """Seconds by planner at every budget below the plain peak."""
    for cell in (cell for panel in panels for cell in panel.cells[:-1]):
        yield {c.solver: c.seconds for c in cell.candidates if c.seconds is not None}


def _least(seconds: Mapping[str, float], names: Sequence[str]) -> float | None:
    return min((seconds[name] for name in names if name in seconds), default=None)
