"""Is a hooked Python the same to its program as one that is not?"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hooked_python import START

WHAT_A_PROGRAM_SEES = """
import json, os, sys
first = os.open("/dev/null", os.O_RDONLY)
print(json.dumps([sys.path, sorted(sys.argv), first, sys.flags.isolated, "site" in sys.modules]))
"""


def plain(script: Path, *flags: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run([sys.executable, *flags, str(script)], capture_output=True, text=True, env=environment).stdout


def test_a_program_sees_the_same_path_and_the_same_file_numbers(hooked, tmp_path: Path):
    run = hooked(WHAT_A_PROGRAM_SEES)
    assert run.stdout == plain(tmp_path / "job.py")
    assert run.stderr == ""


def test_the_environment_keeps_the_hook_so_that_child_pythons_have_it_too(hooked):
    run = hooked("""
        import subprocess, sys
        code = "import sys; print('memfit_inside' in sys.modules)"
        print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip())
    """)
    assert run.stdout == "True\n"


def test_a_python_that_marks_nothing_leaves_no_file(hooked):
    run = hooked("print('nothing to see')")
    assert run.stdout == "nothing to see\n"
    assert list(run.folder.iterdir()) == []


@pytest.mark.parametrize("flag", ["-I", "-S", "-E"])
def test_an_isolated_python_is_simply_not_hooked(hooked, flag: str):
    run = hooked("import sys; print('memfit_inside' in sys.modules)", flags=(flag,))
    assert (run.stdout, run.stderr, run.returncode) == ("False\n", "", 0)


def test_the_users_own_sitecustomize_is_imported_as_without_memfit(hooked, tmp_path: Path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import sys\nMINE = 42\nsys.flag_of_the_user = __file__\n")
    program = "import sys, sitecustomize; print(sitecustomize.MINE, sys.flag_of_the_user, sitecustomize.__file__)"
    run = hooked(program, PYTHONPATH=f"{START}{os.pathsep}{theirs}")
    path = theirs / "sitecustomize.py"
    assert run.stdout == f"42 {path} {path}\n"


def test_an_error_in_the_users_sitecustomize_is_reported_as_without_memfit(hooked, tmp_path: Path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("raise ValueError('of the user')\n")
    run = hooked("print('still running')", PYTHONPATH=f"{START}{os.pathsep}{theirs}")
    alone = subprocess.run(
        [sys.executable, str(tmp_path / "job.py")],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(theirs)},
    )  # fmt: skip
    assert (run.stdout, run.stderr) == (alone.stdout, alone.stderr)
    assert "of the user" in run.stderr


@pytest.mark.parametrize("folder", ["/proc/no-such-folder", "/dev/null"])
def test_a_folder_that_cannot_be_written_changes_nothing(hooked, folder: str):
    run = hooked(
        """
        import memfit_inside
        memfit_inside.mark_forward(); memfit_inside.mark_step()
        print("done")
        """,
        folder=Path(folder),
    )
    assert (run.stdout, run.stderr, run.returncode) == ("done\n", "", 0)


def test_without_the_two_variables_the_hook_does_nothing(hooked):
    run = hooked("import sys; print('memfit_inside' in sys.modules)", MEMFIT_MARKS="0")
    assert run.stdout == "False\n"


@pytest.mark.parametrize("path", sorted(START.parent.rglob("*.py")), ids=lambda path: path.name)
def test_every_file_that_runs_in_the_job_can_be_read_by_python_3_8(path: Path):
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
