"""How are the insides of operators asked of the probe process, and what became of each question?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from memfit.predict.child.bytecode import VARIABLE
from memfit.predict.child.die_with_parent import die_with_the_parent
from memfit.predict.child.imports import Imports
from memfit.predict.child.messages import TraceRequest
from memfit.predict.child.parent import name_of_end, signal_of_end
from memfit.predict.levels.liveness import peak_of
from memfit.predict.observe.log import ProbeResult, TraceLog, timeline_of
from memfit.records.prediction import Assumption


@dataclass(slots=True)
class Probed:
    """The answers of the probe process."""

    results: dict[int, ProbeResult] = field(default_factory=dict)
    skipped: dict[int, str] = field(default_factory=dict)
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
    """A probe process for a job on the CPU, that writes only to the request's folder; None where none is wanted."""
    if request.device != "cpu" or not request.options.probes:
        return None
    folders = {VARIABLE: request.writable_folder, "TMPDIR": request.scratch_folder}
    return ProbeProcess({**request.environment, **{name: folder for name, folder in folders.items() if folder}})


class ProbeProcess:
    """A probe process that is started early, so that it imports torch while the job is being traced."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """`environment` is what it gets beside ours."""
        self._timed_out = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "memfit.predict.fake.probe.probe_main"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            preexec_fn=die_with_the_parent, env={**os.environ, **(environment or {})},
        )  # fmt: skip

    def ask(
        self, texts: dict[int, str], *, num_threads: int, most_seconds: float, imports: Imports, optimizer: str
    ) -> Probed:
        """Ask for the insides of calls and a bare process; what is not answered counts as skipped, with the reason."""
        started = time.perf_counter()
        request = {
            "signatures": list(texts.items()),
            "num_threads": num_threads,
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
            if trying is None:
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

    def _answers(self, request: str, most_seconds: float) -> list[dict[str, Any]]:
        try:
            output, _ = self._process.communicate(request, timeout=most_seconds)
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


def result_of(reply: dict[str, Any]) -> ProbeResult:
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


def _take(probed: Probed, reply: dict[str, Any]) -> None:
    if "baseline_bytes" in reply:
        probed.baseline_bytes = reply["baseline_bytes"]
        probed.not_imported = tuple(reply["not_imported"])
        probed.flops_per_second, probed.bytes_per_second = reply["flops_per_second"], reply["bytes_per_second"]
    elif "skipped" in reply:
        probed.skipped[reply["signature"]] = reply["skipped"]
    else:
        probed.results[reply["signature"]] = result_of(reply)
