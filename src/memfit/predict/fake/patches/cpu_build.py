"""Patches by which a CPU-only build of torch carries fake CUDA tensors through autograd.

Fake CUDA tensors exist in every build, but the first one that requires a gradient ends the process: autograd asks
for a device guard, for the accelerator of this build and whether a CUDA context exists. A CUDA build without a GPU
answers all three by itself. Here:
  1. a guard that counts zero devices is registered, whereupon torch installs its own guard that does nothing;
  2. `at::accelerator::getAccelerator` is overwritten to answer "CUDA";
  3. `hasPrimaryContext` of the CUDA hooks, which raises, is replaced in the table of virtual functions by
     `isBuilt`, which answers no.
Read in and tested with torch 2.13 on Linux x86-64; anything else is refused, and the caller takes another route.
Only for a process that exists for nothing else.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import re

import torch

TESTED_VERSIONS = ("2.13",)
CUDA_INDEX = 1
RETURN_CUDA = bytes([0xB8, 0x01, 0x01, 0x00, 0x00, 0xC3])
"""mov eax, 0x0101; ret: an engaged optional that holds device type 1."""
IS_BUILT_SLOT, HAS_CONTEXT_SLOT = 2, 4
_ACCELERATOR = "_ZN2at11accelerator14getAcceleratorEb"
_HOOKS = "_ZN2at6detail12getCUDAHooksEv"
_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"

_kept: list[object] = []
"""What the patched process points into must never be freed."""


class CannotPatch(Exception):
    """This build or machine is not one the changes were tested on."""


def why_not() -> str:
    """Why the changes cannot be made here; empty when they can."""
    version = ".".join(str(torch.__version__).split(".")[:2])
    if torch.version.cuda is not None:
        return "this is a CUDA build of torch"
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"{platform.system()} {platform.machine()} was not tested"
    if version not in TESTED_VERSIONS:
        return f"torch {torch.__version__} was not tested"
    return _unexpected_header()


def _unexpected_header() -> str:
    """The wheel brings the header that fixes the order of the virtual functions: read it rather than trust it."""
    path = os.path.join(os.path.dirname(torch.__file__), "include", "ATen", "detail", "AcceleratorHooksInterface.h")
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as stream:
        names = re.findall(r"^\s*virtual\s+[\w:&* ]*?~?(\w+)\(", stream.read(), re.MULTILINE)
    expected = ["AcceleratorHooksInterface", "isBuilt", "isAvailable", "hasPrimaryContext"]
    return "" if names[:4] == expected else f"the hooks are declared in another order: {names[:4]}"


def patch_process() -> None:
    """Make the three changes, then try them."""
    reason = why_not()
    if reason:
        raise CannotPatch(reason)
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    core, library = (ctypes.CDLL(os.path.join(folder, name)) for name in ("libc10.so", "libtorch_cpu.so"))
    _register_guard(core)
    _answer_cuda(library)
    _no_context(library)


def _register_guard(core: ctypes.CDLL) -> None:
    nothing = ctypes.CFUNCTYPE(ctypes.c_int64)(lambda: 0)
    table = (ctypes.c_void_p * 64)(*([ctypes.cast(nothing, ctypes.c_void_p).value] * 64))
    guard = (ctypes.c_void_p * 1)(ctypes.addressof(table))
    _kept.extend([nothing, table, guard])
    registry = (ctypes.c_void_p * 8).in_dll(core, _GUARDS)
    if registry[CUDA_INDEX] is None:
        registry[CUDA_INDEX] = ctypes.addressof(guard)
    torch._C._ensureCUDADeviceGuardSet()  # pyright: ignore[reportAttributeAccessIssue]


def _answer_cuda(library: ctypes.CDLL) -> None:
    address = ctypes.cast(getattr(library, _ACCELERATOR), ctypes.c_void_p).value
    assert address is not None
    _unprotect(address, len(RETURN_CUDA), executable=True)
    ctypes.memmove(address, RETURN_CUDA, len(RETURN_CUDA))


def _no_context(library: ctypes.CDLL) -> None:
    get_hooks = getattr(library, _HOOKS)
    get_hooks.restype = ctypes.c_void_p
    table = ctypes.c_void_p.from_address(get_hooks()).value
    assert table is not None
    slots = (ctypes.c_void_p * 8).from_address(table)
    _unprotect(table, 8 * ctypes.sizeof(ctypes.c_void_p), executable=False)
    slots[HAS_CONTEXT_SLOT] = slots[IS_BUILT_SLOT]


def _unprotect(address: int, length: int, *, executable: bool) -> None:
    page = mmap.PAGESIZE
    start = address // page * page
    size = -(-(address + length - start) // page) * page
    rights = mmap.PROT_READ | mmap.PROT_WRITE | (mmap.PROT_EXEC if executable else 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(size), rights) != 0:
        raise CannotPatch(f"memory protection could not be changed: {os.strerror(ctypes.get_errno())}")
