"""A whole grid: predicted and measured cells agree, an interrupted one goes on, the command says what it found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from memfit import api
from memfit.errors import UsageError
from memfit.records.grid import GridCell
from memfit.testing.oracles.grid_laws import broken_laws

SETTINGS = {"layers": 2, "hidden": 32, "features": 16, "batch_size": 8}
JOBS = """
import torch

def make(width: int = 32, device: str = "cpu"):
    model = torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 4)).to(device)
    batch = torch.randn(8, 16, device=device), torch.randint(0, 4, (8,), device=device)
    return model, torch.optim.Adam(model.parameters()), torch.nn.functional.cross_entropy, batch

def stepping(device: str = "cpu"):
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters())

    def step():
        layer(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.py"
    path.write_text(JOBS, encoding="utf-8")
    return path


def memfit(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "memfit", "compare", *arguments],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.mark.slow
def test_predicted_and_measured_tensors_are_equal_to_the_byte(tmp_path: Path) -> None:
    grid = api.compare_recipes(
        "mlp", settings=SETTINGS, optimizers=["adam", "sgd"], techniques=["plain", "step-in-backward"], measure=True,
        num_steps=3, output=tmp_path / "grid",
    )  # fmt: skip
    assert [cell.state for cell in grid.cells] == ["done"] * 4
    assert [cell.difference_bytes for cell in grid.cells] == [0] * 4
    assert all(cell.measured is not None and cell.measured.step_time.source == "measured" for cell in grid.cells)
    again = api.compare_recipes(
        "mlp", settings=SETTINGS, optimizers=["adam", "sgd"], techniques=["plain", "step-in-backward"], measure=True,
        num_steps=3, output=tmp_path / "grid",
    )  # fmt: skip
    assert again.cells == grid.cells
    assert again.took_seconds < grid.took_seconds / 2


@pytest.mark.slow
def test_what_cannot_be_is_named_in_its_cell_and_the_grid_goes_on(jobs: Path) -> None:
    grid = api.compare_recipes(
        f"{jobs}:make", optimizers=["own", "nosuch"], techniques=["plain", "bf16+fp16", "batch=4", "checkpoint"],
        device="cuda:a100-40gb", engine="fake",
    )  # fmt: skip
    states = {(cell.optimizer, cell.technique): (cell.state, cell.reason) for cell in grid.cells}
    assert states["own", "plain"] == ("done", "")
    assert states["own", "bf16+fp16"][0] == "contradictory"
    assert "batch_size" in states["own", "batch=4"][1]
    assert "no repeated blocks" in states["own", "checkpoint"][1]
    assert "no optimizer 'nosuch'" in states["nosuch", "plain"][1]


def test_a_job_that_only_steps_says_what_to_return(jobs: Path) -> None:
    grid = api.compare_recipes(f"{jobs}:stepping", optimizers=["adam"], techniques=["plain"])
    assert grid.cells[0].state == "failed"
    assert "return (model, optimizer, loss, batch)" in grid.cells[0].reason


@pytest.mark.slow
def test_the_command_writes_tables_and_figures_and_says_when_nothing_fits(jobs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "grid"
    target = (f"{jobs}:make", "--optimizer", "adamw,sgd", "--technique", "plain", "-o", str(folder))
    done = memfit(*target, "--budget", "1KiB")
    assert done.returncode == 3, done.stderr
    assert "no cell fits the budget" in done.stderr
    names = {path.name for path in folder.iterdir()}
    assert {"grid.json", "grid.csv", "grid.md", "grid.txt", "peaks.png", "summary.svg", "grid.html"} <= names
    assert api.read_grid(folder / "grid.json").optimizers == ("adamw", "sgd")
    done = memfit(*target, "--budget", "8GiB", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["budget"]["num_fit"] == 2


def test_recorded_runs_stand_side_by_side(tmp_path: Path) -> None:
    for name, size in (("small", 20_000_000), ("large", 60_000_000)):
        api.measure_command([sys.executable, "-c", f"b = bytearray({size})"], output=tmp_path / name)
    done = memfit(str(tmp_path / "small"), str(tmp_path / "large"), "--json")
    assert done.returncode == 0, done.stderr
    grid = json.loads(done.stdout)
    assert grid["engine"] == "recorded runs"
    assert grid["cells"][1]["saved_bytes"] < -30_000_000


def test_measuring_needs_a_folder_and_this_machine() -> None:
    with pytest.raises(UsageError, match="folder"):
        api.compare_recipes("mlp", measure=True)
    with pytest.raises(UsageError, match="this CPU"):
        api.compare_recipes("mlp", measure=True, device="cuda:a100-40gb", output="x")


@pytest.mark.slow
def test_a_job_whose_file_was_changed_is_predicted_again(jobs: Path, tmp_path: Path) -> None:
    def peak() -> float | None:
        asked = {"optimizers": ["sgd"], "techniques": ["plain"], "device": "cuda:a100-40gb", "engine": "fake"}
        grid = api.compare_recipes(f"{jobs}:make", output=tmp_path / "grid", **asked)
        notes.append(grid.notes)
        assert grid.cells[0].predicted is not None
        return grid.cells[0].predicted.tensors.value

    notes: list[tuple[str, ...]] = []
    first, again = peak(), peak()
    jobs.write_text(JOBS.replace("width: int = 32", "width: int = 4096"), encoding="utf-8")
    changed = peak()
    assert first == again
    assert any("earlier run" in note for note in notes[1])
    assert changed is not None
    assert first is not None
    assert changed > first + 500_000


@pytest.mark.slow
def test_steps_that_cannot_be_cut_in_two_are_traced_whole_and_the_jobs_own_optimizer_is_made_again(jobs: Path) -> None:
    jobs.write_text(JOBS.replace("optim.Adam(", "optim.AdamW("), encoding="utf-8")
    grid = api.compare_recipes(
        f"{jobs}:make", optimizers=["lbfgs", "own"], techniques=["plain", "lora=2", "step-in-backward"],
        device="cuda:a100-40gb", engine="fake",
    )  # fmt: skip
    states = {(cell.optimizer, cell.technique): (cell.state, cell.reason) for cell in grid.cells}
    assert states["lbfgs", "plain"] == ("done", "")
    assert states["own", "lora=2"] == ("done", "")
    assert states["own", "step-in-backward"] == ("done", "")


@pytest.mark.slow
def test_an_optimizer_that_refuses_biases_is_probed_all_the_same_and_bands_name_their_cells(jobs: Path) -> None:
    jobs.write_text(JOBS.replace("(16, width)", "(16, width), torch.nn.Linear(width, width)"), encoding="utf-8")
    grid = api.compare_recipes(f"{jobs}:make", optimizers=["muon+adamw", "lbfgs"], techniques=["plain"])
    muon, newton = grid.cells
    assert muon.predicted is not None
    assert "equal to the byte" in muon.predicted.error_band
    assert newton.predicted is not None
    assert "not known" in newton.predicted.error_band
    assert any(note.startswith("lbfgs under plain: not known") for note in grid.notes)


OTHER_JOBS = """
import torch
from torch import nn

class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, dtype=torch.cfloat))

    def forward(self, x):
        return (x.to(self.weight.dtype) @ self.weight).abs()

def batch(device, width):
    return torch.randn(8, width, device=device), torch.randint(0, 4, (8,), device=device)

def complexes(device: str = "cpu"):
    model = Complex().to(device)
    return model, torch.optim.Adam(model.parameters()), nn.functional.cross_entropy, batch(device, 8)

def head_only(device: str = "cpu"):
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4)).to(device)
    return model, torch.optim.Adam(model[2].parameters()), nn.functional.cross_entropy, batch(device, 64)

def two(device: str = "cpu"):
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 4)).to(device)
    optimizers = [torch.optim.Adam(part.parameters()) for part in model]
    return model, optimizers, nn.functional.cross_entropy, batch(device, 64)

def overflowing(device: str = "cpu"):
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
    with torch.no_grad():
        model[0].weight.mul_(1e6)
    return model, torch.optim.Adam(model.parameters()), nn.functional.cross_entropy, batch(device, 64)
"""


@pytest.fixture
def other_jobs(tmp_path: Path) -> Path:
    path = tmp_path / "other_jobs.py"
    path.write_text(OTHER_JOBS, encoding="utf-8")
    return path


def on_fake_gpu(target: str, optimizers: list[str], techniques: list[str]) -> dict[tuple[str, str], GridCell]:
    grid = api.compare_recipes(
        target, optimizers=optimizers, techniques=techniques, device="cuda:a100-40gb", engine="fake"
    )
    assert not broken_laws(grid)
    return {(cell.optimizer, cell.technique): cell for cell in grid.cells}


@pytest.mark.slow
def test_bfloat16_is_refused_where_it_would_drop_imaginary_parts(other_jobs: Path) -> None:
    cells = on_fake_gpu(f"{other_jobs}:complexes", ["own"], ["plain", "pure-bf16"])
    assert cells["own", "plain"].state == "done"
    assert "imaginary" in cells["own", "pure-bf16"].reason


@pytest.mark.slow
def test_another_optimizer_steps_the_parameters_that_the_jobs_own_steps(other_jobs: Path) -> None:
    techniques = ["plain", "step-in-backward", "clip=1"]
    cells = on_fake_gpu(f"{other_jobs}:head_only", ["own", "adam", "sgd"], techniques)
    for technique in techniques:
        mine, its = (cells[name, technique].predicted for name in ("own", "adam"))
        assert mine is not None
        assert its is not None
        assert mine.tensors.value == its.tensors.value, technique


@pytest.mark.slow
def test_a_job_with_two_optimizers_takes_another_one_or_says_why_not(other_jobs: Path) -> None:
    two = on_fake_gpu(f"{other_jobs}:two", ["own", "sgd"], ["plain"])
    assert two["sgd", "plain"].state == "done"
    assert "cannot step; list" in two["own", "plain"].reason


@pytest.mark.slow
def test_a_float16_run_that_overflows_is_told_and_not_measured_without_its_state(
    other_jobs: Path, tmp_path: Path
) -> None:
    grid = api.compare_recipes(
        f"{other_jobs}:overflowing", optimizers=["adam"], techniques=["plain", "fp16"], measure=True, num_steps=2,
        output=tmp_path / "grid",
    )  # fmt: skip
    plain, mixed = grid.cells
    assert plain.difference_bytes == 0
    assert mixed.measured is None
    assert "overflows" in mixed.not_measured
    assert "bf16" in mixed.not_measured
