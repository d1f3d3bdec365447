"""Are the pages of plans, fits and pipelines true to their records?"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest

from memfit import api
from memfit.api.shared.open_records import open_plan, read_plan_or_fit
from memfit.plan.planners import make_plan
from memfit.records.files.ranges import MOST_BYTES
from memfit.records.fit import Fit, LoopFit, Proof
from memfit.records.pipeline import PipelinePlan, RankCurve, encode_pipeline
from memfit.records.plan import Plan
from memfit.serve.catalogue import kind_of
from memfit.show.page.documents.document import read_numbers
from memfit.show.page.documents.pipeline import MOST_EVENTS, highest_between, pipeline_document
from memfit.show.page.documents.plan import plan_document
from memfit.testing.made_records.chains import rough_chain

GRAPH = Path(__file__).parents[2] / "examples" / "pipeline" / "graph.txt"


@pytest.fixture(scope="module")
def plan() -> Plan:
    chain = rough_chain(Random(3), 8)
    return make_plan(chain, make_plan(chain, 2**60).plain_peak_bytes - 1)


@pytest.fixture(scope="module")
def pipeline() -> PipelinePlan:
    return api.plan_pipeline(str(GRAPH), num_ranks=4, memory_bytes=16 * 2**30, link_bytes_per_second=12e9)


def test_a_fit_of_a_script_shows_its_plan_its_proof_and_what_the_training_took(plan: Plan, tmp_path: Path):
    proof = Proof(promised_bytes=plan.peak_bytes, measured_peak_bytes=plan.peak_bytes, num_compared=7)
    fit = Fit(target="train.py", budget_bytes=plan.budget_bytes, plan=plan, candidates=(), proof=proof)
    loop = LoopFit(
        name="train.py", budget_bytes=plan.budget_bytes, fits=(fit,), num_passes=14, num_measured=3,
        measured_peak_bytes=plan.peak_bytes,
    )  # fmt: skip
    path = tmp_path / "fit.json"
    path.write_bytes(msgspec.json.encode(loop))
    assert kind_of(path) == "plan"
    assert read_plan_or_fit(path) == (plan, fit, loop)
    body = open_plan(path, tmp_path).document.body
    assert body["proof"]["num_compared"] == 7  # pyright: ignore[reportIndexIssue, reportOptionalSubscript]
    assert body["loop"]["num_measured"] == 3  # pyright: ignore[reportIndexIssue, reportOptionalSubscript]


def test_a_training_that_fits_as_it_is_has_the_budget_that_was_asked_for_and_no_made_up_one(plan: Plan):
    free = msgspec.structs.replace(plan, budget_bytes=MOST_BYTES)
    alone = plan_document(free)
    assert (alone.body["budget_bytes"], alone.body["fits"]) == (None, True)
    assert "TiB" not in f"{alone.title} {alone.body['sentence']}"
    fit = Fit(target="train.py", budget_bytes=2**30, plan=free, candidates=())
    assert plan_document(free, fit).body["budget_bytes"] == 2**30
    assert plan_document(free, fit).title == "train.py within 1.00 GiB"


def test_a_plan_that_promises_more_than_it_takes_is_judged_by_what_was_measured(plan: Plan):
    budget_bytes = plan.peak_bytes - 1024
    proof = Proof(num_compared=3, promised_bytes=plan.peak_bytes, measured_peak_bytes=budget_bytes - 1)
    fit = Fit(target="train.py", budget_bytes=budget_bytes, plan=plan, candidates=(), proof=proof)
    body = plan_document(plan, fit).body
    assert body["fits"] is True
    assert "within the budget" in str(body["sentence"])
    unproven = plan_document(plan, msgspec.structs.replace(fit, proof=None)).body
    assert "above the budget" in str(unproven["sentence"])


def test_a_pipeline_plan_has_a_page_with_every_operation_and_the_peaks_of_its_ranks(
    pipeline: PipelinePlan, tmp_path: Path
):
    path = tmp_path / "plan.json"
    path.write_bytes(encode_pipeline(pipeline))
    assert kind_of(path) == "pipeline"
    body = pipeline_document(pipeline).body
    gantt, heat = body["gantt"], body["heat"]
    assert isinstance(gantt, dict)
    assert isinstance(heat, dict)
    assert gantt["row"]["count"] == len(pipeline.step.events)
    names = [gantt["rows"][int(place)] for place in read_numbers(gantt["row"])]
    assert names == [event.resource for event in pipeline.step.events]
    cells = read_numbers(heat["bytes"]).reshape(4, heat["columns"])
    assert cells.max(axis=1).tolist() == [max(curve.num_bytes) for curve in pipeline.step.curves]
    page = api.report_folder(tmp_path, tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"kind":"pipeline"' in page


def test_a_step_with_too_many_operations_keeps_its_memory_and_says_that_it_is_not_drawn(pipeline: PipelinePlan):
    times = MOST_EVENTS // len(pipeline.step.events) + 1
    many = msgspec.structs.replace(pipeline.step, events=pipeline.step.events * times)
    body = pipeline_document(msgspec.structs.replace(pipeline, step=many)).body
    assert body["gantt"] is None
    assert body["heat"] is not None


@pytest.mark.parametrize("seed", range(20))
def test_no_peak_of_a_rank_is_lost_between_two_columns(seed: int):
    random = np.random.default_rng(seed)
    seconds = np.concatenate([[0.0], np.sort(random.random(random.integers(1, 60)))])
    curve = RankCurve(
        rank=0, seconds=tuple(seconds), num_bytes=tuple(int(n) for n in random.integers(0, 99, len(seconds)))
    )
    edges = np.linspace(0, 1, int(random.integers(2, 40)))
    found = highest_between(curve, edges)
    for place, (begin, end) in enumerate(pairwise(edges)):
        moments = [begin, *(second for second in seconds if begin <= second <= end)]
        alive = [curve.num_bytes[np.searchsorted(seconds, moment, side="right") - 1] for moment in moments]
        assert found[place] == max(alive)
