"""Are the marks exact, and what is left of them when a program dies, forks, fails or runs out of disk?"""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hooked_python import hook_environment

from memfit.inside import high_water
from memfit.inside.high_water import HighWater
from memfit.inside.marks import Marks
from memfit.inside.recorder import is_out_of_memory
from memfit.runfolder.marks import read_marks

MIB = 1024**2
TRANSIENT = """
    import time
    import memfit_inside as inside
    base = bytearray(30 * 2**20)
    for step in range(1, 9):
        time.sleep(PAUSE)
        inside.mark_forward()
        if step == 5:
            block = bytearray(100 * 2**20)
            del block
        inside.mark_step()
"""


def test_a_transient_of_100_mib_is_the_peak_of_its_step_and_of_no_other(hooked):
    run = hooked(TRANSIENT.replace("PAUSE", "0.1"))
    assert (run.returncode, run.stderr) == (0, "")
    marks = run.marks()
    peaks = marks.steps.peak_bytes
    quiet = [peaks[i] for i in range(8) if i != 4]
    assert len(peaks) == 8
    assert 99.5 * MIB < peaks[4] - max(quiet) < 100.5 * MIB
    assert max(quiet) - min(quiet) < 0.5 * MIB
    assert marks.steps.forward_peak_bytes[4] == peaks[4]
    assert marks.exited


def test_steps_too_short_for_marks_of_their_own_keep_the_exact_peak_of_their_group(hooked):
    marks = hooked(TRANSIENT.replace("PAUSE", "0")).marks()
    steps, peaks = marks.steps, marks.steps.peak_bytes
    assert (steps.total, marks.last_step) == (8, 8)
    (row,) = [i for i in range(len(steps)) if steps.first_step[i] <= 5 <= steps.step[i]]
    assert 99.5 * MIB < peaks[row] - max(peaks[i] for i in range(len(steps)) if i != row) < 100.5 * MIB
    assert all(steps.begin_seconds <= steps.end_seconds)
    assert steps.is_whole.any(), "no step was light"
    assert not steps.is_whole[:3].any()


def test_the_highest_peak_survives_all_resets_and_the_peak_before_the_first_mark_counts(hooked):
    run = hooked("""
        import memfit_inside as inside
        block = bytearray(200 * 2**20)
        del block
        for step in range(3):
            inside.mark_forward(); inside.mark_step()
    """)
    marks = run.marks()
    assert marks.peak_bytes is not None
    assert marks.peak_bytes > 200 * MIB
    assert max(marks.steps.peak_bytes) < 100 * MIB


def test_a_small_child_of_a_large_parent_reports_its_own_peak(hooked):
    """The kernel's quick counter starts at the parent's size in such a child; the slow one must answer."""
    run = hooked("""
        import subprocess, sys
        ballast = bytearray(300 * 2**20)
        code = "import memfit_inside as i\\nfor _ in range(3): i.mark_forward(); i.mark_step()"
        # close_fds=False and no session: posix_spawn or vfork, both of which share the parent's memory until exec
        subprocess.run([sys.executable, "-c", code], check=True)
    """)
    marks = run.marks()
    assert len(marks.steps) == 3
    assert max(marks.steps.peak_bytes) < 100 * MIB


def test_a_program_killed_at_any_moment_leaves_a_readable_file(tmp_path: Path):
    program = "import memfit_inside as i\nprint('go', flush=True)\nwhile True: i.mark_forward(); i.mark_step()"
    job = subprocess.Popen([sys.executable, "-c", program], env=hook_environment(tmp_path), stdout=subprocess.PIPE)
    assert job.stdout is not None
    job.stdout.readline()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not any(b"\nG " in f.read_bytes() for f in tmp_path.glob("marks-*.txt")):
        time.sleep(0.01)
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    job.stdout.close()
    (path,) = tmp_path.glob("marks-*.txt")
    marks = read_marks(path, process=0, clock_start_ns=0)
    assert marks is not None
    assert marks.pid == job.pid
    assert marks.steps.total > 4
    assert marks.last_phase in ("forward", "data")
    assert not marks.exited
    assert marks.notes == ()


def test_a_forked_child_writes_a_file_of_its_own_and_leaves_its_parents_alone(hooked):
    run = hooked("""
        import os, memfit_inside as inside
        inside.mark_forward(); inside.mark_step()
        ballast = bytearray(150 * 2**20)
        inside.mark_forward(); inside.mark_step()
        child = os.fork()
        if child == 0:
            del ballast
            for _ in range(3): inside.mark_forward(); inside.mark_step()
            os._exit(0)
        os.waitpid(child, 0)
        inside.mark_forward(); inside.mark_step()
    """)
    by_steps = {len(m.steps): m for p in run.marks_paths if (m := read_marks(p, process=0, clock_start_ns=0))}
    assert set(by_steps) == {3}, "parent and child have three steps each"
    assert len(run.marks_paths) == 2
    pids = {int(p.stem.partition("-")[2]) for p in run.marks_paths}
    found = [read_marks(p, process=0, clock_start_ns=0) for p in run.marks_paths]
    assert {m.pid for m in found if m} == pids
    last_peaks = sorted(m.steps.peak_bytes[-1] for m in found if m)
    assert last_peaks[0] < 100 * MIB < 150 * MIB < last_peaks[1]


def test_a_child_of_multiprocessing_leaves_its_exit_mark(hooked):
    run = hooked("""
        import multiprocessing, memfit_inside as inside
        def work():
            inside.mark_forward(); inside.mark_step()
        if __name__ == "__main__":
            for method in ("fork", "spawn"):
                child = multiprocessing.get_context(method).Process(target=work)
                child.start(); child.join()
    """)
    found = [read_marks(p, process=0, clock_start_ns=0) for p in run.marks_paths]
    assert [m.exited for m in found if m] == [True, True], run.stderr


def test_a_full_disk_ends_the_marks_and_not_the_program(hooked):
    run = hooked("""
        import resource, memfit_inside as inside
        inside.mark_forward(); inside.mark_step()
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
        while not inside.this_process.marks.failed: inside.mark_forward(); inside.mark_step()
        print(inside.this_process.marks.failed)
    """)
    assert (run.stdout, run.stderr, run.returncode) == ("True\n", "", 0)
    assert run.marks().steps.total > 0


def test_phases_can_be_named_from_code_and_what_was_before_goes_on_after(hooked):
    run = hooked("""
        import memfit_inside as inside
        inside.mark_forward()
        with inside.phase("checkpoint"):
            block = bytearray(50 * 2**20); del block
        inside.mark_step()
    """)
    marks = run.marks()
    names = [name for _, name, _ in marks.named_phases]
    assert names == ["data", "checkpoint", "forward"]
    assert marks.steps.peak_bytes[0] - marks.steps.forward_peak_bytes[0] > 49 * MIB


@pytest.mark.parametrize(
    ("statement", "is_memory"),
    [
        ("raise MemoryError('no more')", True),
        ("raise ValueError('something else')", False),
        ("raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')", True),
    ],
)
def test_the_exception_that_ends_a_program_is_noted_and_printed_as_ever(hooked, statement: str, is_memory: bool):
    run = hooked(statement)
    assert run.returncode == 1
    assert run.stderr.startswith("Traceback (most recent call last):")
    assert "memfit" not in run.stderr.replace("test_", "")
    marks = run.marks()
    assert marks.exception is not None
    assert marks.exception["out_of_memory"] is is_memory
    assert marks.exited


def test_the_words_of_torchs_own_allocator_mean_out_of_memory():
    words = "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried ..."
    assert is_out_of_memory(RuntimeError, RuntimeError(words))
    assert not is_out_of_memory(RuntimeError, RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_without_clear_refs_the_marks_have_no_peaks_and_a_note_says_why(tmp_path: Path, monkeypatch):
    def refuse(path: str, flags: int) -> int:
        if path.endswith("clear_refs"):
            raise PermissionError(13, "Permission denied")
        return os.open(path, flags)

    monkeypatch.setattr(high_water, "open_high", refuse)
    marks = Marks()
    marks.start(str(tmp_path))
    marks.mark(b"F")
    marks.mark(b"S", b" 0")
    marks.end()
    (path,) = tmp_path.glob("marks-*.txt")
    found = read_marks(path, process=0, clock_start_ns=0)
    assert found is not None
    assert len(found.steps) == 1
    assert found.steps.peak_bytes[0] != found.steps.peak_bytes[0], "unknown is not zero"
    assert "Permission denied" in found.notes[0]
    assert found.peak_bytes is not None, "at the end the kernel's own figure is still whole"


def test_the_counter_agrees_with_the_kernels_file():
    counter = HighWater()
    counter.open()
    block = mmap.mmap(-1, 64 * MIB)  # not the heap's, which keeps pages once it has them
    for page in range(0, 64 * MIB, mmap.PAGESIZE):
        block[page] = 1
    slow = counter.read_status()
    block.close()
    assert abs(counter.read_and_reset() - slow) < MIB // 2
    assert counter.read_and_reset() < slow - 60 * MIB
    counter.close()


def test_starting_twice_is_starting_once_and_everything_is_put_back(tmp_path: Path):
    program = textwrap.dedent("""
        import sys
        before = (sys.excepthook, list(sys.meta_path))
        import memfit.inside as inside
        assert inside.start_marks(sys.argv[1]) is True
        assert inside.start_marks(sys.argv[1]) is False
        assert inside.is_recording() and (sys.excepthook, list(sys.meta_path)) != before
        inside.mark_step()
        assert inside.stop_marks() is True and inside.stop_marks() is False
        assert (sys.excepthook, list(sys.meta_path)) == before
        inside.mark_step()
    """)
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    (path,) = tmp_path.glob("marks-*.txt")
    marks = read_marks(path, process=0, clock_start_ns=0)
    assert marks is not None
    assert len(marks.steps) == 1


def test_memfit_itself_speaks_to_the_recorder_of_the_hook(hooked):
    source = str(Path(high_water.__file__).parents[2])
    run = hooked(f"""
        import sys
        sys.path.insert(0, {source!r})
        import memfit_inside, memfit.inside
        assert memfit.inside.this_process is memfit_inside.this_process
        print(memfit.inside.start_marks("elsewhere"))
    """)
    assert (run.stdout, run.stderr) == ("False\n", "")
