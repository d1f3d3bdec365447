"""ctypes binding of NVML, the NVIDIA driver's management library, and the meaning of its return codes.

ctypes is loaded when a library is opened and not before. Every return code is checked; the numbers are those of nvml.h.
"""

from __future__ import annotations

NOT_SUPPORTED, INSUFFICIENT_SIZE, DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND = 3, 7, 9, 13

ERROR_NAMES = {
    1: "UNINITIALIZED", 2: "INVALID_ARGUMENT", 3: "NOT_SUPPORTED", 4: "NO_PERMISSION", 5: "ALREADY_INITIALIZED",
    6: "NOT_FOUND", 7: "INSUFFICIENT_SIZE", 8: "INSUFFICIENT_POWER", 9: "DRIVER_NOT_LOADED", 10: "TIMEOUT",
    11: "IRQ_ISSUE", 12: "LIBRARY_NOT_FOUND", 13: "FUNCTION_NOT_FOUND", 14: "CORRUPTED_INFOROM", 15: "GPU_IS_LOST",
    16: "RESET_REQUIRED", 17: "OPERATING_SYSTEM", 18: "LIB_RM_VERSION_MISMATCH", 19: "IN_USE", 20: "MEMORY",
    21: "NO_DATA", 22: "VGPU_ECC_NOT_SUPPORTED", 23: "INSUFFICIENT_RESOURCES", 24: "FREQ_NOT_SUPPORTED",
    25: "ARGUMENT_VERSION_MISMATCH", 26: "DEPRECATED", 27: "NOT_READY", 28: "GPU_NOT_FOUND", 29: "INVALID_STATE",
    30: "RESET_TYPE_NOT_SUPPORTED", 999: "UNKNOWN",
}  # fmt: skip
HINTS = {
    4: "ask for access to the NVIDIA device files, or run as their owner",
    9: "load the driver: `nvidia-smi` must work first",
    15: "restart the machine; the driver has lost the GPU",
    18: "restart the machine: the driver was updated while it was loaded",
}


class Refused(Exception):
    """NVML answered with an error code; never leaves the readers."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


def refusal(function: str, code: int) -> Refused:
    """The error for a return code, with its name."""
    return Refused(f"{function} answered {ERROR_NAMES.get(code, 'an unnamed error')} ({code})", code)


class NvmlLibrary:
    """A loaded library; every call raises `Refused` unless it succeeds."""

    def __init__(self, path: str) -> None:
        import ctypes

        self.c = ctypes
        self._library = ctypes.CDLL(path)

    def has(self, function: str) -> bool:
        """Whether the library knows a function."""
        return hasattr(self._library, function)

    def call(self, function: str, *arguments: object) -> None:
        """Call a function."""
        if not self.has(function):
            raise refusal(function, FUNCTION_NOT_FOUND)
        code = getattr(self._library, function)(*arguments)
        if code:
            raise refusal(function, code)

    def uint(self, function: str, *arguments: object) -> int:
        """Call a function that fills one unsigned int."""
        number = self.c.c_uint()
        self.call(function, *arguments, self.c.byref(number))
        return number.value

    def ulonglong(self, function: str, *arguments: object) -> int:
        """Call a function that fills one unsigned long long."""
        number = self.c.c_ulonglong()
        self.call(function, *arguments, self.c.byref(number))
        return number.value

    def text(self, function: str, *arguments: object) -> str:
        """Call a function that fills a text; empty when it refuses, for names are never worth failing for."""
        buffer = self.c.create_string_buffer(96)
        try:
            self.call(function, *arguments, buffer, self.c.c_uint(len(buffer)))
        except Refused:
            return ""
        return buffer.value.decode(errors="replace")

    def shut_down(self) -> None:
        """Give the library back; a refusal at the very end changes nothing."""
        try:
            self.call("nvmlShutdown")
        except Refused:
            return
