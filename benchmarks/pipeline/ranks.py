"""Is the predicted tensor peak of every rank that of real processes? Real gloo runs beside predictions.

    python -m benchmarks.pipeline.ranks [--ranks 2 4] [--only 1f1b] [--dynamic]

Every case is `rank_job.py`, a script that knows nothing of memfit: started N times over gloo with a counter under
torch's CPU allocator (LD_PRELOAD, a C compiler is needed), and predicted with `--rank all`. One thread each, since
scratch memory of kernels depends on their number.
"""

from __future__ import annotations

import argparse
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import memfit
from benchmarks.pipeline.rank_job import SCHEDULES, WAYS

JOB = Path(__file__).with_name("rank_job.py")
COUNTER = Path(__file__).parents[1] / "accuracy" / "allocator_counter.c"


def built_counter(folder: Path) -> Path:
    """The counter as a shared library."""
    library = folder / "counter.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, COUNTER, "-ldl", "-lpthread"], check=True)
    return library


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def measured_peaks(script: Path, arguments: list[str], num_ranks: int, counter: Path, folder: Path) -> list[int]:
    """Peaks of torch's CPU allocator in every one of N real processes."""
    port, processes = free_port(), []
    for rank in range(num_ranks):
        variables = os.environ | {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "LD_PRELOAD": str(counter),
            "ALLOCATOR_PEAK_FILE": str(folder / f"peak-{rank}"),
        }  # fmt: skip
        (folder / f"peak-{rank}").unlink(missing_ok=True)
        command = [sys.executable, str(script), *arguments]
        log = open(folder / f"log-{rank}", "wb")  # noqa: SIM115
        processes.append(subprocess.Popen(command, env=variables, stdout=log, stderr=log))
    codes = [process.wait(300) for process in processes]
    if any(codes):
        tail = (folder / f"log-{next(rank for rank, code in enumerate(codes) if code)}").read_text()[-2000:]
        raise SystemExit(f"a real rank failed: {codes}\n{tail}")
    return [struct.unpack("q", (folder / f"peak-{rank}").read_bytes())[0] for rank in range(num_ranks)]


def predicted_peaks(script: Path, arguments: list[str], num_ranks: int) -> tuple[list[int], int]:
    """The predicted tensor peak of every rank, and how many of them were run."""
    found = memfit.predict_ranks(str(script), arguments=arguments, ranks=num_ranks)
    peaks = [found.of_rank(rank).level("tensors") for rank in range(num_ranks)]
    return [int(peak.value or 0) for peak in peaks if peak is not None], sum(len(each.traced) for each in found.classes)


def main() -> int:
    """A line for each way and number of ranks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--only", nargs="+", default=[*WAYS, *SCHEDULES])
    parser.add_argument("--dynamic", action="store_true")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    equal = total = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        counter = built_counter(folder)
        print(f"{'way':26}{'ranks':>6}  predicted - measured bytes of every rank (measured)")
        for way in arguments.only:
            for num_ranks in arguments.ranks:
                given = ["--way", way, *(["--dynamic"] if arguments.dynamic else [])]
                measured = measured_peaks(JOB, given, num_ranks, counter, folder)
                started = time.perf_counter()
                predicted, num_run = predicted_peaks(JOB, given, num_ranks)
                seconds = time.perf_counter() - started
                differences = [p - m for p, m in zip(predicted, measured, strict=True)]
                equal, total = equal + differences.count(0), total + num_ranks
                shown = "  ".join(f"{d:+d} ({m:,})" for d, m in zip(differences, measured, strict=True))
                print(f"{way:26}{num_ranks:>6}  {shown}  [{num_run} run, {seconds:.0f} s]", flush=True)
    print(f"{equal} of {total} ranks equal to the byte")
    return 0 if equal == total else 1


if __name__ == "__main__":
    sys.exit(main())
