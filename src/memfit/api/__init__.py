"""Public functions: one file per verb, the only files that join rooms; they return records and print nothing."""

from __future__ import annotations

from memfit.api.compare import GridProgress, compare_recipes, compare_records, optimizer_bytes, read_grid, write_grid
from memfit.api.data import FetchProgress, data_set_names, fetch_data, list_data
from memfit.api.diff import RepeatsFollower, diff_runs, repeat_commands, repeat_runs, resume_repeats
from memfit.api.export import export_record, metrics_text, read_record
from memfit.api.fit import apply_plan, fit_script, fit_target, fit_to_budget, fitting_loop
from memfit.api.measure import (
    CommandResult,
    ExplainedRun,
    attach_process,
    examine_machine,
    explain_run,
    measure_command,
    measure_run,
    read_run,
    use_working_instructions,
)
from memfit.api.pipeline import pipeline_chain, plan_pipeline, read_pipeline, write_pipeline
from memfit.api.pipeline_run import run_pipeline, run_plan
from memfit.api.predict import predict_peak, predict_ranks, read_prediction, replay_snapshot
from memfit.api.report import export_run, view_run, write_report
from memfit.api.report_folder import report_folder
from memfit.api.reproduce import (
    beside_published,
    list_reproductions,
    reproduce_edge,
    reproduce_hyperparameters,
    reproduce_offloading,
    reproduce_optimizers,
    reproduce_pipelining,
    write_reproduction,
)
from memfit.api.serve import serve_folder
from memfit.api.study import (
    StudyFollower,
    StudyRun,
    draw_study,
    end_trial,
    explain_studies,
    explain_study,
    find_study,
    is_study,
    list_studies,
    nni_environment,
    read_study,
    run_study,
    stop_study,
)
from memfit.records.files.notebook import use_html_maker

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
    "end_trial",
    "examine_machine",
    "explain_run",
    "explain_studies",
    "explain_study",
    "export_record",
    "export_run",
    "fetch_data",
    "find_study",
    "fit_script",
    "fit_target",
    "fit_to_budget",
    "fitting_loop",
    "is_study",
    "list_data",
    "list_reproductions",
    "list_studies",
    "measure_command",
    "measure_run",
    "metrics_text",
    "nni_environment",
    "optimizer_bytes",
    "pipeline_chain",
    "plan_pipeline",
    "predict_peak",
    "predict_ranks",
    "read_grid",
    "read_pipeline",
    "read_prediction",
    "read_record",
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
    "reproduce_pipelining",
    "resume_repeats",
    "run_pipeline",
    "run_plan",
    "run_study",
    "serve_folder",
    "stop_study",
    "use_working_instructions",
    "view_run",
    "write_grid",
    "write_pipeline",
    "write_report",
    "write_reproduction",
]


def _html_of(record: object) -> str:
    """The HTML of a record, for notebooks; loaded when one is shown."""
    from memfit.show.notebook import html_of

    return html_of(record)


use_html_maker(_html_of)
