"""Is the Perfetto trace one that Perfetto's own messages parse, with every counter in bytes and every slice closed?"""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memfit.records.run import RunRecord
from memfit.runfolder.reader import read_run
from memfit.show.export.formats import export
from memfit.show.export.traces.perfetto import perfetto_trace
from memfit.testing.made_records.runs import MadeRun, write_made_run

pytest.importorskip("perfetto", reason="perfetto is not installed")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return read_run(write_made_run(tmp_path_factory.mktemp("run"), MadeRun(num_workers=2, gpu=True, seconds=6.0)))


@pytest.fixture(scope="module")
def trace(run: RunRecord) -> Any:
    found = import_module("perfetto.protos.perfetto.trace.perfetto_trace_pb2").Trace()
    found.ParseFromString(perfetto_trace(run))
    return found


def tracks_of(trace: Any) -> dict[int, Any]:
    return {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}


def test_counters_have_their_unit_and_every_sample_of_the_tree(run: RunRecord, trace: Any):
    tracks = tracks_of(trace)
    events = [packet for packet in trace.packet if packet.HasField("track_event")]
    counters = [p for p in events if p.track_event.type == 4]
    assert all(tracks[p.track_event.track_uuid].counter.unit == 3 for p in counters)
    (tree,) = [uuid for uuid, track in tracks.items() if track.name == "memory of the tree"]
    values = [(p.timestamp, p.track_event.counter_value) for p in counters if p.track_event.track_uuid == tree]
    assert [value for _, value in values] == run.tree.tree_bytes.tolist()
    assert np.allclose([at / 1e9 for at, _ in values], run.tree.time_seconds, atol=1e-6)


def test_slices_are_closed_in_order_and_nested(run: RunRecord, trace: Any):
    times = [packet.timestamp for packet in trace.packet if packet.HasField("track_event")]
    assert times == sorted(times)
    open_slices: dict[int, list[str]] = {}
    begun: Counter[str] = Counter()
    for packet in trace.packet:
        event = packet.track_event
        if packet.HasField("track_event") and event.type == 1:
            inside = open_slices.setdefault(event.track_uuid, [])
            assert event.name.startswith("step") == (not inside), (event.name, inside)
            inside.append(event.name)
            begun["step" if event.name.startswith("step") else event.name] += 1
        elif packet.HasField("track_event") and event.type == 2:
            open_slices[event.track_uuid].pop()
    assert all(not rest for rest in open_slices.values())
    assert begun["step"] == len(run.steps)


def test_tracks_belong_to_the_processes_of_the_run(run: RunRecord, trace: Any, tmp_path: Path):
    tracks = tracks_of(trace)
    named = {track.process.pid: track.process.process_name for track in tracks.values() if track.HasField("process")}
    assert named == {process.pid: process.command for process in run.processes}
    assert all(track.parent_uuid in tracks for track in tracks.values() if track.parent_uuid)
    (path,) = export(run, "perfetto", tmp_path / "x.pftrace")
    assert path.read_bytes() == perfetto_trace(run)
