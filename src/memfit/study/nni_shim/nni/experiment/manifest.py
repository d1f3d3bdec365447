"""List of all experiments: id, folder, port; one file in ~/nni-experiments, where NNI keeps its own."""

import contextlib
import fcntl
import json
import os
import time

from .memfit_process import running_pid

FILE = ".memfit-experiments.json"


def home():
    """The folder that experiments are in unless their config says otherwise; MEMFIT_NNI_HOME names another."""
    return os.environ.get("MEMFIT_NNI_HOME") or os.path.join(os.path.expanduser("~"), "nni-experiments")


@contextlib.contextmanager
def _changing():
    """The entries, written back when the block ends; one process at a time."""
    os.makedirs(home(), exist_ok=True)
    path = os.path.join(home(), FILE)
    with open(path + ".lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        entries = all_experiments()
        yield entries
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(entries, file, indent=1)
        os.replace(path + ".new", path)


def all_experiments():
    """Every experiment by its id, the oldest first; those whose folder is gone are left out."""
    try:
        with open(os.path.join(home(), FILE), encoding="utf-8") as file:
            entries = json.load(file)
    except (OSError, ValueError):
        return {}
    return {name: entry for name, entry in entries.items() if os.path.isdir(entry["folder"])}


def enter(experiment_id, folder, name, port):
    """Add an experiment, or its new port."""
    with _changing() as entries:
        before = entries.get(experiment_id, {"startTime": round(time.time() * 1000)})
        entries[experiment_id] = {**before, "folder": folder, "experimentName": name, "port": port}


def is_running(entry):
    """Whether an experiment runs now."""
    return running_pid(entry["folder"]) is not None
