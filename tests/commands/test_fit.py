"""Does `memfit fit` answer on the command line: candidates, proof, a plan file, and clear lines for bad input?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from memfit.commands import cli, main
from memfit.records.fit import Fit, LoopFit
from memfit.records.plan import read_plan

JOB = """
import torch
from torch import nn

def make(rows=512, layers=8, device="cpu"):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Dropout(0.1)) for _ in range(layers)]
    model = nn.Sequential(*blocks, nn.Linear(32, 4)).to(device)
    batch = (torch.randn(rows, 32, device=device), torch.randint(0, 4, (rows,), device=device))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.cross_entropy, batch

def half():
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)).bfloat16()
    batch = torch.randn(64, 32).bfloat16(), torch.zeros(64, 4).bfloat16()
    return model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.mse_loss, batch

def step():
    return lambda: None
"""


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job_to_fit.py"
    path.write_text(JOB)
    return f"{path}:make"


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["fit", *words, "--threads", "1"])


def answer(*words: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code and what was written, as a shell would see it."""
    with pytest.raises(SystemExit) as leaving:
        main(["fit", *words])
    out, err = capfd.readouterr()
    return int(leaving.value.code or 0), out, err


def test_a_job_is_fitted_proven_and_its_plan_written(job: str, tmp_path: Path):
    plan_file = tmp_path / "plan.json"
    result = run(job, "--budget", "1MiB", "-o", str(plan_file))
    assert result.exit_code == 0, result.output
    for words in ("every block", "nested", "bit-equal with and without the plan", "memfit.apply_plan(model"):
        assert words in result.output
    assert read_plan(plan_file).plain_peak_bytes > 2**20
    again = run(job, "--budget", "1MiB", "-o", str(plan_file))
    assert "is there already" in str(again.exception)


def test_the_record_is_printed_as_json(job: str, tmp_path: Path):
    result = run(job, "--budget", "1MiB", "-o", str(tmp_path / "plan.json"), "--json")
    fit = msgspec.convert(json.loads(result.stdout.splitlines()[-1]), Fit)
    assert fit.proof is not None
    assert fit.proof.bit_equal
    assert fit.proof.measured_peak_bytes is not None
    assert fit.proof.measured_peak_bytes <= fit.budget_bytes == 2**20


def test_gradients_of_earlier_batches_are_counted_when_they_add_up(job: str, tmp_path: Path):
    result = run(job, "--budget", "1MiB", "--accumulate", "-o", str(tmp_path / "plan.json"))
    assert result.exit_code == 0, result.output
    fixed = read_plan(tmp_path / "plan.json").chain.fixed
    assert fixed.gradient_bytes == fixed.parameter_bytes > 0
    refused = run(job, "--device", "cuda:24GiB", "--accumulate", "-o", str(tmp_path / "other.json"))
    assert "measured, not predicted" in str(refused.exception)


def test_what_does_not_fit_ends_with_three_and_says_what_would(
    job: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    code, out, err = answer(job, "--budget", "300KiB", "-o", str(tmp_path / "plan.json"), capfd=capfd)
    assert code == 3
    assert "no plan fits into 300.0 KiB" in err
    assert "a budget of" in err
    assert "split the batch" in out
    assert not (tmp_path / "plan.json").exists()


SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(12)), nn.Linear(256, 4))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(torch.randn(64, 256)), torch.randint(0, 4, (64,)))
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


@pytest.mark.slow
def test_a_script_whose_update_is_the_peak_trains_to_the_same_losses_with_its_step_in_the_backward(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def python(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd=tmp_path)

    plain, budget = python("train.py"), ("fit", "train.py", "--budget", "11.5MiB", "--threads", "1")
    refused = python("-m", "memfit", *budget)
    assert refused.returncode == 3
    assert "step-in-backward" in refused.stdout
    allowed = ("--allow", "step-in-backward", "--plan", "plan.json")
    for _ in range(2):  # makes the plan, then uses it
        fitted = python("-m", "memfit", *budget, *allowed)
        assert fitted.returncode == 0, fitted.stderr
        assert fitted.stdout == plain.stdout
        assert "trained within 11.5 MiB" in fitted.stderr
    assert [lever.name for lever in read_plan(tmp_path / "plan.json").applied_levers] == ["step-in-backward"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--budget", "8"), "no unit"),
        (("--budget", "-8GiB"), "at least one byte"),
        ((), "there is no budget"),
        (("--budget", "1MiB", "--planner", "magic"), "no such planner"),
    ],
)
def test_a_wrong_request_is_one_clear_line(
    job: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...], line: str
):
    code, _, err = answer(job, *words, "-o", str(tmp_path / "plan.json"), capfd=capfd)
    assert code == 2
    assert line in err
    assert "Traceback" not in err


def test_a_step_without_a_model_is_refused(job: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    step = job.removesuffix("make") + "step"
    code, _, err = answer(step, "--budget", "1GiB", "-o", str(tmp_path / "plan.json"), capfd=capfd)
    assert code == 2
    assert "no model to change" in err


def test_another_device_is_planned_from_prediction_and_nothing_is_measured(job: str, tmp_path: Path):
    plan_file = tmp_path / "plan.json"
    result = run(job, "--device", "cuda:24GiB", "-o", str(plan_file))
    assert result.exit_code == 0, result.output + repr(result.exception)
    assert "Nothing was run or measured" in result.output
    plan = read_plan(plan_file)
    assert plan.chain.source == "predicted"
    assert plan.chain.time_source == "assumed"


def test_on_a_processor_that_lies_a_model_is_fitted_under_what_works_and_that_is_said(
    job: str, tmp_path: Path, known_lie: dict[str, str]
):
    half = job.replace(":make", ":half")
    command = [sys.executable, "-m", "memfit", "fit", half, "--budget", "1GiB", "-o", str(tmp_path / "plan.json")]
    done = subprocess.run(command, env=known_lie, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    assert "with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 they work" in done.stderr


@pytest.mark.slow
def test_with_json_the_record_of_a_script_is_all_there_is_on_standard_output(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(
        JOB
        + """
import os
model, optimizer, loss, (x, y) = make(64, 2)
for step in range(3):
    print("step", step)
    os.system("echo a child says something")
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
"""
    )
    words = [sys.executable, "-m", "memfit", "fit", str(script), "--budget", "64MiB", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    assert msgspec.json.decode(done.stdout, type=LoopFit).fits
    assert "step 2" in done.stderr
    assert "a child says something" in done.stderr


@pytest.mark.parametrize(
    ("last_line", "code", "said"),
    [
        ("raise SystemExit(5)", 5, "it left with 5"),
        ("raise SystemExit('no data here')", 1, "no data here "),
        ("raise SystemExit(-1)", 255, "it left with -1"),
        ("raise ValueError('broken')", 1, "ValueError: broken"),
        ("raise KeyboardInterrupt", 130, "did not end well (interrupted)"),
    ],
)
def test_a_script_that_does_not_end_well_keeps_its_exit_code_and_gets_a_summary(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], last_line: str, code: int, said: str
):
    script = tmp_path / "train.py"
    script.write_text(last_line)
    ended_with, _, err = answer(str(script), "--budget", "1GiB", capfd=capfd)
    assert ended_with == code
    on_one_line = err.replace("\n", " ")
    assert said in on_one_line
    assert "did not end well" in on_one_line


def test_a_plan_file_in_no_folder_is_refused_before_the_script_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    script = tmp_path / "train.py"
    script.write_text("print('it runs')")
    plan = str(tmp_path / "missing" / "plan.json")
    code, out, err = answer(str(script), "--budget", "1GiB", "--plan", plan, capfd=capfd)
    assert (code, out) == (2, "")
    assert "no such folder" in err


@pytest.mark.slow
def test_the_plan_of_a_script_is_there_as_soon_as_it_is_made(tmp_path: Path):
    """A training is often ended by a signal, or by the time that it was given."""
    script = tmp_path / "train.py"
    there = 'if step == 2:\n        import os\n        print(os.path.exists("plan.json"))\n        os._exit(7)\n'
    script.write_text(SCRIPT.replace("    print(loss.item())\n", f"    {there}").replace("for _ in", "for step in"))
    words = [sys.executable, "-m", "memfit", "fit", "train.py", "--budget", "1GiB", "--plan", "plan.json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300)
    assert done.returncode == 7
    assert done.stdout == "True\n"
    assert read_plan(tmp_path / "plan.json").solver
