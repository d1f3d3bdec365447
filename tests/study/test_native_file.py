"""Is memfit's own study file read as its documentation says, with memory as limit, objective or report?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from memfit.errors import UsageError
from memfit.records.study import (
    Bell,
    Branch,
    Choice,
    Goal,
    GpuWish,
    Integers,
    MemoryRule,
    Nested,
    Span,
    StudySettings,
    Tool,
)
from memfit.study.files.kinds import read_study_file
from memfit.units import GIB

FULL = """
name = "everything"
command = "python train.py"
trials = 40
concurrency = 2
time = "2h"
trial_time = "10min"
seed = 7

[goal]
metric = "accuracy"
direction = "maximize"

[memory]
use = "limit"
limit = "12GiB"

[tuner]
name = "evolution"
arguments = { population_size = 8 }

[assessor]
name = "medianstop"

[gpus]
per_trial = 1
indices = [0, 1]

[space]
lr = { kind = "number", low = 1e-4, high = 1e-1, log = true }
drop = { kind = "number", low = 0, high = 0.5, step = 0.1 }
batch = { kind = "choice", options = [16, 32, 64] }
width = { kind = "integer", low = 8, high = 512, log = true }
depth = { kind = "integer", low = 1, high = 4 }
decay = { kind = "normal", mean = 0, deviation = 1, log = true }

[space.optimizer]
kind = "nested"
[space.optimizer.branches.sgd]
momentum = { kind = "number", low = 0, high = 1 }
[space.optimizer.branches.adam]
"""


def read(folder: Path, text: str, name: str = "study.toml") -> StudySettings:
    (folder / name).write_text(text)
    return read_study_file(folder / name)


def test_everything_that_can_be_written_arrives(tmp_path: Path):
    settings = read(tmp_path, FULL)
    assert settings.space.parameters == (
        Span(name="lr", low=1e-4, high=1e-1, log=True),
        Span(name="drop", low=0, high=0.5, step=0.1),
        Choice(name="batch", options=(16, 32, 64)),
        Span(name="width", low=8, high=512, log=True, step=1.0, whole=True),
        Integers(name="depth", low=1, end=5),
        Bell(name="decay", mean=0, deviation=1, log=True),
        Nested(
            name="optimizer",
            branches=(Branch(name="sgd", parameters=(Span(name="momentum", low=0, high=1),)), Branch(name="adam")),
        ),
    )
    assert settings.goal == Goal(metric="accuracy", direction="maximize")
    assert settings.memory == MemoryRule(use="limit", limit_bytes=12 * GIB)
    assert settings.tuner == Tool(name="Evolution", arguments={"population_size": 8})
    assert settings.assessor == Tool(name="Medianstop")
    assert settings.gpus == GpuWish(num_gpus=1, indices=(0, 1))
    assert (settings.max_trials, settings.concurrency, settings.max_seconds, settings.max_trial_seconds) == (
        40,
        2,
        7200.0,
        600.0,
    )
    assert settings.seed == 7
    assert settings.source == "study.toml (memfit)"


def test_the_same_fields_are_read_from_yaml_and_json(tmp_path: Path):
    import tomllib

    written = tomllib.loads(FULL)
    first = read(tmp_path, FULL)
    for name, text in (("study.yaml", yaml.safe_dump(written, sort_keys=False)), ("study.json", json.dumps(written))):
        other = read(tmp_path, text, name)
        assert other.space == first.space
        assert other.memory == first.memory


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", MemoryRule(use="report")),
        ('[memory]\nlimit = "2GiB"', MemoryRule(use="limit", limit_bytes=2 * GIB)),
        ('[memory]\nuse = "objective"', MemoryRule(use="objective")),
        ('[memory]\nuse = "objective"\nlimit = "2GiB"', MemoryRule(use="objective", limit_bytes=2 * GIB)),
        ('[memory]\nuse = "report"', MemoryRule(use="report")),
    ],
)
def test_memory_is_a_limit_an_objective_or_a_report(tmp_path: Path, text: str, expected: MemoryRule):
    settings = read(tmp_path, f'command = "x"\n{text}\n[space]\na = {{ kind = "choice", options = [1] }}')
    assert settings.memory == expected


def test_a_space_of_nni_can_be_named(tmp_path: Path):
    (tmp_path / "space.json").write_text('{"x": {"_type": "randint", "_value": [0, 3]}}')
    settings = read(tmp_path, 'workload = "mlp"\nspace = "space.json"\nfixed = { epochs = 1 }')
    assert settings.space.parameters == (Integers(name="x", low=0, end=3),)
    assert (settings.workload, settings.fixed) == ("mlp", {"epochs": 1})
    assert settings.tuner == Tool(name="TPE")


SPACE = '[space]\na = { kind = "choice", options = [1] }'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SPACE, "study.toml: expected either command or workload; found: neither"),
        (f'command = "x"\nworkload = "y"\n{SPACE}', "study.toml: expected either command or workload; found: both"),
        ('command = "x"', "study.toml: space: expected at least one parameter"),
        (f'command = "x"\ntrails = 3\n{SPACE}', "study.toml: trails: there is no such field; try: did you mean trials"),
        (f'command = "x"\n[memory]\nuse = "limit"\n{SPACE}', "study.toml: memory: memory is a limit, but none"),
        (f'command = "x"\n[memory]\nuse = "ceiling"\n{SPACE}', "study.toml: memory.use: expected one of limit, obj"),
        (f'command = "x"\n[memory]\nlimit = "12"\n{SPACE}', "study.toml: memory.limit: this is not a size"),
        (f'command = "x"\n[memory]\nlimit = 12\n{SPACE}', "study.toml: memory.limit: expected a size with a unit"),
        (f'command = "x"\n[memory]\nuse = "report"\nlimit = "1GiB"\n{SPACE}', "study.toml: memory: memory is only rep"),
        (f'command = "x"\n[goal]\ndirection = "up"\n{SPACE}', "study.toml: goal.direction: expected one of minimize"),
        (f'command = "x"\ntuner = "Bayes"\n{SPACE}', "study.toml: tuner: there is no such tuner"),
        (f'command = "x"\n[tuner]\nname = "TPE"\narguments = {{ x = 1 }}\n{SPACE}', "study.toml: tuner.arguments: TPE"),
        ('command = "x"\n[space]\na = 3', "study.toml: space.a: expected an object with fields"),
        ('command = "x"\n[space]\na = { kind = "uniform" }', "study.toml: space.a.kind: expected one of choice"),
        ('command = "x"\n[space]\na = { kind = "number", low = 1 }', "study.toml: space.a.high: expected a number"),
        ('command = "x"\n[space]\na = { kind = "number", low = 2, high = 1 }', "study.toml: space.a: expected low"),
        ('command = "x"\n[space]\na = { kind = "number", low = 0, high = 1, log = true }', "study.toml: space.a.low"),
        ('command = "x"\n[space]\na = { kind = "number", low = 0, high = 1, step = 0 }', "study.toml: space.a.step"),
        (
            'command = "x"\n[space]\na = { kind = "integer", low = 0.5, high = 1 }',
            "study.toml: space.a: expected who",
        ),
        ('command = "x"\n[space]\na = { kind = "choice", options = [] }', "study.toml: space.a.options: expected at"),
        ('command = "x"\n[space]\na = { kind = "choice", option = [1] }', "study.toml: space.a.options: expected at"),
        ('command = "x"\n[space]\na = { kind = "nested", branches = { b = 3 } }', "study.toml: space.a.branches.b"),
        ('command = "x"\n[space]\na = { kind = "normal", mean = 0 }', "study.toml: space.a: expected mean and dev"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_that_names_the_field(tmp_path: Path, text: str, message: str):
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(message)


def test_a_file_that_is_no_toml_says_where(tmp_path: Path):
    with pytest.raises(UsageError, match=r"study\.toml: this is not TOML; found: a mistake: .*end of document"):
        read(tmp_path, "command = ")


def test_a_field_of_a_parameter_that_is_not_known_is_refused(tmp_path: Path):
    text = 'command = "x"\n[space]\na = { kind = "choice", options = [1], stp = 2 }'
    with pytest.raises(UsageError, match=r"space\.a\.stp: there is no such field"):
        read(tmp_path, text)


def test_the_example_in_the_documentation_is_read(tmp_path: Path):
    page = (Path(__file__).parents[2] / "docs" / "nni.md").read_text()
    block: Any = page.split("```toml")[1].split("```")[0]
    assert read(tmp_path, block).memory.use == "limit"
