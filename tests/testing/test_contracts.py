"""Does every contract class catch what breaks it? Each planted violation fails at least the law that is named."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from memfit.plan.case import Case, PlanProposal, Rule
from memfit.records.figure import Figure
from memfit.records.files import layout
from memfit.records.plan import Checkpoint, Keep
from memfit.records.run import RunRecord
from memfit.runfolder.reader import read_run
from memfit.study.storage.interface import Fact, Storage
from memfit.study.storage.sqlite import SqliteStorage
from memfit.testing.contracts.planner import PlannerContract
from memfit.testing.contracts.reader import ReaderContract
from memfit.testing.contracts.storage import StorageContract
from memfit.testing.contracts.workload import WorkloadContract
from memfit.testing.made_records.runs import MadeRun, write_made_run


def law(contract: type, name: str) -> Callable[..., None]:
    """A law as a plain function: without Hypothesis, which would look long for the smallest violation."""
    method = getattr(contract(), name)
    inner = getattr(getattr(method, "hypothesis", None), "inner_test", None)
    return method if inner is None else lambda **given: inner(contract(), **given)


# ---- planners --------------------------------------------------------------------------------------------------------

NUMBERS = count()


def kept(case: Case, *, offload: bool = False) -> tuple[Keep, ...]:
    return tuple(Keep(stage=index, offload=offload) for index in range(len(case.chain.stages)))


def leaves_a_stage_out(case: Case) -> PlanProposal | None:
    return PlanProposal(kept(case)[:-1])


def moves_though_it_may_not(case: Case) -> PlanProposal | None:
    return PlanProposal(kept(case, offload=True))


def recomputes_though_it_may_not(case: Case) -> PlanProposal | None:
    return PlanProposal((Checkpoint(inside=kept(case)),))


def answers_by_chance(case: Case) -> PlanProposal | None:
    return None if next(NUMBERS) % 2 else PlanProposal(kept(case))


PLANNER_VIOLATIONS = [
    (leaves_a_stage_out, "checkpoint", "test_what_it_proposes_fits_or_it_proposes_nothing_that_counts"),
    (moves_though_it_may_not, "checkpoint", "test_it_does_only_what_its_family_may"),
    (recomputes_though_it_may_not, "offload", "test_it_does_only_what_its_family_may"),
    (answers_by_chance, "checkpoint", "test_it_answers_the_same_question_in_the_same_way"),
]


@pytest.mark.parametrize(("function", "family", "name"), PLANNER_VIOLATIONS)
def test_a_planner_that_breaks_a_law_is_caught(function: Any, family: Any, name: str):
    given: dict[str, Any] = {"planner": Rule("planted", family, function), "num_stages": 4, "share": 1.0}
    if name == "test_it_does_only_what_its_family_may":
        given["linked"] = True
    with pytest.raises(Exception):  # noqa: B017, PT011
        law(PlannerContract, name)(random=Random(7), **given)


def test_a_simulator_that_forgets_seconds_is_caught_by_exhaustive_search(monkeypatch: pytest.MonkeyPatch):
    from memfit.plan import case as seam

    def hasty(*given: Any) -> Any:
        replayed = simulate(*given)
        object.__setattr__(replayed, "seconds", replayed.seconds - 1)
        return replayed

    simulate = seam.simulate
    monkeypatch.setattr(seam, "simulate", hasty)
    check = law(PlannerContract, "test_without_a_link_it_is_not_faster_than_the_best_of_all_plans")
    planner = Rule("keep all", "checkpoint", lambda case: PlanProposal(kept(case)))
    with pytest.raises(AssertionError):
        check(planner=planner, random=Random(3), num_stages=3, share=1.0)


# ---- storages --------------------------------------------------------------------------------------------------------


class OneByOne(SqliteStorage):
    """Stores facts one after the other: half of them when one fails."""

    def append(self, study_id: str, facts: Sequence[Fact]) -> None:
        for each in facts:
            super().append(study_id, [each])


class OverwritesFacts(SqliteStorage):
    """The last of two facts with one name wins."""

    def append(self, study_id: str, facts: Sequence[Fact]) -> None:
        super().append(study_id, facts)
        for each in facts:
            self._open(create=True).execute(
                "UPDATE memfit_fact SET body = ? WHERE fact_id = ?", (each.body, each.fact_id)
            )


class InOrderOfArrival(SqliteStorage):
    """Facts come back as they were stored."""

    def read(self, study_id: str) -> list[Fact]:
        found = super().read(study_id)
        return found[3:] + found[:3]


class MixesStudies(SqliteStorage):
    """All facts are of one study."""

    def append(self, study_id: str, facts: Sequence[Fact]) -> None:
        super().append("the only one", facts)

    def read(self, study_id: str) -> list[Fact]:
        return super().read("the only one")


class HeldByEverybody(SqliteStorage):
    """Any number of coordinators may run a study."""

    def hold(self, study_id: str) -> bool:
        return True


STORAGE_VIOLATIONS = [
    (OneByOne, "test_facts_are_stored_together_or_not_at_all"),
    (OverwritesFacts, "test_storing_a_fact_twice_stores_it_once_and_as_it_was_first"),
    (InOrderOfArrival, "test_facts_come_back_in_their_order_whatever_order_they_were_stored_in"),
    (MixesStudies, "test_studies_in_one_database_do_not_mix"),
]


@pytest.mark.parametrize(("kind", "name"), STORAGE_VIOLATIONS)
def test_a_storage_that_breaks_a_law_is_caught(tmp_path: Path, kind: type[SqliteStorage], name: str):
    law(StorageContract, name)(storage=SqliteStorage(tmp_path / "good.db"))
    with pytest.raises(AssertionError):
        law(StorageContract, name)(storage=kind(tmp_path / "bad.db"))


def test_a_storage_that_two_coordinators_hold_or_that_keeps_facts_to_itself_is_caught(tmp_path: Path):
    shared: list[Storage] = [HeldByEverybody(tmp_path / "bad.db") for _ in range(2)]
    with pytest.raises(AssertionError):
        law(StorageContract, "test_only_one_coordinator_holds_a_study_at_a_time")(storage=shared[0], other=shared[1])
    files = iter(range(100))
    with pytest.raises(Exception):  # noqa: B017, PT011
        law(StorageContract, "test_several_writers_at_a_time_lose_nothing")(
            connect=lambda: SqliteStorage(tmp_path / f"{next(files)}.db")
        )


# ---- readers ---------------------------------------------------------------------------------------------------------


def tidies_up(folder: Path) -> RunRecord:
    record = read_run(folder)
    (folder / layout.SAMPLES_FILE).unlink()
    return record


def peak_of_the_first_sample(folder: Path) -> RunRecord:
    record = read_run(folder)
    first = Figure(value=float(record.samples.resident_bytes[0]), unit="bytes", source="measured")
    return dataclasses.replace(record, peak=first)


def every_run_is_done(folder: Path) -> RunRecord:
    record = read_run(folder)
    return dataclasses.replace(record, outcome=msgspec.structs.replace(record.outcome, kind="done"))


def crashes_on_a_torn_file(folder: Path) -> RunRecord:
    text = (folder / layout.EVENTS_FILE).read_text()
    assert text.endswith("\n")
    return read_run(folder)


def made(tmp_path: Path) -> dict[str, bytes]:
    folder = write_made_run(tmp_path / "made", MadeRun(seconds=4.0, num_workers=1, ledger=True))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_reader_that_changes_the_folder_is_caught(tmp_path: Path):
    check = law(ReaderContract, "test_a_whole_run_is_read_without_a_note_and_its_files_are_left_alone")
    check(read=read_run, made=made(tmp_path), tmp_path=tmp_path)
    with pytest.raises(AssertionError):
        check(read=tidies_up, made=made(tmp_path), tmp_path=tmp_path)


@pytest.mark.parametrize("read", [peak_of_the_first_sample, every_run_is_done])
def test_a_reader_with_a_wrong_peak_or_end_is_caught(tmp_path: Path, read: Any):
    check = law(ReaderContract, "test_the_peak_is_at_least_the_largest_sample_and_the_end_is_known")
    check(read=read_run, tmp_path=tmp_path, ending="failed")
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(AssertionError):
        check(read=read, tmp_path=tmp_path, ending="failed")


def test_a_reader_that_does_not_open_a_torn_run_or_reads_a_newer_one_is_caught(tmp_path: Path):
    junk = law(ReaderContract, "test_junk_in_any_file_is_an_error_of_ours_or_a_note_never_a_crash")
    with pytest.raises(AssertionError):
        junk(
            read=crashes_on_a_torn_file, made=made(tmp_path), tmp_path=tmp_path, name=layout.EVENTS_FILE, junk=b"{"
        )  # fmt: skip
    newer = law(ReaderContract, "test_a_newer_format_is_refused_with_both_versions")
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        newer(read=lambda folder: None, made=made(tmp_path), tmp_path=tmp_path)


# ---- workloads -------------------------------------------------------------------------------------------------------


def test_a_workload_that_breaks_a_law_is_caught():
    torch = pytest.importorskip("torch")
    from memfit.job.training import Training

    def build(*, learning_rate: float = 0.1, scale: float = 1.0, by_chance: bool = False, data: str = "") -> Training:
        model = torch.nn.Linear(3, 1)
        if by_chance:
            torch.nn.init.constant_(model.weight, next(NUMBERS))
        batch = scale * torch.ones(2, 3), torch.zeros(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
        return Training(model=model, optimizer=optimizer, loss=torch.nn.functional.mse_loss, batch=batch, data=data)

    laws: dict[str, dict[str, Any]] = {
        "test_a_step_changes_the_weights_and_leaves_no_gradient": {"learning_rate": 0.0},
        "test_the_loss_is_a_finite_number_after_several_steps": {"scale": float("inf")},
        "test_the_same_seed_builds_the_same_training": {"by_chance": True},
        "test_building_leaves_no_gradient_and_names_its_data_only_with_a_feed": {"data": "mnist"},
    }
    for name, broken in laws.items():
        law(WorkloadContract, name)(build=build)
        with pytest.raises(AssertionError):
            law(WorkloadContract, name)(build=lambda broken=broken: build(**broken))
