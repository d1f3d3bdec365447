"""Client of the probe process: asks what CPU operators allocate besides their results, and keeps the answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil

from memfit.predict.child.bytecode import VARIABLE
from memfit.predict.child.die_with_parent import ending_with_this_process
from memfit.predict.child.imported_modules import Imports
from memfit.predict.child.messages import TraceRequest
from memfit.predict.child.parent import name_of_end, signal_of_end
from memfit.predict.child.probe_cache import BareProcess, KnownCall, KnownProbes, unknown_calls
from memfit.predict.fake.probe.replies import AllHere, Answered, Began, Skipped, Taken, Trying
from memfit.predict.levels.liveness import peak_of
from memfit.predict.observe.storage_log import ProbeResult, TraceLog, timeline_of
from memfit.records.prediction import Assumption

BEGIN = "!"
NO_SPINNING = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that wait for each other sleep: on a busy machine single calls were ten times as slow with two threads."""
BEGIN_WHEN_ASKED = "import os, sys; os.read(0, 1) and os.execv(sys.argv[1], sys.argv[1:])"
"""A process that becomes its arguments once there is something to read; one that is closed unasked ends."""


@dataclass(slots=True)
class Probed:
    """The answers of the probe process."""

    results: dict[int, ProbeResult] = field(default_factory=dict)
    skipped: dict[int, str] = field(default_factory=dict)
    here: dict[int, ProbeResult] | None = None
    """The calls that took something else with the threads of this machine; None where that was not asked for, or not
    answered for every call."""
    baseline_bytes: int | None = None
    not_imported: tuple[str, ...] = ()
    """Packages that the job imported and a bare process could not: their memory is missing in the base line."""
    flops_per_second: float | None = None
    bytes_per_second: float | None = None
    seconds: float = 0.0
    signal: str = ""
    """The signal that ended the probe process, 'SIGILL'; empty where none did."""
    end: str = ""
    """How the probe process ended before it had answered everything, for a person; empty when it answered."""

    def assumptions(self, texts: dict[int, str]) -> list[Assumption]:
        """What was probed, and what was not and why."""
        found = []
        if self.results:
            text = f"{len(self.results)} distinct operator calls were run once for real, to see their scratch memory"
            found.append(Assumption(kind="probe", text=text))
        if self.not_imported:
            names = ", ".join(self.not_imported[:3]) + (" and others" if len(self.not_imported) > 3 else "")
            text = f"{names} could not be imported again: the process may take more than is said by what they take"
            found.append(Assumption(kind="probe", text=text))
        for number, reason in self.skipped.items():
            name = _operator(texts[number])
            found.append(Assumption(kind="probe", text=f"{name} was not probed ({reason}): its scratch counts as zero"))
        return found


def probe_for(request: TraceRequest) -> ProbeProcess | None:
    """A probe process for a job on the CPU, that writes only to the request's folder; None where none is wanted.

    Where other predictions have made probes already, it begins only when it is asked: most often it is not.
    """
    if request.device != "cpu" or not request.options.probes:
        return None
    folders = {VARIABLE: request.writable_folder, "TMPDIR": request.scratch_folder}
    environment = {**request.environment, **{name: folder for name, folder in folders.items() if folder}}
    return ProbeProcess(environment, waits=request.known_probes is not None)


def ask_for_unknown(
    probe: ProbeProcess, known: KnownProbes, texts: dict[int, str], *, num_threads: int, most_seconds: float,
    imports: Imports, optimizer: str,
) -> tuple[Probed, KnownProbes]:  # fmt: skip
    """Ask only for what is not known yet; also returns what was found now."""
    known, modules = known.of(num_threads), " ".join(imports.modules)
    left, bare = unknown_calls(texts, known), known.bare.get(modules)
    probed = Probed()
    if left or bare is None:
        probed = probe.ask(
            left, num_threads=num_threads, most_seconds=most_seconds, imports=imports, optimizer=optimizer
        )
    found = _found(probed, left, num_threads, modules)
    if bare is not None:
        probed.baseline_bytes, probed.not_imported = bare.baseline_bytes, bare.not_imported
        probed.flops_per_second, probed.bytes_per_second = bare.flops_per_second, bare.bytes_per_second
    for number, text in texts.items():
        if number not in left:
            call = known.calls[text]
            if call.skipped:
                probed.skipped[number] = call.skipped
            else:
                probed.results[number] = _result_of_known(call)
    return probed, found


def _known_call(result: ProbeResult | None, skipped: str) -> KnownCall:
    """A call that was just probed."""
    if result is None:
        return KnownCall(skipped=skipped)
    return KnownCall(
        inside_bytes=result.inside_bytes,
        output_bytes=result.output_bytes,
        touched_bytes=result.touched_bytes,
        filled_bytes=result.filled_bytes,
    )


def _result_of_known(call: KnownCall) -> ProbeResult:
    return ProbeResult(
        inside_bytes=call.inside_bytes,
        output_bytes=call.output_bytes,
        touched_bytes=call.touched_bytes,
        filled_bytes=call.filled_bytes,
    )


def _found(probed: Probed, texts: dict[int, str], num_threads: int, modules: str) -> KnownProbes:
    """What a probe process has answered, and what it had no time for, so that no other one waits for it again."""
    calls = {
        text: _known_call(probed.results.get(number), probed.skipped.get(number, ""))
        for number, text in texts.items()
        if number in probed.results or not probed.end
    }
    bare = {}
    if probed.baseline_bytes is not None:
        bare[modules] = BareProcess(
            baseline_bytes=probed.baseline_bytes, not_imported=probed.not_imported,
            flops_per_second=probed.flops_per_second, bytes_per_second=probed.bytes_per_second,
        )  # fmt: skip
    return KnownProbes(num_threads=num_threads, calls=calls, bare=bare)


class ProbeProcess:
    """A probe process that is started early, so that it imports torch while the job is being traced."""

    def __init__(self, environment: Mapping[str, str] | None = None, *, waits: bool = False) -> None:
        """`environment` is what it gets beside ours; one that waits imports nothing before it is asked."""
        self._timed_out = False
        self._waits = waits
        command = [sys.executable, "-m", "memfit.predict.fake.probe.probe_main"]
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", BEGIN_WHEN_ASKED, *command] if waits else command,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            preexec_fn=ending_with_this_process(), env={**NO_SPINNING, **os.environ, **(environment or {})},
        )  # fmt: skip

    def ask(
        self, texts: dict[int, str], *, num_threads: int, most_seconds: float, imports: Imports, optimizer: str,
        num_threads_here: int | None = None,
    ) -> Probed:  # fmt: skip
        """Ask for scratch memory and for a bare process; what is not answered counts as skipped, with the reason.

        With `num_threads_here` every call is then run once more with so many threads.
        """
        started = time.perf_counter()
        request = {
            "signatures": list(texts.items()),
            "num_threads": num_threads,
            "num_threads_here": num_threads_here,
            "most_seconds": most_seconds,
            "imports": imports.modules,
            "folders": imports.folders,
            "environment": imports.environment,
            "optimizer": optimizer,
            "available_bytes": psutil.virtual_memory().available,
        }
        probed = Probed()
        trying: int | None = None
        for reply in self._answers(json.dumps(request), most_seconds + 60):
            trying = reply.get("trying")
            if "trying" not in reply:
                _take(probed, reply)
        self._note_end(probed, "" if trying is None else _operator(texts[trying]))
        for number in texts:
            if number not in probed.results and number not in probed.skipped:
                probed.skipped[number] = probed.end or "the probe process had no time left"
        probed.seconds = time.perf_counter() - started
        return probed

    def _note_end(self, probed: Probed, operator: str) -> None:
        """Write down how the process ended, where that was not by itself."""
        code = self._process.returncode
        if code == 0 or self._timed_out:
            return
        where = f" in {operator}" if operator else " before its first call"
        probed.signal = signal_of_end(code)
        probed.end = f"the probe process ended by {name_of_end(code)}{where}"

    def _answers(self, request: str, most_seconds: float) -> list[Began | Trying | Skipped | Answered | AllHere]:
        try:
            asked = BEGIN + request if self._waits else request
            output, _ = self._process.communicate(asked, timeout=most_seconds)
        except subprocess.TimeoutExpired:
            self._timed_out = True
            self._process.kill()
            output, _ = self._process.communicate()
        return [json.loads(line) for line in output.splitlines() if line.startswith("{") and line.endswith("}")]

    def close(self) -> None:
        """End it without asking."""
        self._process.kill()
        self._process.communicate()


def _operator(text: str) -> str:
    """The operator of a call's text."""
    return json.loads(text)[0]


def result_of(reply: Taken) -> ProbeResult:
    """What the probe process said of one call."""
    return ProbeResult(
        inside_bytes=reply["inside_bytes"],
        output_bytes=tuple(reply["output_bytes"]),
        touched_bytes=tuple(reply["touched_bytes"]),
        filled_bytes=reply["filled_bytes"],
    )


def untouched_bytes(log: TraceLog, root_names: list[str], results: dict[int, ProbeResult], peak_bytes: int) -> int:
    """How far the peak of memory that was written to stays below the peak of memory that was asked for."""
    if all(result.is_touched for result in results.values()):
        return 0
    touched = {number: result.as_touched() for number, result in results.items()}
    return max(0, peak_bytes - peak_of(timeline_of(log, root_names, touched), "cpu")[0])


def _take(probed: Probed, reply: Began | Skipped | Answered | AllHere) -> None:
    if "all_here" in reply:
        probed.here = {taken["signature"]: result_of(taken) for taken in reply["all_here"]}
    elif "baseline_bytes" in reply:
        probed.baseline_bytes = reply["baseline_bytes"]
        probed.not_imported = tuple(reply["not_imported"])
        probed.flops_per_second, probed.bytes_per_second = reply["flops_per_second"], reply["bytes_per_second"]
    elif "skipped" in reply:
        probed.skipped[reply["signature"]] = reply["skipped"]
    else:
        probed.results[reply["signature"]] = result_of(reply)
