"""Does the comparison with other tools say 'as fast' only where the whole interval allows it, and keep what was run?"""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.overhead.paired import Estimate
from benchmarks.plans import peers


def estimate(low: float, value: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, num_values=9)


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [((0.9, 0.95, 1.01), "yes"), ((0.9, 1.0, 1.05), "cannot tell"), ((1.01, 1.05, 1.1), "**no**")],
)
def test_the_verdict_is_that_of_the_whole_interval(interval: tuple[float, float, float], verdict: str):
    assert peers.Row(tool="a tool", quotient=estimate(*interval)).verdict == verdict


def test_rows_of_tools_that_were_not_run_again_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(peers, "KEPT", tmp_path)
    first = peers.Row(tool="activation_memory_budget 0.4", failure="it said no")
    for rows in ((first,), (peers.Row(tool="another", failure="nor this"),)):
        control = estimate(0.99, 1.0, 1.01)
        peers._keep(peers.Results(name="a model", what="small", plain_bytes=1, control=control, rows=rows))
    found = peers._kept("a model")
    assert found is not None
    assert [row.tool for row in found.rows] == ["another", "activation_memory_budget 0.4"]
    assert "it said no" in peers.table([found])
