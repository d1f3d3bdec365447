"""What does a prediction on the phantom GPU cost: a step while it runs, the explanation afterwards, all of it?

  python -m benchmarks.speed.phantom [--steps 23]

Run with a CUDA build of torch, from the root of the checkout. DistilBERT, 16 x 384, on an A100, once without the
true values of small integers and once with everything that a prediction does. Steps are those after the second;
processor time is that of all threads, and less disturbed by other programs than the clock.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time

import msgspec

from memfit.job.description import JobDescription, describe_job
from memfit.predict.devices.parse import parse_device
from memfit.predict.phantom.engine import predict_on_phantom, request_for
from memfit.predict.phantom.messages import PhantomReply
from memfit.predict.phantom.parent import run_in_child
from memfit.units import format_bytes, format_seconds

WARM_UP, USUAL_STEPS = 2, 3
DEVICE = parse_device("cuda:a100-40gb")


def distilbert() -> JobDescription:
    """transformers' own model where it is installed, else the same layers in plain torch."""
    if importlib.util.find_spec("transformers"):
        return describe_job("distilbert", {"batch_size": 16, "length": 384})
    return describe_job("benchmarks/speed/torch_plain_distilbert.py:build_plain_distilbert", {})


LEAST_BYTES = 4 * 66_364_418 * 4
"""Parameters, gradients and two moments of AdamW."""


def checked(reply: PhantomReply) -> PhantomReply:
    """Refuse figures of a job that did not train on the phantom GPU."""
    if reply.allocated_bytes < LEAST_BYTES or not reply.num_launches:
        raise SystemExit(
            f"this did not train on the phantom GPU: {format_bytes(reply.allocated_bytes)} allocated there, at least "
            f"{format_bytes(LEAST_BYTES)} expected; {reply.num_launches} kernels launched"
        )
    return reply


def report(title: str, reply: PhantomReply) -> None:
    """One line for the steps of a run, and one for what came after it."""
    by_clock, busy = reply.step_seconds[WARM_UP:], reply.step_processor_seconds[WARM_UP:]
    print(
        f"{title}: a step {format_seconds(statistics.median(busy))} of processor time (fastest "
        f"{format_seconds(min(busy))}), {format_seconds(statistics.median(by_clock))} by the clock"
    )
    per_step = reply.explain_seconds / max(1, reply.num_steps)
    print(
        f"  afterwards {format_seconds(reply.explain_seconds)} for {reply.timeline.num_events} events of "
        f"{reply.num_steps} steps, {format_seconds(per_step)} each; host memory {format_bytes(reply.host_peak_bytes)}"
    )


def main() -> None:
    """Both ways, then a whole prediction."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=23)
    job = distilbert()
    _, request = request_for(job, DEVICE, num_steps=parser.parse_args().steps)
    report("without values", checked(run_in_child(msgspec.structs.replace(request, follow_values=False))))
    report("everything", checked(run_in_child(request)))
    started = time.perf_counter()
    cost = predict_on_phantom(job, DEVICE, num_steps=USUAL_STEPS).cost
    assert cost is not None
    print(
        f"a whole prediction, {USUAL_STEPS} steps: {format_seconds(time.perf_counter() - started)}, "
        f"{format_bytes(cost.host_peak_bytes)} on the host"
    )


if __name__ == "__main__":
    main()
