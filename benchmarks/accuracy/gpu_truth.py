"""How near are predictions on fake tensors to published measurements on real GPUs?

  python -m benchmarks.accuracy.gpu_truth FOLDER [--networks 40]

FOLDER holds the collected truth (snapshots, operator rows, network rows); nothing in it is executed. No constant is
fitted per case. The network rows are readings of the whole card, so one constant for the context is taken from the
rows with even numbers and judged on those with odd numbers. Prints median, 95th percentile, maximum and the share
of under-estimates.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import lzma
import pickle
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy.comparison import Row, spread_of
from benchmarks.accuracy.torch_course_transformer import build as build_course
from benchmarks.accuracy.torch_fake_gpu import predict_on_gpu
from benchmarks.accuracy.torch_operator_cases import CASES, build_network, build_operator
from memfit.units import MIB


class DataOnly(pickle.Unpickler):
    """Reads plain data and refuses everything else."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        """No global is ever looked up."""
        raise pickle.UnpicklingError(f"refused {module_name}.{global_name}")


def snapshot_rows(folder: Path) -> tuple[list[Row], list[Row]]:
    """Allocated and reserved peaks of the recorded transformer steps."""
    allocated, reserved = [], []
    for length, precision in ((128, "fp32"), (512, "bf16")):
        path = folder / "cuda_snapshots" / f"wedsonlin_medium_{length}_training.pickle.xz"
        if not path.exists():
            continue
        with lzma.open(path) as stream:
            snapshot = DataOnly(stream).load()
        run = predict_on_gpu(
            lambda length=length, precision=precision: build_course(length=length, precision=precision)
        )
        name = f"24x1024 transformer, context {length}, {precision}"
        allocated.append(Row(name, run.peak_allocated_bytes, _traced_peak(snapshot)))
        reserved.append(Row(name, run.peak_reserved_bytes, sum(s["total_size"] for s in snapshot["segments"])))
    return allocated, reserved


def _traced_peak(snapshot: dict[str, Any]) -> int:
    """Walk the trace backwards from the blocks alive at its end."""
    live = peak = sum(segment["allocated_size"] for segment in snapshot["segments"])
    for event in reversed(snapshot["device_traces"][0]):
        size = max(512, -(-event["size"] // 512) * 512)
        live += {"alloc": -size, "free_completed": size}.get(event["action"], 0)
        peak = max(peak, live)
    return peak


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCase:
    """One measured operator."""

    name: str
    size: int
    config: str
    mode: str
    title: str
    gpu: str
    real_bytes: float


def operator_cases(folder: Path) -> list[OperatorCase]:
    """The rows whose operators are written out here."""
    cases = []
    with open(folder / "liger" / "liger_memory.csv", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            name, mode = row["kernel_name"], row["kernel_operation_mode"]
            if (
                row["kernel_provider"] not in ("torch", "huggingface")
                or name not in CASES
                or (name == "group_norm" and mode != "full")
            ):
                continue
            size = int(float(row["x_value"]))
            cases.append(
                OperatorCase(
                    name=name, size=size, config=row["extra_benchmark_config_str"], mode=mode,
                    title=f"{name} {mode} {row['x_name']}={size}", real_bytes=float(row["y_value_50"]) * MIB,
                    gpu="cuda:h100-80gb" if "H100" in row["gpu_name"] else "cuda:a100-80gb",
                )
            )  # fmt: skip
    return cases


def operator_rows(folder: Path) -> list[Row]:
    """Forward and backward of single operators."""
    rows = []
    for case in operator_cases(folder):
        config = json.loads(case.config)
        run = predict_on_gpu(
            lambda c=case, config=config: build_operator(c.name, c.size, config, c.mode), case.gpu, num_steps=3
        )
        rows.append(Row(case.title, run.peak_allocated_bytes, case.real_bytes))
    return rows


def network_rows(folder: Path, most: int) -> tuple[list[Row], list[Row]]:
    """Reserved bytes (predicted) and the whole card (real), for every n-th network; halves by number."""
    with open(folder / "mlp_a100" / "mlp_a100.csv", encoding="utf-8") as stream:
        table = list(csv.DictReader(stream))
    halves: tuple[list[Row], list[Row]] = ([], [])
    for number, row in enumerate(table[:: max(1, len(table) // most)]):
        layers = ast.literal_eval(row["Activations-Params"])
        features = int(row["Filename"].split("input:")[1].split("_")[0])
        run = predict_on_gpu(
            lambda n=layers, f=features, b=int(row["Batch Size"]): build_network(n, f, b), "cuda:a100-40gb"
        )
        halves[number % 2].append(
            Row(row["Filename"], run.peak_reserved_bytes, float(row["Max GPU Memory (MiB)"]) * MIB)
        )
    return halves


def with_constant(fitted_on: list[Row], judged: list[Row]) -> tuple[float, list[Row]]:
    """One constant from one half, applied to the other."""
    constant = statistics.median(row.real_bytes - row.predicted_bytes for row in fitted_on)
    return constant, [Row(row.name, row.predicted_bytes + constant, row.real_bytes) for row in judged]


def report(title: str, rows: list[Row]) -> None:
    """One line of figures, and the worst rows."""
    if not rows:
        print(f"{title}: no rows")
        return
    print(f"{title}: {spread_of(rows)}")
    for row in sorted(rows, key=lambda row: -abs(row.error))[:3]:
        print(
            f"    {row.error:+.3%}  {row.name[:70]}  {row.predicted_bytes / MIB:.1f} for {row.real_bytes / MIB:.1f} MiB"
        )


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--networks", type=int, default=40)
    parser.add_argument("--only", choices=["snapshots", "operators", "networks"])
    options = parser.parse_args()
    parts: dict[str, Callable[[], None]] = {
        "operators": lambda: report("operators, allocated", operator_rows(options.folder)),
        "networks": lambda: _networks(options.folder, options.networks),
        "snapshots": lambda: _snapshots(options.folder),
    }
    for name, run in parts.items():
        if options.only in (None, name):
            run()


def _networks(folder: Path, most: int) -> None:
    even, odd = network_rows(folder, most)
    constant, judged = with_constant(even, odd)
    report(f"fully connected networks, whole card (constant {constant / MIB:.0f} MiB from the other half)", judged)


def _snapshots(folder: Path) -> None:
    allocated, reserved = snapshot_rows(folder)
    report("transformer steps, allocated", allocated)
    report("transformer steps, reserved", reserved)


if __name__ == "__main__":
    main()
