"""Assembly of a prediction: what an engine traced -> the record, with who is alive at the peak and what would save."""

from __future__ import annotations

import time

from memfit.predict.batch_lengths import with_lengths_of_loader
from memfit.predict.engine import Question, Traced
from memfit.predict.levels.liveness import peak_by_phase, peak_of, who_is_alive
from memfit.predict.levels.savings import savings_of
from memfit.records.prediction import Cost, Prediction


def assemble(question: Question, traced: Traced, started: float) -> Prediction:
    """Put the record together; `started` is when the question was asked, by `time.perf_counter`."""
    _, event = peak_of(traced.timeline, traced.where)
    prediction = Prediction(
        target=question.job.target,
        settings={name: str(value) for name, value in question.job.settings.items()},
        arguments=question.job.arguments if question.job.kind == "script" else None,
        device=traced.device.name,
        route=traced.route,
        torch_version=traced.torch_version,
        num_steps=traced.num_steps,
        num_threads=traced.num_threads,
        levels=traced.levels,
        at_peak=who_is_alive(traced.timeline, traced.where, event),
        phases=peak_by_phase(traced.timeline, traced.where),
        assumptions=traced.assumptions,
        error_band=traced.error_band,
        failed=traced.failed,
        savings=savings_of(traced.timeline, traced.where),
        step_time=traced.step_time,
        memory_limit_bytes=traced.device.total_bytes,
        cost=Cost(
            trace_seconds=traced.trace_seconds,
            probe_seconds=traced.probe_seconds,
            total_seconds=time.perf_counter() - started,
            host_peak_bytes=traced.host_peak_bytes,
            num_operators=traced.num_operators,
        ),
        timeline=traced.timeline,
    )
    if traced.survey is None:
        return prediction
    return with_lengths_of_loader(prediction, traced.survey, traced.device, traced.where)
