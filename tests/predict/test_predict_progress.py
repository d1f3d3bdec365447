"""A prediction that takes too long says where the job was."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from memfit.errors import PredictionFailed
from memfit.job.description import describe_job
from memfit.predict.child.messages import TraceRequest
from memfit.predict.child.parent import trace_in_child
from memfit.predict.child.progress import last_report, reporting
from memfit.predict.options import PredictOptions


@pytest.mark.slow
def test_a_loop_without_an_end_is_stopped_and_its_line_is_named(tmp_path: Path):
    script = tmp_path / "endless.py"
    script.write_text("import torch\nx = torch.zeros(3)\nwhile True:\n    x = x + 1\n")
    options = PredictOptions(probes=False, most_seconds=8)
    request = TraceRequest(job=describe_job(str(script), {}, ()), device="cpu", options=options)
    with pytest.raises(PredictionFailed) as caught:
        trace_in_child(request)
    assert caught.value.kind == "time"
    assert "endless.py:" in str(caught.value.found)
    assert "0 steps and" in str(caught.value.found)


def test_without_a_folder_nothing_is_reported(tmp_path: Path):
    with reporting("", lambda: "somewhere"):
        pass
    assert last_report(tmp_path) == ""
