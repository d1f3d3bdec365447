"""Is a machine described truthfully, limits and settings included, and does every probe answer whatever happens?"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.measure.counters import machine
from memfit.measure.counters.cgroup import memory_groups, memory_limit_bytes
from memfit.measure.counters.machine import allocation_variables, cpu_model, describe_environment, huge_pages
from memfit.measure.doctor import machine as probe_machine
from memfit.measure.doctor import software
from memfit.measure.doctor.child import ProbeChild
from memfit.measure.doctor.machine import (
    container_signs,
    honest_interval_seconds,
    lateness_seconds,
    probe_energy,
    probe_gpu,
)
from memfit.measure.doctor.memory import probe_access, probe_reset, process_limits
from memfit.measure.doctor.probes import Probe, all_probes, ask, run_probes
from memfit.records.machine.doctor import GROUPS
from memfit.records.run import Environment

GIB = 1024**3
TOTAL = 64 * GIB
UNLIMITED_V1 = 9223372036854771712


# ---- the environment of a run ----


def test_the_description_fits_the_record_and_survives_the_disk():
    described = describe_environment(os.environ)
    environment = msgspec.convert(described, Environment)
    assert msgspec.json.decode(msgspec.json.encode(environment), type=Environment) == environment
    assert set(described) == set(Environment.__struct_fields__)


def test_cores_and_memory_agree_with_psutil():
    described = describe_environment({})
    assert described["memory_total_bytes"] == psutil.virtual_memory().total
    assert described["num_cores"] == psutil.cpu_count()


@pytest.mark.parametrize(
    "name",
    ["MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
     "PYTORCH_NO_CUDA_MEMORY_CACHING", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "LD_PRELOAD", "PYTHONMALLOC",
     "CUBLAS_WORKSPACE_CONFIG"],
)  # fmt: skip
def test_variables_that_change_allocation_are_kept(name: str):
    assert allocation_variables({name: "1", "HOME": "/home/someone"}) == {name: "1"}


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(["API_KEY", "PASSWORD", "AWS_SECRET_ACCESS_KEY", "PATH", "HF_TOKEN"]), st.text())
)
def test_no_other_variable_ever_reaches_a_record(environ: dict[str, str]):
    assert allocation_variables(environ) == {}


def test_a_processor_is_named_on_every_architecture(tmp_path: Path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some CPU 9000\n")
    assert cpu_model(cpuinfo) == "Some CPU 9000"
    cpuinfo.write_text("processor : 0\nBogoMIPS : 50.00\n")
    assert cpu_model(cpuinfo)
    assert cpu_model(tmp_path / "missing")


@pytest.mark.parametrize(
    ("text", "word"), [("always [madvise] never\n", "madvise"), ("[always] madvise never", "always"), ("", "")]
)
def test_the_chosen_huge_page_setting_is_read(tmp_path: Path, text: str, word: str):
    (tmp_path / "enabled").write_text(text)
    assert huge_pages(tmp_path / "enabled") == word
    assert huge_pages(tmp_path / "missing") == ""


def test_another_operating_system_is_described_without_a_crash(monkeypatch: pytest.MonkeyPatch):
    def no_such_name(name: str) -> int:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "sysconf", no_such_name)
    monkeypatch.setattr(os, "confstr", no_such_name)
    monkeypatch.setattr(machine, "HUGE_PAGES", "/no/such/file")
    described = describe_environment({})
    assert described["memory_total_bytes"] == 0
    msgspec.convert(described, Environment)


def test_windows_without_its_library_is_described_without_a_crash(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "win32")
    assert machine.memory_total_bytes() == 0


# ---- control groups ----


class FakeGroups:
    """/proc/self and a cgroup mount in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.mount = folder / "proc", folder / "cgroup"
        self.proc.mkdir()
        self.mount.mkdir()

    def membership(self, *lines: str) -> None:
        (self.proc / "cgroup").write_text("".join(f"{line}\n" for line in lines))

    def mounted(self, kind: str, root: str = "/", options: str = "rw") -> None:
        mount = str(self.mount).replace(" ", "\\040")
        (self.proc / "mountinfo").write_text(
            f"31 23 0:28 {root} {mount} rw,relatime shared:9 - {kind} {kind} {options}\n"
        )

    def group_v2(self, path: str, limit: str, kills: int = 0) -> None:
        folder = self.mount / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.events").write_text(f"low 0\nhigh 0\nmax 7\noom 3\noom_kill {kills}\noom_group_kill 0\n")

    def group_v1(self, path: str, limit: int, kills: int = 0) -> None:
        folder = self.mount / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (folder / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")

    def limit_bytes(self) -> int | None:
        return memory_limit_bytes(TOTAL, self.proc)


@pytest.fixture
def groups(tmp_path: Path) -> FakeGroups:
    folder = tmp_path / "with blank"
    folder.mkdir()
    return FakeGroups(folder)


def test_the_smallest_limit_on_the_way_up_counts_in_v2(groups: FakeGroups):
    groups.membership("0::/user.slice/job.scope")
    groups.mounted("cgroup2")
    groups.group_v2("user.slice/job.scope", "max", kills=2)
    groups.group_v2("user.slice", str(8 * GIB))
    assert groups.limit_bytes() == 8 * GIB
    assert memory_groups(groups.proc)[0].num_oom_kills == 2


def test_the_smallest_limit_on_the_way_up_counts_in_v1(groups: FakeGroups):
    groups.membership("8:pids:/", "4:cpu,memory:/a/b", "0::/")
    groups.mounted("cgroup", options="rw,memory")
    groups.group_v1("a/b", 3 * GIB, kills=1)
    groups.group_v1("a", 2 * GIB)
    groups.group_v1(".", UNLIMITED_V1)
    assert groups.limit_bytes() == 2 * GIB
    assert [group.num_oom_kills for group in memory_groups(groups.proc)] == [1, 0, 0]


@pytest.mark.parametrize("limit", [TOTAL, TOTAL + 1, UNLIMITED_V1])
def test_a_limit_above_the_machine_is_no_limit(groups: FakeGroups, limit: int):
    groups.membership("4:memory:/a")
    groups.mounted("cgroup", options="rw,memory")
    groups.group_v1("a", limit)
    assert groups.limit_bytes() is None


def test_in_a_container_the_mount_shows_only_the_own_group(groups: FakeGroups):
    groups.membership("0::/docker/abc/inner")
    groups.mounted("cgroup2", root="/docker/abc")
    groups.group_v2("inner", str(GIB))
    groups.group_v2(".", str(2 * GIB))
    assert groups.limit_bytes() == GIB


@pytest.mark.parametrize("path", ["/../other", "/elsewhere"])
def test_a_group_outside_of_the_mount_falls_back_to_the_mount(groups: FakeGroups, path: str):
    groups.membership(f"0::{path}")
    groups.mounted("cgroup2", root="/docker/abc" if path == "/elsewhere" else "/")
    groups.group_v2(".", str(2 * GIB))
    assert groups.limit_bytes() == 2 * GIB


def test_no_control_groups_means_no_limit(tmp_path: Path):
    assert memory_groups(tmp_path) == []
    assert memory_limit_bytes(TOTAL, tmp_path) is None


@settings(deadline=None)
@given(st.text(max_size=200), st.text(max_size=200))
def test_odd_files_never_break_the_reading(tmp_path_factory: pytest.TempPathFactory, cgroup: str, mountinfo: str):
    proc = tmp_path_factory.mktemp("proc")
    (proc / "cgroup").write_bytes(cgroup.encode("utf-8", "replace"))
    (proc / "mountinfo").write_bytes(mountinfo.encode("utf-8", "replace"))
    assert memory_limit_bytes(TOTAL, proc) is None


# ---- probes ----


def test_every_probe_answers_and_what_is_missing_is_explained():
    checks = run_probes()
    assert len({check.name for check in checks}) == len(checks)
    assert {check.group for check in checks} == set(GROUPS)
    assert all(check.found for check in checks)
    assert not any("trying it failed" in check.found for check in checks)


def test_names_are_short_enough_for_the_table():
    with ProbeChild() as child:
        assert max(len(probe.name) for probe in all_probes(child)) <= 25


def test_a_probe_that_breaks_is_a_row_and_not_a_crash():
    def breaks():
        raise RuntimeError("sysfs is on fire")

    check = ask(Probe("anything", "machine", breaks))
    assert check.answer == "no"
    assert "RuntimeError: sysfs is on fire" in check.found


@pytest.mark.skipif(sys.platform != "linux", reason="clear_refs is Linux")
def test_the_reset_is_tried_on_a_child_and_leaves_the_callers_mark_alone():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with ProbeChild() as child:
        seen = probe_reset(child)
        assert child.report["before_bytes"] - child.report["after_bytes"] > 16 * 1024**2
    assert seen.answer == "yes"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >= before


def test_a_reset_without_effect_is_not_taken_for_one():
    child = ProbeChild()
    child.report = {"before_bytes": 40 << 20, "after_bytes": 40 << 20, "block_bytes": 32 << 20, "reset_ns": 10}
    seen = probe_reset(child)
    assert seen.answer == "no"
    assert "no effect" in seen.found


def test_a_child_that_cannot_start_is_a_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with ProbeChild() as child:
        assert "could not be started" in probe_reset(child).found
        assert probe_access(child).answer == "no"


def test_the_child_is_gone_afterwards():
    with ProbeChild() as child:
        pid = child.pid
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)


def test_yama_and_hidepid_are_named(tmp_path: Path):
    (tmp_path / "sys/kernel/yama").mkdir(parents=True)
    (tmp_path / "self").mkdir()
    (tmp_path / "sys/kernel/yama/ptrace_scope").write_text("1\n")
    (tmp_path / "self/mountinfo").write_text("22 27 0:21 / /proc rw - proc proc rw,hidepid=invisible,gid=5\n")
    first, second = process_limits(tmp_path)
    assert "ptrace_scope is 1" in first
    assert "hidepid=invisible" in second


def test_open_settings_need_no_word(tmp_path: Path):
    (tmp_path / "sys/kernel/yama").mkdir(parents=True)
    (tmp_path / "self").mkdir()
    (tmp_path / "sys/kernel/yama/ptrace_scope").write_text("0\n")
    (tmp_path / "self/mountinfo").write_text("22 27 0:21 / /proc rw - proc proc rw,hidepid=0\n")
    assert process_limits(tmp_path) == []
    assert process_limits(tmp_path / "nothing here") == []


def test_lateness_is_never_negative_and_the_probe_is_short():
    late = lateness_seconds(0.02)
    assert late
    assert min(late) > -1e-4
    assert len(late) <= 21


@settings(deadline=None)
@given(st.floats(min_value=0, max_value=1))
def test_an_honest_interval_is_at_least_twice_the_lateness_and_the_smallest_such(late_seconds: float):
    interval = honest_interval_seconds(late_seconds)
    smaller = [one for one in probe_machine.HONEST_INTERVALS_SECONDS if interval is None or one < interval]
    assert interval is None or late_seconds <= interval / 2
    assert all(late_seconds > one / 2 for one in smaller)


def test_missing_counters_are_named_with_what_to_try(tmp_path: Path):
    energy = probe_energy(str(tmp_path / "powercap"), str(tmp_path / "hwmon"))
    gpu = probe_gpu(str(tmp_path / "libnvidia-ml.so.1"))
    kills = probe_machine.probe_kill_counter(tmp_path / "vmstat")
    for seen in (energy, gpu, kills):
        assert seen.answer == "no"
        assert seen.found
        assert seen.hint


def test_a_replaced_malloc_cannot_be_pinned(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so.2")
    monkeypatch.setattr(probe_machine, "libc_version", lambda: "glibc 2.36")
    assert probe_machine.probe_stable().answer == "no"
    monkeypatch.delenv("LD_PRELOAD")
    assert probe_machine.probe_stable().answer == "yes"
    monkeypatch.setattr(probe_machine, "libc_version", lambda: "musl")
    assert probe_machine.probe_stable().found == "musl is not glibc"


def test_containers_and_virtual_machines_are_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
    (tmp_path / "proc/cpuinfo").write_text("flags\t\t: fpu vme sse2\n")
    assert container_signs(tmp_path) == []
    (tmp_path / "proc/cpuinfo").write_text("flags\t\t: fpu hypervisor sse2\n")
    (tmp_path / ".dockerenv").touch()
    assert container_signs(tmp_path) == ["/.dockerenv", "a hypervisor below (cpuinfo)"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert probe_machine.probe_folder().answer == "yes"
    assert list(tmp_path.iterdir()) == [], "the probe leaves nothing behind"

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(probe_machine.tempfile, "NamedTemporaryFile", full)
    seen = probe_machine.probe_folder()
    assert (seen.answer, "No space left on device" in seen.found) == ("no", True)


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("cuda: Optional[str] = None\nhip = None\n", ""),
        ("__version__ = '2.10'\ncuda: Optional[str] = '13.0'\n", "13.0"),
        ('cuda = "12.8"\n', "12.8"),
        ("git_version = 'x'\n", None),
    ],
)
def test_the_cuda_version_of_torch_is_read_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, cuda: str | None
):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise RuntimeError('torch must not be imported')\n")
    (tmp_path / "torch/version.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert software.torch_cuda() == cuda


def test_missing_software_comes_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(software, "installed_version", lambda _: None)
    assert "memfit[torch]" in software.probe_torch().hint
    assert "memfit[plot]" in software.probe_pictures().hint


def test_probing_imports_neither_torch_nor_matplotlib():
    code = "from memfit.measure.doctor.probes import run_probes; run_probes(); import sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "matplotlib", "pynvml"} & set(loaded)
