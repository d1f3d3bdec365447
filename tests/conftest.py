"""What every test relies on: instruction sets that work here, whole imports, and an order that can be shuffled.

The environment is set before torch is loaded and before workers start; they, and those that replace a dead one,
inherit it. What must not be imported half (an import of torch that a test interrupts cannot be repeated) is imported
before the first test.
"""

from __future__ import annotations

import importlib
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from memfit.measure.instruction_sets import LOWER_SETS, remember, working_instructions
from memfit.records.machine.doctor import ProductCheck, WorkingInstructions

ONCE_AND_WHOLE = ("torch._dynamo",)
# How fast values are drawn and tests run tells of the machine's load, not of the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
_said = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run files, and tests within them, in a random order")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        found = working_instructions()
        os.environ.update(found.cure)
        config.stash[_said] = found.sentence


def pytest_sessionstart(session: pytest.Session) -> None:
    sentence = session.config.stash.get(_said, "")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if sentence and reporter is not None:
        reporter.write_line(f"memfit: {sentence}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("--shuffle")
    if seed is not None:
        shuffled = random.Random(seed)
        items.sort(key=lambda item: item.nodeid)
        ranks = {name: shuffled.random() for name in sorted({item.nodeid.partition("::")[0] for item in items})}
        shuffled.shuffle(items)
        items.sort(key=lambda item: ranks[item.nodeid.partition("::")[0]])


def pytest_collection_finish() -> None:
    if "torch" in sys.modules:
        for name in ONCE_AND_WHOLE:
            importlib.import_module(name)


@pytest.fixture(scope="session")
def lying_processor(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which bf16 products of torch end by SIGILL until ONEDNN_MAX_CPU_ISA forbids AMX."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("a processor that lies is simulated in C, and there is no compiler (cc) here")
    folder = tmp_path_factory.mktemp("lying")
    library = folder / "lying_processor.so"
    source = Path(__file__).parent / "lying_processor" / "lying_processor.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, source, "-ldl"], check=True)
    steering = {name for cure in LOWER_SETS for name in cure}
    kept = {name: value for name, value in os.environ.items() if name not in steering}
    return {**kept, "LD_PRELOAD": str(library), "XDG_CACHE_HOME": str(folder / "cache")}


@pytest.fixture(scope="session")
def known_lie(lying_processor: dict[str, str]) -> dict[str, str]:
    """The same processor, already found out: its cure is in the cache."""
    check = ProductCheck(type_name="bfloat16", works=False, found="SIGILL in linear", signal="SIGILL")
    found = WorkingInstructions(checks=(check,), cure={"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"})
    environment = {**lying_processor, "XDG_CACHE_HOME": lying_processor["XDG_CACHE_HOME"] + "-known"}
    remember(found, environment)
    return environment
