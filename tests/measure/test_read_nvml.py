"""Does the NVML reader understand a real shared library with the driver's symbols, layouts and refusals?

The library is compiled from fake_nvml.c: calls, struct layouts and dynamic loading are real, the figures are not.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.measure.counters.energy import PowerIntegral, Unavailable, energy_events, read_meters
from memfit.measure.counters.nvml import NvmlReader, open_nvml
from memfit.measure.counters.nvml_library import ERROR_NAMES
from memfit.measure.sampler import gpu_events as gpu_events_file
from memfit.measure.sampler.gpu_events import gpu_events, sees_host_pids

SOURCE = Path(__file__).with_name("fake_nvml.c")
GIB = 1024**3
NOT_AVAILABLE = 2**64 - 1
COMPILER = shutil.which("cc")

Build = Callable[..., ctypes.CDLL]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compiles the library, once for each set of switches."""
    if COMPILER is None:
        pytest.skip("no C compiler to build the simulated library with")
    folder = tmp_path_factory.mktemp("nvml")

    def compiled(*switches: str) -> ctypes.CDLL:
        target = folder / f"libfake-{'-'.join(switches) or 'plain'}.so"
        if not target.exists():
            flags = [f"-D{switch}" for switch in switches]
            command = [COMPILER, "-shared", "-fPIC", "-Wall", *flags, "-o", str(target), str(SOURCE)]
            subprocess.run(command, check=True)
        library = ctypes.CDLL(str(target))
        library.fake_process.argtypes = [ctypes.c_uint, ctypes.c_uint, ctypes.c_ulonglong]
        library.fake_energy.argtypes = [ctypes.c_uint, ctypes.c_ulonglong, ctypes.c_uint]
        library.fake_reset()
        return library

    return compiled


@pytest.fixture
def fake(build: Build) -> ctypes.CDLL:
    return build()


@pytest.fixture
def reader(fake: ctypes.CDLL) -> Iterator[NvmlReader]:
    fake.fake_library(2, 0, 0)
    opened = opened_reader(fake)
    yield opened
    opened.close()


def opened_reader(fake: ctypes.CDLL) -> NvmlReader:
    opened = open_nvml(fake._name)
    assert isinstance(opened, NvmlReader), opened
    return opened


def messages(events: list[dict]) -> list[str]:
    return [event["message"] for event in events if event["kind"] == "note"]


def test_devices_are_listed_with_name_and_memory(reader: NvmlReader):
    assert [device.name for device in reader.devices] == ["Simulated 0", "Simulated 1"]
    events = gpu_events(reader, ())
    assert [(e["device"], e["total_bytes"], e["used_bytes"]) for e in events] == [
        (0, 80 * GIB, GIB),
        (1, 80 * GIB, 2 * GIB),
    ]


def test_a_missing_library_is_a_reason_and_not_an_error(tmp_path: Path):
    answer = open_nvml(str(tmp_path / "libnvidia-ml.so.1"))
    assert isinstance(answer, Unavailable)
    assert answer.reason.startswith("no NVIDIA driver")
    assert not answer.exists


def test_a_file_that_is_no_library_is_a_reason_and_not_an_error(tmp_path: Path):
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    assert isinstance(open_nvml(str(tmp_path / "libnvidia-ml.so.1")), Unavailable)


@pytest.mark.parametrize("code", sorted(ERROR_NAMES))
def test_a_refused_start_is_named(fake: ctypes.CDLL, code: int):
    fake.fake_library(1, code, 0)
    answer = open_nvml(fake._name)
    assert isinstance(answer, Unavailable)
    assert answer.reason == f"nvmlInit_v2 answered {ERROR_NAMES[code]} ({code})"


def test_a_code_from_the_future_is_still_a_reason(fake: ctypes.CDLL):
    fake.fake_library(1, 0, 4711)
    answer = open_nvml(fake._name)
    assert isinstance(answer, Unavailable)
    assert "4711" in answer.reason


def test_a_library_that_fails_after_its_start_is_shut_down_again(fake: ctypes.CDLL):
    fake.fake_library(1, 0, 999)
    assert isinstance(open_nvml(fake._name), Unavailable)
    assert fake.fake_open_count() == 0


def test_a_driver_without_devices_is_unavailable_and_closed(fake: ctypes.CDLL):
    fake.fake_library(0, 0, 0)
    answer = open_nvml(fake._name)
    assert isinstance(answer, Unavailable)
    assert not answer.exists
    assert fake.fake_open_count() == 0


def test_closing_shuts_the_library_down_once_and_may_be_repeated(fake: ctypes.CDLL):
    opened = opened_reader(fake)
    assert fake.fake_open_count() == 1
    opened.close()
    opened.close()
    assert fake.fake_open_count() == 0


# ---- processes ----


@pytest.mark.parametrize("switches", [(), ("WITHOUT_V3",), ("LONG_ENTRIES",)], ids=["v3", "v2", "v3 of early R535"])
@pytest.mark.parametrize("num_processes", [0, 1, 2, 16, 17, 50])
def test_every_process_is_read_whatever_the_layout_and_however_many(
    build: Build, switches: tuple[str, ...], num_processes: int
):
    fake = build(*switches)
    assert fake.fake_entry_bytes() == (32 if "LONG_ENTRIES" in switches else 24)
    expected = [(100 + n, (n + 1) * 2**20) for n in range(num_processes)]
    for pid, used_bytes in expected:
        fake.fake_process(0, pid, used_bytes)
    opened = opened_reader(fake)
    found = opened.processes(opened.devices[0])
    opened.close()
    assert not isinstance(found, Unavailable)
    assert [(p.pid, p.used_bytes) for p in found] == expected


def test_only_the_jobs_own_processes_are_kept(fake: ctypes.CDLL, reader: NvmlReader):
    fake.fake_process(0, 11, 5 * GIB)
    fake.fake_process(0, 12, 7 * GIB)
    assert gpu_events(reader, {12, 99})[0]["processes"] == [[12, 7 * GIB]]


def test_a_size_the_driver_does_not_give_is_unknown_and_not_zero(fake: ctypes.CDLL, reader: NvmlReader):
    fake.fake_process(0, 12, NOT_AVAILABLE)
    events = gpu_events(reader, {12})
    assert events[0]["processes"] == [[12, None]]
    assert "not how much memory" in messages(events)[0]


def test_instances_of_one_process_are_added_and_one_unknown_part_makes_the_sum_unknown(
    fake: ctypes.CDLL, reader: NvmlReader
):
    for pid, used_bytes in [(1, 5), (1, 7), (2, 5), (2, NOT_AVAILABLE), (2, 5)]:
        fake.fake_process(0, pid, used_bytes)
    found = reader.processes(reader.devices[0])
    assert not isinstance(found, Unavailable)
    assert {p.pid: p.used_bytes for p in found} == {1: 12, 2: None}


def test_in_a_container_the_missing_share_is_explained(
    fake: ctypes.CDLL, reader: NvmlReader, monkeypatch: pytest.MonkeyPatch
):
    fake.fake_process(0, 4000, GIB)
    monkeypatch.setattr(gpu_events_file, "sees_host_pids", lambda: False)
    first = gpu_events(reader, {12})
    assert first[0]["processes"] == []
    assert "--pid=host" in messages(first)[0]


def test_on_the_host_a_job_without_a_context_needs_no_explanation(
    fake: ctypes.CDLL, reader: NvmlReader, monkeypatch: pytest.MonkeyPatch
):
    fake.fake_process(0, 4000, GIB)
    monkeypatch.setattr(gpu_events_file, "sees_host_pids", lambda: True)
    assert messages(gpu_events(reader, {12})) == []


def test_the_hosts_process_numbers_are_known_by_the_namespace(tmp_path: Path):
    (tmp_path / "host").symlink_to("pid:[4026531836]")
    (tmp_path / "inside").symlink_to("pid:[4026532177]")
    assert sees_host_pids(str(tmp_path / "host"))
    assert not sees_host_pids(str(tmp_path / "inside"))
    assert sees_host_pids(str(tmp_path / "no such link"))


# ---- refusals of one device ----


@pytest.mark.parametrize("code", [3, 4, 15, 999])
def test_a_device_that_refuses_its_memory_gives_a_note_and_no_zero(fake: ctypes.CDLL, reader: NvmlReader, code: int):
    fake.fake_codes(0, 0, code, 0, 0, 0)
    events = gpu_events(reader, ())
    assert [event["device"] for event in events if event["kind"] == "gpu"] == [1]
    assert f"({code})" in messages(events)[0]
    assert messages(gpu_events(reader, ())) == [], "a reason is told once"


def test_a_refused_process_list_keeps_the_devices_memory(fake: ctypes.CDLL, reader: NvmlReader):
    fake.fake_codes(0, 0, 0, 4, 0, 0)
    events = gpu_events(reader, {1})
    assert events[0]["used_bytes"] == GIB
    assert events[0]["processes"] == []
    assert "NO_PERMISSION" in messages(events)[0]


def test_a_device_without_a_handle_does_not_hide_its_neighbour(fake: ctypes.CDLL):
    fake.fake_library(2, 0, 0)
    fake.fake_codes(0, 4, 0, 0, 0, 0)
    opened = opened_reader(fake)
    events = gpu_events(opened, {1})
    marks = {mark.domain: mark for mark in opened.marks(1.0)}
    opened.close()
    assert [event["device"] for event in events if event["kind"] == "gpu"] == [1]
    assert "nvmlDeviceGetHandleByIndex_v2 answered NO_PERMISSION" in messages(events)[0]
    assert marks["gpu-0"].microjoules is None
    assert "NO_PERMISSION" in marks["gpu-0"].reason
    assert marks["gpu-1"].microjoules == 2_000_000_000


def test_a_card_split_by_mig_says_so(fake: ctypes.CDLL):
    fake.fake_mig(0)
    opened = opened_reader(fake)
    events = gpu_events(opened, ())
    opened.close()
    assert events[0]["used_bytes"] == GIB
    assert "MIG" in messages(events)[0]


# ---- energy ----


class Clock:
    """A clock the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def gpu_energy(reader: NvmlReader, clock: Clock, change: Callable[[], None], seconds: float) -> dict:
    start = read_meters([reader], clock)
    clock.now += seconds
    change()
    return energy_events(start, read_meters([reader], clock))[0]


def test_the_energy_counter_is_read_at_both_ends(fake: ctypes.CDLL, reader: NvmlReader):
    event = gpu_energy(reader, Clock(), lambda: fake.fake_energy(0, 1_002_500, 0), 10.0)
    assert event == {
        "kind": "energy",
        "domain": "gpu-0",
        "joules": 2.5,
        "source": "measured",
        "method": "NVML energy counter",
        "scope": "device",
        "window_seconds": 10.0,
        "reason": "",
    }


@pytest.mark.parametrize(
    ("millijoules", "seconds", "reason"),
    [(1_000_000, 5.0, "did not move"), (1_000_500, 0.05, "too short"), (10, 5.0, "fell")],
)
def test_a_counter_that_cannot_answer_gives_no_figure(
    fake: ctypes.CDLL, reader: NvmlReader, millijoules: int, seconds: float, reason: str
):
    event = gpu_energy(reader, Clock(), lambda: fake.fake_energy(0, millijoules, 0), seconds)
    assert event["joules"] is None
    assert reason in event["reason"]
    assert event["source"] is None


@pytest.mark.parametrize("switches", [(), ("WITHOUT_ENERGY",)], ids=["not supported", "no such symbol"])
def test_without_a_counter_the_power_is_integrated_and_labelled(build: Build, switches: tuple[str, ...]):
    fake, clock = build(*switches), Clock()
    fake.fake_codes(0, 0, 0, 0, 3, 0)
    fake.fake_energy(0, 0, 100_000)
    opened = opened_reader(fake)
    start = end = read_meters([opened], clock)
    assert opened.read_every_seconds is not None
    for _ in range(10):
        clock.now += opened.read_every_seconds
        end = read_meters([opened], clock)
    opened.close()
    event = energy_events(start, end)[0]
    assert event["joules"] == pytest.approx(100.0)
    assert event["method"] == "NVML power, 11 readings integrated"


def test_power_read_too_rarely_is_not_turned_into_energy(fake: ctypes.CDLL):
    fake.fake_codes(0, 0, 0, 0, 3, 0)
    fake.fake_energy(0, 0, 100_000)
    opened = opened_reader(fake)
    event = gpu_energy(opened, Clock(), lambda: None, 15.0)
    opened.close()
    assert event["joules"] is None
    assert "not read for 15.0 s" in event["reason"]


def test_neither_counter_nor_power_is_a_reason(fake: ctypes.CDLL):
    fake.fake_codes(0, 0, 0, 0, 3, 4)
    opened = opened_reader(fake)
    event = gpu_energy(opened, Clock(), lambda: None, 1.0)
    assert opened.read_every_seconds is None, "nothing is gained by reading often"
    opened.close()
    assert event["joules"] is None
    assert "nvmlDeviceGetPowerUsage answered NO_PERMISSION (4)" in event["reason"]


@settings(deadline=None)
@given(
    watts=st.floats(min_value=0, max_value=1e4),
    gaps=st.lists(
        st.floats(min_value=1e-3, max_value=0.9 * PowerIntegral.longest_gap_seconds), min_size=1, max_size=50
    ),
)
def test_constant_power_integrates_to_power_times_time(watts: float, gaps: list[float]):
    integral, now = PowerIntegral(), 0.0
    integral.add(now, watts)
    for gap in gaps:
        now += gap
        integral.add(now, watts)
    assert integral.microjoules == pytest.approx(watts * now * 1e6, abs=1, rel=1e-9)


def test_the_reader_loads_only_the_standard_library():
    code = (
        "import memfit.measure.counters.nvml, memfit.measure.sampler.gpu_events\n"
        "import memfit.measure.counters.powercap, sys\n"
        "print(' '.join(m.split('.')[0] for m in sys.modules))"
    )
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert loaded & {"pynvml", "psutil", "msgspec", "numpy", "torch", "ctypes"} == set()
