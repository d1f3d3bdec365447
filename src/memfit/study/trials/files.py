"""Files and environment of a trial as under NNI, and its reports.

Written before the trial starts: parameter.json and an environment. Read while it runs and after it ended:
metrics.jsonl, line by line, a torn last line being left for the next reading. A report that is no number is kept with
the reason.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from memfit.records.study import Intermediate, Proposal, finite_or_reason
from memfit.regular_file import open_regular

PARAMETER_FILE = "parameter.json"
METRICS_FILE = "metrics.jsonl"
MOST_NEW_BYTES = 256 * 1024**2
"""Read of a metrics file at once; the rest waits for the next reading."""
_CHUNK_BYTES = 1024**2
_HOLE = bytes(4096)
_SHIM = Path(__file__).parents[1] / "nni_shim"

NniRoute = Literal["shim", "installed"]
"""Who answers `import nni` in a trial: memfit, or the installed NNI through its own hook."""


def write_parameters(folder: Path, proposal: Proposal) -> None:
    """Put the parameters where the trial will look for them, whole or not at all."""
    record = {"parameter_id": proposal.number, "parameters": proposal.parameters, "parameter_source": "algorithm"}
    temporary = folder / f".{PARAMETER_FILE}"
    temporary.write_text(json.dumps(record), encoding="utf-8")
    os.replace(temporary, folder / PARAMETER_FILE)


def trial_environment(
    base: Mapping[str, str],
    *,
    folder: Path,
    code_folder: Path,
    study_id: str,
    trial_id: str,
    number: int,
    output_folder: Path | None = None,
    gpu_indices: tuple[int, ...] | None = None,
    route: NniRoute = "shim",
) -> dict[str, str]:
    """The environment of one trial; `gpu_indices` None leaves GPUs as they are, () hides them all."""
    environment = dict(base)
    environment |= {
        "NNI_PLATFORM": "local",
        "NNI_EXP_ID": study_id,
        "NNI_TRIAL_JOB_ID": trial_id,
        "NNI_TRIAL_SEQ_ID": str(number),
        "NNI_SYS_DIR": str(folder.absolute()),
        "NNI_OUTPUT_DIR": str((output_folder or folder).absolute()),
        "NNI_CODE_DIR": str(code_folder.absolute()),
        "MEMFIT_TRIAL_FOLDER": str(folder.absolute()),
    }
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_path_entry(route)), base.get("PYTHONPATH", ""))))
    environment.pop("NNI_TRIAL_COMMAND_CHANNEL", None)
    if route == "installed":
        environment["NNI_TRIAL_COMMAND_CHANNEL"] = "import://memfit_nni_channel.Channel"
    if gpu_indices is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in gpu_indices)
    return environment


def _path_entry(route: NniRoute) -> Path:
    return _SHIM if route == "shim" else _SHIM / "channel"


def shim_folder() -> Path:
    """The folder in which `import nni` finds memfit's stand-in."""
    return _SHIM


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One line a trial wrote."""

    is_final: bool
    sequence: int
    value: float | None
    reason: str = ""
    others: dict[str, Any] = {}
    time_unix_seconds: float | None = None


class ReportReader:
    """Follows one metrics file while it grows; each reading gives what is new."""

    def __init__(self, folder: Path, metric: str = "default") -> None:
        self.path = folder / METRICS_FILE
        self.metric = metric
        self._offset = 0
        self.num_broken = 0

    def read_new(self) -> list[Report]:
        """The whole lines since the last reading; a torn one waits, one that is no report is counted."""
        try:
            with open_regular(self.path) as file:
                file.seek(self._offset)
                data = _until_zeros(file)
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        reports = [self._report(line) for line in whole.split(b"\n") if line]
        return [report for report in reports if report is not None]

    def _report(self, line: bytes) -> Report | None:
        try:
            raw = json.loads(line)
            kind, sequence = raw["type"], int(raw["sequence"])
            value, reason, others = read_metric(raw["value"], self.metric)
        except (ValueError, KeyError, TypeError, RecursionError):
            self.num_broken += 1
            return None
        moment = raw.get("time")
        return Report(
            is_final=kind == "FINAL",
            sequence=sequence,
            value=value,
            reason=reason,
            others=others,
            time_unix_seconds=moment if isinstance(moment, (int, float)) else None,
        )


def _until_zeros(file: BinaryIO) -> bytes:
    """What follows in a file, up to a size or to zeros that were never written (a hole of any length costs nothing)."""
    parts: list[bytes] = []
    for _ in range(MOST_NEW_BYTES // _CHUNK_BYTES):
        chunk = file.read(_CHUNK_BYTES)
        text, zeros, _ = chunk.partition(_HOLE)
        parts.append(text)
        if zeros or not chunk:
            break
    return b"".join(parts)


def read_metric(value: object, key: str = "default") -> tuple[float | None, str, dict[str, object]]:
    """The number in a report, or why there is none, and the other keys of a dict with what JSON can keep."""
    if not isinstance(value, dict):
        return (*finite_or_reason(value), {})
    others = {str(name): _keepable(item) for name, item in value.items() if name != key}
    if key not in value:
        return None, f"a dict without {key!r}", others
    return (*finite_or_reason(value[key]), others)


def _keepable(value: object) -> object:
    """NaN and infinity as text, since a record holds none."""
    return str(value) if isinstance(value, float) and value - value != 0 else value


def intermediates_of(reports: list[Report], start_unix_seconds: float) -> tuple[Intermediate, ...]:
    """The intermediate results of a trial, in the order they were written."""
    return tuple(
        Intermediate(
            sequence=report.sequence,
            value=report.value,
            reason=report.reason,
            others=report.others,
            time_seconds=None
            if report.time_unix_seconds is None
            else max(0.0, report.time_unix_seconds - start_unix_seconds),
        )
        for report in reports
        if not report.is_final
    )


def final_of(reports: list[Report]) -> Report | None:
    """The final result: the first one that was reported."""
    return next((report for report in reports if report.is_final), None)
