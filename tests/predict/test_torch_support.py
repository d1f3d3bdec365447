"""Supported versions of torch: inside of the range nothing is said, outside of it one line, before anything slow."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from memfit import torch_support
from memfit.errors import UnsupportedTorch
from memfit.torch_support import ANY_TORCH, NEWEST, OLDEST, Verb, require_supported_torch, unsupported


@pytest.mark.parametrize("what", OLDEST)
@pytest.mark.parametrize("rest", ["", ".0", ".1+cpu", ".0a0+git12ab"])
def test_every_release_between_the_oldest_and_the_newest_is_supported(what: Verb, rest: str):
    for minor in range(OLDEST[what][1], NEWEST[1] + 1):
        assert unsupported(f"2.{minor}{rest}", what) == ""


@pytest.mark.parametrize("version", ["1.13.1", "2.9.1", f"2.{NEWEST[1] + 1}.0", "3.0.0", "unknown"])
def test_a_release_outside_is_refused_with_what_was_found_and_what_to_try(
    version: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(ANY_TORCH, raising=False)
    monkeypatch.setattr(torch_support.importlib.metadata, "version", {"torch": version}.__getitem__)
    with pytest.raises(UnsupportedTorch) as refused:
        require_supported_torch("prediction")
    assert refused.value.found == f"torch {version}"
    assert refused.value.hint.startswith("pip install")
    assert ANY_TORCH in refused.value.hint
    monkeypatch.setenv(ANY_TORCH, "1")
    require_supported_torch("prediction")


def test_without_torch_the_check_is_silent_and_leaves_the_word_to_the_missing_extra(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(torch_support.importlib.metadata, "version", missing)
    require_supported_torch("prediction")


def test_the_extra_of_the_package_asks_for_the_same_versions():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'torch = ["torch>=2.{min(OLDEST.values())[1]}"]' in text


@pytest.mark.parametrize("room", ["fit", "profile", "apply", "model"])
def test_every_room_that_touches_a_live_model_is_checked_when_it_is_loaded(room: str, tmp_path: Path):
    folder = tmp_path / "torch-2.0.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.0.0\n")
    file = {"fit": "plan_and_prove", "profile": "profile", "apply": "apply", "model": "step"}[room]
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from memfit.errors import UnsupportedTorch\n"
        f"try:\n    import memfit.{room}.{file}\nexcept UnsupportedTorch as error:\n    print(error.found)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "torch 2.0.0\n"
