"""Is the page of `serve` and `report` closed to the network and to other scripts, and are its documents true?"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest

from memfit import api
from memfit.api.shared import open_records
from memfit.api.shared.open_records import open_prediction
from memfit.errors import MemfitError, NotARun, RunExists
from memfit.plan.planners import make_plan
from memfit.records.figure import Figure
from memfit.records.files import layout
from memfit.records.fit import Fit, LoopFit
from memfit.records.prediction import AtPeak, Level, Prediction, RankClass, RankPredictions, Saving
from memfit.records.run_parts.samples import SAMPLE_DTYPE
from memfit.records.study import Choice, Proposal, SearchSpace, Span
from memfit.runfolder.reader import read_run
from memfit.serve.catalogue import find_records
from memfit.show.page.app import app_html
from memfit.show.page.documents.document import Document, Listed, read_numbers
from memfit.show.page.documents.prediction import prediction_document
from memfit.show.page.documents.run import late_samples
from memfit.show.page.documents.study import OBJECTIVES, parameter_columns, study_document
from memfit.show.views.cheapest_changes import cheapest_changes, fit_command, half_batch_command
from memfit.study.control import announce
from memfit.testing.made_records.chains import rough_chain
from memfit.testing.made_records.runs import MadeRun, write_made_run
from memfit.testing.made_records.studies import made_mixed_study, write_made_study

HOSTILE = "</script><script>alert(1)</script><!--<script>\u2028"
SCRIPTS = re.compile(r"<script([^>]*)>(.*?)</script>", re.DOTALL)


def hash_of(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@pytest.mark.parametrize("is_served", [True, False])
def test_the_policy_allows_exactly_the_scripts_and_the_style_of_the_page(is_served: bool):
    document = Document(kind="run", title=HOSTILE, body={HOSTILE: HOSTILE})
    html = app_html(
        [Listed(id=HOSTILE, kind="run", title=HOSTILE)], {HOSTILE: document}, title=HOSTILE, is_served=is_served
    )
    found = SCRIPTS.findall(html)
    assert [kind.strip() for kind, _ in found] == ['type="application/json" id="memfit-data"', "", ""]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    for text in (found[1][1], found[2][1]):
        assert f"'{hash_of(text)}'" in policy[1]
    style = html.partition("<style>")[2].partition("</style>")[0]
    assert f"style-src '{hash_of(style)}'" in policy[1]
    assert ("connect-src 'self'" if is_served else "connect-src 'none'") in policy[1]
    assert "unsafe" not in policy[1]
    data = msgspec.json.decode(found[0][1])
    assert data["documents"][HOSTILE]["body"] == {HOSTILE: HOSTILE}
    assert data["items"][0]["id"] == HOSTILE


def test_the_page_names_no_address_to_load_from():
    html = app_html()
    assert re.findall(r"""(?:src|href)=["']?(?!data:|#)[^"'>\s]*//[^"'>\s]*""", html.partition("<script")[0]) == []
    assert not re.search(r"\b(importScripts|eval|new Function)\s*\(", html.rpartition("<script>")[2])


def test_a_study_travels_in_columns_that_hold_every_value():
    study = made_mixed_study(300)
    body = msgspec.json.decode(study_document(study).to_json())["body"]
    for column in body["parameters"]:
        numbers = read_numbers(column)
        for trial, number in zip(study.trials, numbers, strict=True):
            value = trial.flat_parameters.get(column["name"])
            if value is None:
                assert math.isnan(number)
            else:
                assert (column["labels"][int(number)] if column["kind"] == "choice" else number) == value
    assert [column["name"] for column in body["parameters"]][:3] == ["lr", "batch_size", "optimizer"]
    assert {column["name"]: column.get("log") for column in body["parameters"]}["lr"]
    for column in body["objectives"]:
        assert column["name"] in OBJECTIVES
        own = [t.metric if column["name"] == "metric" else getattr(t, column["name"]).value for t in study.trials]
        expected = np.array([np.nan if value is None else value for value in own])
        assert np.array_equal(read_numbers(column), expected, equal_nan=True)


def test_options_stand_in_their_order_and_null_is_one_of_them():
    options = [None, "", "128-64", "64-32", 10**400, True]
    space = SearchSpace(parameters=(Choice(name="layers", options=tuple(options)),))
    study = made_mixed_study(len(options))
    trials = tuple(
        msgspec.structs.replace(trial, proposal=Proposal(number=trial.number, parameters={"layers": option}))
        for trial, option in zip(study.trials, options, strict=True)
    )
    settings = msgspec.structs.replace(study.settings, space=space)
    (column,) = parameter_columns(msgspec.structs.replace(study, settings=settings, trials=trials))
    labels = column["labels"]
    assert isinstance(labels, (list, tuple))
    assert [labels[int(place)] for place in read_numbers(column)] == [
        "null",
        "",
        "128-64",
        "64-32",
        str(10**400),
        "true",
    ]
    widths = SearchSpace(parameters=(Choice(name="layers", options=("128-64", "64-32", "8-4")),))
    trials = tuple(
        msgspec.structs.replace(trial, proposal=Proposal(number=trial.number, parameters={"layers": option}))
        for trial, option in zip(study.trials, ("128-64", "8-4", "64-32"), strict=False)
    )
    settings = msgspec.structs.replace(study.settings, space=widths)
    (column,) = parameter_columns(msgspec.structs.replace(study, settings=settings, trials=trials))
    assert list(column["labels"]) == ["8-4", "64-32", "128-64"]  # pyright: ignore[reportArgumentType]


def test_curves_of_trials_stand_one_behind_the_other():
    study = made_mixed_study(40, num_reports=5)
    curves = msgspec.json.decode(study_document(study).to_json())["body"]["curves"]
    ends, values = read_numbers(curves["end"]).astype(int), read_numbers(curves["value"])
    for number, trial in enumerate(study.trials):
        begin = ends[number - 1] if number else 0
        assert values[begin : ends[number]].tolist() == [one.value for one in trial.intermediates]


def test_a_report_of_a_thousand_trials_is_small_and_one_of_a_run_has_its_sentence(tmp_path: Path):
    run = write_made_run(tmp_path / "run", MadeRun(seconds=4.0, limit_bytes=2**29, ledger=True))
    page = api.report_folder(run, tmp_path / "page.html").read_text(encoding="utf-8")
    data = msgspec.json.decode(SCRIPTS.findall(page)[0][1])
    body = data["documents"]["."]["body"]
    assert "it fits into the limit of 512.0 MiB" in body["sentence"]
    assert body["budget"]["room_bytes"] == 2**29
    assert len(body["changes"]) == 3
    with pytest.raises(RunExists, match="already there"):
        api.report_folder(run, tmp_path / "page.html")
    assert len(app_html([], {".": study_document(made_mixed_study(1000))})) < 3e6


def test_the_cheapest_change_stands_first_and_says_how_it_is_made():
    names = (
        "an optimizer without state (plain SGD)",
        "recomputing the blocks in the backward",
        "an update in one kernel",
    )
    savings = [
        Saving(change=name, saved_bytes=size, peak_bytes=10, how="from the trace") for size, name in enumerate(names)
    ]
    changes = cheapest_changes(savings, ("python", "train.py", "--lr", "a b"))
    assert [change.what for change in changes] == [names[2], names[1], names[0]]
    assert changes[1].apply == "memfit fit train.py --budget 1MiB -- --lr 'a b'"
    assert fit_command(("torchrun", "x"), 2**30) == "memfit fit SCRIPT.py --budget 1024MiB -- ITS ARGUMENTS"


@pytest.mark.parametrize(
    ("command", "halved"),
    [
        ("python train.py --batch-size 64 --lr 0.1", "python train.py --batch-size 32 --lr 0.1"),
        ("python train.py --batch_size=64", "python train.py --batch_size=32"),
        ("python train.py -b 6", "python train.py -b 3"),
        ("memfit fit gpt --set batch_size=8 --set width=64", "memfit predict gpt --set batch_size=4 --set width=64"),
        ("python train.py --batch-size 7", None),
        ("python train.py --batch-size", None),
        ("python train.py --lr 2", None),
    ],
)
def test_half_the_batch_is_the_same_command_with_half_of_what_it_names(command: str, halved: str | None):
    assert half_batch_command(command.split()) == halved


def test_late_samples_are_marked_once_each(tmp_path: Path):
    run = write_made_run(tmp_path / "run", MadeRun(seconds=3.0, num_workers=2))
    rows = np.frombuffer((run / layout.SAMPLES_FILE).read_bytes(), dtype=SAMPLE_DTYPE).copy()
    moments = np.unique(rows["time_us"])
    rows["late_us"] = np.where(np.isin(rows["time_us"], moments[[5, 9]]), 50_000, 0)
    (run / layout.SAMPLES_FILE).write_bytes(rows.tobytes())
    late = late_samples(read_run(run))
    columns = {name: read_numbers(column) for name, column in late.items() if isinstance(column, dict)}
    assert columns["seconds"].tolist() == (moments[[5, 9]] / 1e6).tolist()
    assert columns["late_seconds"].tolist() == [0.05, 0.05]


def test_a_sampler_that_looked_less_often_is_not_late_by_the_shortest_interval(tmp_path: Path):
    """126 samples were marked as late, beside 'late ticks: 3', in a run that was looked at every 80 ms."""
    run = write_made_run(tmp_path / "run", MadeRun(seconds=3.0))
    rows = np.frombuffer((run / layout.SAMPLES_FILE).read_bytes(), dtype=SAMPLE_DTYPE).copy()
    deadlines = 80_000 * np.delete(np.arange(30), [11])  # the one before was so late that this one was left out
    late = np.where(deadlines == 800_000, 95_000, np.where(deadlines == 0, 0, 20_000))
    rows = rows[np.isin(rows["time_us"], np.unique(rows["time_us"])[: len(late)])]
    rows["time_us"], rows["late_us"] = deadlines + late, late
    (run / layout.SAMPLES_FILE).write_bytes(rows.tobytes())
    columns = {name: read_numbers(column) for name, column in late_samples(read_run(run)).items()}  # pyright: ignore
    assert columns["seconds"].tolist() == [0.895]


def test_every_rank_opens_as_a_prediction_with_the_fullest_first(tmp_path: Path):
    def of_bytes(size: float) -> Prediction:
        figure = Figure(value=size, unit="bytes", source="predicted", method="made")
        level = Level(name="tensors", figure=figure, meaning="live tensors")
        return msgspec.structs.replace(made_prediction("train.py", None), levels=(level,))

    classes = (
        RankClass(ranks=(0,), traced=(0,), why="holds the loss", prediction=of_bytes(2.0**20)),
        RankClass(ranks=(1, 2, 3), traced=(1,), why="alike", prediction=of_bytes(2.0**22)),
    )
    found = RankPredictions(target="train.py", device="cpu", num_ranks=4, classes=classes)
    (tmp_path / "ranks.json").write_bytes(msgspec.json.encode(found))
    (tmp_path / "one.json").write_bytes(msgspec.json.encode(made_prediction("train.py", None)))
    assert {entry.kind for entry in find_records(tmp_path).entries} == {"prediction"}
    body = open_prediction(tmp_path / "ranks.json", tmp_path).document.body
    assert (body["fullest"], body["fits"]) == (1, None)
    assert "rank 1-3 is the fullest" in str(body["sentence"])
    assert "classes" not in open_prediction(tmp_path / "one.json", tmp_path).document.body


def test_a_report_of_one_record_that_cannot_be_read_is_not_written(tmp_path: Path):
    (tmp_path / "plan.json").write_text('{"format": "memfit-plan"}')
    with pytest.raises(MemfitError):
        api.report_folder(tmp_path / "plan.json", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def made_prediction(target: str, arguments: tuple[str, ...] | None, **settings: str) -> Prediction:
    figure = Figure(value=2.0**28, unit="bytes", source="predicted", method="made")
    return Prediction(
        target=target, arguments=arguments, settings=settings, device="cpu", route="fake cpu", torch_version="2",
        num_steps=3, levels=(Level(name="process", figure=figure, meaning="all of it"),),
        at_peak=AtPeak(
            event=0, step=2, phase="backward", by_category=(), by_module=(), by_line=(), by_operator=(), by_phase=()
        ),
        savings=(Saving(change="recomputing the blocks", saved_bytes=1, peak_bytes=2**20, how="from the trace"),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("target", "arguments", "is_drawn"),
    [
        ("train.py", ("--batch-size", "64"), True),
        ("src/train.py", None, True),  # a record from before arguments were kept
        ("train.py", ("--batch-size", "8"), False),
        ("train.py", (), False),
        ("other.py", ("--batch-size", "64"), False),
        ("jobs.py:make", None, False),
        ("gpt", None, False),
    ],
)
def test_only_a_prediction_of_the_same_training_is_drawn_into_the_budget_of_a_run(
    tmp_path: Path, target: str, arguments: tuple[str, ...] | None, is_drawn: bool
):
    from memfit.api.shared.open_records import open_run

    run = write_made_run(tmp_path / "run", MadeRun(seconds=3.0))
    (tmp_path / "prediction.json").write_bytes(msgspec.json.encode(made_prediction(target, arguments)))
    budget = open_run(run, tmp_path).document.body["budget"]
    assert (budget["predicted"] is not None) == is_drawn  # pyright: ignore[reportIndexIssue, reportOptionalSubscript]


@pytest.mark.parametrize(
    ("arguments", "other_runs", "is_drawn"),
    [
        (("--batch-size", "64"), 1, True),
        ((), 0, False),  # the script's own defaults
        (("--batch-size", "8"), 0, False),
        (None, 0, True),  # from before arguments were kept: the only run of the folder is meant
        (None, 1, False),
    ],
)
def test_only_a_plan_of_the_same_training_is_drawn_into_the_budget_of_a_run(
    tmp_path: Path, arguments: tuple[str, ...] | None, other_runs: int, is_drawn: bool
):
    """A plan for the default batch stood as '610.9 MiB of 634.6' below a run of 840.1 MiB with another batch."""
    from memfit.api.shared.open_records import open_run

    run = write_made_run(tmp_path / "run", MadeRun(seconds=3.0))
    for number in range(other_runs):
        write_made_run(tmp_path / f"other{number}", MadeRun(seconds=3.0))
    chain = msgspec.structs.replace(rough_chain(Random(3), 6), target="train.py")
    plan = make_plan(chain, make_plan(chain, 2**60).plain_peak_bytes)
    fit = Fit(target="train.py", budget_bytes=plan.budget_bytes, plan=plan, candidates=())
    loop = LoopFit(name="train.py", arguments=arguments, budget_bytes=plan.budget_bytes, fits=(fit,))
    (tmp_path / "fit.json").write_bytes(msgspec.json.encode(loop))
    budget = open_run(run, tmp_path).document.body["budget"]
    assert (budget["plan"] is not None) == is_drawn  # pyright: ignore[reportIndexIssue, reportOptionalSubscript]


def test_a_command_that_names_no_script_gets_the_prediction_beside_it_only_where_it_is_the_only_run(tmp_path: Path):
    from memfit.api.shared.open_records import open_run

    run = write_made_run(tmp_path / "run", MadeRun(seconds=3.0, command=("bash", "train.sh")))
    (tmp_path / "prediction.json").write_bytes(msgspec.json.encode(made_prediction("train.py", ())))
    found = [open_run(run, tmp_path).document.body["budget"]]
    write_made_run(tmp_path / "second", MadeRun(seconds=3.0))
    found.append(open_run(run, tmp_path).document.body["budget"])
    assert [each["predicted"] is None for each in found] == [False, True]  # pyright: ignore[reportIndexIssue, reportOptionalSubscript]


def test_the_command_of_a_change_is_for_what_was_predicted():
    def apply(prediction: Prediction) -> str:
        (change,) = prediction_document(prediction).body["changes"]  # pyright: ignore[reportGeneralTypeIssues]
        return change["apply"]

    assert apply(made_prediction("train.py", ("--lr", "a b"))) == "memfit fit train.py --budget 1MiB -- --lr 'a b'"
    assert apply(made_prediction("train.py", ())) == "memfit fit train.py --budget 1MiB"
    assert apply(made_prediction("jobs.py:make", None, rows="64")) == (
        "memfit fit jobs.py:make --set rows=64 --budget 1MiB"
    )


def test_predictions_of_one_script_with_other_arguments_are_other_samples():
    from memfit.show.export.openmetrics import openmetrics

    text = openmetrics(*(made_prediction("train.py", ("--batch-size", size)) for size in ("8", "64")))
    assert text.count("memfit_predicted_peak_bytes{") == 2


def test_a_report_counts_what_it_leaves_out_and_an_empty_folder_is_refused(tmp_path: Path):
    from memfit.api.report_folder import MOST_DOCUMENTS

    (tmp_path / "empty").mkdir()
    with pytest.raises(NotARun, match="holds no record"):
        api.report_folder(tmp_path / "empty", tmp_path / "empty.html")
    assert not (tmp_path / "empty.html").exists()
    (tmp_path / "many").mkdir()
    for number in range(MOST_DOCUMENTS + 3):
        record = msgspec.json.encode(made_prediction(f"train{number}.py", ()))
        (tmp_path / "many" / f"{number}.json").write_bytes(record)
    page = api.report_folder(tmp_path / "many", tmp_path / "page.html").read_text(encoding="utf-8")
    data = msgspec.json.decode(SCRIPTS.findall(page)[0][1])
    assert (len(data["items"]), data["left_out"]) == (MOST_DOCUMENTS, 3)


def test_the_page_of_a_study_that_is_not_explained_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from memfit.api.shared import open_records

    folder = write_made_study(tmp_path / "study", made_mixed_study(8))
    monkeypatch.setattr(open_records, "EXPLAINED_TRIALS", 5)
    later = open_records.open_study(folder, tmp_path).later["findings"]()
    assert later["findings"] is None
    assert "memfit explain" in str(later["findings_reason"])
    assert "memfit explain" in str(
        open_records.open_study(folder, tmp_path, whole=True).document.body["findings_reason"]
    )


def test_a_study_that_nobody_runs_is_not_called_live(tmp_path: Path):
    """Nineteen of sixty trials, and no process that goes on."""
    folder = write_made_study(tmp_path / "study", made_mixed_study(19, num_wanted=60))
    assert open_records.open_study(folder, tmp_path).document.body["is_running"] is False
    announce(folder)
    assert open_records.open_study(folder, tmp_path).document.body["is_running"] is True


def test_what_is_not_most_is_not_called_most(tmp_path: Path):
    run = write_made_run(tmp_path / "run", MadeRun(seconds=2.0, ledger=True))
    sentence = str(open_records.open_run(run, tmp_path).document.body["sentence"])
    share = re.search(r"(most of it|its largest part) .*?([\d.]+) %\)", sentence)
    assert share is not None
    assert (share[1] == "most of it") == (float(share[2]) > 50)


def test_an_axis_is_logarithmic_where_its_space_is():
    """A number drawn evenly from 0 to 1 is not, however close to zero one of its values came."""
    space = SearchSpace(
        parameters=(
            Span(name="even", low=0.0, high=1.0),
            Span(name="log", low=1e-4, high=1.0, log=True),
            Choice(name="batch", options=(1, 1000)),
        )
    )
    points = [{"even": 0.001, "log": 0.5, "batch": 1}, {"even": 0.9, "log": 0.9, "batch": 1000}]
    study = made_mixed_study(2)
    trials = [
        msgspec.structs.replace(trial, proposal=Proposal(number=trial.number, parameters=point))
        for trial, point in zip(study.trials, points, strict=True)
    ]
    made = msgspec.structs.replace(
        study, settings=msgspec.structs.replace(study.settings, space=space), trials=tuple(trials)
    )
    assert {column["name"]: column["log"] for column in parameter_columns(made)} == {
        "even": False,
        "log": True,
        "batch": True,
    }
