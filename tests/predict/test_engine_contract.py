"""The engine of fake tensors keeps the contract of engines, and options that an engine cannot honour are refused."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from memfit.errors import UsageError
from memfit.predict.choose_engine import choose_engine
from memfit.predict.fake.engine import FakeEngine
from memfit.predict.fake.patches import cpu_build
from memfit.predict.options import PredictOptions
from memfit.predict.predict import ask
from memfit.testing.contracts.engine import EngineContract


@pytest.mark.skipif(bool(cpu_build.why_not()), reason="no fake CUDA tensors here")
class TestFakeEngine(EngineContract):
    make_engine = FakeEngine


@pytest.mark.parametrize(
    ("flag", "given"),
    [
        ("--allow-real", {"allow_real": ("aten::topk",)}),
        ("--unknown-is", {"unknown_is": False}),
        ("--no-probes", {"probes": False}),
        ("--malloc", {"malloc": "pinned"}),
    ],
)
def test_the_phantom_refuses_what_it_would_drop(flag: str, given: dict):
    question = ask("mlp", PredictOptions(device="cuda:a100-40gb", engine="phantom", **given))
    with pytest.raises(UsageError, match=f"{flag} is not for the engine phantom"):
        choose_engine(question)


def test_a_setting_of_the_other_device_is_refused():
    with pytest.raises(UsageError, match="--alloc-conf is not for cpu"):
        choose_engine(ask("mlp", PredictOptions(alloc_conf="expandable_segments:True")))
    with pytest.raises(UsageError, match="--malloc is not for"):
        choose_engine(ask("mlp", PredictOptions(device="cuda", malloc="pinned", engine="fake")))
