"""What came out of comparing planners on standard networks: every answer at every budget and link, and how they rank.

All seconds and bytes are those of the event simulator, on chains that were predicted: nothing of it was run.
"""

from __future__ import annotations

import msgspec

from memfit.records.plan import Candidate, Link


class Network(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One network of a comparison, as it would train with everything kept."""

    name: str
    settings: tuple[str, ...] = ()
    num_examples: int
    """In one step."""
    num_stages: int
    plain_peak_bytes: int
    plain_seconds: float
    smallest_budget_bytes: int
    """The least that a plan which recomputes and moves needs."""
    notes: tuple[str, ...] = ()


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """All planners under one budget, fastest first."""

    budget_bytes: int
    candidates: tuple[Candidate, ...]


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One network behind one link, budgets from the smallest to the plain peak."""

    network: str
    link: Link
    cells: tuple[Cell, ...]


class Standing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one planner did over all panels and budgets."""

    planner: str
    family: str
    num_cells: int
    num_fits: int
    num_best: int
    """Where no other planner was faster by more than a thousandth."""
    mean_over_best: float | None = None
    """Its seconds over those of the fastest planner, averaged where it fits; None where it never does."""
    worst_over_best: float | None = None


class OffloadingExperiment(msgspec.Struct, frozen=True, kw_only=True):
    """The whole comparison."""

    device: str
    networks: tuple[Network, ...]
    panels: tuple[Panel, ...]
    standings: tuple[Standing, ...]
    """Best first: by how often it fits, then by the mean."""
    remarks: tuple[str, ...] = ()
    """What the answers say about the claims that are published, in sentences with figures."""
    took_seconds: float

    def network(self, name: str) -> Network:
        """The network of a panel."""
        return next(network for network in self.networks if network.name == name)
