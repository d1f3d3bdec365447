"""One case of the CPU accuracy benchmark, in the process it has to itself."""

from __future__ import annotations

from typing import Any

from memfit.job.training import as_training, plain_step
from memfit.job.workloads.registry import build_workload
from memfit.predict.fake.probe.client import result_of, untouched_bytes
from memfit.predict.fake.probe.process import attempt, baseline_bytes
from memfit.predict.fake.probe.real_reference import real_tensor_peak
from memfit.predict.fake.probe.signatures import Signatures
from memfit.predict.fake.probe.touched_pages import pin_mmap_threshold
from memfit.predict.fake.recording import Recording, trace_training
from memfit.predict.levels.liveness import peak_of
from memfit.predict.observe.storage_log import timeline_of


def tensor_peaks(name: str, settings: dict[str, Any]) -> dict[str, int]:
    """The predicted and the real peak of tensor bytes."""

    def build() -> Any:
        return build_workload(name, dict(settings))

    pin_mmap_threshold()
    signatures = Signatures()
    trace = trace_training(build, recording=Recording(signatures.sign))
    results = {}
    for text, number in signatures.texts.items():
        reply = attempt(text)
        if "skipped" not in reply:
            results[number] = result_of(reply)
    predicted, _ = peak_of(timeline_of(trace.log, trace.root_names, results), "cpu")
    return {
        "predicted_bytes": predicted,
        "real_bytes": real_tensor_peak(build),
        "num_operators": trace.num_operators,
        "untouched_bytes": untouched_bytes(trace.log, trace.root_names, results, predicted),
    }


def resident_peak(name: str, settings: dict[str, Any]) -> dict[str, int]:
    """The kernel's high-water mark of three real steps with a pinned mmap threshold, and the bare process before."""
    pin_mmap_threshold()
    base, _ = baseline_bytes([], "Adam")
    with open("/proc/self/clear_refs", "w", encoding="ascii") as stream:
        stream.write("5")
    step = plain_step(as_training(build_workload(name, dict(settings)), name))
    for _ in range(3):
        step()
    with open("/proc/self/status", encoding="ascii") as stream:
        line = next(line for line in stream if line.startswith("VmHWM"))
    return {"baseline_bytes": base, "resident_bytes": int(line.split()[1]) * 1024}
