"""Is a processor that forbids what it announces found out, with what to set, and is that remembered, never guessed?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from memfit.api import CommandResult
from memfit.measure import instruction_sets
from memfit.measure.doctor.software import probe_products
from memfit.measure.instruction_sets import (
    LOWER_SETS,
    cache_file,
    find_instructions,
    known_instructions,
    main,
    working_instructions,
)
from memfit.records.machine.doctor import ProductCheck, WorkingInstructions

pytest.importorskip("torch")

DEADLY = ProductCheck(type_name="bfloat16", works=False, found="SIGILL in linear", signal="SIGILL")
FINE = ProductCheck(type_name="float32", works=True, found="right")
WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
LIES = WorkingInstructions(checks=(FINE, DEADLY), cure=WITHOUT_AMX)


@pytest.fixture(scope="module")
def found(lying_processor: dict[str, str]) -> WorkingInstructions:
    return find_instructions(lying_processor)


def check_of(found: WorkingInstructions, type_name: str) -> ProductCheck:
    return next(check for check in found.checks if check.type_name == type_name)


def test_the_type_that_the_processor_lies_about_is_named_with_its_signal(found: WorkingInstructions):
    assert check_of(found, "bfloat16") == DEADLY
    assert check_of(found, "float32").works
    assert [check.type_name for check in found.checks] == ["float32", "bfloat16", "float16"]


def test_the_first_lower_instruction_set_under_which_all_products_work_is_the_cure(found: WorkingInstructions):
    assert found.cure == WITHOUT_AMX
    assert "bfloat16 products end by SIGILL" in found.sentence
    assert "with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 they work" in found.sentence


def test_where_nothing_helps_everything_was_tried_and_no_cure_is_made_up(monkeypatch: pytest.MonkeyPatch):
    tried: list[dict[str, str]] = []

    def die(types: list[str], environ: dict[str, str]) -> list[ProductCheck]:
        tried.append(environ)
        return [ProductCheck(type_name=types[0], works=False, found="SIGILL in linear", signal="SIGILL")]

    monkeypatch.setattr(instruction_sets, "_run_child", die)
    found = find_instructions({})
    assert [cure for cure in tried if cure] == list(LOWER_SETS)
    assert len(found.deadly) == 3
    assert found.cure == {}
    assert found.sentence.endswith("no lower instruction set that was tried helps")


def test_products_work_in_the_environment_of_the_tests():
    found = find_instructions()
    assert found.deadly == ()
    assert found.sentence == ""
    assert check_of(found, "float32").works


def test_without_torch_nothing_is_tried_and_the_reason_is_given(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(instruction_sets.importlib.util, "find_spec", lambda _: None)
    found = find_instructions()
    assert found.checks == ()
    assert "not installed" in found.reason
    assert probe_products("bfloat16", found).answer == "no"


# ---- what one child said ----


def lines_of(**answers: str) -> list[instruction_sets.ProductLine]:
    return [{"type": "float16", "kind": kind, "answer": answer} for kind, answer in answers.items()]


def test_wrong_numbers_are_no_answer_and_no_signal():
    check = instruction_sets._answered("float16", lines_of(linear="right", convolution="wrong"))
    assert (check.works, check.signal, check.found) == (False, "", "convolution: wrong numbers")


def test_a_type_that_torch_refuses_is_told_in_its_words():
    check = instruction_sets._answered("float16", lines_of(linear="not implemented for 'Half'"))
    assert not check.works
    assert "not implemented for 'Half'" in check.found


def test_a_child_that_ends_by_itself_is_no_signal():
    check = instruction_sets._ended("float32", [], 1, "Traceback\nImportError: no libtorch\n")
    assert (check.signal, check.found) == ("", "ImportError: no libtorch while torch was loaded")


# ---- memory ----


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache_file(os.environ)


@pytest.fixture
def num_found(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever products are tried."""
    calls: list[int] = []

    def find() -> WorkingInstructions:
        calls.append(1)
        return LIES

    monkeypatch.setattr(instruction_sets, "find_instructions", find)
    return calls


def test_what_was_found_is_found_once(empty_cache: Path, num_found: list[int]):
    assert known_instructions() is None
    assert working_instructions() == working_instructions() == known_instructions() == LIES
    assert len(num_found) == 1


@pytest.mark.parametrize("name", instruction_sets.KEY_VARIABLES)
def test_another_environment_is_another_question(
    name: str, empty_cache: Path, num_found: list[int], monkeypatch: pytest.MonkeyPatch
):
    working_instructions()
    monkeypatch.setenv(name, "/nowhere/else")
    assert known_instructions() is None


def test_another_boot_or_processor_is_another_question(
    empty_cache: Path, num_found: list[int], monkeypatch: pytest.MonkeyPatch
):
    working_instructions()
    with monkeypatch.context() as moved:
        moved.setattr(instruction_sets, "_text", lambda _: "another boot")
        assert known_instructions() is None
    monkeypatch.setattr(instruction_sets, "_processor", lambda: ["model name: another"])
    assert known_instructions() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"a": {"checks": 7}}', "\x00" * 4096])
def test_a_damaged_cache_is_as_good_as_none_and_is_replaced(text: str, empty_cache: Path, num_found: list[int]):
    empty_cache.parent.mkdir(parents=True)
    empty_cache.write_text(text)
    assert known_instructions() is None
    assert working_instructions() == LIES
    assert known_instructions() == LIES


def test_a_cache_that_is_no_regular_file_does_not_block(empty_cache: Path, num_found: list[int]):
    empty_cache.parent.mkdir(parents=True)
    os.mkfifo(empty_cache)
    assert known_instructions() is None
    assert working_instructions() == LIES


def test_a_cache_cannot_set_other_variables_than_the_known_cures(empty_cache: Path, num_found: list[int]):
    working_instructions()
    entries = msgspec.json.decode(empty_cache.read_bytes(), type=dict[str, WorkingInstructions])
    evil = msgspec.structs.replace(LIES, cure={"LD_PRELOAD": "/nowhere/evil.so"})
    empty_cache.write_bytes(msgspec.json.encode(dict.fromkeys(entries, evil)))
    assert known_instructions() is None


def test_what_failed_without_a_signal_is_not_remembered(empty_cache: Path, monkeypatch: pytest.MonkeyPatch):
    late = ProductCheck(type_name="float32", works=False, found="no answer in 120 s")
    monkeypatch.setattr(instruction_sets, "find_instructions", lambda: WorkingInstructions(checks=(late,)))
    working_instructions()
    assert known_instructions() is None


# ---- the environment of what follows ----


def test_a_command_is_run_where_products_work_and_a_line_says_so(
    empty_cache: Path, num_found: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    became: list[dict[str, str]] = []
    monkeypatch.setattr(os, "execvpe", lambda _file, _arguments, environment: became.append(environment))
    main(["pytest"])
    assert became[0].items() >= WITHOUT_AMX.items()
    assert LIES.sentence in capsys.readouterr().err


def test_the_module_runs_the_command_it_is_given():
    command = [sys.executable, "-m", "memfit.measure.instruction_sets", sys.executable, "-c", "print(6 * 7)"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "42\n")


# ---- a measured job is not cured in secret ----


def test_a_job_that_dies_by_an_illegal_instruction_is_told_where_to_look(measured: Callable[..., CommandResult]):
    outcome = measured("import os, signal; os.kill(os.getpid(), signal.SIGILL)").read().outcome
    assert outcome.kind == "killed"
    assert "(SIGILL)" in outcome.message
    assert "memfit doctor" in outcome.message


def test_a_measured_job_runs_in_the_environment_it_would_have_without_memfit(
    empty_cache: Path, num_found: list[int], measured: Callable[..., CommandResult], tmp_path: Path
):
    working_instructions()
    seen = tmp_path / "seen"
    measured(f"import os; open({str(seen)!r}, 'w').write(str(os.environ.get('ONEDNN_MAX_CPU_ISA')))")
    assert seen.read_text() == str(os.environ.get("ONEDNN_MAX_CPU_ISA"))
