"""Is a job measured rightly where it is not the usual one: another Python, another user, another framework, a tree?"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import memfit
from memfit.measure.counters import proc
from memfit.measure.session import INSIDE_START

MIB = 1 << 20
INSIDE = Path(INSIDE_START).parent
MEASURE = [sys.executable, "-m", "memfit", "measure", "-q", "--no-report"]
MARKED = """
    import memfit_inside, time
    for step in range(5):
        memfit_inside.mark_forward()
        block = b"x" * (30 << 20)
        del block
        memfit_inside.mark_step()
        time.sleep(0.01)
"""


@pytest.mark.parametrize("path", sorted(INSIDE.rglob("*.py")), ids=lambda path: path.name)
def test_what_runs_inside_of_a_job_is_written_in_the_oldest_python_that_is_promised(path: Path):
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))


def other_python(version: str) -> str | None:
    """A Python of this version on the path, or installed by pyenv."""
    by_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    candidates = [str(path) for path in by_pyenv] + [found for found in [shutil.which(f"python{version}")] if found]
    for candidate in candidates:
        said = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False)
        if said.returncode == 0 and said.stdout.startswith(f"Python {version}."):
            return candidate
    return None


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13"])
def test_a_job_under_another_python_has_its_steps_and_an_exact_peak(measured, version: str):
    python = other_python(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    result = measured([python, "-c", textwrap.dedent(MARKED)], marks=True, ledger_every=2)
    assert result.exit_code == 0
    record = result.read()
    assert record.steps.total == 5
    assert record.steps.peak_bytes.min() > 30 * MIB
    assert (record.peak.low, record.peak.high) == (None, None)
    assert "every reset kept" in record.peak.method


SYSTEM_PYTHON = Path("/usr/bin/python3")
PACKAGES = Path(np.__file__).parents[1]


def system_python_fits() -> bool:
    """Whether the system has a Python of our version: ours may lie in a folder that only root may enter."""
    if os.geteuid() != 0 or not SYSTEM_PYTHON.exists():
        return False
    code = "import sys; print(sys.version_info[:2])"
    said = subprocess.run([SYSTEM_PYTHON, "-c", code], capture_output=True, text=True, check=False).stdout.strip()
    return said == str(sys.version_info[:2])


@pytest.mark.skipif(not system_python_fits(), reason="needs root, and a system Python of the same version")
def test_a_user_without_privileges_gets_exact_peaks_and_clear_refusals():
    folder = Path("/tmp") / f"memfit-test-{os.getpid()}-{time.monotonic_ns()}"
    folder.mkdir()
    try:
        os.chown(folder, 65534, 65534)
        environment = {**os.environ, "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        environment["PYTHONPATH"] = f"{Path(memfit.__file__).parents[1]}{os.pathsep}{PACKAGES}"

        def run(*arguments: str):
            command = [str(SYSTEM_PYTHON), "-m", "memfit", *arguments]
            return subprocess.run(
                command, env=environment, user=65534, group=65534, extra_groups=[], cwd=folder,
                capture_output=True, text=True, check=False, timeout=100,
            )  # fmt: skip

        job = [str(SYSTEM_PYTHON), "-c", textwrap.dedent(MARKED)]
        done = run("measure", "-q", "--no-report", "-o", "run", "--", *job)
        if "ModuleNotFoundError" in done.stderr or "Permission denied" in done.stderr:
            pytest.skip("this checkout may not be read by another user")
        assert (done.returncode, done.stderr) == (0, "")
        record = memfit.read_run(folder / "run")
        assert record.steps.total == 5
        assert "every reset kept" in record.peak.method
        refused = run("measure", "-q", "-o", "/proc/run", "--", "true")
        assert refused.returncode == 1
        assert "cannot be written" in refused.stderr
        assert "choose another folder" in refused.stderr
        stranger = run("attach", str(os.getpid()))
        assert stranger.returncode == 1
        assert "belongs to somebody else" in stranger.stderr
    finally:
        shutil.rmtree(folder, ignore_errors=True)


GROWING_TREE = """
    import subprocess, sys
    grow = "import time; held = []\\nwhile True: held.append(b'x' * (2 << 20)); time.sleep(0.02)"
    children = [subprocess.Popen([sys.executable, "-c", grow]) for _ in range(3)]
    print(*(child.pid for child in children), flush=True)
    for child in children:
        child.wait()
"""


def test_the_limit_of_a_tree_counts_all_of_it_and_ends_all_of_it(tmp_path: Path):
    command = [*MEASURE, "--limit", "200MiB", "-o", str(tmp_path / "r"), "--", sys.executable, "-c"]
    done = subprocess.run(
        [*command, textwrap.dedent(GROWING_TREE)], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 3
    record = memfit.read_run(tmp_path / "r")
    assert record.outcome.kind == "over the limit"
    assert max(process.peak.value or 0 for process in record.processes) < 200 * MIB
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 3
    deadline = time.monotonic() + 20
    while any(has_memory(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def has_memory(pid: int) -> bool:
    """Whether a process is there and no zombie, which nobody may have waited for."""
    try:
        return proc.read_status(pid) is not None
    except OSError:
        return False


def test_an_interval_of_one_millisecond_is_kept_as_well_as_the_machine_can(measured):
    record = measured("import time; block = bytearray(20 << 20); time.sleep(1.5)", interval_seconds=0.001).read()
    assert record.sampler is not None
    assert float(np.median(np.diff(record.samples.time_seconds))) < 0.008
    assert record.sampler.num_ticks >= len(record.samples) - 1


TRAINING = """
    import torch
    from torch import nn
    torch.set_num_threads(1)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=.1)
    print("up", flush=True)
    while True:
        optimizer.zero_grad()
        model(torch.randn(1000, 64)).square().mean().backward()
        optimizer.step()
"""


def test_attaching_to_a_training_measures_it_from_outside_and_invents_no_steps(tmp_path: Path):
    job = subprocess.Popen([sys.executable, "-c", textwrap.dedent(TRAINING)], stdout=subprocess.PIPE, text=True)
    try:
        assert job.stdout is not None
        assert job.stdout.readline() == "up\n"
        record = memfit.attach_process(job.pid, output=tmp_path / "r", duration_seconds=1.0)
        assert job.poll() is None
    finally:
        job.kill()
        job.wait()
        if job.stdout is not None:
            job.stdout.close()
    assert len(record.steps) == 0
    assert record.outcome.kind == "detached"
    assert (record.peak.value or 0) > 100 * MIB


ACCELERATED = """
    import torch
    from accelerate import Accelerator
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters())
    loader = torch.utils.data.DataLoader(torch.randn(64, 64), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()
"""


def test_accumulated_batches_of_accelerate_are_one_step(measured):
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    result = measured(ACCELERATED, marks=True)
    assert result.exit_code == 0
    assert result.read().steps.total == 4


WITHOUT_STEPS = {
    "jax": "import jax, jax.numpy as jnp; print(jax.grad(lambda w: (w ** 2).sum())(jnp.ones(1 << 20)).sum())",
    "keras": (
        "import keras, numpy as np; m = keras.Sequential([keras.layers.Dense(8)]); m.compile('adam', 'mse'); "
        "m.fit(np.ones((64, 8)), np.ones((64, 8)), verbose=0)"
    ),
}


@pytest.mark.parametrize("framework", WITHOUT_STEPS)
def test_a_framework_without_torchs_optimizers_has_an_exact_peak_and_no_steps(measured, framework: str):
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    record = measured(WITHOUT_STEPS[framework], marks=True).read()
    assert record.outcome.exit_code == 0
    assert len(record.steps) == 0
    assert (record.peak.low, record.peak.high) == (None, None)
