"""Processes of memfit that serve an experiment: the coordinator, and calls that read a study.

The Python that has memfit is named by MEMFIT_PYTHON, which `memfit nni` sets; where it is not set, it is this one.
"""

import json
import os
import subprocess
import sys

COORDINATOR_FILE = "coordinator.json"


def memfit_python():
    """The interpreter that memfit is installed for."""
    return os.environ.get("MEMFIT_PYTHON") or sys.executable


def call_memfit(*words):
    """Run one command of memfit; its standard output, or an error with its message."""
    command = [memfit_python(), "-m", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"{' '.join(command)} ended with {done.returncode}")
    return done.stdout


def read_settings(path):
    """The content of a settings file, JSON or YAML."""
    return json.loads(call_memfit("memfit.study.files.text_file", str(path)))


def read_study(folder):
    """The study in a folder, as JSON."""
    return json.loads(call_memfit("memfit", "study", "show", folder, "--json"))


def running_pid(folder):
    """The process that runs the study in a folder; None when none does."""
    try:
        with open(os.path.join(folder, COORDINATOR_FILE), encoding="utf-8") as file:
            name = json.load(file)
        with open(f"/proc/{name['pid']}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except (OSError, ValueError, KeyError):
        return None
    is_same = int(fields[19]) == name["start_ticks"] and fields[0] not in ("Z", "X")
    return name["pid"] if is_same else None


def send_request(folder, request):
    """Ask something of the coordinator: {"end_trial": ID}, {"max_trials": N}, {"concurrency": N}, ..."""
    requests = os.path.join(folder, "requests")
    os.makedirs(requests, exist_ok=True)
    name = os.urandom(8).hex()
    temporary = os.path.join(requests, f".{name}.new")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(request, file)
    os.replace(temporary, os.path.join(requests, f"{name}.json"))
