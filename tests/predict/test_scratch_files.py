"""The scratch file system: a script sees what a real one would show, and the real one does not change."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memfit.predict.sandbox.compiled_files import opening_for_compiled_code
from memfit.predict.sandbox.scratch_files import ScratchFiles
from memfit.predict.sandbox.scratch_imports import ScratchFinder

NAMES = ("a", "b", "d", "d/x", "d/e", "d/e/y", "new", "new/z")


def written(path: str, mode: str, text: str) -> None:
    with open(path, mode) as stream:
        stream.write(text)


def read(path: str) -> str:
    with open(path) as stream:
        return stream.read()


def tree(folder: str) -> Any:
    return sorted((os.path.relpath(top, folder), sorted(names), sorted(files)) for top, names, files in os.walk(folder))


ACTIONS: dict[str, Callable[[str, str], Any]] = {
    "write": lambda a, b: written(a, "w", b[-3:]),
    "append": lambda a, b: written(a, "a", "more"),
    "change": lambda a, b: written(a, "r+", "R"),
    "create": lambda a, b: written(a, "x", "new"),
    "read": lambda a, b: read(a),
    "make folder": lambda a, b: os.mkdir(a),
    "make folders": lambda a, b: os.makedirs(a, exist_ok=True),
    "remove": lambda a, b: os.remove(a),
    "remove folder": lambda a, b: os.rmdir(a),
    "remove tree": lambda a, b: shutil.rmtree(a),
    "rename": lambda a, b: os.rename(a, b) if os.path.isfile(a) and not os.path.isdir(b) else None,
    "move": lambda a, b: shutil.move(a, b) and None if not b.startswith(a) and not os.path.isdir(b) else None,
    "copy": lambda a, b: shutil.copyfile(a, b) and None if a != b else None,
    "copy tree": lambda a, b: shutil.copytree(a, b) and None if not (b + "/").startswith(a + "/") else None,
    "list": lambda a, b: sorted(os.listdir(a)),
    "scan": lambda a, b: sorted((entry.name, entry.is_dir()) for entry in os.scandir(a)),
    "size": lambda a, b: os.path.getsize(a) if os.path.isfile(a) else os.path.isdir(a),
    "touch": lambda a, b: pathlib.Path(a).touch(),
    "when": lambda a, b: (os.utime(a, (5, 7)), None if os.path.isdir(a) else 0)[1],
    "truncate": lambda a, b: os.truncate(a, 1),
    "link": lambda a, b: os.symlink(a, b) if os.path.isfile(a) else None,
    "find": lambda a, b: sorted(str(path.name) for path in pathlib.Path(a).glob("*")),
    "space": lambda a, b: os.statvfs(a).f_namemax > 0,
}
Steps = list[tuple[str, str, str]]


def outcome(folder: str, steps: Steps) -> list[Any]:
    """What each step gave, or the kind of its error, and what is there in the end."""
    found: list[Any] = []
    for action, first, second in steps:
        try:
            found.append(ACTIONS[action](os.path.join(folder, first), os.path.join(folder, second)))
        except OSError as error:
            found.append(type(error))
    return [*found, tree(folder)]


def furnished(folder: str) -> str:
    os.makedirs(os.path.join(folder, "d", "e"))
    for name in ("a", "d/x", "d/e/y"):
        written(os.path.join(folder, name), "w", f"content of {name}")
    return folder


@settings(max_examples=120, deadline=None)
@example(steps=[("append", "d/x", "a"), ("move", "d", "b")])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(sorted(ACTIONS)), st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=8
    )
)
def test_every_sequence_of_calls_gives_what_the_real_file_system_gives(steps: Steps):
    with tempfile.TemporaryDirectory() as top:
        real, kept, scratch = (os.path.join(top, name) for name in ("real", "kept", "scratch"))
        os.mkdir(scratch)
        expected = outcome(furnished(real), steps)
        furnished(kept)
        before = [tree(kept), [read(os.path.join(kept, name)) for name in ("a", "d/x", "d/e/y")]]
        with ScratchFiles(scratch).guarding():
            found = outcome(kept, steps)
        assert found == expected
        assert [tree(kept), [read(os.path.join(kept, name)) for name in ("a", "d/x", "d/e/y")]] == before


@pytest.fixture
def files(tmp_path: Path) -> ScratchFiles:
    (tmp_path / "scratch").mkdir()
    return ScratchFiles(str(tmp_path / "scratch"))


def test_a_temporary_file_in_a_new_folder_can_be_moved(tmp_path: Path, files: ScratchFiles):
    with files.guarding():
        os.makedirs(tmp_path / "cache" / "a")
        with tempfile.NamedTemporaryFile("w", dir=tmp_path / "cache" / "a", delete=False) as stream:
            stream.write("hello")
        shutil.move(stream.name, tmp_path / "cache" / "final")
        assert (tmp_path / "cache" / "final").read_text() == "hello"
    assert not (tmp_path / "cache").exists()


def test_a_script_can_go_into_a_folder_it_made(tmp_path: Path, files: ScratchFiles):
    (tmp_path / "given").write_text("here")
    before = os.getcwd()
    with files.guarding():
        try:
            os.mkdir(tmp_path / "run")
            os.chdir(tmp_path / "run")
            assert os.getcwd() == str(tmp_path / "run")
            written("own", "w", "mine")
            assert (read("own"), read("../given")) == ("mine", "here")
        finally:
            os.chdir(before)


def test_writing_through_a_link_changes_nothing_outside(tmp_path: Path, files: ScratchFiles):
    (tmp_path / "given").write_text("here")
    with files.guarding():
        os.symlink(tmp_path / "given", tmp_path / "link")
        written(str(tmp_path / "link"), "w", "changed")
        assert read(str(tmp_path / "given")) == "changed"
    assert (tmp_path / "given").read_text() == "here"


def test_a_database_is_written_to_the_scratch_folder(tmp_path: Path, files: ScratchFiles):
    with files.guarding(), opening_for_compiled_code(files, lambda kind, text: None):
        for rows in (1, 2):
            with contextlib.closing(sqlite3.connect(tmp_path / "base.db")) as base, base:
                base.execute("create table if not exists t (x)")
                base.execute("insert into t values (1)")
                assert base.execute("select count(*) from t").fetchone() == (rows,)
        assert os.path.getsize(tmp_path / "base.db") > 0
    assert not (tmp_path / "base.db").exists()


SAVES_A_TOKENIZER = """
import os, sys
from pathlib import Path
from memfit.predict.sandbox.compiled_files import opening_for_compiled_code
from memfit.predict.sandbox.scratch_files import ScratchFiles
files = ScratchFiles(sys.argv[1])
with files.guarding(), opening_for_compiled_code(files, lambda kind, text: None):
    from tokenizers import Tokenizer, models
    os.mkdir("out")
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save("out/tokenizer.json")
    assert os.path.getsize("out/tokenizer.json") > 0
    assert Tokenizer.from_file("out/tokenizer.json").get_vocab_size() == 1
assert not os.path.exists("out")
"""


def test_a_tokenizer_is_saved_to_the_scratch_folder_and_loaded_from_it(tmp_path: Path):
    """In a process of its own: the class of the library stays changed."""
    pytest.importorskip("tokenizers", reason="the package `tokenizers` is not installed")
    for name in ("work", "scratch"):
        (tmp_path / name).mkdir()
    command = [sys.executable, "-c", SAVES_A_TOKENIZER, str(tmp_path / "scratch")]
    subprocess.run(command, cwd=tmp_path / "work", check=True)


LOADS_A_DATA_SET = """
import json, os, torch
from datasets import load_dataset
with open("rows.json", "w") as stream:
    for number in range(40):
        stream.write(json.dumps({"text": "word " * number, "label": number % 2}) + "\\n")
data = load_dataset("json", data_files="rows.json", split="train")
data = data.map(lambda row: {"length": len(row["text"].split())}, num_proc=2).filter(lambda row: row["length"] > 3)
data = data.train_test_split(0.25, seed=0)["train"].with_format("torch", columns=["length", "label"])
model = torch.nn.Embedding(50, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in torch.utils.data.DataLoader(data, batch_size=4):
    model(batch["length"]).sum().backward()
    optimizer.step()
"""


def test_hugging_face_data_sets_load_and_map_on_an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("datasets", reason="the package `datasets` is not installed")

    (tmp_path / "train.py").write_text(LOADS_A_DATA_SET)
    environment = os.environ | {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "memfit", "predict", "train.py", "--no-probes"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "3 steps" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


IMPORTS_WHAT_IT_WROTE = """
import importlib.util, os, runpy
os.makedirs("hub")
for name in ("hub/hubconf.py", "alone.py"):
    with open(name, "w") as stream:
        stream.write("width = 7")
spec = importlib.util.spec_from_file_location("hubconf", "hub/hubconf.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
assert module.width == 7 and runpy.run_path("alone.py")["width"] == 7
"""


def test_code_that_was_written_is_imported_by_the_name_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("work", "scratch"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    files = ScratchFiles(str(tmp_path / "scratch"))
    with files.guarding(), ScratchFinder(files).asked_last():
        exec(IMPORTS_WHAT_IT_WROTE, {})
    assert not list((tmp_path / "work").iterdir())


SAVES_TABLES = """
import os, sys
from memfit.predict.sandbox.compiled_files import opening_for_compiled_code
from memfit.predict.sandbox.scratch_files import ScratchFiles
files = ScratchFiles(sys.argv[1])
with files.guarding(), opening_for_compiled_code(files, lambda kind, text: None):
    import pyarrow, pyarrow.csv, pyarrow.feather, pyarrow.parquet
    table = pyarrow.table({"a": [1.0, 2.0]})
    os.makedirs("made")
    pyarrow.parquet.write_table(table, "made/x.parquet")
    assert pyarrow.parquet.read_table("made/x.parquet") == pyarrow.parquet.ParquetFile("made/x.parquet").read() == table
    assert pyarrow.parquet.read_schema("made/x.parquet").names == ["a"]
    pyarrow.csv.write_csv(table, "x.csv")
    pyarrow.feather.write_feather(table, "x.feather")
    assert pyarrow.csv.read_csv("x.csv").num_rows == pyarrow.feather.read_table("x.feather").num_rows == 2
assert not os.listdir(".")
"""


def test_tables_of_arrow_are_saved_to_the_scratch_folder_and_loaded_from_it(tmp_path: Path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    for name in ("work", "scratch"):
        (tmp_path / name).mkdir()
    command = [sys.executable, "-c", SAVES_TABLES, str(tmp_path / "scratch")]
    subprocess.run(command, cwd=tmp_path / "work", check=True)


SAVES_ARRAYS = """
import numpy, os, sys
from memfit.predict.sandbox.compiled_files import opening_for_compiled_code
from memfit.predict.sandbox.scratch_files import ScratchFiles
files = ScratchFiles(sys.argv[1])
with files.guarding(), opening_for_compiled_code(files, lambda kind, text: None):
    from safetensors.numpy import load_file, save_file
    os.makedirs("made")
    for name in ("made/x.safetensors", "y.safetensors"):
        save_file({"a": numpy.arange(4.0)}, name)
        assert load_file(name)["a"][3] == 3
assert not os.listdir(".")
"""


def test_arrays_of_safetensors_are_saved_to_the_scratch_folder_and_loaded_from_it(tmp_path: Path):
    """In a process of its own: the functions of the library stay changed."""
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    for name in ("work", "scratch"):
        (tmp_path / name).mkdir()
    command = [sys.executable, "-c", SAVES_ARRAYS, str(tmp_path / "scratch")]
    subprocess.run(command, cwd=tmp_path / "work", check=True)


def test_numpy_writes_tables_to_the_scratch_folder_and_reads_them_there(tmp_path: Path, files: ScratchFiles):
    """It took `open` to itself when it was imported."""
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "table.csv"
    with files.guarding():
        numpy.savetxt(path, numpy.ones((2, 2)))
        assert numpy.loadtxt(path).sum() == 4
    assert not path.exists()


def test_a_process_that_guards_many_times_is_called_at_its_events_once(tmp_path: Path):
    """Audit hooks stay for ever: one for each guarding made every later event of the process slower."""
    added: list[object] = []

    def note(event: str, args: tuple[object, ...]) -> None:
        if event == "sys.addaudithook":
            added.append(args)

    sys.addaudithook(note)
    for _ in range(3):
        with ScratchFiles(str(tmp_path)).guarding(), pytest.raises(PermissionError):
            sys.audit("os.remove", "/etc/hostname", -1)
    sys.audit("os.remove", "/etc/hostname", -1)
    assert len(added) <= 1
