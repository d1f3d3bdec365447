"""Do hostile and damaged records stay harmless, do peaks survive every window, does the server stay small?"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served import Served

from memfit import api
from memfit.serve.catalogue import find_records, kind_of
from memfit.show.page.documents.document import codes, numbers, read_numbers
from memfit.show.views.curve_pyramid import window_of
from memfit.show.views.curves import Curve
from memfit.show.views.decimate import pyramid
from memfit.testing.made_records.runs import MadeRun, write_made_run

SCRIPT = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"
values = st.lists(st.one_of(st.none(), st.integers(0, 2**53), st.floats(allow_nan=False, allow_infinity=False)))


@given(values)
def test_a_column_comes_back_to_the_last_bit(column: list[float | None]):
    back = read_numbers(numbers(column))
    expected = np.array([np.nan if value is None else float(value) for value in column])
    assert np.array_equal(back, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("most", "kind"),
    [(254, "u1"), (255, "u2"), (65534, "u2"), (65535, "u4"), (2**32 - 1, "f8"), (0.5, "f8"), (-1, "f8")],
)
def test_a_column_takes_as_few_bytes_as_it_needs(most: float, kind: str):
    assert numbers([0, most, None])["type"] == kind


def test_texts_are_numbers_into_their_list():
    column = codes(["b", None, "a", "b"])
    assert column["labels"] == ["a", "b"]
    assert read_numbers(column)[[0, 2, 3]].tolist() == [1, 0, 1]


@settings(max_examples=60)
@given(
    st.integers(1, 30_000), st.integers(0, 2**32 - 1), st.integers(1, 3000),
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
)  # fmt: skip
def test_the_highest_and_lowest_sample_of_a_stretch_are_in_its_window(
    size: int, seed: int, rows: int, ends: tuple[float, float]
):
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.random(size) + 1e-3)
    sizes = rng.integers(0, 2**40, size)
    curve = Curve(name="job", role="tree", index=0, levels=pyramid(times, sizes, max_rows=size))
    begin, end = sorted(share * times[-1] for share in ends)
    found = window_of([curve], begin, end, rows)[0].rows
    inside = sizes[(times >= begin) & (times <= end)]
    assert len(found) <= 2 * rows
    if len(inside):
        assert found.high.max() >= inside.max()
        assert found.low.min() <= inside.min()
        assert found.high.max() in sizes
    assert window_of([curve], 0, times[-1], rows)[0].rows.high.max() == sizes.max()


@settings(max_examples=60)
@given(st.integers(3000, 30_000), st.floats(0, 1), st.integers(0, 20_000), st.integers(1, 60))
def test_a_peak_of_one_sample_at_either_end_of_a_stretch_is_in_its_window(size: int, at: float, length: int, rows: int):
    """A row of the pyramid that begins before the stretch holds its first samples."""
    times, sizes = np.arange(size) * 0.01, np.full(size, 1000)
    peak = min(int(at * size), size - 1)
    sizes[peak] = 5000
    curve = Curve(name="job", role="tree", index=0, levels=pyramid(times, sizes, max_rows=size))
    for begin, end in ((times[peak], times[min(peak + length, size - 1)]), (times[max(peak - length, 0)], times[peak])):
        assert window_of([curve], begin, end, rows)[0].rows.high.max() == 5000


def test_a_hostile_folder_is_listed_and_shown_harmlessly(tmp_path: Path, serving: Callable[[Path], Served]):
    write_made_run(tmp_path / SCRIPT.replace("/", "_"), MadeRun(seconds=3.0, command=("python", SCRIPT)))
    damage(tmp_path)
    served = serving(tmp_path)
    items = msgspec.json.decode(served.ask("/api/list").body)["items"]
    assert len(items) >= 6
    for item in items:
        answer = served.ask("/api/document?" + query(item["id"]))
        assert answer.status in (200, 404), item
        assert answer.headers["content-type"].startswith("application/json")
        assert answer.headers["x-content-type-options"] == "nosniff"
    page = api.report_folder(tmp_path, tmp_path / "page.html")
    assert "<img src=x" not in page.read_text(encoding="utf-8")


def damage(folder: Path) -> None:
    """Records of every kind that are cut off, absurd or no files at all."""
    for name, text in {
        "cut.json": '{"format":"memfit-plan","format_version":3,"solver":',
        "huge.json": '{"format":"memfit-prediction","format_version":2,"target":"x","num_steps":1e400}',
        "newer.json": '{"format":"memfit-grid","format_version":999}',
        "deep.json": '{"format":"memfit-plan","x":' + "[" * 100_000 + "]" * 100_000 + "}",
        "study.json": '{"study_id":"x","settings":{"format":"memfit-study","space":{"parameters":[]}},"trials":[{}]}',
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    (folder / "bomb.pickle").write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    os.mkfifo(folder / "pipe.json")
    half = write_made_run(folder / "half", MadeRun(seconds=3.0))
    (half / "run.json").write_bytes((half / "run.json").read_bytes()[:40])
    odd = write_made_run(folder / "odd", MadeRun(seconds=3.0))
    (odd / "samples.bin").write_bytes(b"\xff" * 28 * 1000)
    (folder / "a-study").mkdir()
    (folder / "a-study" / "where.json").write_text('{"study_id":"../../x","storage":"../../../etc/passwd"}')
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(folder)
        listener.bind("socket.json")


@pytest.mark.parametrize("storage", ["../other/study.db", "/etc/passwd", "postgresql://evil.example/x", "linked.db"])
def test_a_study_cannot_name_a_database_outside_of_its_folder(tmp_path: Path, storage: str):
    from memfit.api.shared.open_records import open_study
    from memfit.errors import RecordError

    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "linked.db").symlink_to("/etc/passwd")
    (folder / "where.json").write_bytes(msgspec.json.encode({"study_id": "x", "storage": storage}))
    with pytest.raises(RecordError, match="database is not in its folder"):
        open_study(folder, tmp_path)


def query(name: str) -> str:
    from urllib.parse import urlencode

    return urlencode({"id": name})


def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path, serving: Callable[[Path], Served]):
    (tmp_path / "bomb.pickle").write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    served = serving(tmp_path)
    answer = served.ask("/api/document?id=bomb.pickle")
    assert answer.status == 404
    assert b"names something to run" in answer.body
    dropped = served.ask(
        "/api/snapshot", method="POST", body=(tmp_path / "bomb.pickle").read_bytes(), origin=f"http://{served.host}"
    )
    assert dropped.status == 404
    assert not (tmp_path / "owned").exists()


def test_every_kind_is_known_by_what_is_in_it(tmp_path: Path):
    write_made_run(tmp_path / "runs" / "a", MadeRun(seconds=3.0))
    (tmp_path / "plan.json").write_text('{\n "format": "memfit-plan"')
    (tmp_path / "other.json").write_text('{"format": "something"}')
    (tmp_path / "runs" / "a" / "plan.json").write_text('{"format":"memfit-plan"}')
    assert {entry.id: entry.kind for entry in find_records(tmp_path).entries} == {"runs/a": "run", "plan.json": "plan"}
    assert kind_of(tmp_path / "other.json") is None


def test_the_server_does_not_grow_over_many_requests(tmp_path: Path, serving: Callable[[Path], Served]):
    write_made_run(tmp_path / "a", MadeRun(seconds=6.0))
    served = serving(tmp_path)
    paths = ("/api/list", "/api/document?id=a", "/api/window?id=a&from=0&to=3&rows=300", "/api/document?id=no")

    def ask(times: int) -> int:
        for number in range(times):
            served.ask(paths[number % len(paths)])
        return resident_bytes()

    before = ask(120)
    assert ask(200) - before < 24 * 2**20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_metrics_are_those_of_every_record_and_a_damaged_one_is_counted(
    tmp_path: Path, serving: Callable[[Path], Served]
):
    parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason="prometheus_client is not installed")
    from memfit.runfolder.reader import read_run

    runs = [read_run(write_made_run(tmp_path / name, MadeRun(seconds=3.0, seed=n))) for n, name in enumerate("ab")]
    (tmp_path / "broken.json").write_text('{"format":"memfit-prediction","format_version":1')
    (tmp_path / "plan.json").write_text('{"format":"memfit-plan"}')
    served = serving(tmp_path)

    def samples() -> dict[tuple[str, str], float]:
        families = parser.text_string_to_metric_families(served.ask("/metrics").body.decode())
        return {
            (s.name, s.labels.get("run") or s.labels.get("state", "")): s.value for f in families for s in f.samples
        }

    found = samples()
    assert [found["memfit_run_peak_bytes", name] for name in "ab"] == [run.peak.value for run in runs]
    assert [found["memfit_records", state] for state in ("shown", "not readable", "without numbers")] == [2, 1, 1]
    write_made_run(tmp_path / "c", MadeRun(seconds=3.0, seed=7))
    os.rename(tmp_path / "a", tmp_path / "no-longer-a")
    import time

    time.sleep(2.2)  # the list of a folder is kept for two seconds
    later = samples()
    assert ("memfit_run_peak_bytes", "c") in later
    assert ("memfit_run_peak_bytes", "a") not in later


def test_a_run_that_is_still_written_is_still_running_and_one_that_has_ceased_to_grow_is_lost(
    tmp_path: Path, serving: Callable[[Path], Served]
):
    run = write_made_run(tmp_path / "a", MadeRun(seconds=3.0, ending="lost"))
    served = serving(tmp_path)

    def outcome() -> str:
        body = msgspec.json.decode(served.ask("/api/document?id=a").body)["body"]
        return body["run"]["headline"]["outcome"]["kind"]

    assert outcome() == "still running"
    for name in ("samples.bin", "events.jsonl"):
        os.utime(run / name, (1e9, 1e9))
    assert outcome() == "lost"


def test_a_study_in_another_database_is_read_again_though_no_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from memfit.serve import catalogue

    (tmp_path / "where.json").write_text('{"study_id":"x","storage":"postgresql://somewhere/x"}')
    moments = iter([1000.0, 1001.0, 1020.0, 1020.0, 1030.0, 1030.0])
    monkeypatch.setattr(catalogue.time, "time", lambda: next(moments))
    found = [catalogue.signature(tmp_path) for _ in range(3)]
    assert found[1] != found[0] or found[2] != found[1]
    (tmp_path / "study.db").write_bytes(b"")
    monkeypatch.undo()
    assert catalogue.signature(tmp_path) == catalogue.signature(tmp_path)


def test_a_study_that_is_named_itself_may_keep_its_facts_elsewhere(tmp_path: Path):
    from memfit.api.shared.open_records import open_study
    from memfit.testing.made_records.studies import made_mixed_study, write_made_study

    folder = write_made_study(tmp_path / "study", made_mixed_study(3))
    (folder / "study.db").rename(tmp_path / "elsewhere.db")
    where = msgspec.json.decode((folder / "where.json").read_bytes())
    where["storage"] = str(tmp_path / "elsewhere.db")
    (folder / "where.json").write_bytes(msgspec.json.encode(where))
    assert open_study(folder, folder).document.kind == "study"


def test_the_report_of_a_study_of_others_holds_no_run_from_outside_of_it(tmp_path: Path):
    from memfit.testing.made_records.studies import made_mixed_study, write_made_study

    write_made_run(tmp_path / "secret", MadeRun(seconds=3.0, command=("python", "secret.py")))
    study = made_mixed_study(4)
    for number, place in enumerate(("../../secret", str(tmp_path / "secret"))):
        trials = tuple(msgspec.structs.replace(trial, run_folder=place) for trial in study.trials)
        folder = tmp_path / f"served{number}"
        folder.mkdir()
        write_made_study(folder / "study", msgspec.structs.replace(study, trials=trials))
        page = api.report_folder(folder, tmp_path / f"{number}.html").read_text(encoding="utf-8")
        assert "secret.py" not in page
