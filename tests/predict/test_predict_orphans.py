"""Does anything of a prediction go on when memfit itself is killed?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from memfit.predict.child.die_with_parent import ending_with_this_process


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(is_so, what: str) -> None:
    deadline = time.monotonic() + 90
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_script_does_not_go_on_when_memfit_is_killed(tmp_path: Path):
    script = tmp_path / "endless.py"
    script.write_text("import time\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "memfit", "predict", str(script)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as memfit:
        children = Path(f"/proc/{memfit.pid}/task/{memfit.pid}/children")
        wait_until(lambda: children.read_text().split() or memfit.poll() is not None, "no child was started")
        pids = [int(word) for word in children.read_text().split()]
        assert pids
        os.kill(memfit.pid, signal.SIGKILL)
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "the child goes on")


ASKED_BY_ANOTHER = """
import os
from memfit.predict.child.die_with_parent import ending_with_this_process
end_with_us = ending_with_this_process()
if os.fork() == 0:
    if os.fork() == 0:  # its parent is not the process that asked, as after a kill between the fork and the call
        end_with_us()
        print("goes on", flush=True)
    os.wait()
    os._exit(0)
os.wait()
"""


def test_a_child_whose_parent_was_killed_before_it_could_ask_ends_by_itself():
    done = subprocess.run([sys.executable, "-c", ASKED_BY_ANOTHER], capture_output=True, text=True, timeout=90)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_child_of_the_process_that_asked_goes_on():
    subprocess.run([sys.executable, "-c", "pass"], preexec_fn=ending_with_this_process(), check=True, timeout=90)
