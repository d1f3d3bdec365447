"""Is a command run unchanged, measured exactly, and survived by its record whatever dies?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from memfit import api
from memfit.errors import CommandNotFound, RunExists
from memfit.records.files import layout
from memfit.records.run import Settings
from memfit.runfolder.reader import read_run

MIB = 1 << 20
MEASURE = [sys.executable, "-m", "memfit", "measure", "-q", "--no-report"]
OWN_HIGH_WATER = """
def high_water():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
"""


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_for(condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


# ---- the number --------------------------------------------------------------------------------------------------


def test_the_peak_equals_the_kernels_own_high_water_mark(measured, tmp_path: Path):
    out = tmp_path / "truth"
    source = OWN_HIGH_WATER + f"x = bytearray(150 << 20); del x; open({str(out)!r}, 'w').write(str(high_water()))"
    record = measured(source).read()
    truth = int(out.read_text())
    assert record.peak.source == "measured"
    assert truth <= record.peak.value <= truth + MIB // 2


def test_a_transient_shorter_than_the_interval_is_not_missed(measured):
    record = measured(
        "import time; time.sleep(.1); x = bytearray(200 << 20); del x; time.sleep(.1)", interval_seconds=3600
    ).read()
    assert record.peak.value > 200 * MIB
    assert len(record.samples) <= 2


def test_a_program_smaller_than_its_parent_gets_a_bound_instead_of_a_false_figure(measured):
    record = measured(["true"]).read()
    assert record.peak.high is not None
    assert record.peak.high < 32 * MIB
    assert record.peak.value is None or record.peak.value <= record.peak.high


def test_each_sample_knows_how_late_it_was_and_time_runs_forward(measured):
    record = measured("import time; time.sleep(.5)").read()
    if len(record.samples) <= 20:  # a sampler that others keep from running needs longer
        record = measured("import time; time.sleep(20)").read()
    assert len(record.samples) > 20
    assert np.all(np.diff(record.samples.time_seconds) >= 0)
    assert np.all(record.samples.late_seconds >= 0)
    assert record.sampler is not None
    assert record.sampler.num_ticks >= len(record.samples)


def test_the_system_view_adds_up_and_sets_the_background_apart(measured):
    record = measured("import time; x = bytearray(120 << 20); time.sleep(2.5)").read()
    assert len(record.system) >= 2
    for reading in record.system:
        assert (
            reading.used_bytes
            == reading.total_bytes - reading.free_bytes - reading.buffers_bytes - reading.cached_bytes
        )
        assert reading.background_bytes == reading.used_bytes - reading.job_bytes
        assert 0 < reading.percent < 100
    assert max(reading.job_bytes for reading in record.system) > 120 * MIB  # the last may fall into the job's end
    assert record.system_summary is not None
    assert record.system_summary.num_readings == len(record.system)


def test_energy_is_unavailable_with_a_reason_or_a_figure_with_its_source(measured):
    record = measured("pass").read()
    assert record.energy_reason or all(reading.figure.source or reading.figure.reason for reading in record.energy)


def test_assumed_watts_are_marked_as_assumed(measured):
    record = measured("import time; time.sleep(.5)", assume_watts=50.0).read()
    (assumed,) = [reading for reading in record.energy if reading.domain == "assumed"]
    assert assumed.figure.source == "assumed"
    assert assumed.figure.value == pytest.approx(50.0 * assumed.window_seconds)
    assert 0.2 < assumed.window_seconds <= record.duration_seconds


# ---- the tree ----------------------------------------------------------------------------------------------------

FORKS = (
    OWN_HIGH_WATER
    + """
import os, time
shared = bytearray(100 << 20)
children = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        own = bytearray(20 << 20)
        time.sleep(1.2)
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
"""
)


def test_pages_shared_by_forked_processes_are_counted_once(measured):
    record = measured(FORKS).read()
    assert len(record.processes) == 3
    assert 140 * MIB < record.peak.value < 165 * MIB
    assert record.tree.summed_resident_bytes.max() > 1.8 * record.peak.value


def test_the_moment_between_fork_and_exec_is_not_taken_for_a_doubling(measured):
    source = """
        import os, time
        x = bytearray(150 << 20)
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                os.execvp("true", ["true"])
            os.waitpid(pid, 0)
            time.sleep(.02)
    """
    record = measured(source, interval_seconds=0.001).read()
    assert 150 * MIB < record.peak.value < 180 * MIB


def test_an_orphaned_grandchild_still_belongs_to_the_job(measured):
    source = """
        import os, time
        if os.fork() == 0:
            if os.fork() == 0:
                x = bytearray(60 << 20)
                time.sleep(.8)
            os._exit(0)
        os.wait()
        time.sleep(1)
    """
    record = measured(source).read()
    assert any((process.peak.value or 0) > 60 * MIB for process in record.processes[1:])


# ---- passing through ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_exit_code_passes_through(tmp_path: Path, code: int):
    run = subprocess.run([*MEASURE, "-o", tmp_path / "r", "--", "sh", "-c", f"exit {code}"], check=False)
    assert run.returncode == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_death_by_signal_passes_through(tmp_path: Path, number: int):
    run = subprocess.run([*MEASURE, "-o", tmp_path / "r", "--", "sh", "-c", f"kill -{int(number)} $$"], check=False)
    assert run.returncode == -number
    assert read_run(tmp_path / "r").outcome.signal == number


def test_standard_input_output_and_error_pass_through_unchanged(tmp_path: Path):
    command = [*MEASURE, "-o", tmp_path / "r", "--", "sh", "-c", "cat; echo oops >&2; pwd"]
    run = subprocess.run(command, input="a\nb", capture_output=True, text=True, cwd=tmp_path, check=True)
    assert run.stdout == f"a\nb{tmp_path}\n"
    assert run.stderr == "oops\n"


def test_arguments_that_look_like_options_belong_to_the_command(tmp_path: Path):
    run = subprocess.run(
        [*MEASURE, "-o", tmp_path / "r", "--", "echo", "--help", "-f", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "--help -f --json\n"


def test_a_signal_to_memfit_reaches_the_whole_job(tmp_path: Path):
    ready = tmp_path / "ready"
    handler = "signal.signal(signal.SIGTERM, lambda *_: os._exit(42))"
    job = f"import os, signal, time; {handler}; open({str(ready)!r}, 'w'); time.sleep(30)"
    memfit = subprocess.Popen([*MEASURE, "-o", tmp_path / "r", "--", sys.executable, "-c", job])
    wait_for(ready.exists)
    memfit.send_signal(signal.SIGTERM)
    assert memfit.wait(10) == 42


def test_the_job_runs_in_a_process_group_of_its_own_with_default_signals(measured, tmp_path: Path):
    out = tmp_path / "facts"
    facts = "os.getpgrp() == os.getpid(), signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    measured(f"import os, signal, json; json.dump([{facts}], open({str(out)!r}, 'w'))")
    assert json.loads(out.read_text()) == [True, True]


def test_signals_that_were_ignored_before_stay_ignored_as_under_nohup(tmp_path: Path):
    job = "import signal; print(signal.getsignal(signal.SIGHUP).name, signal.getsignal(signal.SIGTERM).name)"
    command = [
        "sh",
        "-c",
        'trap "" HUP; exec "$@"',
        "sh",
        *MEASURE,
        "-o",
        tmp_path / "r",
        "--",
        sys.executable,
        "-c",
        job,
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout == "SIG_IGN SIG_DFL\n"


# ---- surviving ---------------------------------------------------------------------------------------------------


def start_and_find(tmp_path: Path, job: str) -> tuple[subprocess.Popen, int, int]:
    """Start memfit on a job; returns (memfit, sampler pid, job pid) once it is being sampled."""
    memfit = subprocess.Popen([*MEASURE, "-o", tmp_path / "r", "--", sys.executable, "-c", job])
    samples = tmp_path / "r" / layout.SAMPLES_FILE
    wait_for(lambda: samples.exists() and samples.stat().st_size > 320)
    events = (tmp_path / "r" / layout.EVENTS_FILE).read_text().splitlines()
    started = next(json.loads(line) for line in events if '"process_started"' in line)
    return memfit, started["parent_pid"], started["pid"]


def test_killing_the_sampler_leaves_the_job_alone_and_a_readable_record(tmp_path: Path):
    done = tmp_path / "done"
    memfit, sampler, _ = start_and_find(
        tmp_path, f"import time; time.sleep(1.5); open({str(done)!r}, 'w'); raise SystemExit(5)"
    )
    os.kill(sampler, signal.SIGKILL)
    assert memfit.wait(15) == 5
    assert done.exists()
    record = read_run(tmp_path / "r")
    assert len(record.samples) > 5
    assert record.outcome.exit_code == 5
    assert any("sampler process died" in note for note in record.notes)


def test_killing_the_command_lets_the_sampler_finish_the_record(tmp_path: Path):
    memfit, sampler, job = start_and_find(tmp_path, "import time; time.sleep(1)")
    memfit.kill()
    memfit.wait()
    wait_for(lambda: not alive(job) and not alive(sampler))
    assert read_run(tmp_path / "r").outcome.kind == "done"


def test_a_job_that_memfit_runs_for_itself_ends_when_memfit_is_killed(tmp_path: Path):
    """A cell of a grid or a repeat of a comparison, and its children."""
    job = f"import os, subprocess; p = subprocess.Popen(['sleep', '60'], start_new_session=True); \
open({str(tmp_path / 'pids')!r}, 'w').write(f'{{os.getpid()}} {{p.pid}}\\n'); p.wait()"
    source = f"""
from pathlib import Path
from memfit.measure.session import run_command
from memfit.records.run import settings_for
folder = Path({str(tmp_path)!r})
run_command([{sys.executable!r}, "-c", {job!r}], folder / "r", settings_for(None), output_file=folder / "out")
"""
    memfit = subprocess.Popen([sys.executable, "-c", source])
    pids = tmp_path / "pids"
    wait_for(lambda: pids.exists() and pids.read_text().endswith("\n"), 30)
    job_pid, child_pid = map(int, pids.read_text().split())
    time.sleep(0.5)  # the sampler sees the child
    memfit.kill()
    memfit.wait(10)
    wait_for(lambda: not alive(job_pid) and not alive(child_pid))
    wait_for(lambda: read_run(tmp_path / "r").outcome.kind == "killed")
    assert any("memfit was killed" in note for note in read_run(tmp_path / "r").notes)


def test_killing_job_and_sampler_at_once_leaves_a_record_that_opens(tmp_path: Path):
    memfit, sampler, job = start_and_find(tmp_path, "import time; x = bytearray(50 << 20); time.sleep(90)")
    wait_for(lambda: read_run(tmp_path / "r").samples.resident_bytes.max() > 50 * MIB)
    os.kill(sampler, signal.SIGKILL)
    os.kill(job, signal.SIGKILL)
    assert memfit.wait(10) == -signal.SIGKILL
    record = read_run(tmp_path / "r")
    assert record.outcome.signal == signal.SIGKILL
    assert record.samples.resident_bytes.max() > 50 * MIB


def test_killing_everything_leaves_a_record_that_opens_as_lost(tmp_path: Path):
    memfit, sampler, job = start_and_find(tmp_path, "import time; time.sleep(30)")
    time.sleep(0.4)
    for pid in (memfit.pid, sampler, job):
        os.kill(pid, signal.SIGKILL)
    memfit.wait()
    record = read_run(tmp_path / "r")
    assert record.outcome.kind == "lost"
    assert len(record.samples) > 5


def test_a_killed_job_is_a_result_not_an_accident(measured):
    record = measured("import os, signal; os.kill(os.getpid(), signal.SIGKILL)").read()
    assert record.outcome.kind == "killed"
    assert record.outcome.signal == signal.SIGKILL


def test_nothing_is_left_running_after_a_run(measured, tmp_path: Path):
    measured("import time; time.sleep(.1)")
    mine = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and alive(int(p.name))]
    folder = str(tmp_path / "run")
    assert not [pid for pid in mine if pid != os.getpid() and folder in _cmdline(pid)]


def _cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_stops_the_record_and_not_the_job(tmp_path: Path):
    small = tmp_path / "small"
    small.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], capture_output=True, text=True, check=False
    )
    if mount.returncode:
        pytest.skip(f"mount is not allowed here: {mount.stderr.strip()}")
    try:
        command = [*MEASURE, "--interval", "1ms", "-o", small / "r", "--", "sh", "-c", "sleep 4; echo finished"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert run.returncode == 0
        assert run.stdout.startswith("finished")
        assert "could not be written to the end (No space left on device" in run.stderr
        record = read_run(small / "r")
        assert len(record.samples) > 100
    finally:
        subprocess.run(["umount", small], check=True)


# ---- the guard ---------------------------------------------------------------------------------------------------


def test_the_guard_ends_the_whole_group_and_says_where(measured):
    source = """
        import os, time
        os.fork()
        x = []
        while True:
            x.append(bytearray(10 << 20))
            time.sleep(.05)
    """
    result = measured(source, limit_bytes=150 * MIB)
    assert result.read().outcome.kind == "over the limit"
    assert "150" in result.read().outcome.message
    assert not [p for p in result.read().processes if alive(p.pid)]


def test_a_job_that_ignores_the_polite_signal_is_killed(measured):
    source = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); x = bytearray(100 << 20); time.sleep(60)"
    )
    result = measured(source, limit_bytes=50 * MIB, grace_seconds=0.3)
    assert result.signal == signal.SIGKILL
    assert result.read().duration_seconds < 10


def test_over_the_limit_is_exit_code_3(tmp_path: Path):
    job = "x = bytearray(200 << 20); import time; time.sleep(20)"
    run = subprocess.run(
        [*MEASURE, "--limit", "100MiB", "-o", tmp_path / "r", "--", sys.executable, "-c", job], check=False
    )
    assert run.returncode == 3


def test_shared_pages_do_not_trip_the_guard(measured):
    assert measured(FORKS, limit_bytes=190 * MIB).read().outcome.kind == "done"


# ---- refusing ----------------------------------------------------------------------------------------------------


def test_no_command_and_a_command_that_does_not_exist_are_refused_before_anything_is_written(tmp_path: Path):
    with pytest.raises(CommandNotFound):
        api.measure_command([], output=tmp_path / "r")
    with pytest.raises(CommandNotFound, match="there is no command 'no-such-command'"):
        api.measure_command(["no-such-command"], output=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_file_that_is_no_program_is_refused_and_leaves_no_folder(tmp_path: Path):
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELFnot really")
    broken.chmod(0o755)
    with pytest.raises(CommandNotFound, match="could not be started"):
        api.measure_command([str(broken)], output=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_an_old_run_is_overwritten_only_when_told_and_other_files_never(tmp_path: Path):
    settings = Settings(interval_seconds=0.01, marks=False)
    api.measure_command(["true"], output=tmp_path / "r", settings=settings)
    with pytest.raises(RunExists, match="already holds a run"):
        api.measure_command(["true"], output=tmp_path / "r", settings=settings)
    api.measure_command(["true"], output=tmp_path / "r", settings=settings, overwrite=True)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years of work")
    with pytest.raises(RunExists, match="is not a memfit run"):
        api.measure_command(["true"], output=precious, settings=settings, overwrite=True)
    assert (precious / "thesis.tex").exists()


def test_a_process_that_the_job_leaves_behind_is_named_and_not_waited_for(measured):
    began = time.monotonic()
    record = measured(["sh", "-c", "setsid sleep 300 > /dev/null & sleep 0.6"]).read()
    assert time.monotonic() - began < 200
    (note,) = [note for note in record.notes if "still running" in note]
    pid = int(note.rpartition("pid ")[2].rstrip(")"))
    assert Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x00300\x00"
    os.kill(pid, signal.SIGKILL)
