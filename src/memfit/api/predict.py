"""How is a training foreseen, and a snapshot of a GPU replayed?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memfit.records.prediction import Prediction
    from memfit.records.snapshot import Replay
    from memfit.show.progress.line import ProgressLine


def predict_peak(target: str | Callable[..., Any], **options: Any) -> Prediction:
    """Foresee the memory of a training: a script, 'FILE:function', a built-in workload, or a Python callable.

    Options: settings, arguments, device ('cpu', 'cuda:a100-40gb', ...), memory ('24GiB'), num_steps, malloc,
    alloc_conf, probes, allow_real, unknown_is, show_output, most_seconds; `tell`, a function that is told every
    second what the prediction is doing.
    """
    from memfit.measure.instruction_sets import ask_processor
    from memfit.predict.predict import foresee

    return foresee(target, ask_processor=ask_processor, **options)


def prediction_progress() -> ProgressLine:
    """The line at the bottom of a terminal on which a prediction says what it is doing; nothing elsewhere."""
    from memfit.show.progress.line import ProgressLine

    return ProgressLine()


def show_prediction(prediction: Prediction, *, as_json: bool = False) -> None:
    """Write a prediction to the terminal, or as its record."""
    import sys

    import msgspec
    from rich.console import Console

    from memfit.show.terminal.prediction import show_prediction as show

    if as_json:
        sys.stdout.write(msgspec.json.encode(prediction).decode() + "\n")
    else:
        show(prediction, Console(highlight=False, soft_wrap=True))


def read_prediction(path: str | Path) -> Prediction:
    """Read a prediction that was printed as JSON."""
    from memfit.records.prediction import read_prediction as read

    return read(path)


def replay_snapshot(
    path: str | Path, *, device: int | None = None, settings: Sequence[str] = (), memory_bytes: int | None = None
) -> Replay:
    """Replay a CUDA memory snapshot: peaks, fragmentation, who held memory, what other settings would give."""
    from memfit.predict.snapshot.reader import read_snapshot
    from memfit.predict.snapshot.report import replay

    return replay(read_snapshot(path), device, settings, memory_bytes)


def print_replay(replay: Replay, *, as_json: bool = False) -> None:
    """Write a replayed snapshot to the standard output."""
    from memfit.show.as_json import to_json
    from memfit.show.paper import write_json, write_text
    from memfit.show.terminal.replay import replay_text

    if as_json:
        write_json(to_json(replay))
    else:
        write_text(lambda width, color: replay_text(replay, width=width, color=color))
