"""Does every pipeline planner keep the laws of all pipeline planners?"""

from __future__ import annotations

import pytest

from memfit.plan.pipeline.case import PipelinePlanner
from memfit.plan.pipeline.planners import PLANNERS
from memfit.testing.contracts.pipeline_planner import PipelinePlannerContract


class TestEveryPlanner(PipelinePlannerContract):
    @pytest.fixture(params=list(PLANNERS))
    def planner(self, request: pytest.FixtureRequest) -> PipelinePlanner:
        return PLANNERS[request.param]
