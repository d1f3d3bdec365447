"""Can other tools read what is exported, and is nothing lost on the way?"""

from __future__ import annotations

import csv
import io
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.errors import RunExists, StorageError, UsageError
from memfit.records.run import RunRecord
from memfit.records.timeline import LiveSpan, Timeline
from memfit.runfolder.reader import read_run
from memfit.show.export.csv_tables import TABLES
from memfit.show.export.formats import export
from memfit.show.export.traces import chrome_trace as export_chrome_trace
from memfit.show.export.traces.chrome_trace import chrome_trace
from memfit.show.export.traces.memory_viewer import memory_viewer_pickle, snapshot_of, snapshot_of_timelines
from memfit.testing.made_records.ledger import alive_at, made_timeline, peak_event
from memfit.testing.made_records.runs import MadeRun, write_made_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    plan = MadeRun(num_workers=2, ledger=True, gpu=True, energy="measured", seconds=6.0)
    return read_run(write_made_run(tmp_path_factory.mktemp("run"), plan))


# ---- tables and the whole record -------------------------------------------------------------------------------------


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def test_every_table_lands_in_the_folder_with_every_row(run: RunRecord, tmp_path: Path):
    paths = export(run, "csv", tmp_path / "tables")
    counts = {path.stem: len(rows_of(path)) for path in paths}
    assert counts == {
        "samples": len(run.samples), "tree": len(run.tree.time_seconds), "steps": len(run.steps),
        "processes": len(run.processes), "system": len(run.system), "gpu": len(run.gpus), "energy": len(run.energy),
    }  # fmt: skip


def test_samples_come_back_from_csv_bit_by_bit(run: RunRecord, tmp_path: Path):
    (path,) = export(run, "csv", tmp_path / "samples.csv", table="samples")
    rows = rows_of(path)
    assert np.array_equal([int(row["resident_bytes"]) for row in rows], run.samples.resident_bytes)
    assert np.array_equal([float(row["time_seconds"]) for row in rows], run.samples.time_seconds)


def test_an_unknown_number_is_an_empty_cell(tmp_path: Path):
    folder = write_made_run(tmp_path / "run")
    marks = folder / "marks-4711.txt"
    marks.write_text("\n".join(line for line in marks.read_text().splitlines() if not line.startswith("B ")) + "\n")
    (path,) = export(read_run(folder), "csv", tmp_path / "steps.csv", table="steps")
    assert {row["backward_peak_bytes"] for row in rows_of(path)} == {""}


def test_the_json_holds_the_whole_record_and_strict_readers_take_it(run: RunRecord, tmp_path: Path):
    (path,) = export(run, "json", tmp_path / "run.json")
    data = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert data["samples"]["resident_bytes"] == run.samples.resident_bytes.tolist()
    assert data["peak"]["value"] == run.peak.value
    assert data["header"]["command"] == list(run.header.command)


@pytest.mark.parametrize("to", ["csv", "json", "chrome-trace", "memory-viewer"])
def test_what_is_already_there_is_only_replaced_when_asked(run: RunRecord, tmp_path: Path, to: str):
    target = tmp_path / "out"
    target.mkdir() if to == "csv" else target.write_text("mine")
    with pytest.raises(RunExists, match="-f"):
        export(run, to, target)
    assert to == "csv" or target.read_text() == "mine"
    export(run, to, target, overwrite=True)


def test_a_wrong_format_table_or_place_is_a_clear_error(run: RunRecord, tmp_path: Path):
    with pytest.raises(UsageError, match="chrome-trace"):
        export(run, "xml")
    with pytest.raises(UsageError, match="samples"):
        export(run, "csv", tmp_path / "x", table="nothing")
    with pytest.raises(UsageError, match="only csv"):
        export(run, "json", tmp_path / "x", table="steps")
    with pytest.raises(StorageError, match="no folder"):
        export(run, "json", tmp_path / "nowhere" / "x.json")


def test_the_command_line_offers_exactly_the_tables_there_are():
    from memfit.commands.export import TABLES as OFFERED
    from memfit.commands.shared.options import FORMATS
    from memfit.show.export.formats import SUFFIXES

    assert set(OFFERED) == set(TABLES)
    assert set(FORMATS) == set(SUFFIXES)


# ---- chrome trace ----------------------------------------------------------------------------------------------------


def test_the_chrome_trace_has_the_structure_its_viewers_ask_for(run: RunRecord):
    trace = json.loads(chrome_trace(run))
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["name"], str)
        if event["ph"] == "C":
            assert isinstance(event["ts"], int)
            assert all(isinstance(value, (int, float)) for value in event["args"].values())
        elif event["ph"] == "X":
            assert event["dur"] >= 0
        else:
            assert (event["ph"], event["name"]) == ("M", "process_name")


def test_the_slices_of_a_step_nest_inside_of_it(run: RunRecord):
    slices = [event for event in json.loads(chrome_trace(run))["traceEvents"] if event["ph"] == "X"]
    steps = [event for event in slices if event["cat"] == "step"]
    assert len(steps) == len(run.steps)
    for phase in (event for event in slices if event["cat"] == "phase"):
        holders = [s for s in steps if s["ts"] <= phase["ts"] and phase["ts"] + phase["dur"] <= s["ts"] + s["dur"]]
        assert len(holders) == 1


def test_counters_carry_the_true_peak_even_when_they_are_thinned_out(run: RunRecord, monkeypatch: pytest.MonkeyPatch):
    for most in (200_000, 50):
        monkeypatch.setattr(export_chrome_trace, "MAX_COUNTERS", most)
        events = json.loads(chrome_trace(run))["traceEvents"]
        tree = [event for event in events if event["ph"] == "C" and event["name"] == "memory of the tree"]
        assert max(event["args"]["bytes"] for event in tree) == run.tree.tree_bytes.max()
        assert [event["ts"] for event in tree] == sorted(event["ts"] for event in tree)


# ---- memory viewer ---------------------------------------------------------------------------------------------------


class PlainUnpickler(pickle.Unpickler):
    """Reads containers and numbers, and refuses everything that could run code."""

    def find_class(self, module: str, name: str):
        raise AssertionError(f"the snapshot names {module}.{name}")


def test_the_snapshot_is_a_protocol_four_pickle_of_plain_containers(run: RunRecord):
    raw = memory_viewer_pickle(run)
    assert raw[:2] == b"\x80\x04"
    assert PlainUnpickler(io.BytesIO(raw)).load() == snapshot_of(run)


def test_pytorchs_own_reader_takes_the_snapshot(run: RunRecord):
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    snapshot = pickle.loads(memory_viewer_pickle(run))
    html = viewer.trace_plot(snapshot)
    assert "add_local_files" in html or "Active Memory Timeline" in html
    assert "segments:" in viewer.segsum(snapshot)
    assert "alloc" in viewer.trace(snapshot)


def living_bytes(trace: list[dict]) -> list[int]:
    """Bytes alive after every event, checked against double use of an address."""
    living: dict[int, int] = {}
    totals = []
    for event in trace:
        if event["action"] == "alloc":
            begin, end = event["addr"], event["addr"] + event["size"]
            assert not any(begin < other + size and other < end for other, size in living.items())
            living[begin] = event["size"]
        elif event["action"] == "free_completed":
            assert living.pop(event["addr"]) == event["size"]
        totals.append(sum(living.values()))
    return totals


def test_the_trace_reaches_the_peak_of_the_timeline_it_was_made_from():
    timeline = made_timeline()
    (trace,) = snapshot_of_timelines({"cpu": timeline})["device_traces"]
    expected = sum(-(-s.num_bytes // 512) * 512 for s in alive_at(timeline, peak_event(timeline)))
    assert max(living_bytes(trace)) == expected


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Any well-formed timeline: every span begins before it ends."""
    spans = []
    for start in range(draw(st.integers(1, 25))):
        end = draw(st.one_of(st.none(), st.integers(start + 1, 60)))
        num_bytes = draw(st.integers(0, 10**7))
        spans.append(LiveSpan(start=start, end=end, num_bytes=num_bytes, category="activation", phase="forward"))
    return Timeline(spans=tuple(spans), num_events=61)


@settings(max_examples=60, deadline=None)
@given(timeline=timelines())
def test_no_two_living_storages_overlap_and_blocks_fill_their_segment(timeline: Timeline):
    snapshot = snapshot_of_timelines({"cpu": timeline})
    living_bytes(snapshot["device_traces"][0])
    (segment,) = snapshot["segments"]
    assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    cursor = segment["address"]
    for block in segment["blocks"]:
        assert block["address"] == cursor
        cursor += block["size"]
    active = sum(block["size"] for block in segment["blocks"] if block["state"] == "active_allocated")
    assert active == segment["allocated_size"]
    outliving = sum(-(-max(s.num_bytes, 1) // 512) * 512 for s in timeline.spans if s.end is None)
    assert active == outliving


def test_a_run_without_a_traced_step_says_how_to_get_one(tmp_path: Path):
    bare = read_run(write_made_run(tmp_path))
    with pytest.raises(UsageError, match="--ledger"):
        snapshot_of(bare)
