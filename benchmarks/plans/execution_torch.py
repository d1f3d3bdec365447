"""How long does a step take and how much does it hold: plain, planned, under a baseline? Real runs.

Bytes, calls and equality come from one watched step each. Seconds come from rounds: in each round every way of
running the step is run once, in an order that turns from round to round, the plain step among them twice. Of each way
the least time counts, as in the profile: whatever else runs on the machine only adds.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from benchmarks.plans.execution_results import Seen
from memfit.apply.apply import apply_to
from memfit.apply.checkpoints import apply_nodes
from memfit.fit.plan_and_prove import hold_to_budget
from memfit.fit.proof import base_bytes_of, prove
from memfit.job.workloads.registry import build_workload
from memfit.model.step import Job, RandomState, job_of, job_of_step, leaving_no_trace
from memfit.plan.planners import make_plan
from memfit.profile.profile import profile_job
from memfit.profile.reference_step import Reference, names_of, reference_of
from memfit.records.fit import Proof
from memfit.records.plan import Chain, Keep, Node, Plan, Stage, stages_of

PLAIN, AGAIN = "plain", "plain again"


@dataclass(slots=True)
class Subject:
    """A job with its chain and its plain step."""

    name: str
    what: str
    job: Job
    chain: Chain
    reference: Reference
    state: RandomState
    base_bytes: int
    plain_peak_bytes: int


# ---- the models --------------------------------------------------------------------------------------------------

JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "MLP": ("mlp", {"batch_size": 2048, "hidden": 512, "layers": 12, "optimizer": "sgd"}),
    "ResNet-18": ("resnet18", {"batch_size": 8, "size": 128, "optimizer": "sgd"}),
    "ResNet-50": ("resnet50", {"batch_size": 4, "size": 160, "optimizer": "sgd"}),
    "DistilBERT": ("distilbert", {"batch_size": 8, "length": 128, "layers": 6, "optimizer": "sgd"}),
    "small GPT": ("gpt", {"batch_size": 4, "length": 256, "words": 2000, "width": 256, "layers": 8, "dropout": 0.1}),
}
NORMED = "BatchNorm + dropout"
NAMES = (*JOBS, NORMED)


def build(name: str) -> tuple[Job, str]:
    """One of the benchmark's jobs, and what it is."""
    torch.manual_seed(0)
    if name == NORMED:
        return _normed(), "8 images of 64x64, 16 blocks of convolution, BatchNorm, GELU and dropout"
    workload, settings = JOBS[name]
    what = ", ".join(f"{key} {value}" for key, value in settings.items())
    what += f", {torch.get_num_threads()} threads" if torch.get_num_threads() > 1 else ""
    return job_of_step(build_workload(workload, dict(settings)), name), what


def _normed() -> Job:
    blocks = [
        nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU(), nn.Dropout(0.2))
        for _ in range(16)
    ]
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    )
    batch = (torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,)))
    return job_of(model, batch, nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), NORMED)


def prepare(name: str) -> Subject:
    """Profile a job and run its plain step."""
    job, what = build(name)
    profile = profile_job(job)
    state = RandomState.now()
    base = base_bytes_of(job, profile.chain.fixed.optimizer_state_bytes)
    assert profile.plain_record_peak_bytes is not None
    reference = reference_of(job, state)
    return Subject(name, what, job, profile.chain, reference, state, base, base + profile.plain_record_peak_bytes)


# ---- ways to run its step ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Way:
    """One way of running a step: what to enter around it, and the nodes whose calls can be counted."""

    attach: Callable[[], Any]
    nodes: tuple[Node, ...] | None = None


def plan_within(subject: Subject, budget_bytes: int) -> Plan:
    """The plan that `memfit fit` takes for a budget: planned, measured, and planned again where that is better."""

    def plan_for(chain: Chain, target_bytes: int) -> Plan:
        return make_plan(chain, target_bytes)

    held = hold_to_budget(subject.job, subject.chain, budget_bytes, plan_for)
    held.applied.undo()
    return held.plan


def planned_way(subject: Subject, plan: Plan) -> Way:
    """A plan of ours."""
    return Way(lambda: apply_to(subject.job.model, plan), plan.nodes)


def nodes_way(subject: Subject, nodes: tuple[Node, ...]) -> Way:
    """A published rule, carried out by the same code as our plans."""
    return Way(lambda: apply_nodes(subject.job.model, subject.chain.stages, nodes), nodes)


def sequential_way(subject: Subject, segments: int) -> Way | None:
    """`torch.utils.checkpoint.checkpoint_sequential` itself; None where the model is no Sequential."""
    model = subject.job.model
    if not isinstance(model, nn.Sequential):
        return None

    @contextlib.contextmanager
    def attach() -> Any:
        model.forward = lambda input: checkpoint_sequential(list(model), segments, input, use_reentrant=False)
        try:
            yield
        finally:
            del model.__dict__["forward"]

    return Way(attach)


# ---- looking -----------------------------------------------------------------------------------------------------


def examine(subject: Subject, ways: dict[str, Way], num_rounds: int) -> tuple[dict[str, Seen], dict[str, list[float]]]:
    """Bytes, equality, calls and seconds of each way; seconds also of the plain step, twice."""
    nothing = Way(contextlib.nullcontext)
    seconds = _rounds(subject, {PLAIN: nothing, AGAIN: nothing, **ways}, num_rounds)
    update = subject.chain.update_seconds
    seen = {}
    for name, way in ways.items():
        plain_seconds = min(*seconds[PLAIN], *seconds[AGAIN]) + update
        seen[name] = _seen(subject, way, [(mine + update) / plain_seconds for mine in seconds[name]])
    return seen, seconds


def _seen(subject: Subject, way: Way, ratios: Sequence[float]) -> Seen:
    with way.attach():
        proof: Proof = prove(subject.job, subject.reference, subject.state, subject.base_bytes, 0)
    return Seen(
        peak_bytes=proof.measured_peak_bytes or 0,
        slowdown=min(ratios),
        median=statistics.median(ratios),
        bit_equal=proof.bit_equal,
        differing=proof.failure or names_of(proof.differing, most=1),
        calls_as_planned=None if way.nodes is None else _counts_agree(subject, way.nodes),
    )


def measured_peak(subject: Subject, way: Way) -> int:
    """The most alive in one step."""
    with way.attach():
        return prove(subject.job, subject.reference, subject.state, subject.base_bytes, 0).measured_peak_bytes or 0


def _rounds(subject: Subject, ways: dict[str, Way], num_rounds: int) -> dict[str, list[float]]:
    """Seconds of every way in every round; the order turns, so that nobody always follows the same one."""
    names = list(ways)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(num_rounds + 1):
        at = number % len(names)
        for name in names[at:] + names[:at]:
            with ways[name].attach():
                taken = time_of(subject.job)
            if number:  # the first round warms up
                seconds[name].append(taken)
    return seconds


def time_of(job: Job) -> float:
    """Seconds of one forward and backward."""
    with leaving_no_trace(job):
        start = time.perf_counter()
        job.run()
        return time.perf_counter() - start


def _counts_agree(subject: Subject, nodes: tuple[Node, ...]) -> bool:
    """Whether every module within a checkpoint runs exactly as often as the plan says."""
    counts: Counter[str] = Counter()
    counted = apply_nodes(subject.job.model, subject.chain.stages, nodes, lambda name: counts.update([name]))
    with counted, leaving_no_trace(subject.job):
        subject.job.run()
    planned = Counter({name: runs for name, runs in planned_calls(subject.chain.stages, nodes).items() if runs > 1})
    return all(0 <= planned[name] - counts[name] <= 1 for name in planned | counts)


def planned_calls(
    stages: Sequence[Stage], nodes: tuple[Node, ...], runs: int = 1, outside: str | None = None
) -> Counter[str]:
    """How often each module runs but the one `outside`; a checkpoint that ends another is not run when that one is."""
    counts: Counter[str] = Counter()
    for node in nodes:
        if isinstance(node, Keep):
            counts.update({name: runs for name in _modules_of(stages[node.stage]) if name != outside})
            continue
        ending = stages[list(stages_of((node,)))[-1]]
        after = _modules_of(ending)[-1] if ending.ending is not None else None
        *inner, last = node.inside
        counts += planned_calls(stages, tuple(inner), runs + 1)
        counts += planned_calls(stages, (last,), runs + 1 if isinstance(last, Keep) else runs, after)
        if after is not None and after != outside:
            counts[after] += runs
    return counts


def _modules_of(stage: Stage) -> list[str]:
    return stage.name.split(" + ")
