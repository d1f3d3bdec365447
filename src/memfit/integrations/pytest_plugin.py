"""pytest plug-in: a test fails when the memory of its tensors exceeds a budget.

    @pytest.mark.memfit_budget("64MiB")
    def test_training_fits(): ...

counts every tensor storage that the test makes or uses and fails it when more than the budget was alive at once.
The count is exact and the same on every machine, because it is the tensors and not the process that is counted.
Nothing is loaded, and torch is not imported, before a test that carries the marker runs; without torch such a test
runs as if it had none.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from memfit.errors import BadQuantity
from memfit.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from memfit.inside.ledger.torch_tensor_peak import TensorPeak

MARKER = "memfit_budget"
_NUM_ROWS = 5


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    text = "memfit_budget(budget, device='cpu'): fail when more tensor bytes than the budget are alive at once"
    config.addinivalue_line("markers", text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse a budget that cannot be read before any test has run.

    A worker of pytest-xdist that refuses to collect ends the session without a word about it: there the test fails.
    """
    if hasattr(config, "workerinput"):
        return
    for item in items:
        marker = item.get_closest_marker(MARKER)
        if marker is not None:
            read_budget(item, marker)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Watch the tensors of a test that carries the marker."""
    marker = item.get_closest_marker(MARKER)
    budget_bytes, device = (0, "") if marker is None else _budget_or_fail(item, marker)
    if marker is None or not ("torch" in sys.modules or find_spec("torch")):
        return (yield)
    from memfit.inside.ledger.torch_tensor_peak import TensorWatch

    with TensorWatch() as watch:
        result = yield
    peak = watch.peak(device)
    if peak.is_partial:
        pytest.fail(f"memfit: {item.name} makes too many tensors to be counted; mark a smaller test", pytrace=False)
    if peak.peak_bytes > budget_bytes:
        pytest.fail(over_budget(budget_bytes, device, peak), pytrace=False)
    return result


def read_budget(item: pytest.Item, marker: pytest.Mark) -> tuple[int, str]:
    """(bytes, device) of a marker; a usage error names the test."""
    unknown = set(marker.kwargs) - {"budget", "device"}
    given = [*marker.args, *([marker.kwargs["budget"]] if "budget" in marker.kwargs else [])]
    if unknown or len(given) != 1:
        found = f"{len(given)} budgets" + (f" and {', '.join(sorted(unknown))}" if unknown else "")
        raise pytest.UsageError(f'{item.nodeid}: memfit_budget takes one budget such as "64MiB"; found: {found}')
    try:
        return parse_bytes(str(given[0])), str(marker.kwargs.get("device", "cpu"))
    except BadQuantity as error:
        raise pytest.UsageError(f"{item.nodeid}: memfit_budget: {error}") from None


def _budget_or_fail(item: pytest.Item, marker: pytest.Mark) -> tuple[int, str]:
    try:
        return read_budget(item, marker)
    except pytest.UsageError as error:
        pytest.fail(str(error), pytrace=False)


def over_budget(budget_bytes: int, device: str, peak: TensorPeak) -> str:
    """What to tell about a test that went over: how far, in which phase, and whose tensors they were."""
    where = "" if device == "cpu" else f" on {device}"
    over = format_bytes(peak.peak_bytes - budget_bytes)
    lines = [
        f"memfit: tensors took {format_bytes(peak.peak_bytes)}{where} at once, {over} over the budget of "
        f"{format_bytes(budget_bytes)}; the peak lay in the {peak.phase} phase:"
    ]
    for row in peak.shares[:_NUM_ROWS]:
        count = f"{row['num_tensors']} tensor{'s' * (row['num_tensors'] != 1)}"
        owner = row["module"] or "outside of modules"
        lines.append(f"  {format_bytes(row['num_bytes']):>10}  {row['category']:<15}  {owner}  ({count})")
    rest = peak.shares[_NUM_ROWS:]
    if rest:
        lines.append(f"  {format_bytes(sum(row['num_bytes'] for row in rest)):>10}  in {len(rest)} more groups")
    return "\n".join(lines)
