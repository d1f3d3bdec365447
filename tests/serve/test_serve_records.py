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
from memfit.show.views.curves import Curve
from memfit.show.views.decimate import pyramid
from memfit.show.views.window import window_of
from memfit.testing.made_runs import MadeRun, write_made_run

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
    from memfit.api.open_records import open_study
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
