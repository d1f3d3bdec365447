"""Does `memfit data` fetch, list and refuse as a person expects?"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from memfit.commands import cli, main
from memfit.job.data.catalogue import MNIST


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMFIT_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def test_the_list_names_every_set_and_how_to_get_it():
    shown = run("data", "list").output
    for name in ("mnist", "fashion-mnist", "cifar-10", "squad"):
        assert f"memfit data fetch {name}" in shown


def test_the_list_as_json_tells_the_state(cache_folder: Path):
    (cache_folder / "mnist").mkdir(parents=True)
    for file in MNIST.files[:2]:
        (cache_folder / "mnist" / file.name).write_bytes(b"\x00" * file.num_bytes)
    states = {each["name"]: each["state"] for each in json.loads(run("data", "list", "--json").output)}
    assert states["mnist"] == "incomplete"
    assert states["cifar-10"] == "not here"
    for file in MNIST.files[2:]:
        (cache_folder / "mnist" / file.name).write_bytes(b"\x00" * file.num_bytes)
    states = {each["name"]: each["state"] for each in json.loads(run("data", "list", "--check", "--json").output)}
    assert states["mnist"] == "damaged"


def test_an_unknown_set_is_refused_before_anything_is_fetched(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as left:
        main(["data", "fetch", "mnist", "minst"])
    assert left.value.code == 2
    assert "did you mean 'mnist'" in capsys.readouterr().err


def test_files_that_are_not_the_right_ones_leave_the_cache_as_it_was(
    tmp_path: Path, cache_folder: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"not MNIST"))
    with pytest.raises(SystemExit) as left:
        main(["data", "fetch", "mnist", "--from", str(tmp_path / "mine")])
    assert left.value.code == 1
    assert "MNIST could not be fetched" in capsys.readouterr().err
    assert [path.name for path in (cache_folder / "mnist").iterdir()] == [".lock"]
