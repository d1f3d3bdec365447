"""Does the published table alone show what its text misses?"""

from __future__ import annotations

import pytest

from memfit.errors import UsageError
from memfit.explain.study.explain import explain_study
from memfit.job.network_size import fully_connected_size
from memfit.reproduce.hyperparameters.published_tables import TABLES, published_study
from memfit.units import MIB


@pytest.fixture(scope="module")
def mnist():
    return explain_study(published_study("mnist"))


def test_the_first_table_was_recorded_at_two_different_times(mnist):
    (order,) = mnist.about("order of recording")
    assert order.verdict == "found"
    assert "trials 1-5 and trials 6-11 differ by when they were recorded" in order.sentence
    assert order.p is not None
    assert order.p < 0.01
    assert order.effect is not None
    assert order.effect.low is not None
    assert order.effect.low > 300 * MIB
    assert order.share is not None
    assert order.share > 0.9


def test_the_step_is_not_the_work_of_any_hyperparameter(mnist):
    (order,) = mnist.about("order of recording")
    assert any("the step stays whichever is taken out: lr, epochs, batch_size" in line for line in order.evidence)


def test_trials_five_and_six_are_one_network_with_a_tenth_of_the_rate_and_600_mb_apart(mnist):
    (pair,) = mnist.about("pair", "5", "6")
    assert "differ in lr alone (0.0042 and 0.00042) and by +601.5 MiB" in pair.sentence
    assert any("so the pair says nothing on lr" in line for line in pair.evidence)
    assert any("factor of 1577 and by 9.57 MiB only" in line for line in pair.evidence)


def test_the_learning_rate_only_seems_to_matter(mnist):
    (rate,) = mnist.about("hyperparameter", "lr")
    assert rate.verdict != "found"
    assert any(
        "seems to explain 36.8 %; once the order of recording is accounted for, 0.1 %" in e for e in rate.evidence
    )


def test_the_networks_are_too_small_to_make_the_differences(mnist):
    (size,) = mnist.about("size of the network")
    assert "3.93 MiB to 9.00 MiB" in size.sentence
    assert any("99.2 % of the span must come from something else" in line for line in size.evidence)


def test_no_hyperparameter_and_no_law_is_claimed(mnist):
    claimed = [f for f in mnist.findings if f.verdict == "found" and f.topic != "order of recording"]
    assert claimed == []
    assert mnist.importances == ()


@pytest.mark.parametrize("data", ["fashion-mnist", "cifar-10"])
def test_five_trials_that_vary_everything_at_once_tell_nothing_and_it_is_said(data: str):
    findings = explain_study(published_study(data))
    assert not [f for f in findings.findings if f.verdict == "found"]
    (hyperparameters,) = findings.about("hyperparameter")
    assert "5 trials vary 5 hyperparameters at once" in hyperparameters.sentence


def test_the_published_mb_are_mib_because_only_then_they_are_averages_of_whole_pages():
    """The smallest number of readings whose average each value may be: far smaller for 2^20 bytes than for 10^6."""

    def readings(value: float, unit: int) -> int:
        pages = value * unit / 4096
        slack = 6e-7 * unit / 4096  # six decimals are printed
        return next(k for k in range(1, 2000) if abs(pages * k - round(pages * k)) <= slack * k + 1e-9)

    values = [row[-1] for table in TABLES.values() for row in table]
    as_mib, as_mb = ([readings(value, unit) for value in values] for unit in (MIB, 10**6))
    assert sorted(as_mib)[len(values) // 2] < 20
    assert sorted(as_mb)[len(values) // 2] > 60


def test_sizes_are_those_of_the_networks():
    assert fully_connected_size(784, "128-64") == (784 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10, 128 + 64 + 10)
    assert [len(table) for table in TABLES.values()] == [11, 5, 5]


def test_an_unknown_table_is_refused():
    with pytest.raises(UsageError, match="no published table"):
        published_study("imagenet")
