"""`--engine auto` says why it took fake tensors where the phantom GPU would be nearer, and how to have that one."""

from __future__ import annotations

import pytest

from memfit.errors import MissingExtra
from memfit.predict.choose_engine import other_engine
from memfit.predict.options import PredictOptions
from memfit.predict.phantom.library import build, installed
from memfit.predict.phantom.library.installed import InstalledTorch
from memfit.predict.predict import ask


def said_of(**options) -> str:
    """What is said of a workload that was predicted on fake tensors for a GPU."""
    return other_engine(ask("mlp", PredictOptions(device="cuda", **options))).text


def a_torch(cuda: str, folder) -> InstalledTorch:
    return InstalledTorch(version="2.14.1", cuda=cuda, folder=folder, include=(), cudnn_folder=None)


@pytest.fixture
def with_torch(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """A machine with a CUDA build for this CUDA, and a cache without libraries."""

    def make(cuda: str) -> None:
        monkeypatch.setattr(build, "find_torch", lambda: a_torch(cuda, tmp_path))
        monkeypatch.setattr(build, "_names", lambda torch, sources: set())
        monkeypatch.setattr(build, "_key", lambda torch, sources, names: "key")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    return make


def test_a_build_without_cuda_is_told_the_pip_line(monkeypatch: pytest.MonkeyPatch):
    def find() -> InstalledTorch:
        raise MissingExtra("this torch has no CUDA in it", found="torch 2.13.0+cpu", hint=installed.HOW_TO_GET)

    monkeypatch.setattr(build, "find_torch", find)
    said = said_of()
    assert "this torch has no CUDA in it (torch 2.13.0+cpu)" in said
    assert 'pip install "torch==2.14.1"' in said


def test_an_unknown_cuda_is_named_and_not_called_a_build_without_one(with_torch):
    with_torch("14.0")
    said = said_of()
    assert "does not know CUDA 14.0" in said
    assert "no CUDA in it" not in said
    assert 'pip install "torch==2.14.1"' in said


def test_a_missing_compiler_is_named(with_torch, monkeypatch: pytest.MonkeyPatch, tmp_path):
    with_torch("13.0")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert not build.has_cuda_torch()
    assert "no C compiler" in said_of()
    assert "apt install gcc" in said_of()
    (tmp_path / "memfit" / "phantom" / "key").mkdir(parents=True)
    (tmp_path / "memfit" / "phantom" / "key" / build.DRIVER).touch()
    assert build.has_cuda_torch()  # what was built before needs no compiler


def test_another_system_is_not_sent_to_pip(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(installed.sys, "platform", "darwin")
    said = said_of()
    assert "Linux on x86-64" in said
    assert "pip install" not in said


def test_callables_are_told_what_the_phantom_can_run(with_torch, monkeypatch: pytest.MonkeyPatch):
    with_torch("13.0")
    monkeypatch.setenv("CC", "sh")
    assert "FILE:function" in other_engine(ask(lambda: None, PredictOptions(device="cuda"))).text


def test_an_option_that_keeps_a_job_off_the_phantom_is_named_and_not_the_engine(with_torch, monkeypatch):
    with_torch("13.0")
    monkeypatch.setenv("CC", "sh")
    said = said_of(allow_real=("aten::topk",))
    assert "--allow-real is not for the phantom GPU" in said
    assert "leave --allow-real out" in said
    assert "--engine phantom" not in said
