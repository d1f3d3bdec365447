"""How long does a prediction take: per operator, for DistilBERT, for seven billion parameters?

  python -m benchmarks.speed.predict

Times are of this process after all imports; the second of two runs counts, as a person's second look would. The
peer beside it, one real step on this CPU, is run once to warm up and once for the clock, after all predictions.
"""

from __future__ import annotations

import importlib.util
import resource
import time
from collections.abc import Callable
from typing import Any

from benchmarks.speed.torch_plain_distilbert import build_plain_distilbert
from memfit.job.training import as_training, plain_step
from memfit.job.workloads.registry import build_workload
from memfit.predict.allocator.settings import AllocatorSettings
from memfit.predict.fake.recording import Recording, trace_training
from memfit.predict.levels.gpu import moved_to_cuda, run_allocator
from memfit.predict.levels.liveness import peak_of, who_is_alive
from memfit.predict.observe.storage_log import timeline_of
from memfit.units import MIB, format_bytes, format_seconds

SEVEN_BILLION = {
    "width": 4096, "layers": 32, "heads": 32, "words": 32000, "dtype": "bfloat16", "length": 2048, "batch_size": 1,
}  # fmt: skip


def timed(build: Callable[[], Any]) -> tuple[float, int, int]:
    """Trace, simulate and explain: seconds, operators, peak."""
    started = time.perf_counter()
    trace = trace_training(build, recording=Recording())
    timeline = timeline_of(trace.log, trace.root_names)
    peak_bytes, event = peak_of(timeline, "cpu")
    who_is_alive(timeline, "cpu", event)
    run_allocator(moved_to_cuda(timeline, 8 * MIB), AllocatorSettings())
    return time.perf_counter() - started, trace.num_operators, peak_bytes


def real_step_seconds(build: Callable[[], Any]) -> float:
    """One real step on this CPU, after one to warm up."""
    step = plain_step(as_training(build(), "the job"))
    step()
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def line(name: str, build: Callable[[], Any]) -> None:
    """One line of the table: wall and processor time of the second prediction."""
    timed(build)
    started = time.process_time()
    seconds, num_operators, peak_bytes = timed(build)
    busy = time.process_time() - started
    print(
        f"{name:<38} {format_seconds(seconds):>8} ({format_seconds(busy)} of one core) for {num_operators:6d} "
        f"operators, {format_seconds(seconds / num_operators)} each; peak {format_bytes(peak_bytes)}",
        flush=True,
    )


def workload(name: str, **settings: Any) -> Callable[[], Any]:
    """A built-in job."""
    return lambda: build_workload(name, dict(settings))


def distilbert() -> tuple[str, Callable[[], Any]]:
    """transformers' own model where it is installed, else the same layers in plain torch."""
    if importlib.util.find_spec("transformers"):
        return "DistilBERT (transformers), 16 x 384", workload("distilbert", batch_size=16, length=384)
    return "DistilBERT (plain torch), 16 x 384", build_plain_distilbert


def main() -> None:
    """The table."""
    name, bert = distilbert()
    jobs = {"mlp": workload("mlp"), "gpt 12 x 512": workload("gpt", layers=12, width=512), name: bert}
    for title, build in jobs.items():
        line(title, build)
    line("gpt, 6.7 billion parameters in bf16", workload("gpt", **SEVEN_BILLION))
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"host memory of the process that made all of these predictions: {format_bytes(peak_bytes)}", flush=True)
    for title, build in jobs.items():
        print(f"one real step here, {title}: {format_seconds(real_step_seconds(build))}", flush=True)


if __name__ == "__main__":
    main()
