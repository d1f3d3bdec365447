"""GPU events of a run folder: each device, and the job's own processes on it.

A device that cannot be read gives no event at all, for its bytes are unknown and not zero; the reason becomes a note,
once.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from memfit.measure.counters.energy import Event, Unavailable
from memfit.measure.counters.nvml import Device, DeviceProcess, NvmlReader

HOST_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel's fixed number of the first PID namespace (PROC_PID_INIT_INO)."""


def gpu_events(reader: NvmlReader, pids: Collection[int]) -> list[Event]:
    """The events of one moment: 'gpu' for each readable device, and once a 'note' for what is missing."""
    return [event for device in reader.devices for event in _device_events(reader, device, pids)]


def _device_events(reader: NvmlReader, device: Device, pids: Collection[int]) -> list[Event]:
    memory = reader.memory(device)
    if isinstance(memory, Unavailable):
        return _note_once(reader, f"the memory of GPU {device.index} ({device.name}) is not known: {memory.sentence()}")
    processes, notes = _own_processes(reader, device, pids)
    if device.mig:
        notes += _note_once(reader, f"GPU {device.index} is split by MIG: its figures are those of the whole card")
    gpu: Event = {
        "kind": "gpu",
        "device": device.index,
        "name": device.name,
        "total_bytes": memory.total_bytes,
        "used_bytes": memory.used_bytes,
        "processes": [[process.pid, process.used_bytes] for process in processes],
    }
    return [gpu, *notes]


def _own_processes(
    reader: NvmlReader, device: Device, pids: Collection[int]
) -> tuple[list[DeviceProcess], list[Event]]:
    """The job's processes on a device, and why they may be incomplete."""
    everybody, where = reader.processes(device), f"on GPU {device.index}"
    if isinstance(everybody, Unavailable):
        return [], _note_once(reader, f"the job's share {where} is not known: {everybody.sentence()}")
    own = [process for process in everybody if process.pid in pids]
    notes: list[Event] = []
    if any(process.used_bytes is None for process in own):
        notes += _note_once(reader, f"the driver names the job's processes {where} but not how much memory they hold")
    if not own and pids and not sees_host_pids():
        why = "NVML names processes by the host's numbers, which are not seen from inside a container"
        notes += _note_once(reader, f"the job's share {where} is not known: {why}; try: start it with --pid=host")
    return own, notes


def sees_host_pids(namespace_link: str = "/proc/self/ns/pid") -> bool:
    """Whether process numbers here are those of the host; where that cannot be read, they are taken to be."""
    try:
        return os.readlink(namespace_link) == HOST_PID_NAMESPACE
    except OSError:
        return True


def _note_once(reader: NvmlReader, message: str) -> list[Event]:
    """A note event the first time a message comes up, nothing after that."""
    if message in reader.noted:
        return []
    reader.noted.add(message)
    return [{"kind": "note", "message": message}]
