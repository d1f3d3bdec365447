"""Can a plan be written, read back and refused when it is not one; and is bad input said to be bad?"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from memfit.errors import DamagedRecord, NewerFormat, NotARun, StorageError, UsageError
from memfit.plan.planners import make_plan
from memfit.records.plan import (
    PLAN_VERSION,
    Chain,
    Fixed,
    Link,
    Option,
    Stage,
    decode_plan,
    encode_plan,
    read_plan,
    write_plan,
)
from memfit.testing.made_records.chains import even_chain

GOOD = Stage(name="s", forward_seconds=1, backward_seconds=1, output_bytes=2, saved_bytes=4)


@pytest.fixture(scope="module")
def encoded() -> bytes:
    chain = even_chain(5)
    return encode_plan(make_plan(chain, 2**30, curve_points=3, levers=True))


def test_a_plan_is_read_back_as_it_was_written(tmp_path: Path, encoded: bytes):
    plan = decode_plan(encoded)
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan
    assert plan.frontier
    assert plan.levers


def test_a_file_names_its_format_and_version(encoded: bytes):
    raw = msgspec.json.decode(encoded)
    assert (raw["format"], raw["format_version"]) == ("memfit-plan", PLAN_VERSION)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"format_version": PLAN_VERSION + 1}, NewerFormat),
        ({"format_version": 0}, DamagedRecord),
        ({"format_version": None}, DamagedRecord),
        ({"format_version": True}, DamagedRecord),
        ({"format": "memfit-run"}, NotARun),
        ({"nodes": [{"type": "keep"}]}, DamagedRecord),
        ({"peak_bytes": "many"}, DamagedRecord),
    ],
)
def test_another_file_is_refused(encoded: bytes, change: dict, error: type[Exception]):
    with pytest.raises(error):
        decode_plan(msgspec.json.encode(msgspec.json.decode(encoded) | change))


def test_torn_missing_and_unwritable_files_are_refused(tmp_path: Path, encoded: bytes):
    (tmp_path / "torn.json").write_bytes(encoded[: len(encoded) // 2])
    with pytest.raises(DamagedRecord):
        read_plan(tmp_path / "torn.json")
    with pytest.raises(NotARun):
        read_plan(tmp_path / "missing.json")
    with pytest.raises(StorageError):
        write_plan(decode_plan(encoded), tmp_path / "no" / "folder.json")


def _stage(**changes) -> Chain:
    return Chain(stages=(msgspec.structs.replace(GOOD, **changes),))


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        (Chain(stages=()), "no stages"),
        (_stage(saved_bytes=1), "less than its output"),
        (_stage(forward_seconds=float("nan")), "impossible forward_seconds"),
        (_stage(backward_seconds=-1), "impossible backward_seconds"),
        (_stage(gradient_bytes=-1), "impossible gradient_bytes"),
        (_stage(options=(Option(name="", forward_seconds=1, backward_seconds=1, saved_bytes=2),)), "different names"),
        (_stage(options=(Option(name="a", forward_seconds=1, backward_seconds=1, saved_bytes=1),)), "less than"),
        (Chain(stages=(GOOD,), fixed=Fixed(other_bytes=-1)), "fixed bytes"),
    ],
)
def test_impossible_chains_are_usage_errors(chain: Chain, said: str):
    with pytest.raises(UsageError, match=said):
        make_plan(chain, 100)


@pytest.mark.parametrize("budget_bytes", [0, -5])
def test_a_budget_must_be_above_zero(budget_bytes: int):
    with pytest.raises(UsageError, match="above zero"):
        make_plan(_stage(), budget_bytes)


@pytest.mark.parametrize(
    "change",
    [
        {"out_bytes_per_second": 0.0},
        {"in_bytes_per_second": float("nan")},
        {"latency_seconds": -1.0},
        {"capacity_bytes": -1},
    ],
)
def test_a_link_that_carries_nothing_is_refused(change: dict):
    link = msgspec.structs.replace(Link(name="x", out_bytes_per_second=1.0, in_bytes_per_second=1.0), **change)
    with pytest.raises(UsageError):
        make_plan(_stage(), 100, link=link)
