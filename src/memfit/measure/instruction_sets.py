"""Finds the CPU instruction sets that work: products are tried in children, with lower sets until none dies.

A processor may announce an instruction set (AMX, avx512_bf16) that its virtual machine forbids: torch believes the
announcement, and the first product of that type ends the process by SIGILL. What was found is kept in the user's cache
for this processor, kernel boot, torch and environment. Standard library and records only; torch is loaded by the child.

`python -m memfit.measure.instruction_sets COMMAND ...` runs a command in an environment where all products work.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NotRequired, TypedDict

import msgspec

from memfit.records.machine.doctor import FAULTS, ProductCheck, WorkingInstructions

TYPES = ("float32", "bfloat16", "float16")
LOWER_SETS: tuple[dict[str, str], ...] = (
    {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"},
    {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
    {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
)
"""From the largest set without AMX down to what every x86-64 has: for oneDNN, then also for ATen and MKL."""
KEY_VARIABLES = (
    "ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "LD_PRELOAD", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA",
)  # fmt: skip
MOST_SECONDS = 120.0
MOST_CACHE_BYTES = 256 * 1024
MOST_CACHED = 16


def working_instructions() -> WorkingInstructions:
    """What is known, or else found now and kept: a second or two, once for each boot and torch."""
    known = known_instructions()
    if known is None:
        known = find_instructions()
        remember(known)
    return known


def ask_processor(fresh: bool) -> WorkingInstructions | None:
    """The question as predictions ask it: what is known without trying (or None), or, `fresh`, what is found now."""
    if not fresh:
        return known_instructions()
    found = find_instructions()
    remember(found)
    return found


def find_instructions(environ: Mapping[str, str] | None = None) -> WorkingInstructions:
    """Try all products as they are, then under lower and lower instruction sets until none ends by a signal."""
    environ = os.environ if environ is None else environ
    if importlib.util.find_spec("torch") is None:
        return WorkingInstructions(reason="torch is not installed in this environment")
    checks = tuple(try_products(TYPES, environ))
    found = WorkingInstructions(checks=checks)
    if not any(check.signal in FAULTS for check in found.deadly):
        return found
    for cure in LOWER_SETS:
        if _helps(cure, environ):
            return msgspec.structs.replace(found, cure=cure)
    return found


def _helps(cure: dict[str, str], environ: Mapping[str, str]) -> bool:
    return all(not check.signal for check in _run_child(TYPES, {**environ, **cure}))


def try_products(types: Iterable[str], environ: Mapping[str, str]) -> Iterable[ProductCheck]:
    """One check for each type; after a death the rest is tried in a new child."""
    rest = list(types)
    while rest:
        for check in _run_child(rest, environ):
            rest.remove(check.type_name)
            yield check


# ---- one child ---------------------------------------------------------------------------------------------------


def _run_child(types: Iterable[str], environ: Mapping[str, str]) -> list[ProductCheck]:
    """What one child came to: a check for each type up to the one that ended it. At least one."""
    types = list(types)
    command = [sys.executable, "-m", "memfit.measure.torch_products", *types]
    try:
        done = subprocess.run(
            command, env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=MOST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return [ProductCheck(type_name=types[0], works=False, found=f"no answer in {MOST_SECONDS:.0f} s")]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{") and line.endswith("}")]
    answers = {name: [line for line in lines if line["type"] == name] for name in types}
    if done.returncode == 0:
        return [_answered(name, answers[name]) for name in types]
    last = next((name for name in reversed(types) if answers[name]), types[0])
    whole = types[: types.index(last)]
    return [
        *(_answered(name, answers[name]) for name in whole),
        _ended(last, answers[last], done.returncode, done.stderr),
    ]


class ProductLine(TypedDict):
    """A line that the child writes before a product (type and kind), or after it (all of it)."""

    type: str
    kind: str
    answer: NotRequired[str]
    seconds: NotRequired[float]


def _answered(name: str, lines: Sequence[ProductLine]) -> ProductCheck:
    """The check of a type whose products all came back."""
    answers = {line["kind"]: line["answer"] for line in lines if "answer" in line}
    bad = {kind: answer for kind, answer in answers.items() if answer != "right"}
    if not bad:
        milliseconds = 1000 * sum(line.get("seconds", 0.0) for line in lines)
        found = f"{', '.join(answers)}: right, in {milliseconds:.0f} ms"
        return ProductCheck(type_name=name, works=True, found=found)
    found = "; ".join(f"{kind}: {'wrong numbers' if answer == 'wrong' else answer}" for kind, answer in bad.items())
    return ProductCheck(type_name=name, works=False, found=found)


def _ended(name: str, lines: Sequence[ProductLine], code: int, errors: str) -> ProductCheck:
    """The check of the type that ended the child."""
    where = f" in {lines[-1]['kind']}" if lines else " while torch was loaded"
    if code < 0 and -code in signal.valid_signals():
        end = signal.Signals(-code).name
        return ProductCheck(type_name=name, works=False, found=end + where, signal=end)
    last = (errors.strip().splitlines() or [f"exit code {code}"])[-1][:160]
    return ProductCheck(type_name=name, works=False, found=last + where)


# ---- what is remembered ------------------------------------------------------------------------------------------


def known_instructions(environ: Mapping[str, str] | None = None) -> WorkingInstructions | None:
    """What was found before on this processor, boot, torch and environment; None when nothing was."""
    environ = os.environ if environ is None else environ
    return _cached(environ).get(_key(environ))


def cache_file(environ: Mapping[str, str]) -> Path:
    """Below XDG_CACHE_HOME, else ~/.cache."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memfit" / "instruction_sets.json"


def _cached(environ: Mapping[str, str]) -> dict[str, WorkingInstructions]:
    """All that is remembered; what cannot be read, or proposes anything but our own settings, is left out."""
    try:
        with open(os.open(cache_file(environ), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            found = msgspec.json.decode(stream.read(MOST_CACHE_BYTES), type=dict[str, WorkingInstructions])
    except (OSError, msgspec.DecodeError):
        return {}
    return {key: one for key, one in found.items() if not one.cure or one.cure in LOWER_SETS}


def remember(found: WorkingInstructions, environ: Mapping[str, str] | None = None) -> None:
    """Keep what was found in an environment; a cache that cannot be written is no reason to fail."""
    environ = os.environ if environ is None else environ
    if found.reason or any(not check.works and not check.signal for check in found.checks):
        return  # nothing was tried, or it failed in a way that may pass
    entries = {**_cached(environ), _key(environ): found}
    path = cache_file(environ)
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(msgspec.json.encode(dict(list(entries.items())[-MOST_CACHED:])))
        os.replace(draft, path)
    except OSError:
        return


def _key(environ: Mapping[str, str]) -> str:
    """Processor, boot, torch and the variables that steer instruction sets, as one word."""
    parts = [*_processor(), _text("/proc/sys/kernel/random/boot_id"), sys.executable, *_torch()]
    parts += [f"{name}={environ.get(name, '')}" for name in KEY_VARIABLES]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _torch() -> tuple[str, str]:
    found = importlib.util.find_spec("torch")
    if found is None:
        return "", ""
    try:
        return str(found.origin), importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return str(found.origin), ""


def _processor() -> list[str]:
    """Name and flags of the first processor; reading on would take long on a machine with hundreds."""
    found = []
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:
            for line in stream:
                if line.startswith(("model name", "flags", "Features", "CPU part")):
                    found.append(line.strip())
                if not line.strip() and found:
                    break
    except OSError:
        pass
    return found


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


# ---- for the Makefile --------------------------------------------------------------------------------------------


def main(command: list[str]) -> None:
    """Become a command, in an environment where all products work; a line says so where that changes something."""
    found = working_instructions()
    if found.sentence:
        print(f"memfit: {found.sentence}", file=sys.stderr, flush=True)
    os.execvpe(command[0], command, {**os.environ, **found.cure})


if __name__ == "__main__":
    main(sys.argv[1:])
