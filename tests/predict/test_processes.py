"""Pools of processes under a prediction: they work in the predicted process, and say so."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import multiprocessing.pool
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.queues import Queue
from pathlib import Path

import pytest

from memfit.predict.sandbox.child_python import python_command
from memfit.predict.sandbox.processes import Processes, guarded, is_line_of_questions, question_words
from memfit.predict.sandbox.scratch_files import ScratchFiles


def test_classes_can_derive_from_pools_that_work_in_this_process(tmp_path: Path):
    said: list[str] = []
    with guarded(str(tmp_path), lambda _kind, text: said.append(text)):

        class Executor(concurrent.futures.ProcessPoolExecutor):
            pass

        class Pool(multiprocessing.pool.Pool):
            pass

        with Executor(2) as executor:
            assert list(executor.map(abs, [-1, 2])) == [1, 2]
        with Pool(2) as pool:
            assert pool.map(abs, [-3, 4]) == [3, 4]
    assert len(said) == 2
    assert "did its work in this one" in said[0]


def test_a_pool_of_threads_stays_one(tmp_path: Path):
    said: list[str] = []
    with guarded(str(tmp_path), lambda _kind, text: said.append(text)), multiprocessing.pool.ThreadPool(2) as pool:
        assert pool.map(abs, [-1, 2]) == [1, 2]
        assert sorted(pool.imap_unordered(abs, [-3, 4])) == [3, 4]
    assert not said


def test_what_a_worker_sets_is_set_apart(tmp_path: Path):
    inside, seen = [False], list[object]()

    @contextlib.contextmanager
    def apart() -> Iterator[None]:
        inside[0] = True
        yield
        inside[0] = False

    def look(value: object = "begins") -> None:
        seen.append((value, inside[0]))

    files = ScratchFiles(str(tmp_path))
    with Processes(files, lambda kind, text: None, apart=apart).standing_in():
        with multiprocessing.Pool(2, initializer=look) as pool:
            pool.map(look, [1])
            pool.starmap_async(func=look, iterable=[(2,)])
            pool.apply_async(func=look, args=(3,), callback=lambda _: look("told"))
            list(pool.imap(look, [4]))
        with concurrent.futures.ProcessPoolExecutor(2) as executor:
            executor.submit(look, 5)
            list(executor.map(look, [6]))
        multiprocessing.Process(target=look, args=(7,)).start()
    assert seen == [
        ("begins", True),
        *((value, True) for value in (1, 2, 3)),
        ("told", False),
        *((value, True) for value in (4, 5, 6, 7)),
    ]


def fill(queue: Queue[int], stop: threading.Event) -> None:
    """As samplers do: batches for ever, until the queue is full."""
    number = 0
    while not stop.is_set():
        queue.put(number)
        number += 1


@pytest.mark.timeout(60)
def test_a_daemon_that_fills_a_queue_for_ever_works_beside_the_script(tmp_path: Path):
    said: list[str] = []
    stop, queue = threading.Event(), multiprocessing.Queue(2)
    with guarded(str(tmp_path), lambda kind, text: said.append(text)):
        sampler = multiprocessing.Process(target=fill, args=(queue, stop), daemon=True)
        sampler.start()
        assert [queue.get() for _ in range(9)] == list(range(9))
        stop.set()
        queue.get()
        sampler.terminate()
        sampler.join()
    assert any("beside it" in text for text in said)


@pytest.mark.parametrize("name", ["uname", "/usr/bin/nvidia-smi", "touch"])
def test_a_program_that_is_named_by_a_path_object_is_the_program_of_that_name(name: str):
    assert question_words(Path(name), False) == question_words(name, False) == question_words([name], False)
    assert question_words(Path(name), True) is None  # Popen refuses it, and says why


@pytest.mark.parametrize(
    ("line", "tells"),
    [
        ("lscpu | grep Model", True),
        ("nvidia-smi -q -d Memory | grep -A4 GPU | grep Free", True),
        ("cd .. && git rev-parse HEAD 2>/dev/null || echo unknown", True),
        ("echo 'a; rm -rf b' | wc -l", True),
        ("echo a | tee b", False),
        ("nvidia-smi | grep Free > free.txt", False),
        ("git rev-parse HEAD; git commit -a", False),
        ("echo $(touch b) | wc -l", False),
        ("echo a", False),
    ],
)
def test_a_line_of_programs_that_only_tell_something_is_known(line: str, tells: bool):
    assert is_line_of_questions(line, True) == tells
    assert not is_line_of_questions(line, False)


def test_a_line_of_programs_is_asked_without_the_right_to_write(tmp_path: Path):
    said: list[str] = []
    with guarded(str(tmp_path), lambda _kind, text: said.append(text)):
        Path("two.txt").write_text("1\n2\n")
        assert subprocess.check_output("cat /proc/self/status | grep -c Name", shell=True) == b"1\n"
        assert subprocess.check_output(["cat", "two.txt"]) == b"1\n2\n"
        assert os.system("echo a | sort -o out.txt") != 0
    assert not Path("two.txt").exists()
    assert not Path("out.txt").exists()
    assert any("grep -c Name was asked" in text for text in said)


def child(tmp_path: Path, said: list[str]) -> Processes:
    (tmp_path / "scratch").mkdir()
    files = ScratchFiles(str(tmp_path / "scratch"))
    return Processes(files, lambda _kind, text: said.append(text), in_child=contextlib.nullcontext)


PREPARES = """
import os, sys
os.makedirs("data", exist_ok=True)
with open("data/words.txt", "w") as stream:
    stream.write(" ".join(sys.argv[1:]) + os.environ.get("ENDING", ""))
print("prepared")
"""


def test_a_child_python_prepares_data_in_the_scratch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prepare.py").write_text(PREPARES)
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)")
    said: list[str] = []
    processes = child(tmp_path, said)
    with processes._files.guarding(), processes.standing_in():
        command = [sys.executable, "-u", "prepare.py", "a", "b"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "ENDING": "."})
        assert done.stdout == "prepared\n"
        assert Path("data/words.txt").read_text() == "a b."
        assert subprocess.check_output([sys.executable, "-c", "import sys; print(sys.argv)", "x"]) == b"['-c', 'x']\n"
        failed = subprocess.run([sys.executable, "-c", "raise ValueError('no')"], capture_output=True, check=False)
        assert (failed.returncode, b"ValueError: no" in failed.stderr) == (1, True)
        assert os.system(f"{sys.executable} -c pass") == 0
        assert os.waitstatus_to_exitcode(os.system(f"{sys.executable} leaves.py")) == 3
    assert "ENDING" not in os.environ
    assert not (tmp_path / "data").exists()
    assert set(said) == {
        "a child Python was run in this process: what is predicted is one process",
        "a child Python failed, which may succeed in a real run: ValueError: no",
    }


def test_a_child_python_that_is_fed_through_a_pipe_is_not_run(tmp_path: Path):
    said: list[str] = []
    processes = child(tmp_path, said)
    counts = [sys.executable, "-c", "import sys; print(len(sys.stdin.read()))"]
    with processes._files.guarding(), processes.standing_in(), pytest.raises(PermissionError):
        subprocess.run(counts, input="four", capture_output=True, text=True, check=True)
    assert said == []


@pytest.mark.parametrize(
    ("command", "in_shell", "kind"),
    [
        (["python", "prepare.py"], False, "script"),
        ("python -W ignore -m tools.prepare --fast", True, "module"),
        ([sys.executable, "-m", "torch.distributed.run", "train.py"], False, None),
        ([sys.executable, "-m", "pip", "install", "x"], False, None),
        ([sys.executable, "-m", "tensorboard.main", "--logdir", "runs"], False, None),
        ("python prepare.py && python train.py", True, None),
        (["/other/bin/python", "prepare.py"], False, None),
        (["bash", "prepare.sh"], False, None),
        ([sys.executable], False, None),
    ],
)
def test_which_commands_are_a_child_python(command: str | list[str], in_shell: bool, kind: str | None):
    asked = python_command(command, in_shell)
    assert (asked and asked.kind) == kind
