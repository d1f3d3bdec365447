"""Does the predicted process hold the packages that the job imports, in the surroundings in which it imports them?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

MIB = 2**20
PACKAGE = """
import os
kept = bytearray((100 if os.environ.get("HEAVY_BACKEND") == "large" else 1) << 20)
"""
SCRIPT = """
import os
os.environ["HEAVY_BACKEND"] = "large"
import heavy_package.backend
import own_module
import torch
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(4, 16)).sum().backward()
    optimizer.step()
"""


def process_low_bytes(script: Path, packages: Path) -> int:
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    command = [sys.executable, "-m", "memfit", "predict", str(script), "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=240)
    levels = {level["name"]: level for level in json.loads(done.stdout)["levels"]}
    return levels["process"]["figure"]["low"]


@pytest.mark.slow
def test_a_package_counts_as_the_script_imports_it_and_own_files_are_not_run_again(tmp_path: Path):
    """The package is large only with the variable that the script sets, and lies on PYTHONPATH."""
    packages, folder = tmp_path / "packages", tmp_path / "project"
    (packages / "heavy_package").mkdir(parents=True)
    folder.mkdir()
    (packages / "heavy_package" / "__init__.py").write_text("")
    (packages / "heavy_package" / "backend.py").write_text(PACKAGE)
    (folder / "own_module.py").write_text("kept = bytearray(50 << 20)\n")
    (folder / "with_it.py").write_text(SCRIPT)
    (folder / "without.py").write_text(SCRIPT.replace("import heavy_package.backend\n", ""))
    found = process_low_bytes(folder / "with_it.py", packages) - process_low_bytes(folder / "without.py", packages)
    assert found / MIB == pytest.approx(100, abs=5)
