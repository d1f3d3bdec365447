"""Does a prediction on the CPU count with the threads that the job will have, and say so?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import msgspec  # noqa: E402

import memfit  # noqa: E402
from memfit.records.prediction import Prediction  # noqa: E402

CORES = len(os.sched_getaffinity(0)) if torch.backends.mkl.is_available() else 99
NAMES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
JOB = """
{first}
import torch
{then}
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 30 * 30, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.rand(16, 3, 32, 32)).sum().backward()
    optimizer.step()
"""
REAL = """
import sys
from memfit.predict.fake.probe.real_reference import real_script_peak
print(real_script_peak(sys.argv[1], (), 3))
"""


def run(*command: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in NAMES} | variables
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def predicted(script: Path, **variables: str) -> tuple[int | float | None, str]:
    record = msgspec.json.decode(run("-m", "memfit", "predict", str(script), "--json", **variables), type=Prediction)
    said = [assumption.text for assumption in record.assumptions if assumption.kind == "threads"]
    assert len(said) == 1
    return record.levels[0].figure.value, said[0]


SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then", "variables", "says"),
    [
        ("", "", {"OMP_NUM_THREADS": "1"}, "1 thread (OMP_NUM_THREADS=1)"),
        ("", "torch.set_num_threads(4)", {"OMP_NUM_THREADS": "1"}, "4 threads (set by the job)"),
        pytest.param(
            "import os; os.environ['OMP_NUM_THREADS'] = '99'", "", {"OMP_NUM_THREADS": "1"}, f"{CORES} ", marks=SLOW
        ),
        pytest.param(
            "", "import os; os.environ['OMP_NUM_THREADS'] = '99'", {"OMP_NUM_THREADS": "1"}, "1 thread (", marks=SLOW
        ),
        pytest.param("", "", {}, "", marks=SLOW),
    ],
)
def test_the_threads_of_the_real_run_count(tmp_path: Path, first: str, then: str, variables: dict[str, str], says: str):
    script = tmp_path / "train.py"
    script.write_text(JOB.format(first=first, then=then))
    peak_bytes, said = predicted(script, **variables)
    assert f"operators have {says}" in said
    plain = tmp_path / "plain.py"  # the truth is read where torch is loaded already
    number = said.split()[2]
    plain.write_text(JOB.format(first="", then=f"torch.set_num_threads({number})"))
    assert peak_bytes == int(run("-c", REAL, str(plain), **variables))


@pytest.mark.slow
def test_a_callable_counts_with_the_threads_of_its_process():
    model, batch = torch.nn.Linear(4, 4), torch.ones(2, 4)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        record = memfit.predict_peak(lambda: model(batch).sum().backward())
    finally:
        torch.set_num_threads(before)
    assert any("operators have 3 threads (as in the calling process)" in one.text for one in record.assumptions)
