"""Is the memory of an import put down to the package that took it, and are the loaders afterwards as they were?"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from pathlib import Path

import pytest

from memfit.inside.heaps import Heaps, read_malloc, read_python_heap
from memfit.inside.import_costs import ImportCosts
from memfit.inside.resident import Resident, read_parts

MIB = 1024**2


def taking(mebibytes: int) -> str:
    """Source that takes fresh pages: above 32 MiB glibc always maps new ones, whatever its heap has left over."""
    assert mebibytes > 32
    return f"kept = bytearray({mebibytes} << 20)\n"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "outer_for_costs").mkdir()
    (tmp_path / "outer_for_costs" / "__init__.py").write_text(
        f"import inner_for_costs\n{taking(40)}def late():\n    import late_for_costs\n"
    )
    (tmp_path / "inner_for_costs.py").write_text(taking(50))
    (tmp_path / "late_for_costs.py").write_text(taking(35))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("outer_for_costs", "inner_for_costs", "late_for_costs"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("packages")
def test_nested_and_late_imports_are_counted_apart():
    costs = ImportCosts(Resident())
    costs.start()
    try:
        importlib.import_module("outer_for_costs").late()
    finally:
        costs.stop()
    found = {row["package"]: row["anonymous_bytes"] / MIB for row in costs.facts()}
    assert found["outer_for_costs"] == pytest.approx(40, abs=1)
    assert found["inner_for_costs"] == pytest.approx(50, abs=1)
    assert found["late_for_costs"] == pytest.approx(35, abs=1)
    assert costs.heap_growth["malloc_used_bytes"] / MIB == pytest.approx(125, abs=2)


def test_the_loaders_are_put_back():
    def state():
        return [dict(SourceFileLoader.__dict__), dict(ExtensionFileLoader.__dict__)]

    before = state()
    costs = ImportCosts(Resident())
    costs.start()
    assert state() != before
    costs.stop()
    assert state() == before


def test_an_import_that_fails_fails_as_ever_and_the_next_is_counted(tmp_path: Path, monkeypatch):
    (tmp_path / "broken_for_costs.py").write_text("raise KeyError('on purpose')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    costs = ImportCosts(Resident())
    costs.start()
    try:
        with pytest.raises(KeyError, match="on purpose"):
            importlib.import_module("broken_for_costs")
    finally:
        costs.stop()
    assert [row["package"] for row in costs.facts()] == ["broken_for_costs"]


def test_the_heaps_show_a_block_of_the_c_library_and_objects_of_python():
    before = Heaps()
    assert before.malloc_used_bytes is not None
    assert before.python_used_bytes is not None
    block, objects = bytearray(50 * MIB), [object() for _ in range(200_000)]
    malloc, python = read_malloc(), read_python_heap()
    assert malloc is not None
    assert python is not None
    assert (malloc[0] - before.malloc_used_bytes) / MIB == pytest.approx(50, abs=3)
    assert python[1] - before.python_used_bytes >= 200_000 * 16
    assert python[0] >= python[1]
    del block, objects


def test_both_readings_of_the_resident_size_agree():
    quick, slow = Resident().read(), read_parts()
    assert quick[0] == pytest.approx(slow["anonymous_bytes"], abs=MIB)
    assert quick[1] == pytest.approx(slow["file_bytes"] + slow["shmem_bytes"], abs=MIB)
