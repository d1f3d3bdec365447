"""Prediction of the cells of a grid: columns and rows traced apart on fake tensors and joined, the rest one by one.

Forward and backward are traced once per column, updates once per optimizer (`predict/levels/join_timelines.py`).
Cells whose technique reaches into the update (a step in the backward, state on the host, a scaler that a fused
optimizer takes over) and all cells of a phantom GPU are traced as a whole.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import msgspec

from memfit.compare.rows_and_columns import OWN, CellPlan, job_for
from memfit.errors import MemfitError, PredictionFailed
from memfit.job.description import JobDescription
from memfit.job.recipes.recipe import MARK_BYTES, Recipe
from memfit.predict.child.fork_server import ForkServer
from memfit.predict.child.messages import TRANSLATED, TraceReply
from memfit.predict.child.probe_cache import KnownProbes
from memfit.predict.engine import Engine, Question
from memfit.predict.fake.engine import FakeEngine
from memfit.predict.gpu_rules.cublas import CUBLAS_WORKSPACE
from memfit.predict.levels.join_timelines import CannotJoin, join_updates
from memfit.predict.predict import predict_once, predict_reply
from memfit.records.prediction import Assumption, Prediction

T = TypeVar("T")
Trace = Future[TraceReply] | Future[Prediction]

WHOLE = frozenset({"step-in-backward", "optimizer-on-host", "compile"})
"""Techniques that reach into the update."""
OUTSIDE = frozenset({"batch", "pinned-malloc"})
"""Techniques that leave the training as its function built it."""
OF_PARAMETERS = frozenset({"lora", "pure-bf16"})
"""Techniques that change what an optimizer steps."""
TO_THE_HOST = frozenset({"optimizer-on-host", "offload-activations"})
"""Techniques that move bytes from the card to the host."""
JOINED = "forward and backward, and the update, were traced apart and joined"


@dataclass(frozen=True, slots=True)
class Predicted:
    """One cell with its prediction, or the error that stands in its place."""

    plan: CellPlan
    prediction: Prediction | None
    error: MemfitError | None


def predict_cells(
    question: Question, engine: Engine, plans: Sequence[CellPlan], *, num_workers: int = 2
) -> Iterator[Predicted]:
    """Predict the cells, as they are done; `num_workers` children at a time."""
    with ExitStack() as stack:
        servers: queue.SimpleQueue[ForkServer] = queue.SimpleQueue()
        for _ in range(num_workers):
            servers.put(stack.enter_context(ForkServer(question.options.most_seconds)))
        pool = stack.enter_context(ThreadPoolExecutor(num_workers))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        yield from _Work(question, engine, servers, pool).results(plans)


def can_join(plan: CellPlan, engine: Engine) -> bool:
    """Whether a cell is had from its column and its row."""
    names = {choice.name for choice in plan.choices}
    if plan.optimizer == OWN and not names - OUTSIDE:
        return False  # as the job has it, also where the job steps by itself
    scaled_inside = "fp16" in names and not _is_plain(plan.optimizer)
    return isinstance(engine, FakeEngine) and not names & WHOLE and not scaled_inside


def _is_plain(optimizer: str) -> bool:
    """An optimizer of torch that leaves unscaling to the scaler."""
    return optimizer.replace("-", "").isalnum() and "fused" not in optimizer and optimizer != OWN


def check_route(plan: CellPlan, route: str) -> None:
    """Refuse what moves bytes to the host where it was traced on CPU tensors alone: host and card are one there."""
    moved = [choice.name for choice in plan.choices if choice.name in TO_THE_HOST]
    if moved and route == TRANSLATED:
        raise PredictionFailed(
            f"{moved[0]} cannot be seen on this build of torch", kind="route", found=route, hint="--engine phantom"
        )


class _Work:
    """Traces under way, and the cells that wait for them."""

    def __init__(
        self, question: Question, engine: Engine, servers: queue.SimpleQueue[ForkServer], pool: ThreadPoolExecutor
    ) -> None:
        self.question = question
        self.engine = engine
        self.servers = servers
        self.pool = pool
        self.traces: dict[bytes, Future[TraceReply]] = {}
        self.known = KnownProbes()

    def results(self, plans: Sequence[CellPlan]) -> Iterator[Predicted]:
        """Every cell once; those had from the same traces come together."""
        waiting = {plan: self._started(plan) for plan in plans}
        while waiting:
            pending: set[Any] = {future for needed in waiting.values() for future in needed if not future.done()}
            if pending:
                wait(pending, return_when=FIRST_COMPLETED)
            ready = [plan for plan, needed in waiting.items() if all(future.done() for future in needed)]
            for plan in ready:
                yield self._finished(plan, waiting.pop(plan))

    def _started(self, plan: CellPlan) -> list[Trace]:
        if not can_join(plan, self.engine):
            return [self.pool.submit(self._whole, plan)]
        return [self._part(plan, "all but the update"), self._part(plan, "the update alone")]

    def _part(self, plan: CellPlan, part: str) -> Future[TraceReply]:
        """The trace of a column or of a row, begun once."""
        job = _job_of_part(self.question.job, plan, part)
        key = msgspec.json.encode(job)
        if key not in self.traces:
            self.traces[key] = self.pool.submit(self._trace, job)
        return self.traces[key]

    def _trace(self, job: JobDescription) -> TraceReply:
        return self._served(partial(self._traced, job=job))

    def _traced(self, question: Question, job: JobDescription) -> TraceReply:
        reply = FakeEngine().trace(question.about(job))
        if reply.found_probes is not None:
            self.known = self.known.joined(reply.found_probes)
        return reply

    def _whole(self, plan: CellPlan) -> Prediction:
        return self._served(partial(self._predicted, plan=plan))

    def _predicted(self, question: Question, plan: CellPlan) -> Prediction:
        asked = _question_for(question, plan)
        if not isinstance(self.engine, FakeEngine):
            return predict_once(self.engine, asked)
        return predict_reply(self.engine, asked, self._traced(asked, asked.job))

    def _served(self, run: Callable[[Question], T]) -> T:
        """Run with one of the fork servers."""
        server = self.servers.get()
        try:
            return run(self._question_for_server(server))
        finally:
            self.servers.put(server)

    def _question_for_server(self, server: ForkServer) -> Question:
        return replace(self.question, fork_server=server, with_smallest=False, tell=None, known_probes=self.known)

    def _finished(self, plan: CellPlan, needed: Sequence[Trace]) -> Predicted:
        try:
            found = needed[0].result()
            if isinstance(found, TraceReply):
                found = self._joined(plan, found, needed[1])
            check_route(plan, found.route)
            return Predicted(plan, found, None)
        except MemfitError as error:
            return Predicted(plan, None, error)

    def _joined(self, plan: CellPlan, steps: TraceReply, updating: Trace) -> Prediction:
        """Out of both parts; where the update cannot be traced alone or joined, the whole is traced."""
        try:
            updates = updating.result()
            assert isinstance(updates, TraceReply)
            reply = join_replies(steps, updates)
        except (CannotJoin, MemfitError):
            return self._whole(plan)
        question = replace(_question_for(self.question, plan), with_smallest=False)
        return predict_reply(FakeEngine(), question, reply)


def _question_for(question: Question, plan: CellPlan) -> Question:
    """The question about one cell."""
    options = question.options
    if plan.recipe.has("pinned-malloc"):
        options = msgspec.structs.replace(options, malloc="pinned")
    return replace(question, job=job_for(question.job, plan), options=options)


def _job_of_part(job: JobDescription, plan: CellPlan, part: str) -> JobDescription:
    """The job that traces a column (any optimizer) or a row (whatever technique leaves parameters as they are)."""
    whole = job_for(job, plan)
    recipe = plan.recipe
    if part == "all but the update":
        techniques = tuple(choice for choice in recipe.techniques if choice.name not in OUTSIDE)
        return msgspec.structs.replace(whole, recipe=Recipe(techniques=techniques, part="all but the update"))
    techniques = tuple(choice for choice in recipe.techniques if choice.name in OF_PARAMETERS)
    alone = Recipe(optimizer=recipe.optimizer, techniques=techniques, part="the update alone")
    return msgspec.structs.replace(job, recipe=alone)


def join_replies(steps: TraceReply, updates: TraceReply) -> TraceReply:
    """The trace of whole steps."""
    if updates.scratches:
        raise CannotJoin("the update calls cuDNN")
    joined = join_updates(steps.timeline, updates.timeline, MARK_BYTES, CUBLAS_WORKSPACE)
    scratches = tuple(msgspec.structs.replace(s, event=joined.moved(s.event)) for s in steps.scratches)
    said = Assumption(kind="trace", text=JOINED)
    return msgspec.structs.replace(
        steps,
        timeline=joined.timeline,
        optimizer=updates.optimizer,
        assumptions=(*dict.fromkeys((*steps.assumptions, *updates.assumptions)), said),
        num_operators=steps.num_operators + updates.num_operators,
        trace_seconds=steps.trace_seconds + updates.trace_seconds,
        probe_seconds=steps.probe_seconds + updates.probe_seconds,
        baseline_bytes=_larger(steps.baseline_bytes, updates.baseline_bytes),
        host_peak_bytes=max(steps.host_peak_bytes, updates.host_peak_bytes),
        num_probed=steps.num_probed + updates.num_probed,
        num_unprobed=steps.num_unprobed + updates.num_unprobed,
        probe_signal=steps.probe_signal or updates.probe_signal,
        probe_end=steps.probe_end or updates.probe_end,
        half_flops=steps.half_flops + updates.half_flops,
        single_flops=steps.single_flops + updates.single_flops,
        moved_bytes=steps.moved_bytes + updates.moved_bytes,
        num_calls=steps.num_calls + updates.num_calls,
        scratches=scratches,
    )  # fmt: skip


def _larger(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)
