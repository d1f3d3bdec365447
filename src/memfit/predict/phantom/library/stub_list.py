"""Entry points of CUDA libraries that this torch needs, and what each generated stub does.

Every name is written in C, or reviewed (done, a handle, handed on to the real library, asked of it), or refused. There
is no class for "probably harmless": a function with a result that is never written would hand garbage to torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.resources import files
from typing import Literal, get_args

from memfit.errors import MemfitError

Action = Literal["done", "handle", "real", "asked", "refused"]

OURS = re.compile(
    r"(__cuda|cuda|cublas|cudnn|cusparse|cusolver|cufft)[A-Z]\w*|"
    r"cu(Ctx|Device|Driver|Event|Func|Get|Graph|Kernel|Launch|Link|Mem|Module|Multicast|Occupancy|Pointer|Stream|TensorMap)\w+"
)
"""Names of the libraries whose place is taken; nvrtc, NCCL, CUPTI, cuFile and NVSHMEM stay the real ones."""
LEFT_OUT = re.compile(r"cu(GetProcAddress|GetExportTable|Library|Link(Add|Complete|Create|Destroy))\w*")
"""Without these, the private runtime inside cuDNN gives up cleanly."""
REFUSALS = {"cudnn": 3000, "cusolver": 9, "cusparse": 10, "cublas": 15, "cufft": 16, "cu": 801, "__cuda": 801}
"""'Not supported' in the words of each library, longest prefix first."""


def reviewed() -> dict[str, Action]:
    """The allow-list, by name."""
    found: dict[str, Action] = {}
    for line in (files("memfit.predict.phantom.library") / "stubs.txt").read_text(encoding="utf-8").splitlines():
        action, _, name = line.partition("#")[0].strip().partition(" ")
        if not action:
            continue
        if action not in get_args(Action) or not name.strip().isidentifier() or name.strip() in found:
            raise MemfitError("the list of reviewed entry points is damaged", found=repr(line), hint="reinstall memfit")
        found[name.strip()] = action  # pyright: ignore[reportArgumentType]
    return found


def needed(imported: Iterable[str], driver_header: str) -> set[str]:
    """What torch imports, and the driver's whole interface, which is looked up by name at run time."""
    by_name = {found.group(1) for found in re.finditer(r"\b(cu[A-Z]\w+)\s*\(", driver_header)}
    versioned = set(re.findall(r"\bcu[A-Z]\w+_v[234]\b", driver_header))
    names = {name for name in imported if OURS.fullmatch(name)}
    return {name for name in names | by_name | versioned if not LEFT_OUT.fullmatch(name)}


def written_in_c(source: str) -> set[str]:
    """The entry points that are written by hand."""
    return set(re.findall(r"^EXPORT [\w *]*?\b(\w+)\(", source, re.MULTILINE))


def stub_source(names: Iterable[str], actions: dict[str, Action]) -> str:
    """C text of the generated entry points."""
    lines = ["void *phantom_handle(void);", "long phantom_refuse(const char *, long);"]
    for name in sorted(names):
        match actions.get(name):
            case "done":
                lines.append(f"long {name}(void) {{ return 0; }}")
            case "handle":
                lines.append(f"long {name}(void **handle) {{ *handle = phantom_handle(); return 0; }}")
            case "real" | "asked" as action:
                lines.append(_handed_on(name, with_handle=action == "asked"))
            case _:
                lines.append(f'long {name}(void) {{ return phantom_refuse("{name}", {_refusal(name)}); }}')
    return "\n".join(lines) + "\n"


def _handed_on(name: str, *, with_handle: bool) -> str:
    """An entry point that goes on to `phantom_hand_on` (csrc/handed_on.c) with its name, arguments untouched."""
    return (
        f'__asm__(".section .rodata\\n.Lname_{name}: .string \\"{name}\\"\\n.text\\n.globl {name}\\n'
        f".type {name}, @function\\n{name}:\\n  lea .Lname_{name}(%rip), %r11\\n  mov ${int(with_handle)}, %r10d\\n"
        '  jmp phantom_hand_on\\n");'
    )


def _refusal(name: str) -> int:
    return next(status for prefix, status in REFUSALS.items() if name.startswith(prefix))
