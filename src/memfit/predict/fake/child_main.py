"""Child process of a prediction: reads a request, traces the job on fake tensors, writes a reply.

One request is answered for trace_main. `python -m memfit.predict.fake.child_main` waits for lines 'REQUEST REPLY
OUTPUT' (JSON) on standard input and answers each in a forked copy of itself, so that a sweep imports torch once.
Patches of torch, the user's imports and crashes stay in the process that answers.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from memfit.errors import MemfitError, MissingExtra
from memfit.job.load import build_job
from memfit.job.training import as_training
from memfit.job.workloads.registry import import_workload
from memfit.predict.child.bytecode import spool_bytecode
from memfit.predict.child.die_with_parent import ending_with_this_process
from memfit.predict.child.imported_modules import Imports, Surroundings, loading_early
from memfit.predict.child.messages import Failure, Reply, TraceReply, TraceRequest
from memfit.predict.child.probe_cache import KnownProbes
from memfit.predict.child.progress import reporting
from memfit.predict.child.run_script import hint_for, own_part, script_failure
from memfit.predict.fake.choose_route import CannotPatch, device_for_job, on_device
from memfit.predict.fake.patches.process_group import pretending_ranks
from memfit.predict.fake.probe.client import Probed, ProbeProcess, ask_for_unknown, probe_for, untouched_bytes
from memfit.predict.fake.probe.signatures import Signatures
from memfit.predict.fake.probe.threads import Threads, ThreadWatch
from memfit.predict.fake.recording import Recording, Trace, trace_training
from memfit.predict.fake.script import trace_script
from memfit.predict.fake.values.values import ANSWERED_BY_SIZE
from memfit.predict.levels.liveness import peak_of
from memfit.predict.observe.storage_log import scratches_of, timeline_of
from memfit.predict.ranks.expert_routing import read_routing
from memfit.predict.ranks.torch_rank_listener import NeedsRank
from memfit.predict.ranks.torch_this_rank import as_this_rank
from memfit.predict.real_operators import operator_name
from memfit.predict.sandbox.processes import guarded
from memfit.predict.sandbox.read_only import forbid_writing_outside, only_python_guarded
from memfit.records.prediction import Assumption

NO_FAKE_RULE = re.compile(r"no fake impl registered for <CustomOpDef\((?P<name>[\w:.]+)\)>")
"""What an operator made with `torch.library.custom_op` says (torch 2.13)."""


def main() -> None:
    """Answer one request after the other."""
    importlib.import_module("torch._dynamo")  # a fake mode would load it in every copy
    for line in sys.stdin:
        request_path, reply_path, output_path = json.loads(line)
        request = msgspec.json.decode(Path(request_path).read_bytes(), type=TraceRequest)
        if request.job.kind == "workload":  # ours: it may be loaded here, once for all copies
            with loading_early():
                import_workload(request.job.target)
        end_with_us, pid = ending_with_this_process(), os.fork()
        if pid == 0:
            end_with_us()
            _redirect_output(output_path)
            answer_to_file(request, reply_path, probe_for(request))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _redirect_output(path: str) -> None:
    """What the job prints goes to a file, or nowhere near the line of replies."""
    for descriptor in (1, 2):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def answer_to_file(request: TraceRequest, reply_path: str, probe: ProbeProcess | None) -> None:
    """Answer one request and end this process."""
    unguarded = keep_from_writing(request)
    reply = with_guard_noted(answer(request, probe), unguarded)
    draft = Path(reply_path + ".part")
    draft.write_bytes(msgspec.msgpack.encode(reply))
    os.replace(draft, reply_path)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # whatever the user's code left running (threads, servers) ends with us


def keep_from_writing(request: TraceRequest) -> str:
    """From now on this process writes only to the request's folder; returns why that is not so, or nothing."""
    os.environ["TMPDIR"] = tempfile.tempdir = request.scratch_folder or tempfile.gettempdir()
    spool_bytecode(request.writable_folder)
    return forbid_writing_outside([request.writable_folder]) if request.writable_folder else ""


def with_guard_noted(reply: Reply, unguarded: str) -> Reply:
    """A reply that says so when compiled code could have written."""
    if not unguarded or not isinstance(reply, TraceReply):
        return reply
    noted = Assumption(kind="files", text=only_python_guarded(unguarded))
    return msgspec.structs.replace(reply, assumptions=(*reply.assumptions, noted))


def answer(request: TraceRequest, probe: ProbeProcess | None = None) -> Reply:
    """Trace the job of a request, or say why not; `probe` is a process that was started for it."""
    return answer_with(request, partial(_trace, request), probe)


def answer_with(
    request: TraceRequest, trace_it: Callable[[Recording], Trace], probe: ProbeProcess | None = None
) -> Reply:
    """Trace something for the request's device; a probe process starts up meanwhile."""
    probe = probe or probe_for(request)
    try:
        return _answer(request, probe, trace_it)
    finally:
        if probe is not None:
            probe.close()


def _answer(request: TraceRequest, probe: ProbeProcess | None, trace_it: Callable[[Recording], Trace]) -> Reply:
    signatures = Signatures()
    sign = signatures.sign if request.options.probes and request.device == "cpu" else None
    recording = Recording(
        sign,
        truth=request.options.unknown_is,
        answers=request.answers,
        allow_real=request.options.allow_real,
        gemm_workspace_bytes=request.gemm_workspace_bytes,
        mail=request.mail,
        routing=read_routing(request.options.routing, request.options.this_rank),
    )
    before, watch = Surroundings.now(), ThreadWatch()
    try:
        doing = partial(_doing, recording)
        with reporting(request.writable_folder, doing), watch.watched(), on_device(request, recording) as route:
            trace = trace_it(recording)
        trace.route = route
    except MemfitError as error:
        kind = "missing" if isinstance(error, MissingExtra) else "usage"
        return Failure(kind=kind, what=error.what, found=error.found, hint=error.hint)
    except NeedsRank as error:
        return Failure(kind="rank", what=str(error), needs_rank=error.rank, mail=error.mail)
    except CannotPatch as error:
        return Failure(kind="route", what="fake CUDA tensors do not work with this build of torch", found=str(error))
    except Exception as error:
        return script_failure(error) or failure_of(error, recording)
    threads = watch.threads(request.options.threads, request.num_threads, looks_here=request.looks_here)
    imports = before.imports_since(_folder_of(request))
    probed, found = _probe(request, probe, signatures, trace, imports, threads)
    reply = _reply(trace, signatures, probed, None if probe is None else threads)
    return msgspec.structs.replace(reply, found_probes=found, evidence=recording.facts.evidence())


def _doing(recording: Recording) -> str:
    """Where the job is, for somebody who waits."""
    made = max(recording.num_updates.values(), default=0)
    operators = recording.tracker.num_operators
    return f"{recording.places.line() or 'its start'}, {made} steps and {operators} operators so far"


def _trace(request: TraceRequest, recording: Recording) -> Trace:
    job = request.job
    if job.kind == "script":
        return trace_script(request, recording)

    def build() -> object:
        training = as_training(build_job(job, device_for_job(request)), job.target)
        return as_this_rank(request.options, training, job.target)

    note = recording.shadow.note
    with guarded(request.scratch_folder, note) if request.scratch_folder else contextlib.nullcontext():
        return trace_ranked(request, build, recording)


def trace_ranked(request: TraceRequest, build: Callable[[], object], recording: Recording) -> Trace:
    """Trace a job that is built by a function, as the rank that the request names."""
    ranks = request.options.this_rank
    alone = contextlib.nullcontext()
    with alone if ranks.count == 1 else pretending_ranks(ranks, recording.shadow.note, recording.facts):
        return trace_training(build, num_steps=request.num_steps, recording=recording, origin=request.job.target)


def _probe(
    request: TraceRequest,
    probe: ProbeProcess | None,
    signatures: Signatures,
    trace: Trace,
    imports: Imports,
    threads: Threads,
) -> tuple[Probed, KnownProbes | None]:
    if probe is None:
        return Probed(), None
    texts = {number: text for text, number in signatures.texts.items()}
    optimizer, most_seconds = trace.optimizer or "Adam", request.most_probe_seconds
    if request.known_probes is not None:
        return ask_for_unknown(
            probe, request.known_probes, texts, num_threads=threads.count, most_seconds=most_seconds, imports=imports,
            optimizer=optimizer,
        )  # fmt: skip
    asked = probe.ask(
        texts, num_threads=threads.count, num_threads_here=threads.here, most_seconds=most_seconds, imports=imports,
        optimizer=optimizer,
    )  # fmt: skip
    return asked, None


def _reply(trace: Trace, signatures: Signatures, probed: Probed, threads: Threads | None) -> TraceReply:
    texts = {number: text for text, number in signatures.texts.items()}
    timeline = timeline_of(trace.log, trace.root_names, probed.results)
    peak_bytes, _ = peak_of(timeline, "cpu")
    here_bytes = None
    if threads is not None:
        here_bytes = _peak_here(trace, probed, peak_bytes)
        trace.assumptions.append(threads.assumption(peak_bytes, here_bytes))
    return TraceReply(
        timeline=timeline,
        route=trace.route,
        torch_version=str(torch.__version__),
        num_steps=trace.num_steps,
        num_operators=trace.num_operators,
        trace_seconds=trace.seconds,
        probe_seconds=probed.seconds,
        host_peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        assumptions=tuple(trace.assumptions + probed.assumptions(texts)),
        optimizer=trace.optimizer,
        baseline_bytes=probed.baseline_bytes,
        data_bytes=trace.data_bytes,
        untouched_bytes=untouched_bytes(trace.log, trace.root_names, probed.results, peak_bytes),
        num_threads=None if threads is None else threads.count,
        here_bytes=here_bytes,
        num_probed=len(probed.results),
        num_unprobed=len(probed.skipped),
        probe_signal=probed.signal,
        probe_end=probed.end,
        half_flops=trace.half_flops,
        single_flops=trace.single_flops,
        moved_bytes=trace.moved_bytes,
        num_calls=trace.num_calls,
        flops_per_second=probed.flops_per_second,
        bytes_per_second=probed.bytes_per_second,
        scratches=scratches_of(trace.log),
        survey=trace.survey,
    )


def _peak_here(trace: Trace, probed: Probed, peak_bytes: int) -> int | None:
    """The peak with the threads that torch takes on this machine; None where that was not looked at."""
    if probed.here is None:
        return None
    if not probed.here:
        return peak_bytes
    return peak_of(timeline_of(trace.log, trace.root_names, {**probed.results, **probed.here}), "cpu")[0]


def _folder_of(request: TraceRequest) -> str:
    """Where the user's own files lie: importing them once more might train."""
    return os.path.dirname(os.path.abspath(request.job.path)) if request.job.path else os.getcwd()


def failure_of(error: BaseException, recording: Recording | None) -> Failure:
    """Say what a failed trace means to the user."""
    text = "".join(traceback.format_exception(type(error), error, own_part(error)))
    where = f" at {last_user_line(error, recording)}" if recording else ""
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        operator = str(getattr(error, "func", first))
        hint = "leave that part out of the step, or give it a fixed size; integers made in the step keep their values"
        if recording and getattr(error, "func", None) in ANSWERED_BY_SIZE:
            hint = f"--answer {last_user_line(error, recording)}=SIZE gives the size of its result, or: {hint}"
        return Failure(kind="data", what=f"{operator}{where} needs values that a prediction does not have", hint=hint)
    announced = NO_FAKE_RULE.search(first)
    if isinstance(error, UnsupportedOperatorException) or "fallback" in first.lower() or announced:
        operator = announced["name"] if announced else str(getattr(error, "func", first))
        hint = f"--allow-real {operator_name(operator)} runs that one operator for real (on zeros)"
        return Failure(kind="operator", what=f"{operator}{where} has no fake kernel", hint=hint)
    if isinstance(error, PermissionError) or "ermission denied" in first:
        what = f"the job wanted to write a file{where}, and a prediction writes none"
        hint = "leave the writing out for the prediction, for example behind an argument of the script"
        return Failure(kind="script", what=what, found=f"{type(error).__name__}: {first}", hint=hint, traceback=text)
    came = f"after {max(recording.num_updates.values(), default=0)} optimizer steps" if recording else ""
    return Failure(
        kind="script",
        what=f"the job failed{where} {came}".rstrip(),
        found=f"{type(error).__name__}: {first}",
        hint=hint_for(error) or _hint_of_guesses(last_user_line(error, recording), recording),
        traceback=text,
    )


def _hint_of_guesses(line: str, recording: Recording | None) -> str:
    """The guesses that may have led to a failure, each with the option that changes it."""
    nearest = recording.shadow.guesses.nearest(line) if recording is not None else []
    if not nearest:
        return "no value was guessed before it; the traceback above is the job's own"
    return "this may follow from a guess. " + ". ".join(guess.with_flag() for guess in nearest)


def last_user_line(error: BaseException, recording: Recording | None) -> str:
    """'file.py:12' of the deepest frame of the traceback that is the user's own."""
    from memfit.predict.observe.source_files import kind_of_file

    found = "an unknown line"
    for frame in traceback.extract_tb(error.__traceback__):
        if kind_of_file(frame.filename) == 0:
            found = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return found


if __name__ == "__main__":
    main()
