"""Is the predicted tensor peak of every rank that of real processes? And pipelines' gradients, 512 ranks, Llama 3.1 8B.

    python -m benchmarks.pipeline.ranks [peaks gradients many llama] [--ranks 2 4] [--only 1f1b ...] [--dynamic]

peaks: every case is `rank_job.py`, which knows nothing of memfit: started N times over gloo with a counter under
torch's CPU allocator (LD_PRELOAD, a C compiler is needed), and predicted with `--rank all`. One thread each, since
scratch memory of kernels depends on their number. gloo's own threads give a finished transfer back a moment later in
some runs: where a real run is above the prediction it is repeated, twice at most, and the least is taken.
gradients: `memfit.run_pipeline` for every schedule beside the model without a pipeline. many: 512 ranks by classes.
llama: `llama_job.py` (transformers is needed; the phantom GPU where torch has CUDA) on 8 H100s of 80 and 95 GiB.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import memfit
from benchmarks.pipeline.rank_job import SCHEDULES, WAYS
from memfit.records.prediction import named_ranks

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


def measured_until_equal(
    given: list[str], predicted: list[int], counter: Path, folder: Path, most: int = 3
) -> tuple[list[int], int]:
    """The least peaks of some real runs, and how many there were."""
    least = measured_peaks(JOB, given, len(predicted), counter, folder)
    for number in range(1, most):
        if all(m <= p for m, p in zip(least, predicted, strict=True)):
            return least, number
        again = measured_peaks(JOB, given, len(predicted), counter, folder)
        least = [min(pair) for pair in zip(least, again, strict=True)]
    return least, most


def predicted_peaks(script: Path, arguments: list[str], num_ranks: int) -> tuple[list[int], int]:
    """The predicted tensor peak of every rank, and how many of them were run."""
    found = memfit.predict_ranks(str(script), arguments=arguments, ranks=num_ranks)
    peaks = [found.of_rank(rank).level("tensors") for rank in range(num_ranks)]
    return [int(peak.value or 0) for peak in peaks if peak is not None], sum(len(each.traced) for each in found.classes)


def peaks(arguments: argparse.Namespace) -> int:
    """A line for each way and number of ranks; the number of ranks that differ."""
    equal = total = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        counter = built_counter(folder)
        print(f"{'way':26}{'ranks':>6}  predicted - measured bytes of every rank (measured)")
        for way in arguments.only:
            for num_ranks in arguments.ranks:
                given = ["--way", way, *(["--dynamic"] if arguments.dynamic else [])]
                started = time.perf_counter()
                predicted, num_run = predicted_peaks(JOB, given, num_ranks)
                seconds = time.perf_counter() - started
                measured, num_real = measured_until_equal(given, predicted, counter, folder)
                differences = [p - m for p, m in zip(predicted, measured, strict=True)]
                equal, total = equal + differences.count(0), total + num_ranks
                shown = "  ".join(f"{d:+d} ({m:,})" for d, m in zip(differences, measured, strict=True))
                rest = f"[{num_run} ranks predicted in {seconds:.0f} s, {num_real} real runs]"
                print(f"{way:26}{num_ranks:>6}  {shown}  {rest}", flush=True)
    print(f"{equal} of {total} ranks equal to the byte")
    return total - equal


def gradients(arguments: argparse.Namespace) -> int:
    """Gradients of the first step under every schedule beside those without a pipeline; how many schedules differ."""
    import torch

    from benchmarks.pipeline.pipeline_job import make

    torch.set_num_threads(1)  # as in the processes of the ranks: products of a few rows round by their threads
    torch.manual_seed(0)
    model, _, loss, (x, y) = make()
    differ = 0
    for way, (_, per_rank) in SCHEDULES.items():
        if way not in arguments.only:
            continue
        for num_ranks in arguments.ranks:
            count = 2 * num_ranks * per_rank
            parts = list(zip(x.chunk(count), y.chunk(count), strict=True))
            if way == "looped-bfs":  # its backwards go from the last micro-batch to the first: sums round in that order
                parts.reverse()
            model.zero_grad()
            for part, target in parts:
                loss(model(part), target).backward()
            expected = {name: each.grad / count for name, each in model.named_parameters()}
            with tempfile.TemporaryDirectory() as folder:
                starts = [f"blocks.{8 // (num_ranks * per_rank) * stage}" for stage in range(1, num_ranks * per_rank)]
                run = memfit.run_pipeline(
                    f"{Path(__file__).with_name('pipeline_job.py')}:make", starts=starts, num_ranks=num_ranks,
                    schedule=way, num_micro_batches=count, keep_gradients=True, predicted=False, folder=folder,
                    num_steps=1,
                )  # fmt: skip
                assert run.dead is None, run.dead
                found = {}
                for rank in range(num_ranks):
                    found |= torch.load(Path(folder) / f"gradients-{rank}.pt")
            equal = [name for name in expected if torch.equal(found[name], expected[name])]
            largest = max(float((found[name] - expected[name]).abs().max()) for name in expected)
            differ += len(equal) < len(expected)
            print(
                f"{way:26}{num_ranks:>6}  {len(equal)} of {len(expected)} gradients equal, largest {largest:.1e}",
                flush=True,
            )
    return differ


def many(arguments: argparse.Namespace) -> int:
    """Every one of 512 ranks under FSDP2, by classes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = memfit.predict_ranks(
        "gpt", settings={"layers": 4, "width": 128, "heads": 4, "batch_size": 2}, ranks=512, shard="fsdp",
        device="cuda:h100-80gb", engine="fake",
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    for each in found.classes:
        print(f"ranks {named_ranks(each.ranks):12} {found.bytes_of(each):>12,} bytes reserved; run: {each.traced}")
    print(f"512 ranks in {found.total_seconds:.0f} s, {seconds:.0f} s of a processor")
    return 0


def llama(arguments: argparse.Namespace) -> int:
    """Llama 3.1 8B on 8 H100s, beside a published 82.4 GiB."""
    job = str(Path(__file__).with_name("llama_job.py"))
    for memory in ("79.2GiB", "95GiB"):
        found = memfit.predict_peak(job, ranks=8, rank=3, device="cuda:h100-80gb", memory=memory)
        parts = ", ".join(f"{each.name} {each.num_bytes / 2**30:.2f}" for each in found.at_peak.by_category[:5])
        figures = {name: found.level(name) for name in ("tensors", "allocated", "reserved")}
        shown = ", ".join(f"{name} {(f.value or 0) / 2**30:.2f}" for name, f in figures.items() if f is not None)
        reserved = figures["reserved"]
        difference = ((reserved.value or 0) / 2**30 / 82.4 - 1) * 100 if reserved is not None else float("nan")
        print(
            f"{memory}: {shown} GiB ({found.route}); reserved is {difference:+.1f} % of 82.4 GiB; at the peak: {parts}"
        )
    return 0


PARTS = {"peaks": peaks, "gradients": gradients, "many": many, "llama": llama}


def main() -> int:
    """The parts that were asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("parts", nargs="*", default=["peaks"], help=", ".join(PARTS))
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--only", nargs="+", default=[*WAYS, *SCHEDULES])
    parser.add_argument("--dynamic", action="store_true", help="stages of a pipeline find their shapes out themselves")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    return 1 if sum(PARTS[part](arguments) for part in arguments.parts) else 0


if __name__ == "__main__":
    sys.exit(main())
