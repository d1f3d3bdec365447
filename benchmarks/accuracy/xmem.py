"""How near are predictions to the jobs xMem was evaluated on, beside xMem's own estimates and those of three others?

  python -m benchmarks.accuracy.xmem FOLDER [--quick]

FOLDER holds the collected truth. Its nine jobs are named in xmem/xmem_points.csv; 24 more of the same models lie
beside this file (xmem_held_out.csv: from the same public repository, chosen by name before anything was compared with
them). The truth is what NVML shows above the start of the training. CUDA was started before that, so the context is
not in it, only what kernels and handles load later: one constant, the median of what is missing in the language models
of FOLDER, is added everywhere. Nothing else was fitted to the jobs.

What is known of the recipe: models, optimizer, batch, image size, loss, where gradients are zeroed, four iterations,
torch 2.6. Unknown: the release of transformers (older ones copy the scores once more; see `--shifted`), and the
lengths of the shuffled texts (taken as the longest allowed, 128).
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.accuracy.comparison import Row, spread_of
from benchmarks.accuracy.torch_fake_gpu import predict_on_gpu
from benchmarks.accuracy.torch_xmem_loop import LANGUAGE, build
from memfit.units import MIB

CARDS = {"RTX 3060": "cuda:rtx3060-12gb", "RTX 4060": "cuda:rtx4060-8gb"}
TOOLS = ("xmem", "dnnmem", "schedtune", "llmem")
HELD_OUT = Path(__file__).with_name("xmem_held_out.csv")


@dataclass(frozen=True, slots=True)
class Job:
    """One measured job, what others foresaw, and what memfit does."""

    name: str
    model: str
    optimizer: str
    batch_size: int
    card_bytes: int
    real_bytes: int
    ran_out: bool
    """It really failed: then the real peak is only what it had reached."""
    others: dict[str, int]
    xmem_says_out: bool
    reserved_bytes: int
    says_out: bool

    @property
    def is_language(self) -> bool:
        """Whether it is a language model: no convolutions, so no workspaces of cuDNN."""
        return self.model in LANGUAGE


Predictor = Callable[[dict[str, str]], tuple[int, bool]]
"""From a row to reserved bytes, and whether it runs out of memory."""


def read_jobs(path: Path, predict: Predictor, *, every: int = 1) -> list[Job]:
    """Read a table and predict its rows."""
    with open(path, encoding="utf-8") as stream:
        return [_predicted(row, predict) for row in list(csv.DictReader(stream))[::every]]


def on_fake_tensors(row: dict[str, str], *, shifted: bool = False) -> tuple[int, bool]:
    """The fake engine's answer."""
    model, optimizer, batch_size = row["model"], row["optimizer"], int(row["batch_size"])
    run = predict_on_gpu(
        lambda: build(model, optimizer, batch_size, shifts_scores=shifted), CARDS[row["gpu"]], 4, bounded=True
    )
    return run.peak_reserved_bytes, run.failed is not None


def _predicted(row: dict[str, str], predict: Predictor) -> Job:
    reserved_bytes, says_out = predict(row)
    return Job(
        name=f"{row['model']} {row['optimizer']} {row['batch_size']} {row['gpu']}",
        model=row["model"],
        optimizer=row["optimizer"],
        batch_size=int(row["batch_size"]),
        card_bytes=int(row["total_gpu_memory"]),
        real_bytes=int(row["ground_nvml_delta_bytes"]),
        ran_out=row["real_oom"] == "True",
        others={tool: int(row[f"{tool}_est_bytes"]) for tool in TOOLS if row[f"{tool}_est_bytes"]},
        xmem_says_out=row.get("xmem_oom") == "True",
        reserved_bytes=reserved_bytes,
        says_out=says_out,
    )


def beside_allocator(jobs: list[Job]) -> float:
    """What language models take above the reserved bytes: kernels and handles loaded on the way."""
    return statistics.median(job.real_bytes - job.reserved_bytes for job in jobs if job.is_language and not job.ran_out)


def rows_of(jobs: list[Job], constant: float) -> list[Row]:
    """Predicted and real, of the jobs that ran."""
    done = [job for job in jobs if not job.ran_out and not job.says_out]
    return [Row(job.name, job.reserved_bytes + constant, job.real_bytes) for job in done]


def rows_of_tool(jobs: list[Job], tool: str) -> list[Row]:
    """The same for another tool."""
    return [Row(job.name, job.others[tool], job.real_bytes) for job in jobs if tool in job.others and not job.ran_out]


def report(title: str, jobs: list[Job], constant: float) -> None:
    """Every row, then one line for memfit and one per tool."""
    print(f"{title}\n{'':<46}{'predicted':>8}{'real':>10} MiB {'memfit':>8}{'xMem':>8}")
    for job in jobs:
        predicted = job.reserved_bytes + constant
        ours = "fails" if job.says_out else f"{predicted / job.real_bytes - 1:+.1%}" if not job.ran_out else "runs"
        theirs = job.others["xmem"]
        text = ("fails" if job.xmem_says_out else "runs") if job.ran_out else f"{theirs / job.real_bytes - 1:+.1%}"
        real = "out of it" if job.ran_out else f"{job.real_bytes / MIB:.0f}"
        print(f"{job.name:<46}{predicted / MIB:8.0f}{real:>10}     {ours:>8}{text:>8}")
    parts = {"memfit": rows_of(jobs, constant), **{tool: rows_of_tool(jobs, tool) for tool in TOOLS}}
    parts["memfit, language"] = rows_of([job for job in jobs if job.is_language], constant)
    parts["xmem, language"] = rows_of_tool([job for job in jobs if job.is_language], "xmem")
    parts["memfit, convolutional"] = rows_of([job for job in jobs if not job.is_language], constant)
    parts["xmem, convolutional"] = rows_of_tool([job for job in jobs if not job.is_language], "xmem")
    for name, rows in parts.items():
        if rows:
            print(f"  {name:<22} {spread_of(rows)}")


def main() -> None:
    """Both halves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true", help="every third row")
    parser.add_argument(
        "--shifted", action="store_true", help="language models copy their scores without the last place"
    )
    options = parser.parse_args()
    every = 3 if options.quick else 1
    predict = partial(on_fake_tensors, shifted=options.shifted)
    near = read_jobs(options.folder / "xmem" / "xmem_points.csv", predict)
    constant = beside_allocator(near)
    print(f"beside the allocator: {constant / MIB:.0f} MiB (median of the language models of FOLDER)\n")
    report("collected truth", near[::every], constant)
    print()
    report("held out", read_jobs(HELD_OUT, predict, every=every), constant)


if __name__ == "__main__":
    main()
