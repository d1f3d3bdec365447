"""Does `memfit fit --experiment` compare planners and compute the tables of the edge, from a laptop, by one command?"""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from memfit.commands import cli, main
from memfit.records.reproduction import EdgeTables, OffloadingExperiment

DOCS = Path(__file__).parents[2] / "docs"


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["fit", *words])


@pytest.fixture(scope="module")
def offloading(tmp_path_factory: pytest.TempPathFactory) -> tuple[OffloadingExperiment, Path]:
    """One small comparison, as JSON, with its files."""
    folder = tmp_path_factory.mktemp("experiment") / "out"
    words = ("--networks", "vgg16", "--bandwidth", "12GB", "--bandwidth", "50GB", "--points", "3")
    result = run("--experiment", "offloading", *words, "-o", str(folder), "--json")
    assert result.exit_code == 0, result.output + repr(result.exception)
    return msgspec.convert(json.loads(result.stdout), OffloadingExperiment), folder


def test_all_planners_are_compared_on_a_foreseen_network(offloading: tuple[OffloadingExperiment, Path]):
    found, _ = offloading
    (network,) = found.networks
    assert (network.name, network.num_examples) == ("vgg16", 64)
    assert [panel.link.out_bytes_per_second for panel in found.panels] == [12e9, 50e9]
    assert {"offload all", "vDNN all", "vDNN conv", "vDNN++", "SuperNeurons", "AutoSwap", "TFLMS", "offload prefix",
            "offload fluid", "offload", "nested", "combined"} <= {s.planner for s in found.standings}  # fmt: skip
    assert len(found.remarks) == 1 + 2
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
    code, err = refused("--experiment", "-o", str(offloading[1]), capfd=capfd)
    assert code == 2
    assert "is there already" in err


def test_the_tables_of_the_edge_are_those_of_the_docs(tmp_path: Path):
    result = run("--experiment", "edge", "--networks", "ResNet-18", "--points", "3", "-o", str(tmp_path / "edge"))
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
        result = run(
            "--experiment", "edge", "--networks", "resnet18", "--points", "2", "--json", "-o", str(folder), *words
        )
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
        main(["fit", *words])
    return int(leaving.value.code or 0), capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "there is nothing to fit"),
        (("resnet18", "--points", "3", "--budget", "1GiB"), "these options are for experiments"),
        (("resnet18", "--experiment", "edge"), "does not know this"),
        (("--experiment", "edge", "--bandwidth", "12GB"), "does not know this"),
        (("--experiment", "--link-mbit", "3"), "does not know this"),
        (("--experiment", "--budget", "1GiB"), "does not know this"),
        (("--experiment", "--networks", "alexnet"), "no such network"),
        (("--experiment", "edge", "--networks", "resnet19"), "no such ResNet"),
        (("--experiment", "weather"), "is not one of"),
        (("--experiment", "--points", "1"), "not in the range"),
        (("--experiment", "--bandwidth", "12"), "no unit"),
        (("--experiment", "--device", "cuda:24GiB"), "rates"),
        (("--experiment", "--device", "cpu"), "rates"),
        (("--experiment", "--device", "cuda:v1"), "no GPU"),
    ],
)
def test_a_wrong_request_is_one_clear_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...], line: str
):
    code, err = refused(*words, "-o", str(tmp_path / "out"), capfd=capfd)
    assert code == 2
    assert line in err
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()
