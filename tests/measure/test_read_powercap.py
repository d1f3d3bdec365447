"""Are packages and memory counted once each, restarts added, and unreadable counters explained?"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.measure.counters.energy import (
    EnergyMark,
    EnergyReadings,
    Unavailable,
    assumed_energy,
    energy_events,
    energy_spans,
    measured_total_joules,
    read_interval_seconds,
    read_meters,
    span_between,
)
from memfit.measure.counters.powercap import (
    PowercapReader,
    joules_between,
    microjoules_between,
    open_powercap,
)

RANGE = 262_143_328_850
"""A usual range: 2^32 - 1 counts of 61 microjoules."""
RANGES = st.integers(min_value=1_000, max_value=2**53)


class FakeSysfs:
    """A powercap tree in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "powercap"
        self.hwmon = folder / "hwmon"

    def zone(self, place: str, name: str, microjoules: int | None = 0, range_microjoules: int | None = RANGE) -> Path:
        folder = self.root / place
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{name}\n")
        if microjoules is not None:
            self.set(place, microjoules)
        if range_microjoules is not None:
            (folder / "max_energy_range_uj").write_text(f"{range_microjoules}\n")
        return folder

    def set(self, place: str, microjoules: int) -> None:
        (self.root / place / "energy_uj").write_text(f"{microjoules}\n")

    def amd_energy(self, labels: dict[str, int]) -> None:
        chip = self.hwmon / "hwmon3"
        chip.mkdir(parents=True)
        (chip / "name").write_text("amd_energy\n")
        for number, (label, microjoules) in enumerate(labels.items(), 1):
            (chip / f"energy{number}_label").write_text(f"{label}\n")
            (chip / f"energy{number}_input").write_text(f"{microjoules}\n")

    def open(self) -> PowercapReader | Unavailable:
        return open_powercap(self.root, self.hwmon)

    def reader(self) -> PowercapReader:
        opened = self.open()
        assert isinstance(opened, PowercapReader), opened
        return opened


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path)


@pytest.fixture
def server(sysfs: FakeSysfs) -> FakeSysfs:
    """Two sockets as the kernel shows them: zones inside of their parent, and once more as links at the root."""
    for socket in (0, 1):
        zone = f"intel-rapl/intel-rapl:{socket}"
        sysfs.zone(zone, f"package-{socket}", 1000)
        sysfs.zone(f"{zone}/intel-rapl:{socket}:0", "core", 1000)
        sysfs.zone(f"{zone}/intel-rapl:{socket}:1", "dram", 1000)
        for name in (f"intel-rapl:{socket}", f"intel-rapl:{socket}:0", f"intel-rapl:{socket}:1"):
            inner = f"{zone}/{name}" if name.count(":") == 2 else zone
            (sysfs.root / name).symlink_to(sysfs.root / inner)
    sysfs.zone("intel-rapl:2", "psys", 5)
    sysfs.zone("intel-rapl-mmio:0", "package-0", 5)
    return sysfs


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


# ---- restarts ----


@settings(deadline=None)
@given(begin=st.integers(min_value=0), gained=st.integers(min_value=0), span=RANGES)
def test_any_gain_below_the_range_is_read_back_across_a_restart(begin: int, gained: int, span: int):
    gained %= span
    assert microjoules_between(begin % span, (begin + gained) % span, span) == gained
    assert joules_between(begin % span, (begin + gained) % span, span) == gained / 1e6


@settings(deadline=None)
@given(start=st.integers(min_value=0, max_value=2**53), end=st.integers(min_value=0, max_value=2**53), span=RANGES)
def test_a_gain_is_never_negative_and_a_jump_beyond_the_range_is_never_invented(start: int, end: int, span: int):
    gained = microjoules_between(start, end, span)
    if gained is None:
        assert end < start > span
    else:
        assert gained >= 0
        assert end >= start or gained < span


def test_a_fall_without_a_known_range_cannot_be_told():
    assert joules_between(100, 50, None) is None
    assert joules_between(50, 100, None) == 50e-6


@settings(deadline=None)
@given(steps=st.lists(st.integers(min_value=0, max_value=999), min_size=1, max_size=30))
def test_the_reader_adds_every_restart_it_has_seen(tmp_path_factory: pytest.TempPathFactory, steps: list[int]):
    sysfs, total = FakeSysfs(tmp_path_factory.mktemp("sys")), 700
    sysfs.zone("intel-rapl:0", "package-0", total, range_microjoules=1000)
    reader = sysfs.reader()
    for step in steps:
        total += step
        sysfs.set("intel-rapl:0", total % 1000)
        assert reader.read() == {"package-0": total - 700}


def test_the_wrap_hint_is_the_smallest_range_at_500_watts(sysfs: FakeSysfs):
    sysfs.zone("intel-rapl:0", "package-0", 0, range_microjoules=262_143_000_000)
    sysfs.zone("intel-rapl:0/intel-rapl:0:0", "dram", 0, range_microjoules=65_000_000_000)
    reader = sysfs.reader()
    assert reader.wrap_seconds == pytest.approx(130.0)
    assert reader.read_every_seconds == pytest.approx(65.0)
    assert read_interval_seconds([reader]) == 60.0
    assert read_interval_seconds([Unavailable(reason="none")]) == 60.0


# ---- which zones count ----


def test_packages_and_memory_are_counted_once_and_what_overlaps_is_left_out(server: FakeSysfs):
    for number, place in enumerate(
        ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl:0:1", "intel-rapl:1:0", "intel-rapl:2")
    ):
        server.set(place, 10**number)
    reader = server.reader()
    assert sorted(domain.name for domain in reader.domains) == ["dram-0", "dram-1", "package-0", "package-1"]
    counters = {domain.name: int(domain.path.read_text()) for domain in reader.domains}
    assert counters == {"package-0": 1, "dram-0": 100, "package-1": 1000, "dram-1": 1000}


def test_dies_of_one_package_keep_their_names(sysfs: FakeSysfs):
    sysfs.zone("intel-rapl:0", "package-0-die-0")
    sysfs.zone("intel-rapl:1", "package-0-die-1")
    sysfs.zone("intel-rapl:1/intel-rapl:1:0", "dram")
    assert list(sysfs.reader().read()) == ["package-0-die-0", "package-0-die-1", "dram-0-die-1"]


def test_ten_sockets_do_not_share_memory_zones(sysfs: FakeSysfs):
    for socket in (1, 10):
        sysfs.zone(f"intel-rapl:{socket}", f"package-{socket}")
    sysfs.zone("intel-rapl:10:0", "dram")
    assert sorted(sysfs.reader().read()) == ["dram-10", "package-1", "package-10"]


def test_without_a_memory_counter_the_missing_part_is_named(sysfs: FakeSysfs):
    sysfs.zone("intel-rapl:0", "package-0")
    marks = {mark.domain: mark for mark in sysfs.reader().marks(1.0)}
    assert marks["dram"].microjoules is None
    assert "no counter for its memory" in marks["dram"].reason


def test_amd_energy_sockets_are_read_where_powercap_has_none(sysfs: FakeSysfs):
    sysfs.amd_energy({"Ecore000": 5, "Ecore001": 6, "Esocket0": 700, "Esocket1": 800})
    reader = sysfs.reader()
    assert [domain.name for domain in reader.domains] == ["package-0", "package-1"]
    assert {mark.method for mark in reader.marks(0.0) if mark.domain != "dram"} == {"RAPL counter by amd_energy"}
    assert reader.wrap_seconds is None
    assert reader.read_every_seconds is None


def test_powercap_is_preferred_to_amd_energy(sysfs: FakeSysfs):
    sysfs.zone("intel-rapl:0", "package-0")
    sysfs.amd_energy({"Esocket0": 700})
    assert [domain.method for domain in sysfs.reader().domains] == ["RAPL counter by powercap"]


# ---- what cannot be read ----


def test_a_machine_without_powercap_says_so_and_what_to_try(sysfs: FakeSysfs):
    answer = sysfs.open()
    assert isinstance(answer, Unavailable)
    assert "does not exist" in answer.reason
    assert "--assume-watts" in answer.hint


def test_an_empty_powercap_folder_points_to_the_driver(sysfs: FakeSysfs):
    sysfs.root.mkdir()
    answer = sysfs.open()
    assert isinstance(answer, Unavailable)
    assert "modprobe" in answer.hint


def test_one_unreadable_domain_does_not_cost_the_others(server: FakeSysfs):
    counter = server.root / "intel-rapl:0:1/energy_uj"
    counter.unlink()
    counter.mkdir()
    reader = server.reader()
    assert sorted(reader.read()) == ["dram-1", "package-0", "package-1"]
    assert "energy_uj cannot be read: Is a directory" in reader.problems["dram-0"]
    assert {mark.domain: mark.reason for mark in reader.marks(1.0)}["dram-0"] == reader.problems["dram-0"]


@pytest.mark.parametrize("content", ["", "many joules", "12 34"])
def test_a_counter_that_holds_no_number_is_a_reason(sysfs: FakeSysfs, content: str):
    zone = sysfs.zone("intel-rapl:0", "package-0")
    (zone / "energy_uj").write_text(content)
    answer = sysfs.open()
    assert isinstance(answer, Unavailable)
    assert "does not hold a number" in answer.reason


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file, whatever its permissions")
def test_a_forbidden_counter_is_recognised_for_real(sysfs: FakeSysfs):
    (sysfs.zone("intel-rapl:0", "package-0") / "energy_uj").chmod(0)
    answer = sysfs.open()
    assert isinstance(answer, Unavailable)
    assert "root alone" in answer.reason


def test_forbidden_counters_name_the_command_that_opens_them(sysfs: FakeSysfs, monkeypatch: pytest.MonkeyPatch):
    sysfs.zone("intel-rapl:0", "package-0")
    read_text = Path.read_text

    def forbidden(path: Path, *arguments, **options) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", forbidden)
    answer = sysfs.open()
    assert isinstance(answer, Unavailable)
    assert answer.exists
    assert "root alone" in answer.reason
    assert answer.hint.startswith(f"sudo chmod a+r {sysfs.root}/intel-rapl:*/energy_uj")


def test_a_counter_lost_once_stays_lost_because_a_restart_may_hide_in_the_gap(sysfs: FakeSysfs):
    sysfs.zone("intel-rapl:0", "package-0", 10)
    reader = sysfs.reader()
    (sysfs.root / "intel-rapl:0/energy_uj").unlink()
    assert reader.read() == {}
    sysfs.set("intel-rapl:0", 90)
    assert reader.read() == {}
    assert "No such file" in reader.problems["package-0"]


# ---- from marks to events ----


def events_over(sysfs: FakeSysfs, seconds: float, new_values: dict[str, int], **options) -> list[dict]:
    clock, reader = Clock(), sysfs.reader()
    start = read_meters([reader], clock)
    clock.now += seconds
    for place, microjoules in new_values.items():
        sysfs.set(place, microjoules)
    return energy_events(start, read_meters([reader], clock), **options)


def test_energy_events_carry_domain_joules_source_method_scope_window_and_reason(sysfs: FakeSysfs):
    sysfs.zone("intel-rapl:0", "package-0", RANGE - 1_000_000)
    sysfs.zone("intel-rapl:0/intel-rapl:0:0", "dram", 0)
    package, dram = events_over(sysfs, 2.0, {"intel-rapl:0": 500_000})
    assert package == {
        "kind": "energy",
        "domain": "package-0",
        "joules": 1.5,
        "source": "measured",
        "method": "RAPL counter by powercap",
        "scope": "socket",
        "window_seconds": 2.0,
        "reason": "",
    }
    assert dram["joules"] is None
    assert "did not move" in dram["reason"]


def test_a_window_below_ten_milliseconds_has_no_figure(sysfs: FakeSysfs):
    sysfs.zone("intel-rapl:0", "package-0", 0)
    event = events_over(sysfs, 0.009, {"intel-rapl:0": 500})[0]
    assert event["joules"] is None
    assert "too short" in event["reason"]


def test_without_any_counter_there_is_one_event_with_every_reason_but_the_gpu_that_does_not_exist():
    package = Unavailable(reason="no powercap", hint="hardware", domain="package")
    broken = Unavailable(reason="driver mismatch", domain="gpu", exists=True)
    absent = Unavailable(reason="no driver", domain="gpu")
    for gpu, reason in (
        (broken, "no powercap; try: hardware; driver mismatch"),
        (absent, "no powercap; try: hardware"),
    ):
        readings = EnergyReadings(time_seconds=1.0, marks={}, unavailable=(package, gpu))
        assert energy_events(readings, readings) == [{"kind": "energy_unavailable", "reason": reason}]


def test_with_a_gpu_alone_the_missing_package_is_a_gap_and_a_missing_gpu_is_not():
    def readings(now: float, microjoules: int, *missing: Unavailable) -> EnergyReadings:
        return EnergyReadings(time_seconds=now, marks={"x-0": mark("x-0", now, microjoules)}, unavailable=missing)

    no_package = Unavailable(reason="forbidden", domain="package", exists=True)
    no_gpu = Unavailable(reason="no driver", domain="gpu")
    broken_gpu = Unavailable(reason="driver mismatch", domain="gpu", exists=True)
    domains = lambda one: [e["domain"] for e in energy_events(readings(0, 0, one), readings(1, 5, one))]  # noqa: E731
    assert domains(no_package) == ["x-0", "package"]
    assert domains(no_gpu) == ["x-0"]
    assert domains(broken_gpu) == ["x-0", "gpu"]


def mark(domain: str, time_seconds: float, microjoules: int | None, reason: str = "") -> EnergyMark:
    return EnergyMark(
        domain=domain,
        scope="socket",
        method="test",
        time_seconds=time_seconds,
        microjoules=microjoules,
        smallest_window_seconds=0.01,
        reason=reason,
    )


@settings(deadline=None)
@given(
    begin=st.integers(min_value=0, max_value=2**60),
    first=st.integers(min_value=1, max_value=2**40),
    second=st.integers(min_value=1, max_value=2**40),
)
def test_neighbouring_windows_add_up_to_the_whole(begin: int, first: int, second: int):
    marks = [mark("p", 0.0, begin), mark("p", 1.0, begin + first), mark("p", 3.0, begin + first + second)]
    parts = [span_between(marks[0], marks[1]), span_between(marks[1], marks[2])]
    whole = span_between(marks[0], marks[2])
    assert whole.joules == pytest.approx(sum(part.joules or 0 for part in parts))
    assert whole.window_seconds == sum(part.window_seconds for part in parts)


@settings(deadline=None)
@given(
    ends=st.tuples(st.none() | st.integers(0, 2**60), st.none() | st.integers(0, 2**60)),
    seconds=st.floats(0, 1e6),
)
def test_a_span_has_either_joules_or_a_reason(ends: tuple[int | None, int | None], seconds: float):
    start, end = (
        mark("p", when, uj, "" if uj is not None else "lost") for when, uj in zip((0.0, seconds), ends, strict=True)
    )
    span = span_between(start, end)
    assert (span.joules is None) == bool(span.reason)
    assert span.joules is None or span.joules > 0


def test_a_domain_seen_at_one_end_only_has_no_figure():
    start = EnergyReadings(time_seconds=0.0, marks={"package-0": mark("package-0", 0.0, 5)})
    end = EnergyReadings(time_seconds=1.0, marks={})
    (span,) = energy_spans(start, end)
    assert span.joules is None
    assert "only one end" in span.reason


# ---- assumed watts ----


def test_assumed_energy_is_marked_and_never_part_of_a_measured_total():
    assumed = assumed_energy(50, 10)
    measured = span_between(mark("p", 0.0, 0), mark("p", 1.0, 3_000_000))
    assert (assumed.joules, assumed.source, assumed.scope) == (500, "assumed", "machine")
    assert measured_total_joules([assumed, measured]) == 3.0
    assert measured_total_joules([assumed]) is None


def test_assumed_watts_stand_beside_measured_domains(sysfs: FakeSysfs):
    sysfs.zone("intel-rapl:0", "package-0", 0)
    events = events_over(sysfs, 2.0, {"intel-rapl:0": 4_000_000}, assume_watts=10.0)
    assert [(e["domain"], e["joules"], e["source"]) for e in events] == [
        ("package-0", 4.0, "measured"),
        ("dram", None, None),
        ("assumed", 20.0, "assumed"),
    ]


def test_assumed_watts_alone_come_with_a_note_why():
    readings = EnergyReadings(time_seconds=1.0, marks={}, unavailable=(Unavailable(reason="a virtual machine"),))
    event, note = energy_events(readings, readings, assume_watts=10.0)
    assert event["source"] == "assumed"
    assert note == {"kind": "note", "message": "energy is assumed, not measured: a virtual machine"}
