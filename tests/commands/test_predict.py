"""Does `memfit predict` answer, with the right words and the right exit code?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch")

from memfit.records.prediction import Prediction

TINY_GPT = [
    "gpt",
    *(["--set", "length=16", "--set", "words=64", "--set", "width=32", "--set", "heads=2", "--set", "layers=2"]),
]
TINY_MLP = ["mlp", *(["--set", "hidden=64", "--set", "features=32", "--set", "layers=3", "--set", "batch_size=8"])]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which children share compiled files: importing torch from source takes most of their time."""
    cache = os.environ.get("PYTHONPYCACHEPREFIX") or str(tmp_path_factory.mktemp("pycache"))
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**variables, "PYTHONPYCACHEPREFIX": cache}


def memfit(compiled: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "memfit", "predict", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=compiled, check=False, timeout=170)


def record(done: subprocess.CompletedProcess[str]) -> Prediction:
    return msgspec.json.decode(done.stdout, type=Prediction)


@pytest.mark.slow
def test_a_workload_on_the_cpu_is_predicted_with_everything_named(compiled: dict[str, str]):
    done = memfit(compiled, *TINY_MLP, "--malloc", "pinned", "--json")
    assert done.returncode == 0, done.stderr
    prediction = record(done)
    tensors, process = prediction.level("tensors"), prediction.level("process")
    assert tensors is not None and tensors.source == "predicted"  # noqa: PT018
    assert process is not None
    assert (tensors.value or 0) < (process.value or 0)
    assert sum(share.num_bytes for share in prediction.at_peak.by_category) == tensors.value
    assert prediction.savings
    assert prediction.cost is not None and prediction.cost.host_peak_bytes > 0  # noqa: PT018


def test_what_does_not_fit_a_gpu_is_exit_code_three_in_pytorchs_words(compiled: dict[str, str]):
    done = memfit(compiled, *TINY_GPT, "--set", "precision=bf16", "--device", "cuda", "--memory", "440MiB")
    assert done.returncode == 3, done.stderr
    assert "CUDA out of memory. Tried to allocate" in done.stdout
    assert "capacity of 440.00 MiB" in done.stdout
    assert "fake cuda" in done.stdout
    assert "flash kernel is taken for bfloat16" in done.stdout
    assert "does not fit" in done.stderr


def test_a_script_that_fails_is_one_line_below_its_own_traceback(compiled: dict[str, str], tmp_path: Path):
    script = tmp_path / "broken.py"
    script.write_text("import torch\ntorch.zeros(2, 3) @ torch.zeros(2, 3)\n")
    done = memfit(compiled, str(script), "--no-probes")
    assert done.returncode == 1
    assert "broken.py:2" in done.stderr
    assert "memfit: the job failed" in done.stderr
    assert "child_main" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["mpl"], "did you mean 'mlp'"),
        (["mlp", "--device", "cuda:a100-41gb"], "did you mean cuda:a100-40gb"),
        (["mlp", "--device", "tpu"], "no device 'tpu'"),
        (["mlp", "--memory", "12"], "no unit"),
        (["mlp", "--set", "batch_size"], "NAME=VALUE"),
        (["mlp", "--sweep", "batch_size=8"], "NAME=LOW:HIGH"),
        (["mlp", "--fit-batch"], "nothing to fit into"),
        (["mlp", "--device", "cuda", "--alloc-conf", "nonsense:1"], "nonsense"),
        (["nowhere.py"], "no such file"),
    ],
)
def test_a_wrong_request_is_refused_at_once_with_exit_code_two(arguments: list[str], says: str, capsys: Any):
    from memfit.commands import main

    with pytest.raises(SystemExit) as leaving:
        main(["predict", *arguments])
    assert leaving.value.code == 2
    assert says in capsys.readouterr().err


def test_the_view_shows_levels_shares_and_assumptions(capsys: Any):
    from memfit.commands.shared.output import write_record
    from memfit.show.terminal.prediction import prediction_text

    prediction = msgspec.convert(json.loads(EXAMPLE), Prediction)
    shown = prediction_text(prediction)
    parts = (
        "tensors    2.00 GiB",
        "context    430.0 MiB (assumed)",
        "layers.0",
        "It does not fit",
        "x at a.py:3 (2 times)",
    )
    assert [part for part in parts if part not in shown] == []
    write_record(prediction, lambda width, color: "", as_json=True)
    assert msgspec.json.decode(capsys.readouterr().out, type=Prediction) == prediction


EXAMPLE = """{"target": "t", "device": "cuda", "route": "fake cuda", "torch_version": "2.13", "num_steps": 2,
"levels": [{"name": "tensors", "meaning": "m", "figure": {"value": 2147483648, "unit": "bytes", "source": "predicted"}},
           {"name": "allocated", "meaning": "m", "figure": {"value": 21, "unit": "bytes", "source": "predicted"}},
           {"name": "context", "meaning": "m", "figure": {"value": 450887680, "unit": "bytes", "source": "assumed"}}],
"at_peak": {"event": 3, "step": 2, "phase": "backward",
  "by_category": [{"name": "activation", "num_bytes": 2147483648, "num_tensors": 1}],
  "by_module": [{"name": "layers.0", "num_bytes": 2147483648, "num_tensors": 1}],
  "by_phase": [], "by_line": [], "by_operator": []},
"assumptions": [{"kind": "scalar answer", "text": "x", "line": "a.py:3", "count": 2}], "memory_limit_bytes": 1073741824,
"failed": {"requested_bytes": 1, "limit_bytes": 1073741824, "allocated_bytes": 1, "reserved_bytes": 1, "step": 1,
  "phase": "forward", "module": "layers.0", "operator": "aten.mm", "line": "a.py:1",
  "message": "CUDA out of memory."}}"""


@pytest.mark.slow
def test_an_answer_that_nothing_asked_for_is_named(compiled: dict[str, str]):
    done = memfit(compiled, "--engine", "fake", "--answer", "train.py:8=1", "mlp")
    assert done.returncode == 0
    assert "nothing unknown was asked for at train.py:8" in " ".join(done.stdout.split())
