"""Keeps this process from changing files by kernel means, whatever language the code is written in.

Linux' Landlock (kernel 5.13 and later): a process gives up, for itself and all its children and for ever, the right
to write outside of the folders it names. No privilege is needed. Files that are already open stay writable, so the
reply and the output still get out. Elsewhere the answer is a sentence that says what is missing.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""System call numbers, the same on every architecture that Linux gained after 2011 and on x86-64."""
VERSION_QUERY, BENEATH_A_PATH, NO_NEW_PRIVILEGES = 1, 1, 38
WRITE_A_FILE, CHANGE_A_FOLDER = 1 << 1, sum(1 << bit for bit in range(4, 13))
RENAME_ACROSS, TRUNCATE = 1 << 13, 1 << 14
ALWAYS_WRITABLE = ("/dev", "/proc")


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_access", ctypes.c_uint64),)


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("folder", ctypes.c_int32))


def can_forbid_writing() -> bool:
    """Whether `forbid_writing_outside` will do it."""
    if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "aarch64"):
        return False
    return ctypes.CDLL(None, use_errno=True).syscall(CREATE_RULESET, None, 0, VERSION_QUERY) >= 1


def forbid_writing_outside(folders: list[str]) -> str:
    """From now on this process writes only below these folders; returns why that is not so, or nothing."""
    if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "aarch64"):
        return f"this system ({sys.platform}, {platform.machine()}) has no Landlock"
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, 0, VERSION_QUERY)
    if version < 1:
        return f"the kernel has no Landlock ({os.strerror(ctypes.get_errno())})"
    return _restrict(libc, _rights(version), [*folders, *ALWAYS_WRITABLE])


def only_python_guarded(reason: str) -> str:
    """What a prediction says where that could not be done."""
    return f"the job's compiled code writes no files: only Python's own writing could be kept away, since {reason}"


def _rights(version: int) -> int:
    """All rights to change something that this version of Landlock knows."""
    rights = WRITE_A_FILE | CHANGE_A_FOLDER
    return rights | (RENAME_ACROSS if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)


def _restrict(libc: ctypes.CDLL, rights: int, folders: list[str]) -> str:
    request = _Ruleset(rights)
    rules = libc.syscall(CREATE_RULESET, ctypes.byref(request), ctypes.sizeof(request), 0)
    if rules < 0:
        return f"Landlock refused ({os.strerror(ctypes.get_errno())})"
    try:
        for folder in folders:
            _allow(libc, rules, rights, folder)
        libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        if libc.syscall(RESTRICT_SELF, rules, 0) < 0:
            return f"Landlock refused ({os.strerror(ctypes.get_errno())})"
    finally:
        os.close(rules)
    return ""


def _allow(libc: ctypes.CDLL, rules: int, rights: int, folder: str) -> None:
    """Except one folder; one that does not exist needs no exception."""
    if not os.path.isdir(folder):
        return
    descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _PathRule(rights, descriptor)
        libc.syscall(ADD_RULE, rules, BENEATH_A_PATH, ctypes.byref(rule), 0)
    finally:
        os.close(descriptor)
