"""Probes of installed software, and of torch's matrix products; imports none of it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import sys
from pathlib import Path

from memfit.measure.doctor.answer import Seen
from memfit.records.machine.doctor import WorkingInstructions


def probe_torch() -> Seen:
    """Which torch is installed beside memfit, found without importing it."""
    version = installed_version("torch")
    if version is None:
        hint = "pip install memfit[torch], or run memfit from the environment of the job; other programs need no torch"
        return Seen("no", "torch is not installed in this environment", hint)
    cuda = torch_cuda()
    build = {None: "build not known", "": "CPU build"}.get(cuda, f"built for CUDA {cuda}")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < (2, 4):
        return Seen("partly", f"torch {version}, {build}", "torch 2.4 or newer")
    return Seen("yes", f"torch {version}, {build}")


def probe_products(type_name: str, found: WorkingInstructions) -> Seen:
    """Whether products of one type came back right from a child, else the signal that ended it and what helps."""
    check = next((check for check in found.checks if check.type_name == type_name), None)
    if check is None:
        return Seen("no", f"not tried: {found.reason}", "see the row of torch")
    if check.works:
        return Seen("yes", check.found)
    if not check.signal:
        return Seen("no", check.found, "keep to another type in trainings on this processor")
    if not found.cure:
        return Seen("no", check.found, "no lower instruction set that was tried helps; keep to another type")
    return Seen("no", check.found, f"export {found.cure_text}; with it, all products work here")


def installed_version(package: str) -> str | None:
    """The version of an installed package, without importing it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_cuda() -> str | None:
    """The CUDA version torch was built for, '' for none, read from its version file; None when that is unknown."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.origin:
        return None
    try:
        text = (Path(found.origin).parent / "version.py").read_text()
    except OSError:
        return None
    match = re.search(r"^cuda\b[^=\n]*=\s*(?:None|'([^']*)'|\"([^\"]*)\")", text, re.MULTILINE)
    return None if match is None else match[1] or match[2] or ""


def probe_pictures() -> Seen:
    """Whether pictures can be drawn."""
    version = installed_version("matplotlib")
    if version is None:
        hint = "pip install memfit[plot]; the HTML page and the terminal need no matplotlib"
        return Seen("no", "matplotlib is not installed in this environment", hint)
    return Seen("yes", f"matplotlib {version}")


def probe_system() -> Seen:
    """Which Python runs memfit, and on which system."""
    found = f"Python {platform.python_version()} on {platform.system()} {platform.release()}"
    if sys.platform == "linux":
        return Seen("yes", found)
    return Seen("no", found, "memfit measures on Linux; records can be shown anywhere")
