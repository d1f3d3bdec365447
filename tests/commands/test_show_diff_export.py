"""Do show, diff and export say the right thing, in the right stream, with the right exit code?"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from memfit.commands import main
from memfit.testing.made_records.runs import MadeRun, write_made_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_made_run(folder / "a", MadeRun(ledger=True, seconds=5.0))
    write_made_run(folder / "b", MadeRun(seed=1, seconds=5.0, base_bytes=600 * 1024**2))
    return folder


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


def memfit(*arguments: str | Path, folder: Path) -> Done:
    """Run the command line in this process, as the console script does."""
    out, err = io.StringIO(), io.StringIO()
    with chdir(folder), redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as leaving:
        main([str(argument) for argument in arguments])
    return Done(returncode=int(leaving.value.code or 0), stdout=out.getvalue(), stderr=err.getvalue())


def test_a_real_process_prints_the_summary_into_a_real_pipe(runs: Path):
    command = [sys.executable, "-m", "memfit", "show", "a"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=runs, check=True)
    assert "Peak" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_show_prints_a_summary_without_escape_codes_into_a_pipe(runs: Path):
    done = memfit("show", "a", folder=runs)
    assert done.returncode == 0, done.stderr
    assert "Peak" in done.stdout
    assert "Where it went" in done.stdout
    assert "\x1b" not in done.stdout


def test_show_json_is_one_document_with_stable_keys(runs: Path):
    done = memfit("show", "a", "--json", folder=runs)
    data = json.loads(done.stdout)
    assert list(data)[:4] == ["run_id", "kind", "created_at", "folder"]
    assert data["headline"]["peak"]["source"] == "measured"


def test_show_writes_page_and_pictures_and_does_not_replace_them_unasked(runs: Path, tmp_path: Path):
    arguments = ("show", "a", "--html", tmp_path / "r.html", "--png", tmp_path / "r.png", "--svg", tmp_path / "r.svg")
    done = memfit(*arguments, folder=runs)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.png", "r.svg"]
    again = memfit(*arguments, folder=runs)
    assert again.returncode == 2
    assert "already there" in again.stderr
    assert memfit(*arguments, "-f", folder=runs).returncode == 0


def test_diff_answers_first_and_gives_the_noise(runs: Path):
    done = memfit("diff", "a", "b", folder=runs)
    assert done.returncode == 0, done.stderr
    assert "B's peak is" in done.stdout
    assert "larger than the noise" in done.stdout
    data = json.loads(memfit("diff", "a", "b", "--json", folder=runs).stdout)
    assert data["differences"][0]["verdict"] == "larger than the noise"


def test_diff_takes_groups_on_both_sides_of_two_dashes(runs: Path):
    data = json.loads(memfit("diff", "--json", "a", "a", "--", "b", "b", "b", folder=runs).stdout)
    assert (data["first"]["num_runs"], data["second"]["num_runs"]) == (2, 3)


@pytest.mark.parametrize("arguments", [("a",), (), ("a", "b", "b"), ("--", "a")])
def test_diff_without_two_sides_is_a_usage_error(runs: Path, arguments: tuple[str, ...]):
    done = memfit("diff", *arguments, folder=runs)
    assert done.returncode == 2
    assert "--" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--repeat", "4", "--", "true"), "two commands"),
        (("--repeat", "4", "a"), "two commands"),
        (("--repeat", "4", "--", "true", "--", "true", "--", "true"), "two commands"),
        (("--repeat", "4", "a", "b", "--", "true", "--", "true"), "two commands"),
        (("--repeat", "2", "--", "true", "--", "true"), "at least 4"),
        (("--repeat", "4", "--", "true", "--", "no-such-program"), "no-such-program"),
        (("--resume", "x", "a", "b"), "--resume"),
        (("--stable", "a", "b"), "--repeat"),
        (("a", "--", "b", "--", "b"), "--repeat"),
        (("a", "b", "--fail-above", "much"), "percent"),
    ],
)
def test_diff_refuses_repeats_that_make_no_sense(runs: Path, arguments: tuple[str, ...], said: str):
    done = memfit("diff", *arguments, folder=runs)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_diff_repeats_two_commands_and_prints_one_json_document(tmp_path: Path):
    command = (
        "--",
        sys.executable,
        "-S",
        "-c",
        "import time; print('hello'); time.sleep(0.3)",
    )  # long enough to be read
    done = memfit("diff", "--repeat", "4", "-o", "out", "--json", *command, *command, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["order"] == ["A", "B", "B", "A", "A", "B", "B", "A"]
    assert data["differences"][0]["resolves"] > 0
    assert "8/8  A  peak" in done.stderr
    again = memfit("diff", "--resume", "out", "--json", folder=tmp_path)
    assert json.loads(again.stdout)["differences"] == data["differences"]
    shown = memfit("diff", "--resume", "out", "-q", folder=tmp_path)
    assert "would have been seen" in " ".join(shown.stdout.split())
    assert shown.stderr == ""


def test_diff_fails_only_above_a_share_that_is_surely_passed(runs: Path):
    assert memfit("diff", "a", "b", "--fail-above", "20%", folder=runs).returncode == 1
    passed = memfit("diff", "a", "b", "--fail-above", "500%", folder=runs)
    assert passed.returncode == 0
    unsure = memfit("diff", "a", "a", "--fail-above", "5%", folder=runs)
    assert unsure.returncode == 0
    assert "need not be seen" in unsure.stderr
    assert memfit("diff", "b", "a", "--fail-above", "0%", folder=runs).returncode == 0


def test_export_names_what_it_wrote(runs: Path, tmp_path: Path):
    for to, name in {"csv": "tables", "json": "a.json", "chrome-trace": "t.json", "memory-viewer": "m.pickle"}.items():
        done = memfit("export", "a", "--to", to, "-o", tmp_path / name, folder=runs)
        assert done.returncode == 0, done.stderr
        assert f"wrote {tmp_path / name}" in done.stdout


def test_export_names_files_after_the_run_by_default(runs: Path, tmp_path: Path):
    assert memfit("export", runs / "a", "--to", "csv", "--table", "steps", folder=tmp_path).returncode == 0
    assert (tmp_path / "a-steps.csv").is_file()


@pytest.mark.parametrize("verb", [("show",), ("diff", "a"), ("export", "--to", "json")])
def test_bad_run_folders_are_one_clear_error_without_a_traceback(runs: Path, tmp_path: Path, verb: tuple[str, ...]):
    newer = write_made_run(tmp_path / "newer", MadeRun(seconds=3.0))
    header = json.loads((newer / "run.json").read_text())
    (newer / "run.json").write_text(json.dumps({**header, "format_version": 99}))
    torn = write_made_run(tmp_path / "torn", MadeRun(seconds=3.0))
    (torn / "run.json").write_text('{"format": "memfit-run"')
    for folder, said in ((newer, "newer memfit"), (torn, "not whole"), (tmp_path / "none", "not a memfit run")):
        done = memfit(*verb, folder, folder=runs)
        assert done.returncode == 1
        assert said in done.stderr
        assert "try:" in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""


def test_a_record_torn_in_the_middle_of_everything_still_shows(runs: Path, tmp_path: Path):
    torn = write_made_run(tmp_path / "torn", MadeRun(seconds=5.0, ending="lost"))
    for path in torn.iterdir():
        if path.name != "run.json":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 3])
    done = memfit("show", torn, "--html", tmp_path / "x.html", folder=runs)
    assert done.returncode == 0, done.stderr
    summary = memfit("show", torn, folder=runs)
    assert "lost" in summary.stdout


@pytest.mark.parametrize("verb", ["show", "diff", "export"])
def test_every_help_has_an_example(runs: Path, verb: str):
    done = memfit(verb, "--help", folder=runs)
    assert done.returncode == 0
    assert f"  memfit {verb} " in done.stdout


def test_compare_refuses_what_only_a_training_can_obey_when_a_run_is_named(runs: Path):
    """A run folder may be called like a workload."""
    refused = memfit("compare", "a", "--optimizer", "adamw", "--measure", folder=runs)
    assert refused.returncode == 2
    assert "without --optimizer, --measure" in refused.stderr
    assert memfit("compare", "a", folder=runs).returncode == 0
