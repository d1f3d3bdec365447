"""Is a chain that was only predicted near the one that is measured on the same model?"""

from __future__ import annotations

import pytest

from memfit import api
from memfit.api.fit import training_of
from memfit.errors import UsageError
from memfit.model.step import build_job
from memfit.plan.planners import make_plan
from memfit.profile.chain_from_prediction import budget_of, chain_from
from memfit.profile.fake_step import draft_of
from memfit.profile.profile import profile_job

SETTINGS = ("batch_size=8", "length=64", "words=500", "layers=4", "width=128", "optimizer=sgd")


def test_a_predicted_chain_has_the_stages_and_nearly_the_bytes_of_a_measured_one():
    draft, _ = draft_of(lambda: training_of("gpt", SETTINGS), "gpt")
    prediction = api.predict_peak("gpt", settings=SETTINGS, device="cpu", probes=False)
    predicted = chain_from(prediction, draft)
    measured = profile_job(build_job(training_of("gpt", SETTINGS), "gpt"), timed_runs=1).chain
    seen = {stage.name: stage for stage in measured.stages}
    blocks = [stage for stage in predicted.stages if stage.name.startswith("blocks.")]
    assert len(blocks) == 4
    for stage in blocks:
        assert stage.output_bytes == seen[stage.name].output_bytes
        assert stage.gradient_bytes == seen[stage.name].gradient_bytes
        assert stage.saved_bytes == pytest.approx(seen[stage.name].saved_bytes, rel=0.05)
        assert stage.joins_next == seen[stage.name].joins_next
    assert predicted.fixed.parameter_bytes == measured.fixed.parameter_bytes
    plain = [make_plan(chain, 2**40, planner="keep all").peak_bytes for chain in (predicted, measured)]
    assert plain[0] == pytest.approx(plain[1], rel=0.1)
    with pytest.raises(UsageError, match="no budget"):
        budget_of(None, prediction, "cuda")
