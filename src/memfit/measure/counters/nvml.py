"""Memory and energy of NVIDIA GPUs, in all and by process, read through NVML.

Standard library only: libnvidia-ml.so.1 comes with the driver and is called through ctypes, which is loaded when the
library is opened and not before. Every return code is checked and named; what one device refuses does not touch the
others. Why no package is used: docs/decisions/0002-nvml-by-ctypes.md.

Process lists: `_v3` with `_v2` as fallback. Early drivers of the 535 series filled `_v3` with entries of 32 bytes
instead of 24 (XuehaiPan/nvitop#79), so the buffer has room for both and the reader looks how far the driver wrote.

Known limits: figures of a card with MIG are those of the whole card; devices are numbered in PCI order, whatever
CUDA_VISIBLE_DEVICES says; in a container NVML names processes by the host's numbers.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from memfit.measure.counters.energy import EnergyMark, PowerIntegral, Unavailable
from memfit.measure.counters.nvml_library import (
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    HINTS,
    INSUFFICIENT_SIZE,
    NOT_SUPPORTED,
    NvmlLibrary,
    Refused,
    refusal,
)

LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
SMALLEST_WINDOW_SECONDS = 0.1
"""The energy counter is refreshed some ten times a second; a shorter window may see no refresh at all."""

_VALUE_NOT_AVAILABLE = 2**64 - 1
_MEMORY = struct.Struct("=QQQ")
"""nvmlMemory_t: total, free, used."""
_PROCESS = struct.Struct("=I4xQII")
"""nvmlProcessInfo_v2_t: pid, used bytes, GPU instance, compute instance."""
_LONG_PROCESS_BYTES = 32
_UNTOUCHED = b"\xa5"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """Memory of the whole device, other programs included."""

    total_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """Device memory of one process, by the host's process number; None where the driver does not say."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU; `handle` is None and `reason` is set when the driver refuses it."""

    index: int
    handle: Any
    name: str
    mig: bool = False
    reason: str = ""


class NvmlReader:
    """The opened library and its devices."""

    def __init__(self, library: NvmlLibrary) -> None:
        self._library = library
        self._c = library.c
        self._power: dict[int, PowerIntegral] = {}
        self.noted: set[str] = set()
        """What has been said about these devices already."""
        self.driver = library.text("nvmlSystemGetDriverVersion") or "unknown"
        self.devices = tuple(self._device(index) for index in range(library.uint("nvmlDeviceGetCount_v2")))

    # ---- memory ----

    def memory(self, device: Device) -> GpuMemory | Unavailable:
        """Total and used bytes of a device."""
        buffer = self._c.create_string_buffer(_MEMORY.size)
        try:
            self._library.call("nvmlDeviceGetMemoryInfo", self._handle(device), buffer)
        except Refused as refused:
            return _unavailable(refused)
        total, _, used = _MEMORY.unpack(buffer.raw)
        return GpuMemory(total_bytes=total, used_bytes=used)

    def processes(self, device: Device) -> list[DeviceProcess] | Unavailable:
        """Every process with a compute context on a device, with the bytes it holds there."""
        try:
            raw, stride_bytes, count = self._process_entries(self._handle(device))
        except Refused as refused:
            return _unavailable(refused)
        entries = (_PROCESS.unpack_from(raw, index * stride_bytes) for index in range(count))
        return _by_pid((pid, None if used == _VALUE_NOT_AVAILABLE else used) for pid, used, _, _ in entries)

    def _process_entries(self, handle: object) -> tuple[bytes, int, int]:
        """The raw list, the bytes of one entry and their number; grows the buffer until the list fits."""
        stem = "nvmlDeviceGetComputeRunningProcesses"
        function = f"{stem}_v3" if self._library.has(f"{stem}_v3") else f"{stem}_v2"
        room = 16
        for _ in range(8):
            count = self._c.c_uint(room)
            buffer = self._c.create_string_buffer(_UNTOUCHED * (room * _LONG_PROCESS_BYTES), room * _LONG_PROCESS_BYTES)
            try:
                self._library.call(function, handle, self._c.byref(count), buffer)
            except Refused as refused:
                if refused.code != INSUFFICIENT_SIZE:
                    raise
                room = max(count.value, room) * 2
                continue
            filled = min(count.value, room)
            return buffer.raw, _stride_bytes(buffer.raw, filled), filled
        raise refusal(function, INSUFFICIENT_SIZE)

    # ---- energy ----

    @property
    def read_every_seconds(self) -> float | None:
        """Devices without an energy counter need their power read ten times a second."""
        alive = any(not integral.reason for integral in self._power.values())
        return PowerIntegral.read_every_seconds if alive else None

    def marks(self, time_seconds: float) -> list[EnergyMark]:
        """The running energy total, or why there is none, of every device."""
        return [self._energy_mark(device, time_seconds) for device in self.devices]

    def _energy_mark(self, device: Device, time_seconds: float) -> EnergyMark:
        millijoules, method, reason = None, "NVML energy counter", ""
        try:
            millijoules = self._library.ulonglong("nvmlDeviceGetTotalEnergyConsumption", self._handle(device))
        except Refused as refused:
            if device.handle is not None and refused.code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                return self._power_mark(device, time_seconds)
            reason = refused.reason
        return _mark(device, method, time_seconds, None if millijoules is None else millijoules * 1000, reason)

    def _power_mark(self, device: Device, time_seconds: float) -> EnergyMark:
        """Where there is no counter: the power, integrated over every reading so far."""
        integral = self._power.setdefault(device.index, PowerIntegral())
        try:
            integral.add(time_seconds, self._library.uint("nvmlDeviceGetPowerUsage", self._handle(device)) / 1e3)
        except Refused as refused:
            integral.give_up(f"the device has no energy counter, and {refused.reason}")
        return _mark(device, integral.method, time_seconds, integral.microjoules, integral.reason)

    def close(self) -> None:
        """Shut the library down."""
        self._library.shut_down()

    # ---- calls ----

    def _device(self, index: int) -> Device:
        handle = self._c.c_void_p()
        try:
            self._library.call("nvmlDeviceGetHandleByIndex_v2", self._c.c_uint(index), self._c.byref(handle))
        except Refused as refused:
            return Device(index=index, handle=None, name=f"GPU {index}", reason=refused.reason)
        name = self._library.text("nvmlDeviceGetName", handle) or f"GPU {index}"
        return Device(index=index, handle=handle, name=name, mig=self._has_mig(handle))

    def _has_mig(self, handle: object) -> bool:
        current, pending = self._c.c_uint(), self._c.c_uint()
        try:
            self._library.call("nvmlDeviceGetMigMode", handle, self._c.byref(current), self._c.byref(pending))
        except Refused:
            return False  # cards and drivers from before MIG
        return current.value == 1

    def _handle(self, device: Device) -> object:
        if device.handle is None:
            raise Refused(device.reason, 0)
        return device.handle


def open_nvml(library: str = LIBRARY) -> NvmlReader | Unavailable:
    """Open the driver's library and list its devices, or say why that is not possible."""
    try:
        opened = NvmlLibrary(library)
    except (ImportError, OSError) as error:
        hint = "where there is an NVIDIA GPU, install its driver; in a container, start with --gpus all"
        detail = "" if "No such file" in str(error) else f" ({error})"
        return Unavailable(reason=f"no NVIDIA driver: {library} cannot be loaded{detail}", hint=hint, domain="gpu")
    try:
        opened.call("nvmlInit_v2")
        reader = NvmlReader(opened)
    except Refused as refused:
        opened.shut_down()
        return _unavailable(refused)
    if not reader.devices:
        reader.close()
        return Unavailable(reason="the NVIDIA driver is there but shows no GPU", hint="nvidia-smi -L", domain="gpu")
    return reader


def gpu_reader(meters: Iterable[object]) -> NvmlReader | None:
    """The opened NVML among the meters, if it is there."""
    return next((meter for meter in meters if isinstance(meter, NvmlReader)), None)


def _by_pid(rows: Iterable[tuple[int, int | None]]) -> list[DeviceProcess]:
    """One entry a process: instances of one process are added, and one unknown part makes the sum unknown."""
    sums: dict[int, int | None] = {}
    for pid, used_bytes in rows:
        before = sums.get(pid, 0)
        sums[pid] = None if before is None or used_bytes is None else before + used_bytes
    return [DeviceProcess(pid=pid, used_bytes=used_bytes) for pid, used_bytes in sums.items()]


def _stride_bytes(raw: bytes, count: int) -> int:
    """Bytes of one entry, seen from how far the driver wrote."""
    short, long = count * _PROCESS.size, count * _LONG_PROCESS_BYTES
    untouched = raw[short:long] == _UNTOUCHED * (long - short)
    return _PROCESS.size if untouched else _LONG_PROCESS_BYTES


def _mark(device: Device, method: str, time_seconds: float, microjoules: int | None, reason: str) -> EnergyMark:
    return EnergyMark(
        domain=f"gpu-{device.index}",
        scope="device",
        method=method,
        time_seconds=time_seconds,
        microjoules=microjoules,
        smallest_window_seconds=SMALLEST_WINDOW_SECONDS,
        reason=reason,
    )


def _unavailable(refused: Refused) -> Unavailable:
    exists = refused.code != DRIVER_NOT_LOADED
    return Unavailable(reason=refused.reason, hint=HINTS.get(refused.code, ""), domain="gpu", exists=exists)
