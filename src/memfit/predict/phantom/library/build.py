"""Compiles the stand-in for the CUDA libraries into the user's cache, once for each torch.

The key is a hash over the sources, the reviewed list and the names this torch imports, so a library never outlives
what it was made from. Reading those names takes half a second; a small file beside the libraries remembers the key for
as long as all of these files are the same (size and time of change of torch's, contents of ours). Two processes that
build at once do not meet: each builds in a folder of its own and renames.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from importlib.resources import as_file, files
from pathlib import Path

from memfit.errors import MemfitError, MissingExtra, StorageError
from memfit.predict.phantom.library import stub_list
from memfit.predict.phantom.library.elf_symbols import undefined_symbols
from memfit.predict.phantom.library.installed import HOW_TO_GET, InstalledTorch, find_torch
from memfit.predict.phantom.library.stub_list import needed, reviewed, stub_source, written_in_c

PARTS = (
    "report.c", "memory.c", "device.c", "runtime.c", "driver.c", "blas.c", "cudnn.c", "cudnn_sizes.c", "handed_on.c",
)  # fmt: skip
DRIVER, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
KNOWN_MAJORS = (12, 13)
FLAGS = ("-O1", "-fPIC", "-shared", "-fvisibility=default", "-w")


def built_library(torch: InstalledTorch) -> Path:
    """The folder that holds the two libraries; built on first use."""
    with as_file(files("memfit.predict.phantom.library") / "csrc") as sources:
        stamp = cache_folder() / "stamps" / _stamp(torch, sources)
        known = _remembered(stamp)
        if known is not None:
            return known
        names = _names(torch, sources)
        folder = cache_folder() / _key(torch, sources, names)
        if not (folder / DRIVER).is_file():
            check_version(torch)
            _build(torch, sources, names, folder)
        _remember(stamp, folder)
    return folder


def _stamp(torch: InstalledTorch, sources: Path) -> str:
    """A hash over everything that the key depends on, without reading torch's libraries."""
    digest = hashlib.sha256(f"{torch.version} {torch.cuda} {sorted(reviewed().items())!r}".encode())
    for path in (Path(__file__), Path(stub_list.__file__), *sorted(sources.rglob("*.[ch]"))):
        digest.update(path.read_bytes())
    headers = [torch.header(name) for name in ("cuda.h", "cudnn_version.h")]
    for path in (*sorted((torch.folder / "lib").glob("*.so")), *headers):
        status = path.stat()
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:24]


def _remembered(stamp: Path) -> Path | None:
    """The folder that was found for the same files before, where its library still is."""
    try:
        folder = cache_folder() / stamp.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return folder if (folder / DRIVER).is_file() else None


def _remember(stamp: Path, folder: Path) -> None:
    with contextlib.suppress(OSError):  # the next prediction then finds out again
        stamp.parent.mkdir(exist_ok=True)
        draft = stamp.with_name(f"{stamp.name}.{os.getpid()}")
        draft.write_text(folder.name, encoding="utf-8")
        os.replace(draft, stamp)


def check_version(torch: InstalledTorch) -> None:
    """MissingExtra for a CUDA that the sources were not written for."""
    major = torch.cuda_number // 1000
    if major not in KNOWN_MAJORS:
        raise MissingExtra(
            f"the phantom GPU does not know CUDA {torch.cuda}", found=f"torch {torch.version}",
            hint=f"it was written for CUDA 12 and 13: {HOW_TO_GET}",
        )  # fmt: skip


def check_is_or_can_be_built(torch: InstalledTorch) -> None:
    """MissingExtra where a prediction would not find its library and could not build it."""
    try:
        check_version(torch)
        compiler()
    except MissingExtra:
        with as_file(files("memfit.predict.phantom.library") / "csrc") as sources:
            if not (cache_folder() / _key(torch, sources, _names(torch, sources)) / DRIVER).is_file():
                raise


def has_cuda_torch() -> bool:
    """Whether the phantom GPU can run here: a CUDA build of torch, and its library in the cache or a compiler."""
    return why_no_phantom() is None


def why_no_phantom() -> MissingExtra | None:
    """What is missing for the phantom GPU, and how to get it; None where it can run."""
    try:
        check_is_or_can_be_built(find_torch())
    except MissingExtra as error:
        return error
    return None


def cache_folder() -> Path:
    """Where libraries are kept: below XDG_CACHE_HOME, else ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memfit" / "phantom"


def compiler() -> str:
    """The C compiler; MissingExtra when there is none."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and shutil.which(name):
            return name
    raise MissingExtra(
        "the phantom GPU is compiled on first use, and there is no C compiler", found="no cc, gcc or clang on PATH",
        hint="apt install gcc, or set CC to a compiler",
    )  # fmt: skip


def _names(torch: InstalledTorch, sources: Path) -> set[str]:
    """The entry points to generate."""
    imported: set[str] = set()
    for library in sorted((torch.folder / "lib").glob("*.so")):
        imported |= undefined_symbols(library)
    written = set().union(*(written_in_c((sources / part).read_text(encoding="utf-8")) for part in PARTS))
    written -= _of_another_cuda(torch)
    return needed(imported, torch.header("cuda.h").read_text(encoding="utf-8", errors="replace")) - written


def _of_another_cuda(torch: InstalledTorch) -> set[str]:
    """Entry points that the sources write only for the other major version of CUDA."""
    if torch.cuda_number >= 13000:
        return {"cudaGetDeviceProperties_v2", "cudaStreamGetCaptureInfo_v2", "cudaStreamGetCaptureInfo_v3"}
    return {"cudaGetDeviceProperties", "cudaStreamGetCaptureInfo"}


def _key(torch: InstalledTorch, sources: Path, names: set[str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(sources.rglob("*.[ch]")):
        digest.update(path.read_bytes())
    digest.update(stub_source(names, reviewed()).encode())
    digest.update(torch.header("cudnn_version.h").read_bytes())  # which may be newer than torch's own
    return f"torch-{torch.version}-cuda-{torch.cuda}-{digest.hexdigest()[:16]}"


def _build(torch: InstalledTorch, sources: Path, names: set[str], folder: Path) -> None:
    command = compiler()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".building-", dir=folder.parent) as name:
            draft = Path(name)
            (draft / "stubs.c").write_text(stub_source(names, reviewed()), encoding="utf-8")
            _compile([command, *FLAGS, f"-Wl,-soname,{NVML}", str(sources / "nvml.c"), "-o", str(draft / NVML)])
            _compile([command, *_driver_arguments(torch, sources, draft)])
            (draft / "libcuda.so").symlink_to(DRIVER)
            _put_in_place(draft, folder)
    except OSError as error:
        raise StorageError(
            "the phantom GPU cannot be built in the cache",
            found=str(error),
            hint="set XDG_CACHE_HOME to a folder that can be written",
        ) from error


def _driver_arguments(torch: InstalledTorch, sources: Path, draft: Path) -> list[str]:
    include = [f"-I{torch.header(name).parent}" for name in ("driver_types.h", "cudnn.h")]
    numbers = [f"-DCUDA_VERSION_NUMBER={torch.cuda_number}", f"-DCUBLAS_VERSION_NUMBER={_cublas_number(torch)}"]
    shim = ["-idirafter", str(sources / "shim")]
    parts = [str(sources / part) for part in PARTS]
    link = [f"-Wl,-soname,{DRIVER}", "-o", str(draft / DRIVER), "-ldl", "-lpthread"]
    return [*FLAGS, *include, *shim, *numbers, *parts, str(draft / "stubs.c"), *link]


def _cublas_number(torch: InstalledTorch) -> int:
    text = torch.header("cublas_api.h").read_text(encoding="utf-8", errors="replace")
    parts = dict(re.findall(r"CUBLAS_VER_(MAJOR|MINOR|PATCH)\s+(\d+)", text))
    return 10000 * int(parts["MAJOR"]) + 100 * int(parts["MINOR"]) + int(parts["PATCH"])


def _compile(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MemfitError(
            "the phantom GPU could not be compiled", found=done.stderr.strip()[:600] or f"exit code {done.returncode}",
            hint="is this a torch for CUDA 12 or 13? memfit predicts with fake tensors without it",
        )  # fmt: skip


def _put_in_place(draft: Path, folder: Path) -> None:
    """Rename; when another process was faster, its library is the same."""
    try:
        os.rename(draft, folder)
        draft.mkdir()  # for the temporary folder's own removal
    except OSError:
        if not (folder / DRIVER).is_file():
            raise
