"""The installed torch, its CUDA version, libraries and headers, found without importing it."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from memfit.errors import MissingExtra

HOW_TO_GET = (
    'pip install "torch==2.14.1" in an environment of its own, beside memfit and what the job imports (5 GB, Linux on '
    "x86-64, no GPU needed)"
)
"""A CUDA build from PyPI that memfit is tested with."""
HOW_TO_GET_FAKE = (
    'fake tensors for a GPU need a CPU build of torch: pip install "torch==2.13.0" from the index of CPU builds, in an '
    "environment of its own beside memfit"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledTorch:
    """A CUDA build of torch."""

    version: str
    cuda: str
    """'13.0'"""
    folder: Path
    include: tuple[Path, ...]
    cudnn_folder: Path | None

    @property
    def cuda_number(self) -> int:
        """13000 for 13.0, as the runtime counts."""
        major, minor = (int(part) for part in self.cuda.split(".")[:2])
        return 1000 * major + 10 * minor

    def header(self, name: str) -> Path:
        """A header of the wheels."""
        for folder in self.include:
            if (folder / name).is_file():
                return folder / name
        raise MissingExtra(
            f"the CUDA header {name} is not there", found=f"looked in {len(self.include)} folders of the nvidia wheels",
            hint="torch from PyPI brings it; a torch of another origin may need nvidia-cuda-runtime and nvidia-cudnn",
        )  # fmt: skip


def find_torch() -> InstalledTorch:
    """The torch of this interpreter; MissingExtra when the phantom GPU cannot run with it."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise MissingExtra("the phantom GPU needs Linux on x86-64", found=f"{sys.platform} {platform.machine()}")
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise MissingExtra("the phantom GPU needs torch", hint=HOW_TO_GET)
    folder = Path(spec.origin).parent
    text = (folder / "version.py").read_text(encoding="utf-8")
    version, cuda = _assigned(text, "__version__"), _assigned(text, "cuda")
    if not cuda:
        raise MissingExtra("this torch has no CUDA in it", found=f"torch {version}", hint=HOW_TO_GET)
    wheels = folder.parent / "nvidia"
    include = (*sorted(wheels.glob("cu1*/include")), *sorted(wheels.glob("*/include")))
    cudnn = wheels / "cudnn" / "lib"
    return InstalledTorch(
        version=version or "unknown", cuda=cuda, folder=folder, include=tuple(dict.fromkeys(include)),
        cudnn_folder=cudnn if cudnn.is_dir() else None,
    )  # fmt: skip


def _assigned(text: str, name: str) -> str | None:
    found = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return found.group(1) if found else None
