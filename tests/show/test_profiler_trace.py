"""Does the memory of a run stand beside the operators of torch.profiler, at the right moment, with nothing lost?"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from memfit import api
from memfit.errors import RecordError, UsageError
from memfit.records.run import RunRecord
from memfit.runfolder.reader import read_run
from memfit.testing.made_records.runs import MadeRun, write_made_run

BASE_NS = 1_790_857_026_000_000_000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return read_run(write_made_run(tmp_path_factory.mktemp("run"), MadeRun(seconds=4.0)))


def made_trace(run: RunRecord, after_seconds: float = 1.0) -> dict[str, object]:
    """What torch.profiler writes of one operator, so long after the run began."""
    began = datetime.fromisoformat(run.header.created_at).timestamp()
    pid = run.processes[0].pid
    at_us = (began + after_seconds) * 1e6 - BASE_NS / 1e3
    names = {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "python"}}
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": pid, "tid": pid, "ts": at_us, "dur": 10.5}
    return {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": [names, operator]}


def test_counters_are_added_on_the_profilers_clock_and_its_own_events_stay(run: RunRecord, tmp_path: Path):
    trace = made_trace(run)
    path = tmp_path / "a.pt.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    (written,) = api.export_record(run, "chrome-trace", tmp_path / "both.json", beside=path)
    both = json.loads(written.read_text())
    assert both["traceEvents"][:2] == trace["traceEvents"]
    assert both["baseTimeNanoseconds"] == BASE_NS
    operator = both["traceEvents"][1]
    counters = [event for event in both["traceEvents"] if event["name"] == "memory of the tree"]
    assert len(counters) == len(run.tree.time_seconds)
    offsets = [(event["ts"] - operator["ts"]) / 1e6 for event in counters]
    assert offsets == pytest.approx((run.tree.time_seconds - 1.0).tolist(), abs=1e-3)
    process = [event for event in both["traceEvents"] if event["name"] == "process_name"]
    assert [event["args"]["name"] for event in process if event["pid"] == operator["pid"]] == ["python"]


def test_a_trace_of_another_time_or_without_a_clock_is_refused(run: RunRecord, tmp_path: Path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(made_trace(run, after_seconds=5000.0)))
    with pytest.raises(UsageError, match="different times"):
        api.export_record(run, "chrome-trace", tmp_path / "x.json", beside=path)
    clockless = made_trace(run)
    del clockless["baseTimeNanoseconds"]
    path.write_text(json.dumps(clockless))
    with pytest.raises(UsageError, match="clock"):
        api.export_record(run, "chrome-trace", tmp_path / "x.json", beside=path)
    path.write_text("[]")
    with pytest.raises(RecordError, match="no trace"):
        api.export_record(run, "chrome-trace", tmp_path / "x.json", beside=path)
    with pytest.raises(UsageError, match="chrome-trace"):
        api.export_record(run, "json", tmp_path / "x.json", beside=path)
    assert not (tmp_path / "x.json").exists()


JOB = """
import sys, torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
profiler.export_chrome_trace(sys.argv[1])
"""


@pytest.mark.slow
def test_the_steps_of_a_real_run_end_where_the_real_profiler_saw_the_optimizer_end(tmp_path: Path):
    (tmp_path / "job.py").write_text(JOB)
    words = [sys.executable, "-m", "memfit", "measure", "-q", "--no-report", "-o", tmp_path / "run", "--"]
    subprocess.run([*words, sys.executable, tmp_path / "job.py", tmp_path / "p.json"], check=True, capture_output=True)
    api.export_record(
        api.read_run(tmp_path / "run"), "chrome-trace", tmp_path / "both.json", beside=tmp_path / "p.json"
    )
    events = json.loads((tmp_path / "both.json").read_text())["traceEvents"]
    ends = [e["ts"] + e["dur"] for e in events if e["name"].startswith("Optimizer.step")]
    steps = [e["ts"] + e["dur"] for e in events if e.get("cat") == "step"]
    assert len(ends) == 5
    assert steps[-1] == pytest.approx(ends[-1], abs=20_000)  # microseconds; measured: one thousand
