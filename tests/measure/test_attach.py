"""Can a running program be measured, let go of, and refused when it is not ours?"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import memfit
from memfit import inside
from memfit.errors import ProcessUnavailable
from memfit.measure.session import check_process

MIB = 1 << 20


@pytest.fixture
def sleeper():
    code = "import time; x = bytearray(80 << 20); print('up', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_attaching_measures_until_told_to_let_go_and_leaves_the_program_running(sleeper, tmp_path: Path):
    record = memfit.attach_process(sleeper.pid, output=tmp_path / "r", duration_seconds=0.6)
    if len(record.samples) <= 20:  # a sampler that others keep from running needs longer
        record = memfit.attach_process(sleeper.pid, output=tmp_path / "longer", duration_seconds=20)
    assert record.outcome.kind == "detached"
    assert (record.peak.value or 0) > 80 * MIB
    assert len(record.samples) > 20
    assert record.tree_readings[-1].reason == "end"
    assert sleeper.poll() is None


def test_attaching_ends_with_the_program(sleeper, tmp_path: Path):
    command = [sys.executable, "-m", "memfit", "attach", "-q", "--no-report", "-o", tmp_path / "r", str(sleeper.pid)]
    memfit_process = subprocess.Popen(command)
    events = tmp_path / "r" / "events.jsonl"
    deadline = time.monotonic() + 10
    while not (events.exists() and "process_started" in events.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    sleeper.send_signal(signal.SIGKILL)
    assert memfit_process.wait(10) == 0
    record = memfit.read_run(tmp_path / "r")
    assert record.outcome.kind == "done"
    assert (record.peak.value or 0) > 80 * MIB


def test_ctrl_c_lets_go_and_is_no_failure(sleeper, tmp_path: Path):
    command = [sys.executable, "-m", "memfit", "attach", "-q", "--no-report", "-o", tmp_path / "r", str(sleeper.pid)]
    memfit_process = subprocess.Popen(command)
    samples = tmp_path / "r" / "samples.bin"
    while not (samples.exists() and samples.stat().st_size):
        time.sleep(0.05)
    memfit_process.send_signal(signal.SIGINT)
    assert memfit_process.wait(10) == 0
    assert memfit.read_run(tmp_path / "r").outcome.kind == "detached"
    assert sleeper.poll() is None


def test_a_process_that_is_gone_is_refused(tmp_path: Path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    with pytest.raises(ProcessUnavailable, match=f"there is no process {gone.pid}"):
        memfit.attach_process(gone.pid, output=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_zombie_is_refused(tmp_path: Path):
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ProcessUnavailable, match="no memory to measure"):
        check_process(zombie.pid)
    zombie.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else to try this")
def test_somebody_elses_process_is_refused(sleeper):
    script = (
        f"import os; from memfit.measure.session import check_process; os.setuid(65534); check_process({sleeper.pid})"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "belongs to somebody else" in run.stderr


def test_a_program_can_measure_itself_with_a_context_manager(tmp_path: Path):
    with memfit.measure_run(tmp_path / "r", marks=False) as run:
        block = bytearray(64 << 20)
        time.sleep(0.3)
        del block
    assert run.record is not None
    assert run.record.outcome.kind == "detached"
    assert (run.record.peak.value or 0) > 64 * MIB
    assert os.getpid() in {process.pid for process in run.record.processes}


def test_the_decorator_measures_every_call_and_returns_what_the_function_returns(tmp_path: Path):
    measured = memfit.measure_run(tmp_path / "r", marks=False, overwrite=True)

    @measured
    def work(seconds: float) -> str:
        """Sleep a little."""
        time.sleep(seconds)
        return "done"

    assert work(0.2) == "done"
    assert work.__name__ == "work"
    assert measured.record is not None


def test_an_exception_inside_still_closes_the_record(tmp_path: Path):
    run = memfit.measure_run(tmp_path / "r", marks=False)
    with pytest.raises(ZeroDivisionError), run:
        _ = 1 / 0
    assert run.record is not None
    assert run.record.outcome.kind == "detached"


def test_what_a_process_took_before_it_was_attached_to_is_not_this_runs(tmp_path: Path):
    code = "import time; x = bytearray(200 << 20); del x; print('up', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        record = memfit.attach_process(process.pid, output=tmp_path / "r", duration_seconds=0.6)
        process.stdout.close()
    finally:
        process.kill()
        process.wait()
    assert record.peak.value is not None
    assert record.peak.value < 100 * MIB
    assert record.peak.low is not None


@pytest.mark.parametrize("marks", [True, False])
def test_a_program_that_measures_itself_is_alone_in_its_record_and_its_past_is_not_in_it(tmp_path: Path, marks: bool):
    script = """
        import sys, time, memfit
        block = bytearray(200 << 20)
        del block
        with memfit.measure_run(sys.argv[1], marks=sys.argv[2] == "True"):
            time.sleep(0.4)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "r"), str(marks)]
    subprocess.run(command, check=True, timeout=60)
    record = memfit.read_run(tmp_path / "r")
    assert len(record.processes) == 1
    assert (record.peak.value or 0) < 150 * MIB


def test_a_forked_worker_that_goes_on_does_not_hold_up_the_end(tmp_path: Path):
    script = """
        import os, sys, time, memfit
        with memfit.measure_run(sys.argv[1]):
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
            time.sleep(0.3)
        print("closed", flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "r")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.wait(30) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.stdout.read() == "closed\n"
    process.stdout.close()
    assert memfit.read_run(tmp_path / "r").outcome.kind == "detached"


def test_a_measurement_inside_of_another_leaves_the_marks_to_the_outer_one(tmp_path: Path):
    with memfit.measure_run(tmp_path / "outer") as outer:
        with memfit.measure_run(tmp_path / "inner") as inner:
            inside.mark_phase("within")
        inside.mark_phase("after")
    assert outer.record is not None
    assert inner.record is not None
    assert {phase.name for phase in outer.record.named_phases} >= {"within", "after"}
    assert inner.record.named_phases == ()
    assert any("measured already" in note for note in inner.record.notes)


def test_an_exception_that_means_memory_ran_out_is_in_the_record(tmp_path: Path):
    run = memfit.measure_run(tmp_path / "r")
    with pytest.raises(MemoryError), run:
        raise MemoryError("on purpose")
    assert run.record is not None
    assert run.record.outcome.kind == "out of memory"
