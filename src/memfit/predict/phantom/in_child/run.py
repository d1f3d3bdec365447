"""Runs a job on the phantom GPU and returns its record; imported in the child only, after the library."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch

from memfit.errors import MemfitError, MissingExtra
from memfit.job.load import build_job
from memfit.job.training import as_training, plain_step
from memfit.predict.child.messages import UNSEEN, Failure
from memfit.predict.child.progress import reporting
from memfit.predict.child.run_script import hint_for, own_part, script_failure
from memfit.predict.gpu_rules.cublas import workspace_stays
from memfit.predict.observe import own_threads
from memfit.predict.observe.batches_by_length import BatchChooser
from memfit.predict.observe.garbage_collection import GarbageCollection
from memfit.predict.observe.later.rounds_by_value import ROUNDS, rounds_by_value
from memfit.predict.observe.source_files import kind_of_file
from memfit.predict.phantom.in_child.compiling import compiling
from memfit.predict.phantom.in_child.dynamo_later import load_dynamo_later
from memfit.predict.phantom.in_child.process_group import one_of_ranks
from memfit.predict.phantom.in_child.script import run_script
from memfit.predict.phantom.in_child.storage_watch import RunWatch, can_note_places
from memfit.predict.phantom.in_child.values import Values, modes_ignored_by_fast_paths
from memfit.predict.phantom.in_child.weights import SkippedWeights
from memfit.predict.phantom.library.installed import HOW_TO_GET_FAKE
from memfit.predict.phantom.library.load import PREFER_CUDNN_ATTENTION, PhantomLibrary
from memfit.predict.phantom.messages import Answer, PhantomReply, PhantomRequest
from memfit.predict.phantom.snapshot_timeline import StorageClaim, timeline_of_record
from memfit.predict.phantom.value_reads import ReadLog
from memfit.predict.ranks.torch_rank_listener import NeedsRank, RankFacts
from memfit.predict.ranks.torch_this_rank import as_this_rank
from memfit.records.prediction import Assumption, FailedAllocation
from memfit.records.timeline import Timeline

REFUSED_HINT = (
    f"leave that part out of the step (docs/phantom.md lists what is refused), or --engine fake; {HOW_TO_GET_FAKE}"
)


FLASH_FOR_CUDNN = (
    "on this GPU torch prefers cuDNN's attention in half precision, whose plans are made on the card itself: flash "
    "attention stands in for it, which keeps tensors of the same sizes; cuDNN's workspace is not counted"
)
ENDS_SEARCH = (
    "L-BFGS ends its iterations at the first gradient that is zero, as unknown values are here: the history it would "
    "keep is not in the figures; --engine fake makes all iterations"
)
OF_A_LIBRARY = ("cuda", "cudnn", "cublas", "cusolver", "cusparse", "cufft", "refuses", "not supported", "no valid")
"""Words of an error that came from a refused call, and not from the job itself."""


class PhantomRun:
    """One job on one phantom."""

    def __init__(self, request: PhantomRequest, library: PhantomLibrary) -> None:
        self.request, self.library, self.watch = request, library, RunWatch()
        self.weights = SkippedWeights()
        self.reads = ReadLog(dict(request.answers))
        self.values = Values(self.reads, self.watch.where)
        self.values.on_guess = self._note_rounds
        self.facts = RankFacts(request.mail)
        self.notes: Counter[tuple[str, str, str]] = Counter()
        self.out_of_memory: FailedAllocation | None = None
        self.seconds = 0.0
        self.chooser: BatchChooser | None = None
        self.garbage = GarbageCollection(_allocated_bytes)
        self._kept: Any = None
        self.num_made = 0
        """Steps of a script that came to its end."""

    def answer(self) -> Answer:
        """Run the job; a reply, also when memory ran out, or a failure."""
        torch.cuda.memory._record_memory_history(context="alloc", stacks="python")
        observe: Any = torch._C._cuda_attach_out_of_memory_observer  # pyright: ignore[reportAttributeAccessIssue]
        observe(self._remember_failure)
        load_dynamo_later()
        gc.collect()
        gc.freeze()  # the collector's rhythm, and so the moment a cycle dies, does not depend on what was imported how
        started = time.perf_counter()
        text = ""
        try:
            with self.weights.skipping(), self._watching(), warnings.catch_warnings(), self._following_values():
                warnings.simplefilter("ignore")
                self._run()
        except torch.OutOfMemoryError as error:
            text = "".join(traceback.format_exception(error))
            if self.out_of_memory is None:
                return failure_of(error, self)
            self.out_of_memory = _with_message(self.out_of_memory, str(error))
        except Exception as error:
            return failure_of(error, self)
        self.seconds = time.perf_counter() - started
        try:
            return self._reply(text)
        except MemfitError as error:
            return failure_of(error, self)

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        if not self.request.watch:
            yield
            return
        with self.watch.watching():
            yield

    @contextlib.contextmanager
    def _following_values(self) -> Iterator[None]:
        if not self.request.follow_values:
            yield
            return
        self.library.ask_at_reads(self.values.answer)
        with self.values, own_threads.followed(lambda: self.values), modes_ignored_by_fast_paths():
            yield

    def _run(self) -> None:
        self.library.use_kernels_for(torch.cuda.get_arch_list())
        ranks = one_of_ranks(self.request.options.this_rank, self.values, self.note, self.facts)
        # a job that records by itself, or ends that, leaves the record of the prediction as it is
        kept = patch.object(torch.cuda.memory, "_record_memory_history", lambda *args, **kwargs: None)
        with reporting(self.request.report_folder, self._doing), ranks, compiling(self.values, self.note), kept:
            self._run_alone()

    def _run_alone(self) -> None:
        job = self.request.job
        if job.kind == "script":
            with self.garbage.watched():
                self._run_script()
            return
        training = as_this_rank(self.request.options, as_training(build_job(job, "cuda"), job.target), job.target)
        step = plain_step(training)
        self._kept = training, step  # else its release would be the record's last events
        for index in range(self.request.num_steps):
            self.watch.begin_step(index + 1)
            step()
        torch.cuda.synchronize()

    def _run_script(self) -> None:
        if self.request.options.choose_batches:
            self.chooser = BatchChooser(lambda: self.watch.step, self.watch.line)
        self.num_made = run_script(
            self.request.job.path,
            self.request.job.arguments,
            self.request.scratch_folder,
            self.request.num_steps,
            self.watch,
            self.values,
            self.note,
            self.chooser,
            self.request.options.this_rank.count,
        )

    def _doing(self) -> str:
        """Where the job is, for somebody who waits."""
        made = max(self.watch.num_updates.values(), default=0)
        return f"{self.watch.main_line() or 'its start'}, {made} steps so far"

    def note(self, kind: str, text: str) -> None:
        """Remember something that was assumed, with the line where."""
        self.notes[kind, text, self.watch.line()] += 1

    def _note_rounds(self) -> None:
        """List a loop whose number of rounds may follow from what was guessed."""
        loop = rounds_by_value(sys._getframe(1))
        if loop is not None:
            self.notes[UNSEEN, ROUNDS.format(line=loop), loop] += 1

    # ---- what is said afterwards -------------------------------------------------------------------------------

    def _remember_failure(self, device: int, requested_bytes: int, total_bytes: int, free_bytes: int) -> None:
        """Called by the allocator before it raises."""
        place = self.watch.places[-1] if self.watch.places else None
        self.out_of_memory = FailedAllocation(
            requested_bytes=requested_bytes,
            limit_bytes=self.request.total_bytes,
            allocated_bytes=torch.cuda.memory_allocated(),
            reserved_bytes=torch.cuda.memory_reserved(),
            step=place.step if place else 0,
            phase=place.phase if place else "setup",
            module=place.module if place else "",
            operator="",
            line=(place.line if place else "") or self.watch.line(),
            message="",
        )

    def _reply(self, text: str) -> PhantomReply:
        torch.cuda.init()  # a job that never asked for the GPU leaves its figures at zero, not absent
        statistics = torch.cuda.memory_stats()
        made = self.num_made or max(self.watch.num_updates.values(), default=0)
        num_steps = made or (0 if text else self.request.num_steps)
        started = time.perf_counter()
        timeline = self._timeline()
        return PhantomReply(
            timeline=timeline,
            torch_version=str(torch.__version__),
            cuda_version=str(torch.version.cuda),
            num_steps=num_steps,
            requested_bytes=statistics["requested_bytes.all.peak"],
            allocated_bytes=statistics["allocated_bytes.all.peak"],
            reserved_bytes=statistics["reserved_bytes.all.peak"],
            num_retries=statistics["num_alloc_retries"],
            num_launches=self.library.num_launches,
            num_plans=self.library.num_plans,
            run_seconds=self.seconds,
            explain_seconds=time.perf_counter() - started,
            step_seconds=tuple(self.watch.step_seconds),
            step_processor_seconds=tuple(self.watch.step_processor_seconds),
            host_peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            assumptions=tuple(self._assumptions()),
            survey=self.chooser.found() if self.chooser else None,
            failed=self.out_of_memory if text else None,
            evidence=self.facts.evidence(),
            traceback=text,
        )

    def _timeline(self) -> Timeline:
        if self.request.snapshot_path:
            torch.cuda.memory._dump_snapshot(self.request.snapshot_path)
        snapshot: Any = torch.cuda.memory._snapshot()
        events = snapshot["device_traces"][0]
        end = len(self.watch.places)
        given = self.library.workspaces()
        stays = workspace_stays(str(torch.__version__), os.environ)
        claims = self.watch.claims + [StorageClaim(end, address, "workspace") for address in given if stays]
        return timeline_of_record(
            events, self.watch.places, claims, self.watch.line_of_frames, frozenset() if stays else frozenset(given)
        )

    def _assumptions(self) -> Iterator[Assumption]:
        for (kind, text, line), count in self.notes.items():
            yield Assumption(kind=kind, text=text, line=line, count=count)
        yield from self.reads.assumptions()
        if self.values.turns.are_taken:
            yield Assumption(kind=UNSEEN, text=own_threads.OVERLAP)
        if self.garbage.text:
            yield Assumption(kind=UNSEEN, text=self.garbage.text)
        if self.values.has_attention and self.request.gpu.capability in PREFER_CUDNN_ATTENTION:
            yield Assumption(kind=UNSEEN, text=FLASH_FOR_CUDNN)
        if self.watch.has_searched:
            yield Assumption(kind=UNSEEN, text=ENDS_SEARCH)
        for name in self.library.assumed():
            yield Assumption(kind=UNSEEN if name.startswith("cuFFT") else "assumed", text=name)
        if not can_note_places:
            text = "this torch keeps no note with an allocation: phases and modules are unknown, all is set-up"
            yield Assumption(kind="phases", text=text)
        for name in self.library.refused():
            yield Assumption(kind="refused", text=f"{name} was refused and the job went on without it")
        if self.weights.count:
            text = (
                f"{self.weights.count} large tensors on the host were left without random values: no kernel reads them"
            )
            yield Assumption(kind="values", text=text)


def _allocated_bytes() -> int:
    """Bytes of living tensors, read as cheaply as it can be: the collector comes often."""
    if not torch.cuda.is_initialized():
        return 0
    return torch._C._cuda_memoryStats(torch.cuda.current_device())["allocated_bytes"]["all"]["current"]


def _with_message(failed: FailedAllocation, message: str) -> FailedAllocation:
    import msgspec

    return msgspec.structs.replace(failed, message=message)


# ---- what a failure means --------------------------------------------------------------------------------------


def failure_of(error: Exception, run: PhantomRun) -> Failure:
    """Say what a run that did not come to its end means to the user."""
    if isinstance(error, NeedsRank):
        return Failure(kind="rank", what=str(error), needs_rank=error.rank, mail=error.mail)
    if isinstance(error, MemfitError):
        kind = "missing" if isinstance(error, MissingExtra) else "usage"
        return Failure(kind=kind, what=error.what, found=error.found, hint=error.hint)
    return script_failure(error) or _failed_by_itself(error, run)


def _failed_by_itself(error: Exception, run: PhantomRun) -> Failure:
    text = "".join(traceback.format_exception(type(error), error, own_part(error)))
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    where = _user_line(error)
    refused = run.library.refused()
    if refused and any(word in str(error).lower() for word in OF_A_LIBRARY):
        return Failure(
            kind="operator", what=f"{where} needs {refused[-1]}, which the phantom GPU refuses",
            found=f"{type(error).__name__}: {first[:200]}", hint=REFUSED_HINT, traceback=text,
        )  # fmt: skip
    made = max(run.watch.num_updates.values(), default=0)
    return Failure(
        kind="script", what=f"the job failed at {where} after {made} optimizer steps",
        found=f"{type(error).__name__}: {first}", traceback=text,
        hint=hint_for(error) or _hint(f"{type(error).__module__} {error}"),
    )  # fmt: skip


def _hint(text: str) -> str:
    if "invalid device ordinal" in text or "enough GPUs" in text:
        return "the phantom machine has one GPU: predict what one rank does, with --ranks for the size of the group"
    if any(word in text for word in ("torch._dynamo", "torch._inductor", "BackendCompilerFailed", "TORCHDYNAMO")):
        return "with TORCHDYNAMO_DISABLE=1 set, it is predicted as it runs without torch.compile"
    return "the traceback above is the job's own; values on the phantom GPU are zero unless they are small integers"


def _user_line(error: BaseException) -> str:
    found = "an unknown line"
    for frame in traceback.extract_tb(error.__traceback__):
        if kind_of_file(frame.filename) == 0:
            found = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return found


def flush() -> None:
    """Everything printed so far goes out."""
    sys.stdout.flush()
    sys.stderr.flush()
