"""The corridor: one function per verb, the only file that joins rooms. Rooms are imported inside the functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memfit.apply.torch_fitted import FittedModel
    from memfit.apply.torch_segments import AppliedPlan
    from memfit.measure.in_process import MeasuredRun
    from memfit.records.data_status import DataStatus
    from memfit.records.doctor import MachineReport
    from memfit.records.finding import Comparison
    from memfit.records.fit import Fit
    from memfit.records.plan import Candidate, Chain, Lever, Link, Plan
    from memfit.records.prediction import Prediction
    from memfit.records.run import RunRecord, Settings
    from memfit.records.snapshot import Replay
    from memfit.records.study import Study, StudySettings
    from memfit.records.study_findings import StudyFindings
    from memfit.show.views import RunView


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """A measured command: where its record is, and how it ended as its parent was told."""

    folder: Path
    exit_code: int | None
    signal: int | None
    storage_problem: str = ""

    def read(self) -> RunRecord:
        """Read the record it left."""
        return read_run(self.folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """One session of a study: what is known now, and why it ended."""

    study: Study
    why_stopped: str
    was_interrupted: bool = False


def measure_command(
    command: list[str],
    *,
    output: str | Path | None = None,
    overwrite: bool = False,
    settings: Settings | None = None,
    grace_seconds: float = 5.0,
    on_live: Callable[[dict[str, Any]], None] | None = None,
) -> CommandResult:
    """Run a command unchanged and measure its whole process tree; `.read()` gives the record."""
    from memfit.measure.run_folder import default_folder
    from memfit.measure.session import check_command, run_command
    from memfit.records.run import Settings

    check_command(command)
    folder = Path(output) if output is not None else default_folder(command)
    settings = settings or Settings(interval_seconds=0.01)
    end = run_command(command, folder, settings, overwrite=overwrite, grace_seconds=grace_seconds, on_live=on_live)
    return CommandResult(folder=folder, exit_code=end.exit_code, signal=end.signal, storage_problem=end.storage_problem)


def attach_process(
    pid: int,
    *,
    output: str | Path | None = None,
    overwrite: bool = False,
    interval_seconds: float = 0.01,
    duration_seconds: float | None = None,
    on_live: Callable[[dict[str, Any]], None] | None = None,
) -> RunRecord:
    """Measure a running process until it ends, `duration_seconds` have passed, or KeyboardInterrupt lets go of it."""
    from memfit.measure.run_folder import default_folder
    from memfit.measure.session import Attachment, check_process
    from memfit.records.files import read_run as read
    from memfit.records.run import Settings

    command = check_process(pid)
    folder = Path(output) if output is not None else default_folder(command)
    settings = Settings(interval_seconds=interval_seconds, marks=False, attached=True)
    attachment = Attachment(pid, folder, settings, overwrite=overwrite, live=on_live is not None)
    attachment.follow(duration_seconds, on_live)
    return read(folder)


def measure_run(
    output: str | Path | None = None,
    *,
    interval_seconds: float = 0.01,
    marks: bool = True,
    ledger_every: int | None = None,
    overwrite: bool = False,
) -> MeasuredRun:
    """Measure this process: a context manager and a decorator; the finished record is in `.record`."""
    from memfit.measure.in_process import measure_this_process

    return measure_this_process(
        output, overwrite=overwrite, interval_seconds=interval_seconds, marks=marks, ledger_every=ledger_every
    )


def live_line() -> Any:
    """The line at the bottom of the terminal that follows a run."""
    from memfit.show.live_line import LiveLine

    return LiveLine()


def read_run(folder: str | Path) -> RunRecord:
    """Read the run folder that `memfit measure` wrote."""
    from memfit.records.files import read_run as read

    return read(folder)


def examine_machine() -> MachineReport:
    """Try everything memfit would like to read on this machine, and say what works, what does not, and what to try."""
    import os

    import msgspec

    from memfit.measure.machine import describe_environment
    from memfit.measure.probes import run_probes
    from memfit.records.doctor import MachineReport
    from memfit.records.run import Environment

    environment = msgspec.convert(describe_environment(os.environ), Environment)
    return MachineReport(environment=environment, checks=run_probes())


def print_machine(report: MachineReport) -> None:
    """Draw a machine's report on the standard output."""
    from memfit.show.doctor_view import print_machine as draw

    draw(report)


def predict_peak(target: str | Callable[..., Any], **options: Any) -> Prediction:
    """Foresee the memory of a training: a script, 'FILE:function', a built-in workload, or a Python callable.

    Options: settings, arguments, device ('cpu', 'cuda:a100-40gb', ...), memory ('24GiB'), num_steps, malloc,
    alloc_conf, probes, allow_real, unknown_is, show_output, most_seconds.
    """
    from memfit.predict.foresee import foresee

    return foresee(target, **options)


def show_prediction(prediction: Prediction, *, as_json: bool = False) -> None:
    """Write a prediction to the terminal, or as its record."""
    import sys

    import msgspec
    from rich.console import Console

    from memfit.show.predict_view import show_prediction as show

    if as_json:
        sys.stdout.write(msgspec.json.encode(prediction).decode() + "\n")
    else:
        show(prediction, Console(highlight=False, soft_wrap=True))


def after_a_run(record: RunRecord, *, as_json: bool, quiet: bool, report: bool) -> None:
    """What a person gets after a run: page and picture in the folder, the summary (or the record as JSON) on screen."""
    written = write_report(record) if report else ()
    if as_json:
        print_record(record)
    elif not quiet:
        print_summary(record, written)


def read_prediction(path: str | Path) -> Prediction:
    """Read a prediction that was printed as JSON."""
    from memfit.records.prediction import read_prediction as read

    return read(path)


def view_run(record: RunRecord, *, fine: bool = False, prediction: Prediction | None = None) -> RunView:
    """What is drawn of a run, explained and with its noise; `fine` keeps enough detail to zoom into."""
    from memfit.explain.ledger import explain_peak
    from memfit.explain.noise import noise_interval
    from memfit.show.page_data import PAGE_ROWS, PAGE_STEPS
    from memfit.show.views import build_view

    detail = {"max_rows": PAGE_ROWS, "max_steps": PAGE_STEPS} if fine else {}
    noise = noise_interval(record)
    return build_view(record, ledgers=explain_peak(record), noise=noise, prediction=prediction, **detail)


def print_summary(record: RunRecord, written: tuple[Path, ...] = ()) -> None:
    """Write the summary of a run to the standard output, fitted to it."""
    from memfit.show.paper import write_text
    from memfit.show.terminal import summary_text

    view = view_run(record)
    write_text(lambda width, color: summary_text(view, width=width, color=color, written=written))


def print_record(record: RunRecord) -> None:
    """Write what is drawn of a run to the standard output, as JSON."""
    from memfit.show.as_json import to_json
    from memfit.show.paper import write_json

    write_json(to_json(view_run(record)))


def write_report(
    record: RunRecord,
    *,
    html: str | Path | None = None,
    png: str | Path | None = None,
    svg: str | Path | None = None,
    over: RunRecord | None = None,
    comparison: Comparison | None = None,
    prediction: Prediction | None = None,
    overwrite: bool = True,
) -> tuple[Path, ...]:
    """Write the page and pictures that are asked for; when none is, the page and the picture into the run folder."""
    from memfit.show.report import Targets, beside_the_record, write_all

    targets = Targets(html=html, png=png, svg=svg)
    if targets == Targets():
        targets = beside_the_record(record.folder)
    if over is not None and comparison is None:
        comparison = compare_runs(record, over)
    other = view_run(over, fine=True) if over is not None else None
    view = view_run(record, prediction=prediction)
    page_view = view_run(record, fine=True, prediction=prediction)
    return write_all(view, page_view, targets, other=other, comparison=comparison, overwrite=overwrite)


def compare_runs(first: RunRecord | list[RunRecord], second: RunRecord | list[RunRecord]) -> Comparison:
    """Compare two runs, or two groups of repeats, and say which differences are larger than the noise."""
    from memfit.explain.compare import Subject, compare_groups
    from memfit.explain.ledger import explain_peak

    def subjects(side: RunRecord | list[RunRecord]) -> list[Subject]:
        runs = side if isinstance(side, list) else [side]
        return [Subject(run=run, ledgers=explain_peak(run)) for run in runs]

    return compare_groups(subjects(first), subjects(second))


def print_comparison(comparison: Comparison, *, as_json: bool = False) -> None:
    """Write a comparison to the standard output."""
    from memfit.show.as_json import to_json
    from memfit.show.comparison_terminal import comparison_text
    from memfit.show.paper import write_json, write_text

    if as_json:
        write_json(to_json(comparison))
    else:
        write_text(lambda width, color: comparison_text(comparison, width=width, color=color))


def export_run(
    record: RunRecord, to: str, path: str | Path | None = None, *, table: str | None = None, overwrite: bool = False
) -> list[Path]:
    """Write a run as 'csv', 'json', 'chrome-trace' or 'memory-viewer'; returns the files written."""
    from memfit.show.export import export

    return export(record, to, path, table=table, overwrite=overwrite)


def replay_snapshot(
    path: str | Path, *, device: int | None = None, settings: Sequence[str] = (), memory_bytes: int | None = None
) -> Replay:
    """Replay a CUDA memory snapshot: peaks, fragmentation, who held memory, what other settings would give."""
    from memfit.predict.replay_report import replay
    from memfit.predict.snapshot_file import read_snapshot

    return replay(read_snapshot(path), device, settings, memory_bytes)


def print_replay(replay: Replay, *, as_json: bool = False) -> None:
    """Write a replayed snapshot to the standard output."""
    from memfit.show.as_json import to_json
    from memfit.show.paper import write_json, write_text
    from memfit.show.replay_view import replay_text

    if as_json:
        write_json(to_json(replay))
    else:
        write_text(lambda width, color: replay_text(replay, width=width, color=color))


def data_set_names(names: Sequence[str]) -> tuple[str, ...]:
    """The data sets that are meant, each checked before anything is fetched; 'all' is the three of images."""
    from memfit.job.data_sets import IMAGE_SETS, find_data_set

    expanded = [each for name in names for each in (IMAGE_SETS if name == "all" else (name,))]
    return tuple(dict.fromkeys(find_data_set(name).name for name in expanded))


def fetch_data(name: str, *, origin: str | Path | None = None, quiet: bool = True) -> Path:
    """Bring a data set into the cache, or take it from a folder or archive of the user's; returns its folder."""
    from memfit.job.data_fetch import fetch, take_from_folder
    from memfit.job.data_sets import find_data_set
    from memfit.show.data_view import FetchLine

    data_set = find_data_set(name)
    line = FetchLine(data_set.name, quiet=quiet)
    try:
        return fetch(data_set, line) if origin is None else take_from_folder(data_set, origin, line)
    finally:
        line.clear()


def list_data(*, check: bool = False) -> tuple[DataStatus, ...]:
    """Every data set, and whether it is here; with `check` every file is read."""
    from memfit.job.data_status import status_of_all

    return status_of_all(check=check)


def print_data_sets(statuses: tuple[DataStatus, ...], *, as_json: bool = False) -> None:
    """Write the list of data sets to the standard output."""
    from memfit.show.as_json import to_json
    from memfit.show.data_view import data_text
    from memfit.show.paper import write_json, write_text

    if as_json:
        write_json(to_json(statuses))
    else:
        write_text(lambda width, color: data_text(statuses, width=width, color=color))


def find_study(target: str) -> Study:
    """A published table by its name ('paper-mnist'), a study's folder, or its record in a JSON file."""
    from memfit.study.published import find_published
    from memfit.study.study_json import read_study_json

    if Path(target).is_dir():
        return read_study(target)
    return find_published(target) or read_study_json(target)


def explain_study(study: Study, *, quantity: str | None = None) -> StudyFindings:
    """What drives memory in a study, and what the data cannot tell; `quantity` is 'peak' or 'average'."""
    from memfit.explain.study import explain_study as explain

    return explain(study, quantity)


def print_study_findings(findings: StudyFindings, *, as_json: bool = False) -> None:
    """Write what was found in a study to the standard output."""
    from memfit.show.as_json import to_json
    from memfit.show.paper import write_json, write_text
    from memfit.show.study_findings_view import findings_text

    if as_json:
        write_json(to_json(findings))
    else:
        write_text(lambda width, color: findings_text(findings, width=width, color=color))


def run_study(
    target: str | Path | StudySettings | Sequence[str] | None = None,
    *,
    output: str | Path | None = None,
    storage: str = "",
    on: str = "",
    overwrite: bool = False,
    profile: bool = False,
    predict: bool = True,
    quiet: bool = True,
    **request: Any,
) -> StudyRun:
    """Run a study, or go on with the one in `output`: a file, settings, a published table, or words with `space=FILE`.

    Further options, as on the command line: space, tuner, trials, concurrency, limit_bytes, memory_objective, metric,
    direction, seed, max_seconds, max_trial_seconds, fixed, steps, num_random, replicates, name.
    """
    from memfit.records.study import StudySettings
    from memfit.show.study_progress import StudyProgress
    from memfit.study.coordinator import RunOptions
    from memfit.study.run_study import open_session
    from memfit.study.study_request import Request, require_an_end, settings_of

    progress = StudyProgress(quiet=quiet)
    settings = target if isinstance(target, StudySettings) or target is None else None
    if target is not None and settings is None:
        words = (str(target),) if isinstance(target, (str, Path)) else tuple(target)  # pyright: ignore[reportArgumentType]
        settings = require_an_end(settings_of(Request(words=words, **request)))
    more = {name: request.get(name) for name in ("trials", "concurrency")} if target is None else {}
    session = open_session(
        settings,
        output,
        progress,
        storage=storage,
        overwrite=overwrite,
        max_trials=more.get("trials"),
        concurrency=more.get("concurrency"),
    )
    try:
        options = RunOptions(profile=profile, predict=predict, live=progress.has_line)
        study = session.run(progress, options, cluster=on)
    finally:
        progress.close()
        session.close()
    return StudyRun(study=study, why_stopped=session.why_stopped, was_interrupted=session.was_interrupted)


def read_study(folder: str | Path, *, storage: str = "") -> Study:
    """Read the study in a folder that `memfit study` wrote, whether it runs or not."""
    from memfit.study.study_folder import read_folder

    return read_folder(folder, storage)


def print_study(study: Study, *, as_json: bool = False) -> None:
    """Write a study to the standard output; a re-run of published trials stands beside them."""
    from memfit.show.paper import write_json, write_text
    from memfit.show.study_terminal import rerun_text, study_text
    from memfit.study.published_rerun import published_name

    if as_json:
        from memfit.show.as_json import to_json

        write_json(to_json(study))
        return
    write_text(lambda width, color: study_text(study, width=max(width, 120)))
    if published_name(study):
        from memfit.study.published_comparison import compare_with_published

        rerun = compare_with_published(study)
        write_text(lambda width, color: "\n" + rerun_text(rerun, width=max(width, 120)))


def draw_study(study: Study, folder: str | Path | None = None) -> tuple[Path, ...]:
    """Draw memory against each hyperparameter, and parallel coordinates, into a folder (the study's own)."""
    from memfit.show.matplotlib_study import draw_study as draw

    return draw(study, folder if folder is not None else study.folder)


def fit_to_budget(
    model: Any,
    batch: Any,
    loss: Callable[..., Any] | None = None,
    optimizer: Any = None,
    *,
    budget: str | int,
    disk: str | Path | None = None,
    planner: str = "best",
) -> FittedModel:
    """Make one training step of a model fit into a budget such as '8GiB', prove that it computes the same, keep it so.

    `batch` is (inputs, targets) or a dictionary of keyword arguments; the loss is loss(model(inputs), targets), or
    what the model returns. `disk` is a folder to which a plan may move what the backward needs.
    """
    from memfit.apply.torch_job import job_of
    from memfit.units import parse_bytes

    budget_bytes = parse_bytes(budget) if isinstance(budget, str) else budget
    return _fit_job(job_of(model, batch, loss, optimizer), budget_bytes, disk, planner)


def apply_plan(model: Any, plan: Plan | str | Path, *, disk: str | Path | None = None) -> AppliedPlan:
    """Make a model carry out a plan, or the plan in a file that `memfit fit` wrote; `.undo()` takes it away."""
    from memfit.apply.torch_apply import apply_to
    from memfit.records.plan import Plan, read_plan

    found = plan if isinstance(plan, Plan) else read_plan(plan)
    return apply_to(model, found, None if disk is None else str(disk))


def fit_target(
    target: str,
    budget_bytes: int | None,
    *,
    settings: tuple[str, ...] = (),
    device: str | None = None,
    disk: str | None = None,
    planner: str = "best",
    output: str = "plan.json",
    force: bool = False,
    threads: int | None = None,
) -> Fit:
    """Fit what a target builds: on this machine with proof, for another device from prediction alone."""
    import msgspec

    from memfit.apply.torch_targets import build_job, check_output, set_threads
    from memfit.records.plan import write_plan

    check_output(output, force)
    set_threads(threads)
    if device is not None and not device.startswith("cpu"):
        fit = _fit_prediction(target, settings, device, budget_bytes, planner)
    else:
        assert budget_bytes is not None
        fit = _fit_job(build_job(_training_of(target, settings), target), budget_bytes, disk, planner).fit
    write_plan(fit.plan, output)
    return msgspec.structs.replace(fit, plan_file=output)


def _training_of(target: str, settings: tuple[str, ...]) -> Any:
    from memfit.job.description import describe_job, parse_settings
    from memfit.job.load import arguments_for, load_function
    from memfit.job.training import as_training

    job = describe_job(target, parse_settings(settings))
    if job.kind == "script":
        from memfit.errors import UsageError

        raise UsageError(
            "a script cannot be fitted", found=target, hint=f"name a function that builds it: {target}:make"
        )
    function = load_function(job)
    return as_training(function(**arguments_for(function, dict(job.settings), "cpu")), target)


def _fit_job(job: Any, budget_bytes: int, disk: str | Path | None, planner: str) -> FittedModel:
    """Measure a job, plan, apply, prove; planning again is the planner handed into the loop."""
    from memfit.apply.disk_link import measure_disk
    from memfit.apply.torch_fit import check_budget, hold_to_budget
    from memfit.apply.torch_fitted import FittedModel
    from memfit.apply.torch_profile import profile_job
    from memfit.records.fit import Fit

    check_budget(job, budget_bytes)
    link = None if disk is None else measure_disk(str(disk))
    profile = profile_job(job)

    def plan_for(chain: Chain, target_bytes: int) -> Plan:
        return _plan_or_levers(chain, target_bytes, link, planner)

    held = hold_to_budget(job, profile.chain, budget_bytes, plan_for, None if disk is None else str(disk))
    fit = Fit(
        target=held.plan.chain.target,
        budget_bytes=budget_bytes,
        plan=held.plan,
        candidates=_candidates(held.plan.chain, held.plan.budget_bytes, link, held.plan.solver),
        proof=held.proof,
        num_rounds=held.num_rounds,
        kept_blocks=held.kept_blocks,
        notes=profile.notes,
    )
    return FittedModel(fit, held.applied)


def _plan_or_levers(chain: Chain, budget_bytes: int, link: Link | None, planner: str) -> Plan:
    """A plan, or an error that carries the levers that remain."""
    from memfit.errors import DoesNotFit
    from memfit.plan.planners import levers_for, make_plan

    try:
        return make_plan(chain, budget_bytes, link=link, planner=planner)
    except DoesNotFit as error:
        error.levers = levers_for(chain, budget_bytes, link=link)
        raise


def _candidates(chain: Chain, budget_bytes: int, link: Link | None, chosen: str) -> tuple[Candidate, ...]:
    from memfit.plan.planners import compare_planners

    names = ["keep all", "every block", "sqrt(n)", "equal segments", "greedy segments", "revolve", "nested"]
    if link is not None:
        names += ["offload all", "offload prefix", "offload", "combined"]
    return compare_planners(chain, budget_bytes, link=link, names=list(dict.fromkeys([*names, chosen])))


def _fit_prediction(target: str, settings: tuple[str, ...], device: str, budget_bytes: int | None, planner: str) -> Fit:
    """Plan for a device that is not here, from a predicted timeline; nothing is run."""
    from memfit.apply.predicted_chain import budget_of, chain_from, host_link, split_device
    from memfit.apply.torch_foresight import draft_of
    from memfit.records.fit import Fit

    name, memory = split_device(device)
    draft, notes = draft_of(lambda: _training_of(target, settings), target)
    prediction = predict_peak(target, settings=settings, device=name, memory=memory)
    chain = chain_from(prediction, draft)
    limit_bytes = budget_of(budget_bytes, prediction, device)
    link, more = host_link(prediction)
    plan = _plan_or_levers(chain, limit_bytes, link, planner)
    return Fit(
        target=target,
        budget_bytes=limit_bytes,
        plan=plan,
        candidates=_candidates(chain, limit_bytes, link, plan.solver),
        unproven_because=f"{device} is not this machine; sizes are predicted, times are coarse",
        notes=(*notes, *more),
    )


def print_fit(fit: Fit, *, as_json: bool = False) -> None:
    """Write a fit to the standard output."""
    import sys

    import msgspec

    from memfit.show.fit_view import fit_text
    from memfit.show.paper import write_text

    if as_json:
        sys.stdout.write(msgspec.json.encode(fit).decode() + "\n")
    else:
        write_text(lambda width, color: fit_text(fit, width=width, color=color))


def print_levers(levers: tuple[Lever, ...]) -> None:
    """Write what remains when no plan fits."""
    from memfit.show.fit_view import levers_text
    from memfit.show.paper import write_text

    write_text(lambda width, color: levers_text(levers, width=width, color=color))
