"""Do the ledgers of real trainings add up to the headline, with at least 95 % of it named?"""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.overhead.ledger_sums import JOBS, measure_job


@pytest.mark.quiet
@pytest.mark.parametrize("name", JOBS)
def test_the_ledger_of_a_training_adds_up_to_its_headline(tmp_path: Path, name: str):
    row = measure_job(name, tmp_path / "run")
    assert row.is_lawful
    assert row.explained_ratio >= 0.95
