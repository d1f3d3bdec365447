"""Predictions by one engine, asked directly: what tests and benchmarks of an engine call."""

from __future__ import annotations

from memfit.job.description import JobDescription
from memfit.predict.child.fork_server import ForkServer
from memfit.predict.devices.parse import DeviceSpec
from memfit.predict.engine import Question
from memfit.predict.fake.engine import FakeEngine
from memfit.predict.options import PredictOptions
from memfit.predict.phantom.engine import PhantomEngine
from memfit.predict.predict import predict_once
from memfit.records.prediction import Prediction

USUAL_STEPS = 2


def on_phantom(job: JobDescription, device: DeviceSpec, *, snapshot_path: str = "", **options: object) -> Prediction:
    """Predict a job on the phantom GPU; options are those of `PredictOptions`."""
    return predict_once(PhantomEngine(snapshot_path), _question(job, device, options))


def on_fake_tensors(
    job: JobDescription,
    device: DeviceSpec,
    *,
    fork_server: ForkServer | None = None,
    with_smallest: bool = True,
    **options: object,
) -> Prediction:
    """Predict a job on fake tensors; options are those of `PredictOptions`."""
    return predict_once(FakeEngine(), _question(job, device, options, fork_server, with_smallest))


def question_about(job: JobDescription, device: DeviceSpec, **options: object) -> Question:
    """A question as either engine is asked it."""
    return _question(job, device, options)


def _question(
    job: JobDescription,
    device: DeviceSpec,
    options: dict[str, object],
    fork_server: ForkServer | None = None,
    with_smallest: bool = True,
) -> Question:
    asked = PredictOptions(**{"num_steps": USUAL_STEPS, **options})
    return Question(job=job, device=device, options=asked, fork_server=fork_server, with_smallest=with_smallest)
