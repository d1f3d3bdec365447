"""Everything that memfit does in one Python process, from its start to its end, and how it is undone."""

import os
import sys

from .import_watch import ImportWatch
from .marks import Marks

_OUT_OF_MEMORY_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "Unable to allocate")


class Recorder:
    """The one recorder of a process: it owns the marks, waits for torch, and watches how the program ends."""

    def __init__(self):
        self.marks = Marks()
        self.is_recording = False
        self.ledger = None
        """The ledger's own settings and import costs; None when it was not asked for."""
        self._torch_hooks = None
        self._watch = None
        self._hook_before = None
        self._fork_is_watched = False

    def start(self, folder, ledger_every=None):
        """Begin, or do nothing when already begun."""
        if self.is_recording:
            return False
        self.is_recording = True
        self.marks.start(os.path.abspath(folder))
        if ledger_every:
            from .ledger.ledger import LedgerFile

            self.ledger = LedgerFile(self.marks, ledger_every)
            self.ledger.start()
        self._watch_exceptions()
        self._watch_forks()
        self._watch = ImportWatch("torch", self._torch_came)
        self._watch.start()
        return True

    def stop(self):
        """Write the last mark and restore everything that was changed."""
        if not self.is_recording:
            return False
        self.is_recording = False
        if self._watch is not None:
            self._watch.stop()
        if self._torch_hooks is not None:
            self._torch_hooks.remove()
        if self.ledger is not None:
            self.ledger.stop()
        if sys.excepthook == self._exception:
            sys.excepthook = self._hook_before
        self.marks.end()
        self.marks.folder = ""
        self._watch = self._torch_hooks = self.ledger = self._hook_before = None
        return True

    def _torch_came(self):
        try:
            from .torch_hooks import TorchHooks

            hooks = TorchHooks(self.marks, self.ledger)
            hooks.install()
            self._torch_hooks = hooks
        except Exception as error:
            self.marks.note(f"torch could not be hooked, so there are no steps: {type(error).__name__}: {error}")

    # ---- forks and the end -----------------------------------------------------------------------------------------

    def _watch_forks(self):
        if not self._fork_is_watched:
            self._fork_is_watched = True
            os.register_at_fork(after_in_child=self._forked)

    def _forked(self):
        """A child inherits open files that speak of its parent: close them, and begin its own at its first mark."""
        try:
            if self.is_recording:
                self.marks.forget()
                if self._torch_hooks is not None:
                    self._torch_hooks.forked()
                if self.ledger is not None:
                    self.ledger.forked()
        except Exception:
            self.marks.failed = True

    def _watch_exceptions(self):
        self._hook_before = sys.excepthook
        sys.excepthook = self._exception

    def _exception(self, error_type, error, trace):
        """Note what ended the program, then let the hook that was there speak."""
        before = self._hook_before or sys.__excepthook__
        self.failed(error_type, error, trace)
        before(error_type, error, trace)

    def failed(self, error_type, error, trace):
        """Note an exception that ends the program, or the part of it that is being marked."""
        try:
            if self.is_recording:
                self.marks.exception(error_type, error, is_out_of_memory(error_type, error), phase_of(trace))
        except Exception:
            pass  # the program's own error goes first


def is_out_of_memory(error_type, error):
    """Whether an exception says that memory ran out, on the host or on a device."""
    if issubclass(error_type, MemoryError) or error_type.__name__ in ("OutOfMemoryError", "_ArrayMemoryError"):
        return True
    text = str(error)
    return issubclass(error_type, (RuntimeError, OSError)) and any(word in text for word in _OUT_OF_MEMORY_WORDS)


def phase_of(trace):
    """The phase of a training step that an exception came out of, by the modules on its way; None outside of one."""
    names = []
    while trace is not None:
        names.append(trace.tb_frame.f_globals.get("__name__") or "")
        trace = trace.tb_next
    passes = {"torch.nn.modules.module": "forward", "torch.autograd": "backward"}
    found = next((passes[name] for name in names if name in passes), None)
    return found or ("update" if any(name.startswith("torch.optim.") for name in names) else None)
