"""Does `memfit doctor` always answer, as a table that fits and as a record that can be read back?"""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
from click.testing import CliRunner

from memfit import api
from memfit.commands import cli
from memfit.records.machine.doctor import MachineCheck, MachineReport
from memfit.records.run import Environment
from memfit.show.terminal.doctor import machine_text

ENVIRONMENT = Environment(
    memfit="0.1.0", python="3.11", system="Linux", cpu="Some CPU", num_cores=1, memory_total_bytes=8 << 30
)
POOR = MachineReport(
    environment=ENVIRONMENT,
    checks=(
        MachineCheck(name="resident size", group="memory", answer="yes", found="1.7 us a reading"),
        MachineCheck(
            name="processor energy", group="GPU and energy", answer="no", found="a VM [not bold]", hint="iron"
        ),
        MachineCheck(name="something new", group="a later group", answer="partly", found="a word " * 40, hint="wait"),
    ),
)


def drawn(report: MachineReport, width: int) -> str:
    return machine_text(report, width=width)


@pytest.fixture(scope="module")
def report() -> MachineReport:
    return api.examine_machine()


def test_the_record_survives_json(report: MachineReport):
    assert msgspec.json.decode(msgspec.json.encode(report), type=MachineReport) == report


def test_json_prints_the_record_and_nothing_else():
    result = CliRunner().invoke(cli, ["doctor", "--json"])
    assert result.exit_code == 0
    read = msgspec.json.decode(result.stdout, type=MachineReport)
    assert msgspec.json.decode(result.stdout)["format"] == "memfit-doctor"
    assert read.check("resident size").cost_seconds


def test_the_table_names_every_check_with_its_answer(report: MachineReport):
    text = drawn(report, 80)
    for check in report.checks:
        line = next(line for line in text.splitlines() if line.strip().startswith(check.name))
        assert check.answer in line.split()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_is_wider_than_the_terminal(report: MachineReport, width: int):
    for one in (report, POOR):
        body = drawn(one, width).splitlines()
        assert max(len(line.rstrip()) for line in body) <= width


def test_what_was_found_and_what_to_try_are_both_shown_and_brackets_are_kept():
    text = drawn(POOR, 80)
    assert "a VM [not bold]" in text
    assert "try: iron" in text
    assert "a later group" in text
    assert "3 things were tried: 1 work, 1 partly, 1 not." in text


def test_the_exit_code_is_zero_when_everything_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(api, "examine_machine", lambda: POOR)
    result = CliRunner().invoke(cli, ["doctor"])
    assert result.exit_code == 0
    assert "processor energy" in result.output


def test_the_doctor_runs_as_a_program_without_importing_torch():
    code = (
        "import sys; sys.argv = ['memfit', 'doctor']\n"
        "from memfit.commands import main\n"
        "try:\n    main()\nexcept SystemExit as leaving:\n    assert leaving.code == 0, leaving.code\n"
        "print('torch loaded:', 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.endswith("torch loaded: False\n")


@pytest.mark.slow
def test_a_processor_that_lies_is_named_by_its_signal_with_the_cure(lying_processor: dict[str, str]):
    command = [sys.executable, "-m", "memfit", "doctor", "--json"]
    done = subprocess.run(command, env=lying_processor, capture_output=True, text=True, check=True, timeout=120)
    report = msgspec.json.decode(done.stdout, type=MachineReport)
    assert report.check("float32 products").answer == "yes"
    bad = report.check("bfloat16 products")
    assert (bad.answer, bad.found) == ("no", "SIGILL in linear")
    assert bad.hint.startswith("export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16;")


def test_products_of_all_types_are_tried_where_torch_is(report: MachineReport):
    pytest.importorskip("torch")
    for name in ("float32", "bfloat16", "float16"):
        assert "not tried" not in report.check(f"{name} products").found
    assert report.check("float32 products").answer == "yes"
