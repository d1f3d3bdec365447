"""Runs the child of a prediction again with lower instruction sets where one kills it.

Which instruction sets work is found by another room (measure/instruction_sets.py) and handed in as a function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from memfit.errors import PredictionFailed
from memfit.records.machine.doctor import FAULTS, WorkingInstructions
from memfit.records.prediction import Assumption

AskProcessor = Callable[[bool], WorkingInstructions | None]
"""Called with False: what is known without trying, or None. With True: what is found now, by trying."""
T = TypeVar("T")


def run_with_working_sets(
    run: Callable[[Mapping[str, str]], T], fault_of: Callable[[T], str], ask: AskProcessor | None
) -> tuple[T, tuple[Assumption, ...]]:
    """Call `run` with what the environment of its children needs; when one dies by an instruction, find a cure first.

    `fault_of` names the signal that spoilt a result, or is empty. The assumptions say what was changed, and why.
    """
    known = ask(False) if ask is not None else None
    cure = known.cure if known is not None else {}
    try:
        result = run(cure)
        fault, error = fault_of(result), None
    except PredictionFailed as failed:
        result, fault, error = None, failed.signal, failed
    if fault in FAULTS and ask is not None and not (known is not None and known.deadly):
        known = ask(True)
        if known is not None and known.cure:
            return run(known.cure), _said(known)
    if error is not None:
        raise _with_sentence(error, known)
    assert result is not None
    return result, _said(known)


def _said(known: WorkingInstructions | None) -> tuple[Assumption, ...]:
    """What is to be said of this processor; nothing where it keeps its word."""
    if known is None or not known.sentence:
        return ()
    rest = "; this prediction was made under it, and a training on this processor needs it too" if known.cure else ""
    return (Assumption(kind="processor", text=known.sentence + rest),)


def _with_sentence(error: PredictionFailed, known: WorkingInstructions | None) -> PredictionFailed:
    """The same error; one that a signal ended says what is known of this processor."""
    if error.signal and known is not None and known.sentence:
        error.found = f"{error.found}; {known.sentence}"
    return error
