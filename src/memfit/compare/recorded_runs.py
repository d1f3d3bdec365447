"""Grid out of recorded runs: `memfit compare RUN RUN ...` puts measured runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from memfit.compare.cells.judge_cells import answer_budget, judge_cells
from memfit.compare.cells.measure_cells import figures_of_run
from memfit.errors import UsageError
from memfit.records.figure import unknown
from memfit.records.grid import Grid, GridCell
from memfit.records.run import RunRecord

RECORDED = "recorded"
NO_TENSORS = "a recorded run has the process, not its tensors: memfit compare TARGET --measure has both"


def grid_of_runs(runs: Sequence[RunRecord], *, budget_bytes: int | None, epoch_steps: int | None) -> Grid:
    """A row per run, the first one as the base."""
    names = _names(runs)
    if len(set(names)) < len(names):
        raise UsageError("a run is there twice", found=", ".join(names), hint="name each run once")
    cells = judge_cells(
        [_cell(name, run, epoch_steps) for name, run in zip(names, runs, strict=True)], base_row=names[0]
    )
    base = (names[0], RECORDED)
    return Grid(
        target=", ".join(names),
        device="cpu",
        engine="recorded runs",
        level="process",
        optimizers=tuple(names),
        techniques=(RECORDED,),
        base=base,
        cells=cells,
        budget=None if budget_bytes is None else answer_budget(cells, base, budget_bytes),
    )


def _names(runs: Sequence[RunRecord]) -> list[str]:
    return [Path(run.folder).name for run in runs]


def _cell(name: str, run: RunRecord, epoch_steps: int | None) -> GridCell:
    outcome = run.outcome
    state = "done" if outcome.kind == "done" else "out of memory" if outcome.kind == "out of memory" else "failed"
    figures = figures_of_run(run, unknown("bytes", NO_TENSORS), run.peak, "process", epoch_steps)
    return GridCell(
        optimizer=name, technique=RECORDED, state=state, reason="" if state == "done" else outcome.message,
        measured=figures,
    )  # fmt: skip
