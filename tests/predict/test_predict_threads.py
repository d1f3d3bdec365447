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
from memfit.predict.fake.probe.threads import Threads, ThreadWatch  # noqa: E402
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
FOUR = "import torch; torch.set_num_threads(4)"
REAL = """
import sys
from memfit.predict.fake.probe.real_reference import real_script_peak
print(real_script_peak(sys.argv[1], (), 3))
"""


def run(*command: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in NAMES} | variables
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def predicted(script: Path, *options: str, **variables: str) -> tuple[Prediction, str]:
    words = ("-m", "memfit", "predict", str(script), "--json", *options)
    record = msgspec.json.decode(run(*words, **variables), type=Prediction)
    said = [assumption.text for assumption in record.assumptions if assumption.kind == "threads"]
    assert len(said) == 1
    return record, said[0]


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
    ],
)
def test_the_threads_of_the_real_run_count(tmp_path: Path, first: str, then: str, variables: dict[str, str], says: str):
    script = tmp_path / "train.py"
    script.write_text(JOB.format(first=first, then=then))
    record, said = predicted(script, **variables)
    assert f"operators have {says}" in said
    plain = tmp_path / "plain.py"  # the truth is read where torch is loaded already
    number = said.split()[2]
    assert record.num_threads == int(number)
    plain.write_text(JOB.format(first="", then=f"torch.set_num_threads({number})"))
    assert record.levels[0].figure.value == int(run("-c", REAL, str(plain), **variables))
    assert record.levels[0].figure.high is None


@pytest.mark.slow
def test_without_a_number_the_figure_is_for_one_thread_and_the_range_reaches_to_those_of_the_machine(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(JOB.format(first="", then=""))
    record, said = predicted(script)
    figure = record.levels[0].figure
    assert figure.value is not None
    assert record.num_threads == 1
    assert "operators have 1 thread (nothing names a number)" in said
    assert figure.value == int(run("-c", REAL, str(script), OMP_NUM_THREADS="1"))
    by_itself = int(run("-c", REAL, str(script)))
    ends = {figure.value, by_itself}
    assert (figure.low or figure.value, figure.high or figure.value) == (min(ends), max(ends))
    four, said = predicted(script, "--threads", "4")
    assert "operators have 4 threads (--threads)" in said
    assert four.levels[0].figure.value == int(run("-c", FOUR + REAL, str(script)))


HERE = ThreadWatch(at_start=8, named_by="")
NAMED = ThreadWatch(at_start=2, named_by="OMP_NUM_THREADS=2")
SET = ThreadWatch(at_start=8, named_by="OMP_NUM_THREADS=8", set_by_job=8)


@pytest.mark.parametrize(
    ("watch", "wanted", "of_process", "looks_here", "count", "here", "chosen_by"),
    [
        (HERE, None, None, True, 1, 8, "nothing names a number"),
        (HERE, None, None, False, 1, None, "nothing names a number"),
        (ThreadWatch(at_start=1, named_by=""), None, None, True, 1, None, "nothing names a number"),
        (HERE, 0, None, True, 8, None, "torch's choice on this machine"),
        (HERE, 3, None, True, 3, None, "--threads"),
        (HERE, None, 5, True, 5, None, "as in the calling process"),
        (NAMED, None, None, True, 2, None, "OMP_NUM_THREADS=2"),
        (NAMED, 3, None, True, 3, None, "--threads"),
        (SET, 3, 5, True, 8, None, "set by the job"),
    ],
)
def test_who_chooses_the_number_of_threads(
    watch: ThreadWatch, wanted: int, of_process: int, looks_here: bool, count: int, here: int, chosen_by: str
):
    found = watch.threads(wanted, of_process, looks_here=looks_here)
    assert (found.count, found.here, found.chosen_by) == (count, here, chosen_by)


def test_a_job_that_sets_the_number_that_is_there_already_has_set_it():
    watch = ThreadWatch(at_start=torch.get_num_threads(), named_by="")
    with watch.watched():
        torch.set_num_threads(torch.get_num_threads())
    assert watch.set_by_job == torch.get_num_threads()


@pytest.mark.parametrize(
    ("here_bytes", "says"),
    [(1024, "the same number of bytes"), (2048, "2.00 KiB (+100.00%), which is the end"), (None, "was not looked at")],
)
def test_what_the_threads_of_this_machine_change_is_said(here_bytes: int | None, says: str):
    threads = Threads(count=1, chosen_by="nothing names a number", here=8)
    text = threads.assumption(1024, here_bytes).text
    assert says in text
    assert "--threads N for another number" in text


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
