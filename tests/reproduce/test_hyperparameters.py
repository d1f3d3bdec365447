"""Are published trials run again as they were published, in an order that no drift can follow, and compared fairly?"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import UsageError
from memfit.records.figure import measured
from memfit.records.reproduction import HyperparameterTrials, Rerun, SingleChange, StepEvidence
from memfit.records.study import Proposal, Study, Tool, TrialOutcome, TrialRecord
from memfit.reproduce.hyperparameters import single_changes as single
from memfit.reproduce.hyperparameters.future_work import answers_of
from memfit.reproduce.hyperparameters.published_tables import TABLES
from memfit.reproduce.hyperparameters.rerun import (
    data_sets_called,
    published_data,
    repeated_growth,
    rerun_of,
    rerun_settings,
)
from memfit.reproduce.hyperparameters.statements import (
    BATCH,
    CIFAR,
    CONVOLUTIONS,
    DEPTH,
    EPOCHS,
    NODES,
    RATE,
    RATE_FASHION,
    SAID,
    SHIFT,
    SMALL,
    SYSTEM,
    statements_on,
)
from memfit.show.terminal.reproduction import hyperparameters_text, rerun_text
from memfit.study.tuners.replicated_blocks import OrderedTuner
from memfit.units import MIB


@given(num_points=st.integers(1, 12), replicates=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_every_replicate_is_a_shuffle_of_all_points(num_points: int, replicates: int, seed: int):
    tuner = OrderedTuner([{"x": index} for index in range(num_points)], replicates, seed)
    for replicate in range(replicates):
        block = tuner.order[replicate * num_points : (replicate + 1) * num_points]
        assert sorted(row for row, _ in block) == list(range(num_points))
        assert {number for _, number in block} == {replicate}


def test_replicates_come_in_different_orders():
    order = OrderedTuner([{"x": index} for index in range(8)], 3, seed=0).order
    blocks = {tuple(row for row, _ in order[start : start + 8]) for start in (0, 8, 16)}
    assert len(blocks) == 3


@pytest.mark.parametrize("data", TABLES)
def test_the_points_are_the_published_ones(data: str):
    settings = rerun_settings(data, replicates=2, steps=20)
    rows = TABLES[data]
    points = settings.tuner.arguments["points"]
    assert [(p["lr"], p["epochs"], p["batch_size"], p["hidden"]) for p in points] == [row[:4] for row in rows]
    assert settings.max_trials == 2 * len(rows)
    assert settings.fixed["steps"] == 20
    assert any("20 optimizer steps" in note for note in settings.notes)


@pytest.mark.parametrize("data", TABLES)
def test_new_points_lie_in_the_published_ranges_and_repeat_with_the_seed(data: str):
    rows = TABLES[data]
    points = rerun_settings(data, num_random=30, seed=4).tuner.arguments["points"]
    assert points == rerun_settings(data, num_random=30, seed=4).tuner.arguments["points"]
    assert len(points) == 30
    for name, column in (("lr", 0), ("epochs", 1), ("batch_size", 2)):
        low, high = min(row[column] for row in rows), max(row[column] for row in rows)
        assert all(low <= point[name] <= high for point in points)


def test_an_unknown_table_is_refused():
    assert data_sets_called([]) == tuple(TABLES)
    assert data_sets_called(["paper-mnist", "cifar-10", "mnist"]) == ("mnist", "cifar-10")
    with pytest.raises(UsageError, match="no such published table") as caught:
        data_sets_called(["imagenet"])
    assert "fashion-mnist" in caught.value.hint


def made_study(sizes: dict[int, list[float]], data: str = "fashion-mnist") -> Study:
    """A re-run of a table with these peaks in MiB."""
    settings = rerun_settings(data, steps=5)
    points = settings.tuner.arguments["points"]
    trials = []
    for row, peaks in sizes.items():
        for replicate, peak in enumerate(peaks):
            memo = {"row": row, "replicate": replicate}
            trials.append(
                TrialRecord(
                    proposal=Proposal(number=len(trials), parameters=points[row], memo=memo),
                    outcome=TrialOutcome(kind="done"),
                    peak=measured(peak * MIB, "bytes", "test"),
                    average=measured(peak * MIB / 2, "bytes", "test"),
                    background=measured(1000 * MIB, "bytes", "test"),
                )
            )
    return Study(study_id="abc", settings=settings, trials=tuple(trials))


def test_replicates_are_averaged_beside_the_published_number():
    rerun = rerun_of(made_study({0: [100, 110], 3: [200]}))
    first, fourth = rerun.rows[0], rerun.rows[3]
    assert (first.peak.value, first.peak.low, first.peak.high) == (105 * MIB, 100 * MIB, 110 * MIB)
    assert first.system.value == 52.5 * MIB + 1000 * MIB
    assert first.published.value == pytest.approx(2655.838252 * MIB)
    assert fourth.num_done == 1
    assert rerun.rows[1].peak.value is None
    assert "no replicate" in rerun.rows[1].peak.reason
    text = rerun_text(rerun, width=120)
    assert "not known" in text  # nothing was really run, so there is no evidence for the cap
    assert "5 optimizer steps" in text


def test_a_study_that_is_no_rerun_is_not_compared():
    study = made_study({0: [1]})
    random = msgspec.structs.replace(study, settings=rerun_settings("fashion-mnist", num_random=2))
    assert published_data(study) == published_data(random) == "fashion-mnist"
    other = msgspec.structs.replace(study.settings, tuner=Tool(name="TPE"))
    assert published_data(msgspec.structs.replace(study, settings=other)) == ""
    assert rerun_of(random).rows[0].published.value is None
    assert "new point" in rerun_of(random).rows[0].published.reason


# ---- statements ------------------------------------------------------------------------------------------------------


def judged(*reruns: Rerun) -> dict[str, str]:
    """The verdicts by the first words of what is said."""
    found = statements_on(reruns)
    assert tuple(statement.says for statement in found) == SAID
    text = hyperparameters_text(HyperparameterTrials(reruns=reruns, statements=found), width=120)
    assert all(statement.says in " ".join(text.split()) for statement in found)
    return {statement.says: statement.verdict for statement in found}


def nodes_of(data: str) -> list[int]:
    return [sum(map(int, row[3].split("-"))) for row in TABLES[data]]


def rerun_with(data: str, peak_of, replicates: int = 3) -> Rerun:
    """A re-run whose rows have these peaks in MiB, with a spread of half a MiB."""
    sizes = {row: [peak_of(row) + 0.25 * k for k in range(replicates)] for row in range(len(TABLES[data]))}
    return rerun_of(made_study(sizes, data))


def test_without_a_re_run_nothing_is_claimed():
    assert set(judged().values()) == {"cannot tell"}


def test_memory_that_follows_the_nodes_supports_the_nodes_and_refutes_the_rate():
    nodes = nodes_of("mnist")
    verdicts = judged(rerun_with("mnist", lambda row: 300 + nodes[row] / 100))
    assert verdicts[NODES] == "holds"
    assert verdicts[RATE] == "does not hold"
    assert verdicts[SHIFT] == "holds"
    assert verdicts[CIFAR] == "cannot tell"


def test_memory_that_falls_with_the_nodes_refutes_them_and_equal_memory_tells_nothing():
    nodes = nodes_of("mnist")
    falling = judged(rerun_with("mnist", lambda row: 300 - nodes[row] / 100))
    assert falling[NODES] == "does not hold"
    assert falling[SMALL] == "does not hold"
    equal = judged(rerun_with("mnist", lambda row: 300))
    assert equal[NODES] == "cannot tell"
    assert equal[SMALL] == "cannot tell"


def test_small_networks_take_least_where_each_lies_below_every_other():
    def peak_of(row: int) -> float:
        return 300 + (max(map(int, TABLES["mnist"][row][3].split("-"))) > 200) * 5

    assert judged(rerun_with("mnist", peak_of))[SMALL] == "holds"


def test_a_rate_that_moved_memory_as_published_would_be_confirmed_and_a_wide_spread_tells_nothing():
    assert judged(rerun_with("mnist", lambda row: 300 + 600 * (row == 5)))[RATE] == "holds"
    wide = made_study({row: [300, 500] for row in range(11)}, "mnist")
    assert judged(rerun_of(wide))[RATE] == "cannot tell"


def test_cifar_takes_more_only_where_every_trial_does():
    mnist = rerun_with("mnist", lambda row: 300)
    assert judged(mnist, rerun_with("cifar-10", lambda row: 400))[CIFAR] == "holds"
    assert judged(mnist, rerun_with("cifar-10", lambda row: 200))[CIFAR] == "does not hold"
    assert judged(mnist, rerun_with("cifar-10", lambda row: 299 + 10 * row))[CIFAR] == "cannot tell"


def test_a_shift_that_the_networks_make_themselves_is_not_laid_on_other_programs():
    assert judged(rerun_with("mnist", lambda row: 300 + 400 * (row >= 5)))[SHIFT] == "cannot tell"


# ---- one hyperparameter alone, limitations, future work --------------------------------------------------------------


def changed(name: str, *peaks_mib: float, workload: str = "mlp", data: str = "mnist", spread_mib: float = 0.1):
    """A single change with these peaks, from low to high."""
    peaks = [
        measured(p * MIB, "bytes", "test", low=(p - spread_mib) * MIB, high=(p + spread_mib) * MIB) for p in peaks_mib
    ]
    levels = tuple(str(place) for place in range(len(peaks)))
    return SingleChange(workload=workload, data=data, name=name, levels=levels, peaks=tuple(peaks))


def verdicts_on(*changes: SingleChange) -> dict[str, str]:
    return {statement.says: statement.verdict for statement in statements_on((), changes)}


def test_what_changes_less_than_a_tenth_of_what_nodes_change_does_not_contribute():
    nodes = changed(single.NODES, 370, 380, 400)
    depth = changed(single.DEPTH_NODES, 380, 380.3), changed(single.DEPTH_WIDTH, 380, 381)
    found = verdicts_on(nodes, changed(single.BATCH, 380, 380.5), *depth)
    assert (found[NODES], found[BATCH], found[DEPTH]) == ("holds", "holds", "holds")
    found = verdicts_on(nodes, changed(single.BATCH, 380, 395), *depth[:1], changed(single.DEPTH_WIDTH, 380, 399))
    assert (found[BATCH], found[DEPTH]) == ("does not hold", "does not hold")
    assert verdicts_on(nodes, changed(single.BATCH, 380, 383))[BATCH] == "cannot tell"


def test_the_rate_on_fashion_mnist_is_judged_there_and_convolutions_by_themselves():
    fashion = [
        changed(name, *p, data="fashion-mnist") for name, p in ((single.NODES, (370, 400)), (single.RATE, (380, 380.2)))
    ]
    assert verdicts_on(changed(single.RATE, 380, 395))[RATE_FASHION] == "cannot tell"
    assert verdicts_on(*fashion)[RATE_FASHION] == "holds"
    filters = changed(single.NODES, 400, 500, workload="cnn")
    batch, depth = (
        changed(name, 400, high, workload="cnn") for name, high in ((single.BATCH, 520), (single.DEPTH_WIDTH, 401))
    )
    assert verdicts_on(filters, batch, depth)[CONVOLUTIONS] == "does not hold"


def test_one_replicate_has_no_spread_and_decides_nothing_that_needs_one():
    single_run = rerun_with("mnist", lambda row: 300 + row, replicates=1)
    assert single_run.rows[0].peak.low is None
    assert "unknown" in rerun_text(single_run, width=120)
    assert "± 0 B" not in rerun_text(single_run, width=120)
    found = judged(single_run)
    assert (found[RATE], found[SMALL]) == ("cannot tell", "cannot tell")


def test_the_limitations_are_put_into_figures():
    (system,) = [s for s in statements_on((rerun_with("mnist", lambda row: 300 + row),)) if s.says == SYSTEM]
    assert system.verdict == "holds"
    assert "other programs hold 87% to 87% of the system's memory" in system.evidence[0]


@pytest.mark.parametrize(
    "changes", [each for sets in single.CHANGE_SETS.values() for each in sets], ids=lambda c: c.name
)
def test_a_single_change_changes_one_thing_and_its_study_is_read_back(changes: single.ChangeSet):
    for name in changes.changes:
        levels = changes.levels(name)
        differing = {key for key in changes.base if len({str(point[key]) for point in levels}) > 1}
        assert len(differing) == 1
        assert changes.base in levels
    settings = single.change_settings(changes, replicates=2, steps=3, seed=1)
    trials = tuple(
        TrialRecord(
            proposal=Proposal(number=number, parameters=point), outcome=TrialOutcome(kind="done"),
            peak=measured((300 + number) * MIB, "bytes", "test"),
        )
        for number, point in enumerate(changes.points * 2)
    )  # fmt: skip
    found = single.changes_in(Study(study_id="x", settings=settings, trials=trials), changes)
    assert [change.name for change in found] == list(changes.changes)
    assert all(peak.low is not None for change in found for peak in change.peaks)


def test_what_was_not_run_is_an_answer_with_a_reason():
    answers = answers_of((), (), ())
    assert [bool(answer.reason) for answer in answers] == [True] * 4


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ({0: [0.0, 0.002], 1: [0.004, 0.001]}, "holds"),
        ({0: [0.0, 0.002], 1: [0.0104, 0.0]}, "cannot tell"),  # one trial, and not the other of the same network
        ({0: [0.0, 0.002], 1: [0.02, 0.015]}, "does not hold"),
        ({0: [0.0], 1: [0.02]}, "cannot tell"),  # nothing was run twice
    ],
)
def test_epochs_contribute_only_where_every_replicate_of_a_network_grows(shares: dict[int, list[float]], verdict: str):
    grown = [share for several in shares.values() for share in several]
    evidence = StepEvidence(
        num_trials=len(grown),
        num_steps=20,
        growth=measured(max(grown) * 500 * MIB, "bytes", "test"),
        share=measured(max(grown), "ratio", "test"),
        repeated=repeated_growth([(row, share) for row, several in shares.items() for share in several]),
    )
    rerun = msgspec.structs.replace(rerun_with("mnist", lambda row: 400 + row), evidence=evidence)
    assert judged(rerun)[EPOCHS] == verdict


def test_three_steps_do_not_tell_what_thirty_epochs_take():
    evidence = StepEvidence(
        num_trials=22, num_steps=3, growth=measured(0.0, "bytes", "test"), share=measured(0.0, "ratio", "test"),
    )  # fmt: skip
    rerun = msgspec.structs.replace(rerun_with("mnist", lambda row: 400 + row), evidence=evidence)
    assert judged(rerun)[EPOCHS] == "cannot tell"


def test_a_report_says_on_which_images_the_trials_were_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without the data sets it was synthetic ones, and only the output of each trial said so."""
    monkeypatch.setenv("MEMFIT_DATA", str(tmp_path))
    settings = rerun_settings("mnist", steps=3)
    assert "synthetic, as many and as large as those of mnist" in settings.notes[-1]
    (change,) = single.CHANGE_SETS["cifar-10"]
    (note,) = single.change_settings(change, replicates=1, steps=3, seed=0).notes
    assert "memfit data fetch cifar-10" in note
    text = hyperparameters_text(HyperparameterTrials(reruns=(), statements=(), notes=(note,)))
    assert text.count(note) == 1
