"""`memfit predict` and `memfit replay` as functions: predict a training, replay a CUDA memory snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from memfit.records.prediction import Prediction
    from memfit.records.snapshot import Replay
    from memfit.show.progress.line import ProgressLine


def predict_peak(
    target: str | Callable[..., Any],
    *,
    settings: Mapping[str, Any] | Sequence[str] = (),
    arguments: Sequence[str] = (),
    device: str = "cpu",
    memory: str | None = None,
    num_steps: int | None = None,
    malloc: Literal["default", "pinned"] = "default",
    alloc_conf: str = "",
    probes: bool = True,
    allow_real: Sequence[str] = (),
    unknown_is: bool = True,
    answer: Sequence[str] = (),
    sweep: str | None = None,
    fit_batch: bool = False,
    lengths: str | None = None,
    ranks: int = 1,
    shard: str | None = None,
    engine: Literal["auto", "fake", "phantom"] = "auto",
    show_output: bool = False,
    most_seconds: float | None = None,
    tell: Callable[[str], None] | None = None,
) -> Prediction:
    """Predict the memory of a training without running it: a script, 'FILE:function', a built-in workload, a callable.

    `settings` go to a function or workload, `arguments` to a script. The other options are those of `memfit predict`
    and are described in `memfit.predict.options.PredictOptions`; `tell` is called every second with what is being done.

        prediction = memfit.predict_peak("train.py", arguments=["--batch-size", "64"], device="cuda:a100-40gb")
        prediction = memfit.predict_peak("gpt", settings={"layers": 12}, device="cuda", memory="24GiB", fit_batch=True)
        print(prediction.level("reserved").value, prediction.fits)
    """
    from memfit.measure.instruction_sets import ask_processor
    from memfit.predict.options import PredictOptions
    from memfit.predict.predict import predict

    options = PredictOptions(
        device=device, memory=memory, num_steps=num_steps, malloc=malloc, alloc_conf=alloc_conf, probes=probes,
        allow_real=tuple(allow_real), unknown_is=unknown_is, answer=tuple(answer), sweep=sweep, fit_batch=fit_batch,
        lengths=lengths, ranks=ranks, shard=shard, engine=engine, show_output=show_output, most_seconds=most_seconds,
    )  # fmt: skip
    given = settings if isinstance(settings, Mapping) else tuple(settings)
    return predict(
        target, options, settings=given, arguments=tuple(arguments), ask_processor=ask_processor, tell=tell
    )


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
