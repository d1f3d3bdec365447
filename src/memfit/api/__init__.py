"""Public functions: one file per verb, the only files that join rooms; they return records and print nothing."""

from __future__ import annotations

from memfit.api.compare import GridProgress, compare_recipes, compare_records, read_grid, write_grid
from memfit.api.compare_optimizers import optimizer_bytes
from memfit.api.data import FetchProgress, data_set_names, fetch_data, list_data
from memfit.api.diff import RepeatsFollower, diff_runs, repeat_commands, repeat_runs, resume_repeats
from memfit.api.explained_run import ExplainedRun, explain_run
from memfit.api.fit import apply_plan, fit_script, fit_target, fit_to_budget, fitting_loop
from memfit.api.measure import (
    CommandResult,
    attach_process,
    examine_machine,
    measure_command,
    measure_run,
    read_run,
    use_working_instructions,
)
from memfit.api.predict import predict_peak, read_prediction, replay_snapshot
from memfit.api.report import export_run, view_run, write_report
from memfit.api.report_folder import report_folder
from memfit.api.reproduce import (
    beside_published,
    list_reproductions,
    reproduce_edge,
    reproduce_hyperparameters,
    reproduce_offloading,
    reproduce_optimizers,
    write_reproduction,
)
from memfit.api.serve import serve_folder
from memfit.api.study import StudyFollower, StudyRun, draw_study, explain_study, find_study, read_study, run_study

__all__ = [
    "CommandResult",
    "ExplainedRun",
    "FetchProgress",
    "GridProgress",
    "RepeatsFollower",
    "StudyFollower",
    "StudyRun",
    "apply_plan",
    "attach_process",
    "beside_published",
    "compare_recipes",
    "compare_records",
    "data_set_names",
    "diff_runs",
    "draw_study",
    "examine_machine",
    "explain_run",
    "explain_study",
    "export_run",
    "fetch_data",
    "find_study",
    "fit_script",
    "fit_target",
    "fit_to_budget",
    "fitting_loop",
    "list_data",
    "list_reproductions",
    "measure_command",
    "measure_run",
    "optimizer_bytes",
    "predict_peak",
    "read_grid",
    "read_prediction",
    "read_run",
    "read_study",
    "repeat_commands",
    "repeat_runs",
    "replay_snapshot",
    "report_folder",
    "reproduce_edge",
    "reproduce_hyperparameters",
    "reproduce_offloading",
    "reproduce_optimizers",
    "resume_repeats",
    "run_study",
    "serve_folder",
    "use_working_instructions",
    "view_run",
    "write_grid",
    "write_report",
    "write_reproduction",
]
