"""Is what the user wrote read as the job they meant, and refused clearly when it is none?"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import UsageError
from memfit.job.description import describe_job, parse_settings, parse_value
from memfit.job.workloads.registry import WORKLOADS


def test_a_python_file_is_a_script_with_its_own_arguments(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text("")
    job = describe_job(str(script), {}, ("--batch-size", "64"))
    assert (job.kind, job.path, job.arguments) == ("script", str(script), ("--batch-size", "64"))


def test_a_file_and_a_name_are_a_function_with_settings(tmp_path: Path):
    file = tmp_path / "jobs.py"
    file.write_text("")
    job = describe_job(f"{file}:make", {"batch_size": 4})
    assert (job.kind, job.function, job.settings) == ("function", "make", {"batch_size": 4})


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_every_workload_is_known_by_its_name(name: str):
    assert describe_job(name).kind == "workload"


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("mpl", "did you mean 'mlp'"),
        ("nowhere.py", "no such file"),
        ("nowhere.py:make", "no such file"),
        ("", "give a script"),
    ],
)
def test_what_is_no_job_is_refused_with_what_to_try(target: str, says: str):
    with pytest.raises(UsageError) as raised:
        describe_job(target)
    assert says in str(raised.value)


def test_settings_are_not_for_scripts_and_arguments_not_for_workloads(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.raises(UsageError, match="--set is for functions"):
        describe_job(str(script), {"a": 1})
    with pytest.raises(UsageError, match="takes no arguments"):
        describe_job("mlp", {}, ("--x",))


@pytest.mark.parametrize(
    ("text", "value"),
    [("64", 64), ("1e-3", 1e-3), ("true", True), ("False", False), ("none", None), ("bf16", "bf16"), ("[1]", "[1]")],
)
def test_values_are_numbers_booleans_none_or_text(text: str, value: object):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


@given(st.integers(), st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_survive_being_written_as_settings(whole: int, real: float):
    assert parse_settings((f"a={whole}", f"b={real!r}")) == {"a": whole, "b": real}


@given(st.text(max_size=20))
def test_any_text_is_a_value_or_a_clear_refusal(text: str):
    parse_value(text)
    name, equals, _ = text.partition("=")
    if equals and name.strip().isidentifier():
        assert parse_settings((text,)).keys() == {name.strip()}
    else:
        with pytest.raises(UsageError, match="not a setting"):
            parse_settings((text,))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"print 'of another Python'\n", "line 1: Missing parentheses"),
        (b"a = 1\nif a\n    pass\n", "line 2: expected ':'"),
        (b"\x7fELF\x00\x01", "null byte"),
    ],
)
@pytest.mark.parametrize("ending", ["", ":make"])
def test_what_is_no_python_is_refused_before_anything_starts(tmp_path: Path, text: bytes, says: str, ending: str):
    (tmp_path / "train.py").write_bytes(text)
    with pytest.raises(UsageError) as refused:
        describe_job(f"{tmp_path / 'train.py'}{ending}")
    assert says in refused.value.found


def test_an_odd_escape_in_a_script_is_no_reason_to_warn(tmp_path: Path, recwarn: pytest.WarningsRecorder):
    (tmp_path / "train.py").write_text("pattern = '\\d'\n")
    assert describe_job(str(tmp_path / "train.py")).kind == "script"
    assert not recwarn.list
