"""Do trial scripts written for NNI run unchanged, under a study and by hand?"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memfit.records.study import Proposal
from memfit.study.trials.files import (
    METRICS_FILE,
    ReportReader,
    final_of,
    intermediates_of,
    read_metric,
    shim_folder,
    trial_environment,
    write_parameters,
)

PARAMETERS = {"lr": 0.1, "width": 8.0, "layer": {"_name": "conv", "k": 3}, "名": None}


def run(folder: Path, code: str, *, by_hand: bool = False, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a trial script, as a study does or as its author does by hand."""
    write_parameters(folder, Proposal(number=3, parameters=PARAMETERS))
    environment = trial_environment(
        os.environ, folder=folder, code_folder=folder, study_id="study", trial_id="aB3dE", number=3
    )
    if by_hand:
        environment = {k: v for k, v in environment.items() if not k.startswith(("NNI_", "MEMFIT_"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def test_a_trial_gets_its_parameters_and_ids_and_its_results_arrive(tmp_path: Path):
    run(
        tmp_path,
        f"""
import nni
assert nni.get_current_parameter() is None
parameters = nni.get_next_parameter()
assert parameters == {PARAMETERS!r}, parameters
assert type(parameters["width"]) is float
assert nni.get_next_parameters() == parameters == nni.get_current_parameter()
assert nni.get_current_parameter("lr") == 0.1
assert (nni.get_experiment_id(), nni.get_trial_id(), nni.get_sequence_id()) == ("study", "aB3dE", 3)
nni.report_intermediate_result(0.25)
nni.report_intermediate_result({{"default": 0.5, "loss": 2, "note": "ok"}})
nni.report_final_result(1)
nni.report_final_result(2)
nni.report_intermediate_result(0.75)
""",
    )
    reports = ReportReader(tmp_path).read_new()
    final = final_of(reports)
    assert final is not None
    assert final.value == 1.0
    found = intermediates_of(reports, 0.0)
    assert [(report.sequence, report.value) for report in found] == [(0, 0.25), (1, 0.5), (2, 0.75)]
    assert found[1].others == {"loss": 2, "note": "ok"}


@pytest.mark.parametrize(
    ("expression", "value", "reason"),
    [
        ("float('nan')", None, "nan is not a finite number"),
        ("float('-inf')", None, "-inf is not a finite number"),
        ("'good'", None, "'good' is not a number"),
        ("None", None, "None is not a number"),
        ("True", None, "True is not a number"),
        ("{'acc': 1}", None, "a dict without 'default'"),
        ("{'default': 'x'}", None, "'x' is not a number"),
        ("object()", None, "is not a number"),
        ("{(1, 2): 3}", None, "is not a number"),
        ("10**400", None, "too large"),
        ("type('Scalar', (), {'item': lambda self: 0.5})()", 0.5, ""),
        ("{'default': type('Scalar', (), {'item': lambda self: 0.5})()}", 0.5, ""),
        ("7", 7.0, ""),
    ],
)
def test_whatever_is_reported_is_kept_with_the_reason_and_never_ends_the_trial(
    tmp_path: Path, expression: str, value: float | None, reason: str
):
    run(tmp_path, f"import nni\nnni.get_next_parameter()\nnni.report_final_result({expression})")
    final = final_of(ReportReader(tmp_path).read_new())
    assert final is not None
    assert final.value == value
    assert reason in final.reason
    assert bool(final.reason) is (value is None)


def test_numbers_of_numpy_are_numbers(tmp_path: Path):
    run(
        tmp_path,
        "import nni, numpy\nnni.get_next_parameter()\nnni.report_final_result({'default': numpy.float32(0.5),"
        " 'all': numpy.arange(3)})",
    )
    final = final_of(ReportReader(tmp_path).read_new())
    assert final is not None
    assert (final.value, final.others) == (0.5, {"all": [0, 1, 2]})


def test_by_hand_a_trial_behaves_as_with_nni(tmp_path: Path):
    done = run(
        tmp_path,
        """
import nni
print(nni.get_next_parameter(), nni.get_trial_id(), nni.get_experiment_id(), nni.get_sequence_id())
nni.report_intermediate_result(0.5)
nni.report_final_result({"default": 1})
nni.get_current_parameter("lr")
""",
        by_hand=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "{} STANDALONE STANDALONE 0"
    assert lines[1].endswith("] Intermediate result: 0.5  (Index 0)")
    assert lines[2].endswith("] Final result: {'default': 1}")
    assert "RuntimeWarning: Running trial code without runtime" in done.stderr
    assert "KeyError: 'lr'" in done.stderr
    assert not (tmp_path / METRICS_FILE).exists()


def test_reporting_before_asking_is_a_mistake_under_a_study_only(tmp_path: Path):
    code = "import nni\nnni.report_final_result(1)"
    done = run(tmp_path, code, check=False)
    assert "get_next_parameter() needs to be called" in done.stderr
    assert run(tmp_path, code, by_hand=True).returncode == 0


def test_what_scripts_import_beside_the_trial_calls_is_there(tmp_path: Path):
    run(
        tmp_path,
        """
import argparse, nni
from nni.utils import merge_parameter, OptimizeMode, extract_scalar_reward
from nni.tuner import Tuner
from nni.assessor import Assessor, AssessResult
namespace = merge_parameter(argparse.Namespace(lr=1.0, n=None), {"lr": 2, "n": 3})
assert (namespace.lr, type(namespace.lr), namespace.n) == (2.0, float, 3)
assert merge_parameter({"a": "x"}, {"a": "y"}) == {"a": "y"} and merge_parameter({"a": 1}, None) == {"a": 1}
for base, over, words in (({"n": 1}, {"n": 8.0}, "quniform"), ({"n": 1}, {"m": 1}, "not found")):
    try:
        merge_parameter(base, over)
    except ValueError as error:
        assert words in str(error), error
    else:
        raise SystemExit("no error")
assert OptimizeMode("maximize") is OptimizeMode.Maximize and extract_scalar_reward({"default": 2}) == 2
assert nni.load(nni.dump({"a": [1]})) == {"a": [1]} and nni.trace(int) is int
assert issubclass(nni.NoMoreTrialError, Exception) and nni.__version__.startswith("3")
assert AssessResult.Good.value is True
for name in ("compression", "nas"):
    try:
        getattr(nni, name)
    except AttributeError as error:
        assert "memfit" in str(error)
""",
    )


def test_a_trial_in_any_language_can_use_the_command_line(tmp_path: Path):
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        environment = trial_environment(
            os.environ, folder=tmp_path, code_folder=tmp_path, study_id="s", trial_id="t", number=0
        )
        return subprocess.run(
            [sys.executable, "-m", "nni", *words], env=environment, capture_output=True, text=True, timeout=60
        )

    write_parameters(tmp_path, Proposal(number=0, parameters={"lr": 0.1, "name": "a b"}))
    assert command("parameter", "lr").stdout == "0.1\n"
    assert command("parameter", "name").stdout == "a b\n"
    assert command("parameter").stdout == '{"lr": 0.1, "name": "a b"}\n'
    assert command("parameter", "x").stderr == "there is no parameter 'x'\n"
    assert "usage" in command("final").stderr
    for value in ("0.1", "0.2"):
        assert command("intermediate", value).returncode == 0
    assert command("final", '{"default": 0.9, "loss": 1}').returncode == 0
    reports = ReportReader(tmp_path).read_new()
    assert [(report.is_final, report.sequence, report.value) for report in reports] == [
        (False, 0, 0.1),
        (False, 1, 0.2),
        (True, 0, 0.9),
    ]


def test_every_line_is_whole_when_many_processes_report_at_once(tmp_path: Path):
    run(
        tmp_path,
        """
import nni, os
nni.get_next_parameter()
nni.report_intermediate_result({"default": 0, "text": "x" * 300})
for _ in range(4):
    if os.fork() == 0:
        for step in range(200):
            nni.report_intermediate_result({"default": step, "text": "y" * 300})
        os._exit(0)
for _ in range(4):
    os.wait()
nni.report_final_result(1)
""",
    )
    reader = ReportReader(tmp_path)
    assert len(reader.read_new()) == 802
    assert reader.num_broken == 0


def test_a_growing_file_is_read_bit_by_bit_and_a_torn_line_waits(tmp_path: Path):
    path, reader = tmp_path / METRICS_FILE, ReportReader(tmp_path)
    assert reader.read_new() == []
    line = b'{"type": "PERIODICAL", "sequence": 0, "time": 1.5, "value": 0.25}\n'
    path.write_bytes(line + line[:20])
    assert [report.value for report in reader.read_new()] == [0.25]
    assert reader.read_new() == []
    path.write_bytes(line + line + b"garbage\n" + b'{"type": "FINAL", "sequence": 0, "value": NaN}\n')
    reports = reader.read_new()
    assert [(report.is_final, report.value) for report in reports] == [(False, 0.25), (True, None)]
    assert reader.num_broken == 1


def test_a_metric_of_another_name_can_be_the_goal():
    assert read_metric({"accuracy": 0.5, "default": 1}, "accuracy") == (0.5, "", {"default": 1})
    assert read_metric({"a": float("nan")}) == (None, "a dict without 'default'", {"a": "nan"})


def test_the_environment_is_that_of_a_local_trial_of_nni(tmp_path: Path):
    environment = trial_environment(
        {"PYTHONPATH": "mine", "PATH": "p"},
        folder=tmp_path,
        code_folder=tmp_path / "code",
        study_id="s",
        trial_id="t",
        number=4,
        gpu_indices=(),
    )
    assert environment["PYTHONPATH"] == f"{shim_folder()}{os.pathsep}mine"
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["NNI_OUTPUT_DIR"] == environment["NNI_SYS_DIR"] == str(tmp_path)
    assert {key for key in environment if key.startswith("NNI_")} == {
        "NNI_PLATFORM",
        "NNI_EXP_ID",
        "NNI_TRIAL_JOB_ID",
        "NNI_TRIAL_SEQ_ID",
        "NNI_SYS_DIR",
        "NNI_OUTPUT_DIR",
        "NNI_CODE_DIR",
    }
    installed = trial_environment(
        {}, folder=tmp_path, code_folder=tmp_path, study_id="s", trial_id="t", number=0, route="installed"
    )
    assert installed["NNI_TRIAL_COMMAND_CHANNEL"] == "import://memfit_nni_channel.Channel"
    assert (Path(installed["PYTHONPATH"]) / "memfit_nni_channel.py").is_file()
    assert not (Path(installed["PYTHONPATH"]) / "nni").exists()


def test_the_installed_nni_is_served_through_its_own_hook(tmp_path: Path):
    """A stand-in for the installed package has the one base class that the hook needs."""
    package = tmp_path / "site" / "nni" / "runtime"
    package.mkdir(parents=True)
    (tmp_path / "site" / "nni" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "trial_command_channel.py").write_text("class TrialCommandChannel: pass\n")
    write_parameters(tmp_path, Proposal(number=0, parameters={"lr": 0.5}))
    environment = trial_environment(
        {**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        folder=tmp_path, code_folder=tmp_path, study_id="s", trial_id="t", number=0, route="installed",
    )  # fmt: skip
    code = """
from memfit_nni_channel import Channel
channel = Channel()
assert channel.receive_parameter()["parameters"] == {"lr": 0.5}
channel.send_metric(type="PERIODICAL", parameter_id=0, trial_job_id="t", sequence=0, value=0.25)
channel.send_metric("FINAL", 0, "t", 0, {"default": 1})
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [report.value for report in ReportReader(tmp_path).read_new()] == [0.25, 1.0]


def test_the_shim_needs_only_the_standard_library_of_an_old_python():
    modules = [path for path in shim_folder().rglob("*.py") if "channel" not in path.parts]
    assert len(modules) > 5
    for path in modules:
        tree = ast.parse(path.read_text(), feature_version=(3, 7))
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            assert all(name.split(".")[0] in sys.stdlib_module_names for name in names), path


def test_a_trial_loads_little_for_the_shim(tmp_path: Path):
    code = """
import sys
before = set(sys.modules)
import nni
nni.get_next_parameter()
nni.report_final_result(1)
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}))
"""
    loaded = set(run(tmp_path, code).stdout.split())
    heavy = {"socket", "urllib", "logging", "typing", "asyncio", "subprocess", "threading", "datetime", "pathlib"}
    assert loaded & heavy == set()
    assert {"nni", "json"} <= loaded
