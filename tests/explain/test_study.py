"""Are planted effects found, is nothing found where nothing is, and do the intervals keep their word?"""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_studies import SETTINGS, drawn, made_study, made_trial

from memfit.explain.study.explain import ERROR_RATE, explain_study, explain_table, report_of
from memfit.explain.study.table import table_of
from memfit.explain.study.time_and_background import ORDER
from memfit.records.study import Study
from memfit.records.study_findings import StudyFinding, StudyFindings
from memfit.testing.oracles.contradictions import contradictions
from memfit.units import MIB


def found(findings: StudyFindings) -> set[tuple[str, ...]]:
    return {(f.topic, *f.subjects) for f in findings.findings if f.verdict == "found"}


def about(findings: StudyFindings, name: str) -> StudyFinding:
    (finding,) = findings.about("hyperparameter", name)
    return finding


# ---- planted effects -------------------------------------------------------------------------------------------------


def test_a_planted_effect_is_found_with_its_size_and_the_rest_is_ruled_out():
    findings = explain_study(made_study(lambda row, place: 0.5 * row["batch_size"]))
    batch = about(findings, "batch_size")
    assert found(findings) == {("hyperparameter", "batch_size")}
    assert batch.effect is not None
    assert batch.effect.low is not None
    assert batch.effect.high is not None
    low, high = map(int, re.findall(r"from (\d+) to (\d+)", batch.sentence)[0])
    assert batch.effect.low <= 0.5 * (high - low) * MIB <= batch.effect.high
    assert any("memory rises with it" in line for line in batch.evidence)
    assert {about(findings, name).verdict for name in ("lr", "width", "optimizer", "dropout")} == {"ruled out"}
    assert findings.importances[0].name == "batch_size"
    assert findings.importances[0].share > 0.8


def test_the_effect_of_a_choice_is_found_and_named():
    findings = explain_study(made_study(lambda row, place: 60.0 * (row["optimizer"] == "adam")))
    assert found(findings) == {("hyperparameter", "optimizer")}
    assert "adam" in about(findings, "optimizer").sentence


def test_two_that_act_together_are_found():
    findings = explain_study(made_study(lambda row, place: row["batch_size"] * row["width"] / 300, num_trials=60))
    assert ("interaction", "batch_size", "width") in found(findings)


def test_a_step_in_the_order_is_found_where_it_was_planted_and_taken_out_of_the_effects():
    rule = lambda row, place: 300.0 * (place >= 25) + 0.5 * row["batch_size"]  # noqa: E731
    findings = explain_study(made_study(rule))
    (order,) = findings.about("order of recording")
    assert "trials 0-24 and trials 25-39 differ by when they were recorded" in order.sentence
    assert about(findings, "batch_size").verdict == "found"
    assert order.effect is not None
    assert order.effect.value == pytest.approx(300 * MIB, rel=0.05)


def test_a_drift_is_told_from_a_step():
    findings = explain_study(made_study(lambda row, place: 5.0 * place))
    (order,) = findings.about("order of recording")
    assert order.verdict == "found"
    assert "drifts" in order.sentence


def test_a_grid_in_its_own_order_is_no_step_in_time():
    """Hyperparameters that change with the order explain the order, not the other way round."""
    rows = [{"batch_size": b, "width": w} for b, w in product((16, 32, 64, 128, 256), range(32, 512, 48))]
    findings = explain_study(made_study(lambda row, place: 0.5 * row["batch_size"], rows=rows))
    assert found(findings) == {("hyperparameter", "batch_size")}


def test_a_small_grid_in_its_own_order_cannot_tell_time_from_its_first_hyperparameter():
    rows = [{"batch_size": b, "width": w} for b, w in product((16, 128, 256), (32, 64, 128))]
    findings = explain_study(made_study(lambda row, place: 0.5 * row["batch_size"], rows=rows, noise_mib=1.0))
    (order,) = findings.about("order of recording")
    assert order.verdict == "cannot tell"
    assert "cannot be separated from batch_size" in order.sentence


def test_other_programs_in_the_number_are_found_byte_for_byte():
    background = np.random.default_rng(5).normal(3000, 80, 40)
    study = made_study(lambda row, place: float(background[place]), background=lambda place: float(background[place]))
    (others,) = explain_study(study).about("other programs")
    assert others.verdict == "found"
    assert others.sentence.startswith("other programs are in the number: 1.0")


def test_the_time_of_day_is_found_when_memory_follows_it():
    study = made_study(lambda row, place: 80 * np.sin((8 + place * 1.7) * np.pi / 12), hours_each=1.7)
    (hour,) = explain_study(study).about("time of day")
    assert hour.verdict == "found"


def test_a_law_is_recovered_with_its_coefficients():
    def sizes(row: dict[str, Any]) -> dict[str, Any]:
        return {"num_parameters": row["width"] ** 2 * 10, "num_activations": row["width"] * 40}

    def rule(row: dict[str, Any], place: int) -> float:
        size = sizes(row)
        return (16 * size["num_parameters"] + 8 * row["batch_size"] * size["num_activations"]) / MIB

    (law,) = explain_study(made_study(rule, sizes=sizes, noise_mib=1.0)).about("law")
    assert law.verdict == "found"
    base, each, activation = map(float, re.findall(r"(\d+\.?\d*) (?:MiB|bytes)", law.sentence))
    assert (base, each, activation) == pytest.approx((1000, 16, 8), rel=0.05)
    assert "16 bytes per parameter is a weight, its gradient and Adam's two moments" in law.evidence


def test_layer_lists_count_by_their_layers_and_units():
    random = np.random.default_rng(3)
    rows = [{"hidden": "-".join(map(str, random.integers(8, 300, random.integers(2, 8))))} for _ in range(40)]
    rule = lambda row, place: 0.5 * sum(map(int, row["hidden"].split("-")))  # noqa: E731
    assert ("hyperparameter", "hidden: units") in found(explain_study(made_study(rule, rows=rows)))


# ---- what cannot be told ---------------------------------------------------------------------------------------------


def test_hyperparameters_that_moved_together_are_not_told_apart():
    random = np.random.default_rng(2)
    rows = [{**drawn(random), "batch_size": b, "twice": 2 * b} for b in random.integers(8, 256, 40).tolist()]
    findings = explain_study(made_study(lambda row, place: row["twice"], rows=rows))
    verdicts = {name: about(findings, name) for name in ("batch_size", "twice")}
    untold = [f for f in verdicts.values() if f.verdict == "cannot tell" and "moved together" in f.sentence]
    assert len(untold) == 1


def test_what_is_found_on_one_of_two_that_moved_together_names_the_other():
    random = np.random.default_rng(2)
    rows = [{"a": v, "twice": 2 * v, "c": int(random.integers(0, 9))} for v in random.integers(8, 256, 40).tolist()]
    findings = explain_study(made_study(lambda row, place: row["a"], rows=rows))
    (told,) = [f for f in findings.about("hyperparameter") if f.verdict == "found"]
    (other,) = {"a", "twice"} - set(told.subjects)
    assert f"everything else but {other} held fixed" in told.sentence
    assert any(f"{other} moved together with it" in line for line in told.evidence)


def test_two_pairs_that_moved_together_are_both_left_out_of_the_model():
    """With two such pairs the rest is not of full rank either, whichever hyperparameter is looked at."""
    random = np.random.default_rng(3)
    values = zip(random.integers(8, 256, 40).tolist(), random.integers(1, 30, 40).tolist(), strict=True)
    rows = [{"a": a, "twice": 2 * a, "b": b, "thrice": 3 * b} for a, b in values]
    findings = explain_study(made_study(lambda row, place: row["a"] + 5 * row["b"], rows=rows))
    verdicts = sorted(f.verdict for f in findings.about("hyperparameter"))
    assert verdicts == ["cannot tell", "cannot tell", "found", "found"]
    for finding in findings.about("hyperparameter"):
        assert finding.effect is None or abs(finding.effect.value or 0) < 1000 * MIB


def branches(num_trials: int) -> list[dict[str, Any]]:
    """Optimizers with parameters of their own: one of them never varies, one is a choice of two."""
    random = np.random.default_rng(4)
    rows: list[dict[str, Any]] = []
    for _ in range(num_trials):
        adam = {"_name": "adam", "amsgrad": bool(random.integers(2)), "eps": "small"}
        sgd = {"_name": "sgd", "momentum": float(random.random())}
        rows.append({"opt": adam if random.random() < 0.5 else sgd, "width": int(random.integers(32, 512))})
    return rows


def test_a_branch_is_credited_to_the_choice_and_what_is_in_it_to_its_own_parameters():
    def rule(row: dict[str, Any], place: int) -> float:
        opt = row["opt"]
        return 60 + 40 * opt["amsgrad"] if opt["_name"] == "adam" else 0

    findings = explain_study(made_study(rule, rows=branches(60), noise_mib=2))
    assert found(findings) == {("hyperparameter", "opt"), ("hyperparameter", "opt/adam/amsgrad")}
    inner = about(findings, "opt/adam/amsgrad").effect
    assert inner is not None
    assert inner.low is not None
    assert inner.high is not None
    assert min(abs(inner.low), abs(inner.high)) < 40 * MIB < max(abs(inner.low), abs(inner.high))
    assert "opt/adam/eps" in findings.constant
    assert not any("None" in each.sentence for each in findings.findings)


def test_a_null_that_was_tried_is_an_option_and_not_an_average():
    random = np.random.default_rng(5)
    rows = [{"depth": option, "lr": float(random.random())} for option in [None, 4, 8] * 12]
    findings = explain_study(made_study(lambda row, place: 100 * (row["depth"] is None), rows=rows))
    depth = about(findings, "depth")
    assert depth.verdict == "found"
    assert depth.effect is not None
    assert abs(abs(depth.effect.value or 0) - 100 * MIB) < 10 * MIB


def _study_of(points: list[dict[str, Any]], memory_mib: list[float]) -> Study:
    trials = [
        made_trial(k, point, 300.0 + extra) for k, (point, extra) in enumerate(zip(points, memory_mib, strict=True))
    ]
    return Study(study_id="s", settings=SETTINGS, trials=tuple(trials))


def test_a_text_that_reads_like_a_number_is_told_from_the_number():
    random = np.random.default_rng(3)
    points = [{"x": (None, True, 1, "1")[k % 4], "lr": float(random.uniform(0, 1))} for k in range(60)]
    noise = random.normal(0, 0.1, 60)
    findings = explain_study(
        _study_of(points, [20.0 * (p["x"] == "1") + e for p, e in zip(points, noise, strict=True)])
    )
    assert found(findings) == {("hyperparameter", "x")}
    assert '"1"' in about(findings, "x").sentence


def test_a_size_that_was_reported_in_part_is_not_called_unreported():
    points = [{"width": 8 * (k + 1)} for k in range(12)]
    study = _study_of(points, [float(k) for k in range(12)])
    trials = [msgspec.structs.replace(t, others={"num_parameters": 10 * t.number}) for t in study.trials]
    findings = explain_study(msgspec.structs.replace(study, trials=tuple(trials)))
    (law,) = [each.sentence for each in findings.findings if each.topic == "law"]
    assert "num_activations in 12 of 12 is missing" in law
    assert "num_parameters" not in law


def test_a_value_of_several_lines_stays_on_one_line_of_a_sentence():
    random = np.random.default_rng(4)
    points = [{"x": ("a\nb", "c")[k % 2]} for k in range(20)]
    findings = explain_study(_study_of(points, random.normal(0, 1, 20).tolist()))
    assert all("\n" not in each.sentence for each in findings.findings)


def test_a_choice_of_very_many_options_is_not_concluded_on_and_what_is_found_besides_says_so():
    random = np.random.default_rng(5)
    points = [{"name": f"file {random.integers(400)}", "width": int(random.choice([8, 64]))} for _ in range(500)]
    noise = random.normal(0, 0.1, 500)
    findings = explain_study(_study_of(points, [p["width"] + e for p, e in zip(points, noise, strict=True)]))
    name = about(findings, "name")
    assert name.verdict == "cannot tell"
    assert re.search(r"\d+ options were tried in 500 trials", name.sentence)
    assert about(findings, "width").verdict == "found"
    assert "everything else but name held fixed" in about(findings, "width").sentence
    assert not contradictions(findings, range(500))


@pytest.mark.parametrize("values", [(1e300, 1e-300), (10**400, 1), (1e-310, 2e-310), (1, 1.0)])
def test_numbers_at_the_ends_of_what_a_float_holds_are_explained(values: tuple[float, ...]):
    random = np.random.default_rng(6)
    rows = [{"odd": values[place % 2], "w": int(random.integers(1, 50))} for place in range(30)]
    findings = explain_study(made_study(lambda row, place: row["w"] + 50 * (place % 2), rows=rows))
    if values[0] == values[1]:
        assert findings.constant == ("odd",)
    else:
        assert about(findings, "odd").verdict == "found"


def test_trials_that_ran_out_of_memory_are_left_out_counted_and_their_absence_explained():
    study = made_study(num_trials=20)
    lost = tuple(made_trial(20 + i, drawn(np.random.default_rng(i)), 9e6, kind="out of memory") for i in range(3))
    findings = explain_study(msgspec.structs.replace(study, trials=study.trials + lost))
    assert findings.num_trials == 20
    assert "left out: 3 trials with the outcome 'out of memory'" in findings.notes
    assert any("effects look smaller than they are" in note for note in findings.notes)


def test_what_did_not_vary_is_named():
    rows = [{"width": i, "layers": 3} for i in range(1, 21)]
    assert "did not vary: layers" in explain_study(made_study(rows=rows)).notes


@pytest.mark.parametrize("num_trials", [0, 1, 2])
def test_too_few_trials_give_no_findings_and_the_reason(num_trials: int):
    study = msgspec.structs.replace(made_study(num_trials=5), trials=made_study(num_trials=5).trials[:num_trials])
    findings = explain_study(study)
    assert findings.findings == ()
    assert any("nothing to explain" in note for note in findings.notes)


# ---- laws ------------------------------------------------------------------------------------------------------------


def test_data_without_effects_give_findings_no_more_often_than_stated():
    """40 studies of heavy-tailed noise; with a true rate of 5 %, more than 6 come up in 1 of 300 tries."""
    num_found = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        noise = 20 * random.standard_t(3, 24)
        background = random.normal(3000, 100, 24)
        study = made_study(
            lambda row, place, noise=noise: float(noise[place]),
            seed=seed,
            num_trials=24,
            background=lambda place, background=background: float(background[place]),
        )
        findings = explain_study(study)
        num_found += bool(found(findings) or findings.importances)
    assert ERROR_RATE == 0.05
    assert num_found <= 6


def test_looking_at_every_place_for_a_step_is_paid_for():
    """In 40 orders without a step, p is at most 0.2 in about 8; more than 16 come up in 1 of 1000 tries."""
    reports = [report_of(table_of(made_study(seed=seed, num_trials=20)))[0] for seed in range(40)]
    assert sum(report.answers[ORDER].p_alone <= 0.2 for report in reports) <= 16


def test_the_answer_does_not_depend_on_the_unit_of_memory():
    table = table_of(made_study(lambda row, place: 0.5 * row["batch_size"]))
    from dataclasses import replace

    small = replace(table, memory_bytes=table.memory_bytes / 1000)
    assert [(f.topic, f.verdict, f.p) for f in explain_table(table).findings if f.topic != "size of the network"] == [
        (f.topic, f.verdict, f.p) for f in explain_table(small).findings if f.topic != "size of the network"
    ]


VALUES = st.one_of(
    st.integers(-5, 5), st.floats(-10, 10), st.booleans(), st.none(), st.sampled_from(["a", "b", "8-16", "4-4-4"]),
    st.lists(st.integers(1, 64), max_size=3), st.fixed_dictionaries({"_name": st.sampled_from(["x", "y"])}),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@example([({}, 0.0), ({}, 0.0), ({}, 0.0), ({}, 0.0), ({}, 1.0)])
@given(st.lists(st.tuples(st.dictionaries(st.sampled_from("abc"), VALUES), st.floats(0, 1e5) | st.none()), max_size=14))
def test_any_table_gets_an_answer(rows: list[tuple[dict[str, Any], float | None]]):
    trials = tuple(made_trial(i, row, memory, hours=float(i)) for i, (row, memory) in enumerate(rows))
    findings = explain_study(Study(study_id="any", settings=SETTINGS, trials=trials))
    assert findings.num_trials <= len(rows)
    assert all(f.p is None or 0 < f.p <= 1 for f in findings.findings)
    assert msgspec.json.decode(msgspec.json.encode(findings), type=StudyFindings) is not None


# ---- oracles ---------------------------------------------------------------------------------------------------------


def test_students_quantiles_are_those_of_the_printed_tables():
    from memfit.explain.student_t import t_quantile, two_sided_p

    printed = {1: 12.706, 2: 4.303, 4: 2.776, 10: 2.228, 30: 2.042, 120: 1.980}
    assert {df: round(t_quantile(df), 3) for df in printed} == printed
    assert two_sided_p(0.0, 7) == pytest.approx(1.0)


def test_importances_agree_with_optunas_on_who_comes_first():
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    made = made_study(lambda row, place: 0.2 * row["batch_size"] + 0.5 * row["width"], num_trials=80)
    distributions = {
        "lr": optuna.distributions.FloatDistribution(1e-4, 1, log=True),
        "batch_size": optuna.distributions.IntDistribution(16, 256),
        "width": optuna.distributions.IntDistribution(32, 512),
        "optimizer": optuna.distributions.CategoricalDistribution(["adam", "sgd", "rmsprop"]),
        "dropout": optuna.distributions.FloatDistribution(0, 0.5),
    }
    study = optuna.create_study(direction="maximize")
    for trial in made.trials:
        value = (trial.peak.value or 0.0) / MIB
        study.add_trial(optuna.create_trial(params=trial.parameters, distributions=distributions, value=value))
    theirs = optuna.importance.get_param_importances(
        study, evaluator=optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.25)
    )
    ours = [each.name for each in explain_study(made).importances]
    assert ours[0] == next(iter(theirs)) == "width"
