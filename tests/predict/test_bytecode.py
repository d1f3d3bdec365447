"""Bytecode that a guarded child compiles is kept where Python looks for it, and only that of libraries."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from memfit.predict.child.bytecode import HEAD, PREFIX, is_of_a_library, keep_spooled

SPOOL = """
import sys
sys.path.insert(0, {folder!r})
from memfit.predict.child import bytecode
bytecode._LIBRARIES = ({folder!r} + "/lib/",)
bytecode.spool_bytecode({spool!r})
sys.path.insert(0, {folder!r} + "/lib")
import of_a_library, of_the_user
"""


def test_a_child_leaves_its_bytecode_and_the_parent_puts_it_in_place(tmp_path: Path, monkeypatch):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "of_a_library.py").write_text("x = 1\n")
    (tmp_path / "of_the_user.py").write_text("x = 2\n")
    spool = tmp_path / "spool"
    spool.mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    code = SPOOL.format(folder=str(tmp_path), spool=str(spool))
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert not (tmp_path / "lib" / "__pycache__").exists()
    monkeypatch.setattr("memfit.predict.child.bytecode._LIBRARIES", (str(tmp_path / "lib") + os.sep,))
    keep_spooled(spool)
    assert [path.name.partition(".")[0] for path in (tmp_path / "lib" / "__pycache__").iterdir()] == ["of_a_library"]
    assert not (tmp_path / "__pycache__").exists()


def test_half_a_record_and_other_places_are_left_alone(tmp_path: Path):
    name = os.fsencode(tmp_path / "__pycache__" / "evil.pyc")
    (tmp_path / f"{PREFIX}1").write_bytes(HEAD.pack(len(name), 4) + name + b"code" + HEAD.pack(9, 9) + b"x")
    keep_spooled(tmp_path)
    assert not (tmp_path / "__pycache__").exists()
    assert not is_of_a_library(str(tmp_path / "__pycache__" / "evil.pyc"))
    assert is_of_a_library(sysconfig.get_path("purelib") + "/torch/__pycache__/version.cpython-311.pyc")
