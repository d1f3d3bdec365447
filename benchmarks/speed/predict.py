"""How long does a prediction take: per operator, for DistilBERT, for seven billion parameters?

  python -m benchmarks.speed.predict

Times are of this process after all imports; the second of two runs counts, as a person's second look would. The
real step beside it is run once to warm up and once for the clock.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

from memfit.job.training import as_training, plain_step
from memfit.job.workloads import build_workload
from memfit.predict.allocator_settings import AllocatorSettings
from memfit.predict.cuda_memory import moved_to_cuda, run_allocator
from memfit.predict.liveness import peak_of, who_is_alive
from memfit.predict.torch_fake import Recording, trace_training
from memfit.predict.trace import timeline_of
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


def line(name: str, settings: dict[str, Any], *, with_real: bool) -> None:
    """One line of the table."""

    def build() -> Any:
        return build_workload(name, dict(settings))

    timed(build)
    seconds, num_operators, peak_bytes = timed(build)
    real = format_seconds(real_step_seconds(build)) if with_real else "not run"
    per_operator = format_seconds(seconds / num_operators)
    print(
        f"{name:<12} {format_seconds(seconds):>10} for {num_operators:6d} operators ({per_operator} each), "
        f"peak {format_bytes(peak_bytes)}; a real step: {real}",
        flush=True,
    )


def main() -> None:
    """The table."""
    line("mlp", {}, with_real=True)
    line("gpt", {"layers": 12, "width": 512}, with_real=True)
    try:
        line("distilbert", {"batch_size": 16, "length": 384}, with_real=True)
    except Exception as error:
        print(f"distilbert: {error}")
    line("gpt", SEVEN_BILLION, with_real=False)
    print(f"host memory of this process: {format_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)}")


if __name__ == "__main__":
    main()
