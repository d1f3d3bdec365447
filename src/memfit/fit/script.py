"""Runs a training script to its end while its loop is fitted, and says how it ended."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from types import TracebackType
from unittest.mock import patch

import msgspec
import torch

from memfit.apply.checkpoints import AppliedPlan
from memfit.errors import MemfitError, UsageError
from memfit.fit.levers import carry_out
from memfit.fit.options import FitOptions
from memfit.fit.tensors_alive import optimizer_of
from memfit.fit.training_loop import ApplyReady, LoopFitter, StopAfterFitting
from memfit.measure.counters.free_memory import process_peak_bytes
from memfit.records.fit import LoopFit
from memfit.records.plan import read_plan

INTERRUPTED = 130
"""What a shell reports of a program that Ctrl-C ended."""


def run_fitted(path: str, arguments: tuple[str, ...], fitter: LoopFitter) -> LoopFit:
    """Run a script as `python script.py arguments` would, within a budget.

    What the script raises is written as Python would write it, and kept in the record with the code that Python would
    leave with; why no plan holds is raised.
    """
    folder = os.path.dirname(os.path.abspath(path))
    ended, exit_code = "", 0
    fitter.start()
    try:
        with patch.object(sys, "argv", [path, *arguments]), patch.object(sys, "path", [folder, *sys.path]):
            runpy.run_path(path, run_name="__main__")
    except StopAfterFitting:
        pass
    except SystemExit as leaving:
        exit_code = _code_of(leaving)
        ended = f"it left with {leaving.code}" if exit_code else ""
    except MemfitError as error:
        if error is not fitter.failed:
            raise
    except Exception as error:
        _print_from_the_script(error, path)
        ended, exit_code = f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}", 1
    except KeyboardInterrupt as error:
        _print_from_the_script(error, path)
        ended, exit_code = "interrupted", INTERRUPTED
    finally:
        found = fitter.stop()
    if fitter.failed is not None:
        raise fitter.failed
    if not found.num_passes and not found.fits and not ended:
        raise UsageError(
            f"{path} ended before a plan could be made",
            found="fewer than two passes of a kind: a call of a module in train() that a backward() follows",
            hint="two batches or more, in this process, with backward() and not torch.autograd.grad alone",
        )
    return msgspec.structs.replace(
        found, ended=ended, exit_code=exit_code, process_peak_bytes=process_peak_bytes()
    )  # fmt: skip


def _code_of(leaving: SystemExit) -> int:
    """The exit code of a script that leaves; a message in its place is written, as Python would."""
    if leaving.code is None or isinstance(leaving.code, int):
        return (leaving.code or 0) & 0xFF
    print(leaving.code, file=sys.stderr)
    return 1


def _print_from_the_script(error: BaseException, path: str) -> None:
    error.__traceback__ = _from_the_script(error, path)
    traceback.print_exception(error)


def _from_the_script(error: BaseException, path: str) -> TracebackType | None:
    """The traceback from the first frame of the script on."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != path:
        frame = frame.tb_next
    return frame or error.__traceback__


def ready_plan(options: FitOptions) -> ApplyReady | None:
    """What applies the plan in the file that the options name; None where there is none, or it is to be replaced."""
    if options.plan_file is None or options.force or not os.path.exists(options.plan_file):
        return None
    plan = read_plan(options.plan_file)

    def apply(model: torch.nn.Module) -> AppliedPlan:
        return carry_out(model, plan, options.disk, optimizer_of([model]) if plan.applied_levers else None)

    return apply


def budget_of_gpu() -> int:
    """All memory of the GPU here, for who names no budget."""
    if not torch.cuda.is_available():
        raise UsageError(
            "there is no budget to fit into, and no GPU here whose memory could be one", hint="--budget 2GiB"
        )
    return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
