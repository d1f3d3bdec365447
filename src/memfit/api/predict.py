"""Predictions: the memory of a training that has not been run, and the replay of a GPU's memory snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memfit.api.options import checked_options

if TYPE_CHECKING:
    from memfit.records.prediction import Prediction
    from memfit.records.snapshot import Replay


def predict_peak(target: str | Callable[..., Any], **options: Any) -> Prediction:
    """Foresee the memory of a training: a script, 'FILE:function', a built-in workload, or a Python callable.

    Options: settings, arguments, device ('cpu', 'cuda:a100-40gb', ...), memory ('24GiB'), num_steps, malloc,
    alloc_conf, probes, allow_real, unknown_is, show_output, most_seconds.
    """
    from memfit.measure.instruction_sets import ask_processor
    from memfit.predict.predict import foresee

    return foresee(target, ask_processor=ask_processor, **options)


@checked_options
def read_prediction(path: str | Path) -> Prediction:
    """Read a prediction that `memfit predict --json` printed.

    >>> read_prediction("prediction.json").peak.value  # doctest: +SKIP
    """
    from memfit.records.prediction import read_prediction as read

    return read(path)


@checked_options
def replay_snapshot(
    path: str | Path, *, device: int | None = None, settings: Sequence[str] = (), memory_bytes: int | None = None
) -> Replay:
    """Replay a CUDA memory snapshot: peaks, fragmentation, who held memory, what other settings would give.

    `device` is the GPU (by default the one that ran out of memory, or has the most events); `settings` are tried as
    PYTORCH_ALLOC_CONF, on a GPU with `memory_bytes` where that is given. Nothing in the file is run.

    >>> replay_snapshot("snapshot.pickle", settings=["expandable_segments:True"])  # doctest: +SKIP
    """
    from memfit.predict.snapshot.reader import read_snapshot
    from memfit.predict.snapshot.report import replay

    return replay(read_snapshot(path), device, settings, memory_bytes)
