"""Code inside the job's own Python process: marks of steps and phases, and the ledger of its tensors.

Standard library, and torch where the user has imported it; nothing else, because this runs in other people's
environments. The start-up hook loads this package as `memfit_inside`, memfit itself loads it as `memfit.inside`;
whichever came first, one process has one recorder, and every function here speaks to that one.
"""

import sys

from .recorder import Recorder

_OTHER_NAMES = {"memfit_inside", "memfit.inside"} - {__name__}
this_process = (
    next((sys.modules[name].this_process for name in _OTHER_NAMES if name in sys.modules), None) or Recorder()
)

__all__ = [
    "is_recording",
    "mark_forward",
    "mark_phase",
    "mark_step",
    "note_exception",
    "phase",
    "start_from_environment",
    "start_marks",
    "stop_marks",
]


def start_marks(run_folder, ledger_every=None):
    """Mark steps and phases of this process into the run folder from now on; False when it was already being marked."""
    return this_process.start(str(run_folder), ledger_every)


def stop_marks():
    """Write the last mark and put everything back as it was; False when nothing was being marked."""
    return this_process.stop()


def is_recording():
    """Whether this process is being marked."""
    return this_process.is_recording


def mark_forward():
    """Say that a forward pass begins here, where no torch module tells so."""
    this_process.marks.phase_begins(b"F")


def mark_step():
    """Say that a training step is complete here, where no torch optimizer tells so."""
    this_process.marks.complete_step(b" 0")


def mark_phase(name):
    """Say that a phase of this name begins here and lasts until the next mark."""
    this_process.marks.mark_phase(name)


def note_exception(error):
    """Say that this exception ends what is being marked."""
    this_process.failed(type(error), error, error.__traceback__)


def phase(name):
    """A context manager that names what happens inside of it: `with phase("checkpoint"): ...`."""
    return this_process.marks.named_phase(name)


def start_from_environment(environment):
    """Start as `memfit measure` asked through the environment of this process."""
    every = environment.get("MEMFIT_LEDGER_EVERY", "")
    return this_process.start(
        environment["MEMFIT_RUN_FOLDER"], int(every) if every.isdigit() and int(every) > 0 else None
    )
