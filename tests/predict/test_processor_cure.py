"""Is a child that dies by an instruction reported as that, run again where something helps, and never called exact?"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from memfit.errors import PredictionFailed
from memfit.predict.child.instruction_sets import run_with_working_sets
from memfit.predict.options import PredictOptions
from memfit.predict.predict import predict
from memfit.records.machine.doctor import ProductCheck, WorkingInstructions

pytest.importorskip("torch")

JOB = """
import torch
def make():
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)).bfloat16()
    batch = torch.randn(64, 256).bfloat16(), torch.zeros(64, 8).bfloat16()
    return model, torch.optim.Adam(model.parameters()), torch.nn.functional.mse_loss, batch
def faint():
    import os, signal
    os.kill(os.getpid(), signal.SIGILL)
"""
DEADLY = ProductCheck(type_name="bfloat16", works=False, found="SIGILL in linear", signal="SIGILL")
CURE = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
CURABLE = WorkingInstructions(checks=(DEADLY,), cure=CURE)
HOPELESS = WorkingInstructions(checks=(DEADLY,))
HONEST = WorkingInstructions(checks=(ProductCheck(type_name="bfloat16", works=True, found="right"),))
EXACT = "equal to the byte"


@pytest.fixture
def job(tmp_path: Path) -> str:
    (tmp_path / "jobs.py").write_text(JOB)
    return str(tmp_path / "jobs.py")


@pytest.fixture
def lying_here(lying_processor: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Children of this process find a processor that lies."""
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    for name in ("LD_PRELOAD", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, lying_processor[name])


# ---- one question, at most two runs ----


class Child:
    """A child that dies of SIGILL until its environment is cured, in its answer or with an error."""

    def __init__(self, *, raises: bool, signal: str = "SIGILL") -> None:
        self.raises, self.signal = raises, signal
        self.environments: list[dict[str, str]] = []

    def run(self, environment: Mapping[str, str]) -> str:
        self.environments.append(dict(environment))
        if environment:
            return ""
        if self.raises:
            raise PredictionFailed("it ended", kind="crash", found=self.signal, signal=self.signal)
        return self.signal


class Processor:
    """Answers as it is told, and counts how often something had to be tried."""

    def __init__(self, known: WorkingInstructions | None, found: WorkingInstructions) -> None:
        self.known, self.found, self.num_tries = known, found, 0

    def ask(self, fresh: bool) -> WorkingInstructions | None:
        self.num_tries += fresh
        return self.found if fresh else self.known


@pytest.mark.parametrize("raises", [True, False])
def test_a_death_by_an_instruction_is_tried_once_more_under_what_works(raises: bool):
    child, processor = Child(raises=raises), Processor(None, CURABLE)
    result, said = run_with_working_sets(child.run, lambda fault: fault, processor.ask)
    assert result == ""
    assert child.environments == [{}, CURE]
    assert CURABLE.sentence in said[0].text


@pytest.mark.parametrize("raises", [True, False])
def test_what_is_known_is_set_at_once_and_nothing_is_tried(raises: bool):
    child, processor = Child(raises=raises), Processor(CURABLE, HOPELESS)
    _, said = run_with_working_sets(child.run, lambda fault: fault, processor.ask)
    assert child.environments == [CURE]
    assert processor.num_tries == 0
    assert CURABLE.sentence in said[0].text


def test_a_good_child_on_a_processor_nobody_knows_costs_nothing_and_says_nothing():
    processor = Processor(None, CURABLE)
    assert run_with_working_sets(lambda _: "fine", lambda _: "", processor.ask) == ("fine", ())
    assert processor.num_tries == 0


@pytest.mark.parametrize("known", [None, HONEST])
def test_a_death_on_an_honest_processor_is_reported_as_it_was(known: WorkingInstructions | None):
    with pytest.raises(PredictionFailed) as error:
        run_with_working_sets(Child(raises=True).run, lambda fault: fault, Processor(known, HONEST).ask)
    assert error.value.found == "SIGILL"


def test_a_processor_that_is_known_to_be_hopeless_is_not_tried_again_and_named():
    processor = Processor(HOPELESS, HOPELESS)
    with pytest.raises(PredictionFailed, match="no lower instruction set"):
        run_with_working_sets(Child(raises=True).run, lambda fault: fault, processor.ask)
    assert processor.num_tries == 0


def test_a_child_that_was_killed_from_outside_is_no_question_for_the_processor():
    processor = Processor(None, CURABLE)
    result, said = run_with_working_sets(Child(raises=False, signal="SIGKILL").run, lambda fault: fault, processor.ask)
    assert (result, said, processor.num_tries) == ("SIGKILL", (), 0)


# ---- a real processor that lies ----


@pytest.mark.slow
def test_a_prediction_on_a_processor_that_lies_is_the_one_on_an_honest_one(job: str, lying_here: None):
    cured = predict(f"{job}:make", PredictOptions(), ask_processor=Processor(None, CURABLE).ask)
    assert EXACT in cured.error_band
    assert [item.kind for item in cured.assumptions] == ["processor", "threads", "probe"]
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in cured.assumptions[0].text


@pytest.mark.slow
def test_a_probe_that_dies_is_reported_by_its_signal_and_the_band_is_not_exact(job: str, lying_here: None):
    prediction = predict(f"{job}:make", PredictOptions(), ask_processor=Processor(HOPELESS, HOPELESS).ask)
    texts = [item.text for item in prediction.assumptions]
    assert "end by SIGILL on this processor" in texts[0]
    assert any("was not probed (the probe process ended by SIGILL in aten." in text for text in texts)
    assert not any("no time left" in text for text in texts)
    assert EXACT not in prediction.error_band
    assert "operator calls were not probed" in prediction.error_band


def test_a_traced_job_that_dies_by_an_instruction_is_named_with_what_helps(job: str):
    with pytest.raises(PredictionFailed) as error:
        predict(f"{job}:faint", PredictOptions(probes=False), ask_processor=Processor(HOPELESS, HOPELESS).ask)
    assert error.value.signal == "SIGILL"
    assert error.value.found.startswith("SIGILL; bfloat16 products end by SIGILL on this processor")


@pytest.mark.slow
def test_the_command_uses_what_is_known_of_the_processor(job: str, known_lie: dict[str, str]):
    command = [sys.executable, "-m", "memfit", "predict", f"{job}:make", "--json"]
    done = subprocess.run(command, env=known_lie, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert EXACT in record["error_band"]
    assert "with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 they work" in record["assumptions"][0]["text"]


def test_without_probes_no_band_is_called_exact(job: str):
    prediction = predict(f"{job}:make", PredictOptions(probes=False))
    assert EXACT not in prediction.error_band
    assert prediction.error_band
