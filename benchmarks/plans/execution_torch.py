"""How long does a step take and how much does it hold: plain, planned, under a baseline? Real runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from memfit.apply.torch_apply import apply_to
from memfit.apply.torch_job import Job, RandomState, job_of, job_of_step, leaving_no_trace
from memfit.apply.torch_profile import profile_job
from memfit.apply.torch_proof import Reference, base_bytes_of, prove, reference_of
from memfit.apply.torch_segments import apply_nodes
from memfit.job.workloads import build_workload
from memfit.records.fit import Proof
from memfit.records.plan import Chain, Keep, Node, Plan

REPEATS = 3


@dataclass(slots=True)
class Subject:
    """A job with its chain and its plain step."""

    job: Job
    chain: Chain
    reference: Reference
    state: RandomState
    base_bytes: int
    plain_peak_bytes: int


@dataclass(frozen=True, slots=True)
class Seen:
    """One way of running a step, measured."""

    peak_bytes: int
    seconds: float
    plain_seconds: float
    """Of plain steps run in between."""
    bit_equal: bool
    calls_as_planned: bool

    @property
    def slowdown(self) -> float:
        """Against the plain step."""
        return self.seconds / self.plain_seconds


def build(name: str) -> Job:
    """One of the benchmark's jobs."""
    torch.manual_seed(0)
    if name == "BatchNorm + dropout":
        return _normed()
    workload, settings = JOBS[name]
    return job_of_step(build_workload(workload, dict(settings)), name)


JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "MLP": ("mlp", {"batch_size": 4096, "hidden": 512, "layers": 12, "optimizer": "sgd"}),
    "ResNet-18": ("resnet18", {"batch_size": 16, "size": 128}),
    "ResNet-50": ("resnet50", {"batch_size": 8, "size": 160}),
    "DistilBERT": ("distilbert", {"batch_size": 8, "length": 256, "layers": 6, "optimizer": "sgd"}),
    "small GPT": ("gpt", {"batch_size": 8, "length": 256, "words": 2000, "width": 256, "layers": 8, "dropout": 0.1}),
}
NAMES = ("MLP", "ResNet-18", "ResNet-50", "DistilBERT", "small GPT", "BatchNorm + dropout")


def _normed() -> Job:
    blocks = [
        nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU(), nn.Dropout(0.2))
        for _ in range(16)
    ]
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    )
    batch = (torch.randn(16, 3, 64, 64), torch.randint(0, 10, (16,)))
    return job_of(model, batch, nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), "normed")


def prepare(name: str) -> Subject:
    """Profile a job and run its plain step."""
    job = build(name)
    profile = profile_job(job)
    state = RandomState.now()
    base = base_bytes_of(job, profile.chain.fixed.optimizer_state_bytes)
    return Subject(job, profile.chain, reference_of(job, state), state, base, base + profile.plain_record_peak_bytes)


def run_plan(subject: Subject, plan: Plan) -> Seen:
    """A plan, applied and measured."""
    return _seen(subject, plan.nodes, lambda: apply_to(subject.job.model, plan))


def run_nodes(subject: Subject, nodes: tuple[Node, ...]) -> Seen:
    """Nodes of a baseline, applied and measured."""
    return _seen(subject, nodes, lambda: apply_nodes(subject.job.model, subject.chain.stages, nodes))


def _seen(subject: Subject, nodes: tuple[Node, ...], attach: Callable[[], Any]) -> Seen:
    with attach():
        proof: Proof = prove(subject.job, subject.reference, subject.state, subject.base_bytes, 0)
    planned, plain = [], []
    for _ in range(REPEATS):  # in turns, so that other programs on this machine disturb both alike
        plain.append(_time(subject.job))
        with attach():
            planned.append(_time(subject.job))
    return Seen(
        proof.measured_peak_bytes or 0, min(planned), min(plain), proof.bit_equal, _counts_agree(subject, nodes)
    )


def _time(job: Job) -> float:
    with leaving_no_trace(job):
        start = time.perf_counter()
        job.run()
        return time.perf_counter() - start


def _counts_agree(subject: Subject, nodes: tuple[Node, ...]) -> bool:
    counts: Counter[str] = Counter()
    counted = apply_nodes(subject.job.model, subject.chain.stages, nodes, lambda name: counts.update([name]))
    with counted, leaving_no_trace(subject.job):
        subject.job.run()
    planned: Counter[str] = Counter()
    for stage, runs in planned_calls(nodes).items():
        if runs > 1:
            planned.update(dict.fromkeys(subject.chain.stages[stage].name.split(" + "), runs))
    return all(0 <= planned[name] - counts[name] <= 1 for name in planned | counts)


def planned_calls(nodes: tuple[Node, ...], runs: int = 1) -> Counter[int]:
    """How often each stage runs; a checkpoint that ends another is not run when that other is."""
    counts: Counter[int] = Counter()
    for node in nodes:
        if isinstance(node, Keep):
            counts[node.stage] += runs
            continue
        *inner, last = node.inside
        counts += planned_calls(tuple(inner), runs + 1)
        counts += planned_calls((last,), runs + 1 if isinstance(last, Keep) else runs)
    return counts


# ---- torch's own knob --------------------------------------------------------------------------------------------


def run_compiled(subject: Subject, budget: float) -> Seen | str:
    """`activation_memory_budget` of torch.compile, with the backend that runs everywhere; or why it does not run."""
    from torch._functorch import config

    job, model = subject.job, subject.job.model
    before, plain = config.activation_memory_budget, model.forward
    config.activation_memory_budget = budget
    torch._dynamo.reset()
    try:
        model.forward = torch.compile(plain, backend="aot_eager")
        for _ in range(2):
            _time(job)
        proof = prove(job, subject.reference, subject.state, subject.base_bytes, 0)
        seconds = min(_time(job) for _ in range(REPEATS))
    except Exception as error:  # whatever the compiler says is the answer
        return f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"
    finally:
        config.activation_memory_budget = before
        model.__dict__.pop("forward", None)
        torch._dynamo.reset()
    if proof.failure:
        return proof.failure[:60]
    return Seen(proof.measured_peak_bytes or 0, seconds, _time(job), proof.bit_equal, True)


def dropout_gradients_agree(budget: float) -> str:
    """Does a compiled dropout drop the same positions forward and backward?"""
    from torch._functorch import config

    before = config.activation_memory_budget
    config.activation_memory_budget = budget
    torch._dynamo.reset()
    try:
        return _dropout_answer()
    except Exception as error:  # whatever the compiler says is the answer
        return f"{type(error).__name__}"
    finally:
        config.activation_memory_budget = before
        torch._dynamo.reset()


def _dropout_answer() -> str:
    x = torch.randn(1000, requires_grad=True)
    f = torch.compile(lambda v: nn.functional.dropout(torch.sin(v), 0.5), backend="aot_eager")
    y = f(x)
    y.sum().backward()
    assert x.grad is not None
    dropped = y == 0
    wrong = int((x.grad[dropped] != 0).sum())
    return f"{wrong} of {int(dropped.sum())} dropped positions got a gradient"
