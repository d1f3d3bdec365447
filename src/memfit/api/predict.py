"""Predictions: the memory of a training that has not been run, and the replay of a GPU's memory snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from memfit.api.shared.options import checked_options

if TYPE_CHECKING:
    from memfit.records.cuda.snapshot import Replay
    from memfit.records.prediction import Prediction, RankPredictions


@checked_options
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
    threads: int | None = None,
    probes: bool = True,
    allow_real: Sequence[str] = (),
    unknown_is: bool = True,
    answer: Sequence[str] = (),
    sweep: str | None = None,
    fit_batch: bool = False,
    lengths: str | None = None,
    ranks: int = 1,
    rank: int = 0,
    shard: str | None = None,
    routing: str | None = None,
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
        device=device, memory=memory, num_steps=num_steps, malloc=malloc, alloc_conf=alloc_conf, threads=threads,
        probes=probes, allow_real=tuple(allow_real), unknown_is=unknown_is, answer=tuple(answer), sweep=sweep,
        fit_batch=fit_batch, lengths=lengths, ranks=ranks, rank=rank, shard=shard, routing=routing, engine=engine,
        show_output=show_output, most_seconds=most_seconds,
    )  # fmt: skip
    given = settings if isinstance(settings, Mapping) else tuple(settings)
    return predict(target, options, settings=given, arguments=tuple(arguments), ask_processor=ask_processor, tell=tell)


@checked_options
def predict_ranks(
    target: str | Callable[..., object],
    *,
    ranks: int,
    settings: Mapping[str, object] | Sequence[str] = (),
    arguments: Sequence[str] = (),
    device: str = "cpu",
    memory: str | None = None,
    num_steps: int | None = None,
    alloc_conf: str = "",
    threads: int | None = None,
    probes: bool = True,
    allow_real: Sequence[str] = (),
    unknown_is: bool = True,
    answer: Sequence[str] = (),
    shard: str | None = None,
    routing: str | None = None,
    engine: Literal["auto", "fake", "phantom"] = "auto",
    show_output: bool = False,
    most_seconds: float | None = None,
    tell: Callable[[str], None] | None = None,
) -> RankPredictions:
    """Predict every rank of a distributed training: one prediction for each class of ranks that are alike.

    The options are those of `predict_peak`; `ranks` is the size of the process group.

    >>> found = predict_ranks("train.py", ranks=8, device="cuda:h100-80gb")  # doctest: +SKIP
    >>> print(found.fullest.ranks, found.of_rank(3).level("reserved").value, found.fits)  # doctest: +SKIP
    """
    from memfit.measure.instruction_sets import ask_processor
    from memfit.predict.options import PredictOptions
    from memfit.predict.predict import predict_ranks as predict

    options = PredictOptions(
        device=device, memory=memory, num_steps=num_steps, alloc_conf=alloc_conf, threads=threads, probes=probes,
        allow_real=tuple(allow_real), unknown_is=unknown_is, answer=tuple(answer), ranks=ranks, shard=shard,
        routing=routing, engine=engine, show_output=show_output, most_seconds=most_seconds,
    )  # fmt: skip
    given = settings if isinstance(settings, Mapping) else tuple(settings)
    return predict(target, options, settings=given, arguments=tuple(arguments), ask_processor=ask_processor, tell=tell)


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
