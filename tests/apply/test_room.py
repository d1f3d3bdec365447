"""Is the least of all that bounds a process found, and is what cannot be read left out?"""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from memfit.measure.counters.free_memory import free_bytes

MIB = 1024**2


@pytest.fixture(autouse=True)
def without_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def machine(root: Path, available_mib: int = 1000, data_mib: int = 100) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {available_mib * 1024} kB\n")
    (root / "proc/self/status").write_text(f"VmSize: 9 kB\nVmData:\t{data_mib * 1024} kB\n")
    return root


def group(root: Path, name: str, limit: str, taken_mib: int, cached_mib: int = 0) -> None:
    folder = root / "sys/fs/cgroup" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(limit + "\n")
    (folder / "memory.current").write_text(f"{taken_mib * MIB}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached_mib * MIB}\n")


def test_without_limits_it_is_what_the_machine_has_left(tmp_path: Path):
    assert free_bytes(machine(tmp_path)) == 1000 * MIB


def test_a_limit_on_data_counts_less_what_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        resource, "getrlimit", lambda kind: (300 * MIB if kind == resource.RLIMIT_DATA else resource.RLIM_INFINITY, 0)
    )
    assert free_bytes(machine(tmp_path)) == 200 * MIB


def test_a_group_around_that_of_the_process_counts_and_cached_files_do_not(tmp_path: Path):
    root = machine(tmp_path)
    (root / "proc/self/cgroup").write_text("0::/outer/inner\n")
    group(root, "outer/inner", "max", 10)
    group(root, "outer", str(500 * MIB), 400, cached_mib=150)
    assert free_bytes(root) == 250 * MIB


def test_a_group_of_the_old_kind_counts(tmp_path: Path):
    root = machine(tmp_path)
    (root / "proc/self/cgroup").write_text("3:cpu:/x\n4:memory:/x\n")
    folder = root / "sys/fs/cgroup/memory/x"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{90 * MIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{100 * MIB}\n")
    assert free_bytes(root) == 0


def test_where_nothing_can_be_read_nothing_is_known(tmp_path: Path):
    assert free_bytes(tmp_path) is None


def test_this_machine_has_something_left():
    found = free_bytes()
    assert found is None or found > 0
