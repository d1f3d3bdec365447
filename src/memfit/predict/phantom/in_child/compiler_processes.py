"""Processes and files of compilers that a script may start on the phantom GPU.

`torch.compile` runs a C compiler for launchers and NVIDIA's assembler for kernels. These are let through when Triton or
Inductor asks for them: they write only to the scratch folder, and end by themselves. Every other process is refused.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import cast

from memfit.predict.sandbox.scratch_files import PathName, ScratchFiles

COMPILERS = {"cc", "gcc", "clang", "ptxas", "ptxas-blackwell", "c++", "g++", "nvcc"}
STARTS = {"subprocess.Popen", "os.posix_spawn"}


def use_folder_for_compilers(folder: str) -> None:
    """Before torch is imported: what Inductor and Triton keep goes here, and they compile in this process."""
    for name, part in (("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton")):
        os.environ[name] = str(Path(folder) / part)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"


class CompilingFiles(ScratchFiles):
    """As the scratch files of a script, with compilers, which know their way about the scratch folder itself."""

    def audit(self, event: str, args: tuple[object, ...]) -> None:
        if event in STARTS and args and _is_compiler(cast("PathName", args[0])) and _torch_asks():
            return
        super().audit(event, args)


def _is_compiler(program: PathName) -> bool:
    return os.path.basename(os.fsdecode(program)) in COMPILERS


def _torch_asks() -> bool:
    """Whether a part of `torch.compile` is what is running."""
    frame = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(("triton.", "torch._inductor.")):
            return True
        frame = frame.f_back
    return False
