"""Does `memfit reproduce` list published results and run them again, each statement with evidence and a verdict?"""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from memfit import api
from memfit.commands import cli, main
from memfit.commands.reproduce import command
from memfit.records.reproduction import EdgeTables, HyperparameterTrials, OffloadingExperiment, PublishedResult
from memfit.reproduce.registry import RESULTS

DOCS = Path(__file__).parents[2] / "docs"


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["reproduce", *words])


@pytest.fixture(scope="module")
def offloading(tmp_path_factory: pytest.TempPathFactory) -> tuple[OffloadingExperiment, Path]:
    """One small comparison, as JSON, with its files."""
    folder = tmp_path_factory.mktemp("experiment") / "out"
    words = ("--network", "vgg16", "--bandwidth", "12GB", "--bandwidth", "50GB", "--points", "3")
    result = run("offloading", *words, "-o", str(folder), "--json")
    assert result.exit_code == 0, result.output + repr(result.exception)
    return msgspec.convert(json.loads(result.stdout), OffloadingExperiment), folder


def test_all_planners_are_compared_on_a_predicted_network(offloading: tuple[OffloadingExperiment, Path]):
    found, _ = offloading
    (network,) = found.networks
    assert (network.name, network.num_examples) == ("vgg16", 64)
    assert [panel.link.out_bytes_per_second for panel in found.panels] == [12e9, 50e9]
    assert {"offload all", "vDNN all", "vDNN conv", "vDNN++", "SuperNeurons", "AutoSwap", "TFLMS", "offload prefix",
            "offload fluid", "offload", "nested", "combined"} <= {s.planner for s in found.standings}  # fmt: skip
    assert len(found.statements) == 1 + 2
    assert all(statement.evidence for statement in found.statements)
    for panel in found.panels:
        assert panel.cells[-1].budget_bytes == network.plain_peak_bytes
        for cell in panel.cells:
            best = cell.candidates[0]
            assert best.seconds is not None
            assert best.seconds >= network.plain_seconds * (1 - 1e-9)
            combined = next(c for c in cell.candidates if c.solver == "combined")
            assert combined.seconds == pytest.approx(best.seconds, rel=1e-3)


def test_it_leaves_the_record_a_table_and_curves(offloading: tuple[OffloadingExperiment, Path]):
    found, folder = offloading
    assert sorted(path.name for path in folder.iterdir()) == [
        "offloading.csv", "offloading.json", "offloading.png", "offloading.svg"
    ]  # fmt: skip
    assert msgspec.json.decode((folder / "offloading.json").read_bytes(), type=OffloadingExperiment) == found


def test_what_is_there_is_not_replaced_by_surprise(
    offloading: tuple[OffloadingExperiment, Path], capfd: pytest.CaptureFixture[str]
):
    code, err = refused("offloading", "-o", str(offloading[1]), capfd=capfd)
    assert code == 2
    assert "is already there" in err


def test_the_tables_of_the_edge_are_those_of_the_docs(tmp_path: Path):
    result = run("edge", "--network", "ResNet-18", "--points", "3", "-o", str(tmp_path / "edge"))
    assert result.exit_code == 0, result.output + repr(result.exception)
    page = (DOCS / "edge.md").read_text(encoding="utf-8")
    rows = [line for line in result.stdout.splitlines() if line.startswith("| ResNet-18")]
    assert len(rows) == 3 + 4
    assert [row for row in rows if row not in page] == []
    assert (tmp_path / "edge" / "edge.md").read_text(encoding="utf-8") in result.stdout
    assert (tmp_path / "edge" / "edge.png").stat().st_size > 10_000


def test_a_link_and_a_device_of_ones_own_decide_whether_it_is_worth_it(tmp_path: Path):
    def ask(*words: str) -> EdgeTables:
        folder = tmp_path / re.sub(r"\W", "", "".join(words))
        result = run("edge", "--network", "resnet18", "--points", "2", "--json", "-o", str(folder), *words)
        assert result.exit_code == 0, result.output + repr(result.exception)
        return msgspec.convert(json.loads(result.stdout), EdgeTables)

    slow, fast = ask("--device-watts", "5", "--link-mbit", "0.01"), ask("--device-gflops", "0.2", "--passes", "2")
    assert slow.worth is not None
    assert fast.worth is not None
    assert "train on the device" in slow.worth.links[0].verdict
    assert "send" in fast.worth.links[0].verdict
    assert fast.worth.train_hours == pytest.approx(slow.worth.train_hours * 200)
    assert slow.worth.train_watt_hours == pytest.approx(slow.worth.train_hours * 5)


def refused(*words: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as leaving:
        main(["reproduce", *words])
    return int(leaving.value.code or 0), capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("weather",), "weather"),
        (("--json", "edge"), "write --json behind the name"),
        (("edge", "--bandwidth", "12GB"), "No such option"),
        (("offloading", "--link-mbit", "3"), "No such option"),
        (("offloading", "--network", "alexnet"), "no such network"),
        (("edge", "--network", "resnet19"), "no such ResNet"),
        (("offloading", "--points", "1"), "not in the range"),
        (("offloading", "--bandwidth", "12"), "no unit"),
        (("offloading", "--device", "cuda:24GiB"), "rates"),
        (("offloading", "--device", "cpu"), "rates"),
        (("offloading", "--device", "cuda:v1"), "no GPU"),
        (("hyperparameters", "--data", "imagenet"), "is not one of"),
    ],
)
def test_a_wrong_request_is_one_clear_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    line: str,
):
    monkeypatch.chdir(tmp_path)
    code, err = refused(*words, capfd=capfd)
    assert code == 2
    assert line in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_alone_it_lists_every_result_with_its_sources():
    result = run()
    assert result.exit_code == 0
    for known in RESULTS:
        assert known.name in result.output
        for source in known.sources:
            assert source in " ".join(result.output.split())
    listed = msgspec.json.decode(run("--json").stdout, type=tuple[PublishedResult, ...])
    assert listed == RESULTS
    assert {known.name for known in listed} == set(command.commands)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("fit", "--experiment"), "memfit reproduce offloading"),
        (("fit", "--experiment", "edge", "--link-mbit", "5"), "memfit reproduce edge"),
        (("fit", "--experiment=offloading", "--points", "3"), "memfit reproduce offloading"),
        (("study", "paper-mnist"), "memfit reproduce hyperparameters --data mnist"),
        (("study", "--steps", "5", "paper-fashion-mnist", "--replicates", "1"), "--data fashion-mnist"),
    ],
)
def test_a_former_spelling_is_answered_with_the_new_one_in_one_line(
    capfd: pytest.CaptureFixture[str], old: tuple[str, ...], new: str
):
    with pytest.raises(SystemExit) as leaving:
        main(list(old))
    assert leaving.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert f"`memfit {old[0]}" in line
    assert new in line


@pytest.mark.slow
def test_published_trials_are_run_again_beside_their_numbers_and_the_same_command_goes_on(tmp_path: Path):
    pytest.importorskip("torch")
    folder = tmp_path / "out"
    words = ("hyperparameters", "--data", "fashion-mnist", "--random", "1", "--repeat", "1", "--steps", "5")
    first = run(*words, "-o", str(folder))
    assert first.exit_code == 0, first.output + repr(first.exception)
    assert "cannot tell    the number of nodes" in first.stdout
    assert sorted(path.name for path in folder.iterdir()) == [
        "hyperparameters.csv", "hyperparameters.json", "paper-fashion-mnist-random-1",
    ]  # fmt: skip
    again = run(*words, "-o", str(folder), "--json")
    found = msgspec.json.decode(again.stdout, type=HyperparameterTrials)
    assert found == msgspec.json.decode((folder / "hyperparameters.json").read_bytes(), type=HyperparameterTrials)
    (rerun,) = found.reruns
    assert (rerun.data, rerun.steps, [row.num_trials for row in rerun.rows]) == ("fashion-mnist", 5, [1])
    assert (rerun.rows[0].peak.value or 0) > 50 * 2**20
    (trial,) = api.read_study(rerun.folder).trials
    assert trial.kind == "done", trial.outcome.message
    assert trial.others["num_parameters"] > 10_000
    assert (rerun.evidence.num_trials, rerun.evidence.num_steps) == (1, 5)
    assert rerun.evidence.share.value is not None
    assert rerun.evidence.share.value < 0.05  # memory does not change after step two
