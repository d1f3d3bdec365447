"""Is the memory of an import put down to the package that took it, and are the loaders afterwards as they were?"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from pathlib import Path

import pytest

from memfit.inside.ledger.heaps import Heaps, read_malloc, read_python_heap
from memfit.inside.ledger.import_costs import ImportCosts
from memfit.inside.resident import Resident, read_parts

MIB = 1024**2


COUNTED = """
import importlib, json
from memfit.inside.ledger.import_costs import ImportCosts
from memfit.inside.resident import Resident
costs = ImportCosts(Resident())
costs.start()
importlib.import_module("outer_for_costs").late()
costs.stop()
print(json.dumps([costs.facts(), costs.heap_growth]))
"""


def test_nested_and_late_imports_are_counted_apart(tmp_path: Path):
    """In a process of its own: the heap of this one may have holes left by other tests, which would be filled first."""
    (tmp_path / "outer_for_costs").mkdir()
    (tmp_path / "outer_for_costs" / "__init__.py").write_text(
        "import inner_for_costs\nkept = bytearray(40 << 20)\ndef late():\n    import late_for_costs\n"
    )
    (tmp_path / "inner_for_costs.py").write_text("kept = bytearray(50 << 20)\n")
    (tmp_path / "late_for_costs.py").write_text("kept = bytearray(35 << 20)\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COUNTED], env=environment, capture_output=True, text=True, check=True)
    facts, heap_growth = json.loads(done.stdout)
    found = {row["package"]: row["anonymous_bytes"] / MIB for row in facts}
    assert found["outer_for_costs"] == pytest.approx(40, abs=1)
    assert found["inner_for_costs"] == pytest.approx(50, abs=1)
    assert found["late_for_costs"] == pytest.approx(35, abs=1)
    assert heap_growth["malloc_used_bytes"] / MIB == pytest.approx(125, abs=2)


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
    gc.collect()  # garbage of earlier tests would be freed while the objects are made
    before = Heaps()
    assert before.malloc_used_bytes is not None
    assert before.python_used_bytes is not None
    block, objects = bytearray(50 * MIB), [object() for _ in range(200_000)]
    malloc, python = read_malloc(), read_python_heap()
    assert malloc is not None
    assert python is not None
    assert (malloc[0] - before.malloc_used_bytes) / MIB == pytest.approx(50, abs=3)
    others = 64 * 1024  # objects of other threads come and go meanwhile: 32 bytes fewer were seen
    assert python[1] - before.python_used_bytes == pytest.approx(200_000 * 16, abs=others)
    assert python[0] >= python[1]
    del block, objects


def test_both_readings_of_the_resident_size_agree():
    quick, slow = Resident().read(), read_parts()
    assert quick[0] == pytest.approx(slow["anonymous_bytes"], abs=MIB)
    assert quick[1] == pytest.approx(slow["file_bytes"] + slow["shmem_bytes"], abs=MIB)
