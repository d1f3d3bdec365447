"""memfit: how much memory training a neural network takes, what drives it, and how to make it fit.

Only names stand here; each is loaded on first use, so that `import memfit` loads no torch, no numpy and no click.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from memfit.version import VERSION as __version__

_HOME_OF_NAME = {
    "MemfitError": "memfit.errors",
    "apply_plan": "memfit.api",
    "attach_process": "memfit.api",
    "compare_recipes": "memfit.api",
    "compare_records": "memfit.api",
    "diff_runs": "memfit.api",
    "draw_study": "memfit.api",
    "explain_run": "memfit.api",
    "explain_studies": "memfit.api",
    "explain_study": "memfit.api",
    "export_record": "memfit.api",
    "export_run": "memfit.api",
    "fit_script": "memfit.api",
    "fit_to_budget": "memfit.api",
    "measure_command": "memfit.api",
    "measure_run": "memfit.api",
    "metrics_text": "memfit.api",
    "optimizer_bytes": "memfit.api",
    "plan_pipeline": "memfit.api",
    "predict_peak": "memfit.api",
    "predict_ranks": "memfit.api",
    "read_grid": "memfit.api",
    "read_prediction": "memfit.api",
    "read_record": "memfit.api",
    "read_run": "memfit.api",
    "read_study": "memfit.api",
    "replay_snapshot": "memfit.api",
    "reproduce_edge": "memfit.api",
    "reproduce_hyperparameters": "memfit.api",
    "reproduce_offloading": "memfit.api",
    "reproduce_optimizers": "memfit.api",
    "reproduce_pipelining": "memfit.api",
    "run_pipeline": "memfit.api",
    "run_study": "memfit.api",
    "write_report": "memfit.api",
}

__all__ = [
    "MemfitError",
    "__version__",
    "apply_plan",
    "attach_process",
    "compare_recipes",
    "compare_records",
    "diff_runs",
    "draw_study",
    "explain_run",
    "explain_studies",
    "explain_study",
    "export_record",
    "export_run",
    "fit_script",
    "fit_to_budget",
    "measure_command",
    "measure_run",
    "metrics_text",
    "optimizer_bytes",
    "plan_pipeline",
    "predict_peak",
    "predict_ranks",
    "read_grid",
    "read_prediction",
    "read_record",
    "read_run",
    "read_study",
    "replay_snapshot",
    "reproduce_edge",
    "reproduce_hyperparameters",
    "reproduce_offloading",
    "reproduce_optimizers",
    "reproduce_pipelining",
    "run_pipeline",
    "run_study",
    "write_report",
]

if TYPE_CHECKING:
    from memfit.api import (
        apply_plan,
        attach_process,
        compare_recipes,
        compare_records,
        diff_runs,
        draw_study,
        explain_run,
        explain_studies,
        explain_study,
        export_record,
        export_run,
        fit_script,
        fit_to_budget,
        measure_command,
        measure_run,
        metrics_text,
        optimizer_bytes,
        plan_pipeline,
        predict_peak,
        predict_ranks,
        read_grid,
        read_prediction,
        read_record,
        read_run,
        read_study,
        replay_snapshot,
        reproduce_edge,
        reproduce_hyperparameters,
        reproduce_offloading,
        reproduce_optimizers,
        reproduce_pipelining,
        run_pipeline,
        run_study,
        write_report,
    )
    from memfit.errors import MemfitError


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF_NAME:
        raise AttributeError(f"module 'memfit' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF_NAME[name]), name)


def __dir__() -> list[str]:
    return __all__
