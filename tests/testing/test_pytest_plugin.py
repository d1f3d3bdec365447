"""Does the budget marker fail the tests that go over, name what went over, and leave all others alone?"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch  # noqa: F401  (imported here because a test run inside this process must not import it anew)

pytest_plugins = ["pytester"]

HEAD = "import pytest, torch\nfrom torch import nn\n"


def run(pytester: pytest.Pytester, body: str, *arguments: str):
    pytester.makepyfile(HEAD + body)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


def test_a_test_within_its_budget_passes_and_one_over_it_fails_with_the_owners_named(pytester: pytest.Pytester):
    result = run(
        pytester,
        """
def train():
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 8))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(4, 1024)).sum().backward()
        optimizer.step()

@pytest.mark.memfit_budget("30MiB")
def test_fits(): train()

@pytest.mark.memfit_budget("20MiB")
def test_does_not(): train()
""",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*memfit: tensors took 24.* MiB at once, 4.* MiB over the budget of 20.0 MiB; *in the update phase:*",
            "*8.0* MiB  optimizer state  0  (6 tensors)*",
        ]
    )


def test_the_count_is_exact_to_the_byte(pytester: pytest.Pytester):
    result = run(
        pytester,
        """
@pytest.mark.memfit_budget("4000B")
def test_just_fits(): torch.zeros(1000)

@pytest.mark.memfit_budget("3999B")
def test_one_byte_over(): torch.zeros(1000)
""",
    )
    result.assert_outcomes(passed=1, failed=1)


def test_a_test_that_fails_by_itself_shows_its_own_failure(pytester: pytest.Pytester):
    result = run(
        pytester,
        """
@pytest.mark.memfit_budget("1B")
def test_wrong():
    torch.zeros(1000)
    assert 1 == 2
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert 1 == 2*"])
    result.stdout.no_fnmatch_line("*over the budget*")


@pytest.mark.parametrize(
    ("marker", "words"),
    [
        ('memfit_budget("lots")', "*test_bad: memfit_budget: this is not a size*"),
        ("memfit_budget(64)", "*test_bad: memfit_budget: this is not a size*has no unit*"),
        ("memfit_budget()", "*test_bad: memfit_budget takes one budget*"),
        ('memfit_budget("1MiB", devise="cpu")', "*test_bad: memfit_budget takes one budget*devise*"),
    ],
)
def test_a_budget_that_cannot_be_read_is_a_usage_error_naming_the_test(
    pytester: pytest.Pytester, marker: str, words: str
):
    result = run(pytester, f"@pytest.mark.{marker}\ndef test_bad(): pass\n")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([words])


def test_another_device_is_counted_by_its_name(pytester: pytest.Pytester):
    result = run(
        pytester,
        """
@pytest.mark.memfit_budget("1B", device="cuda:0")
def test_nothing_on_the_device(): torch.zeros(1000)

@pytest.mark.memfit_budget("1B", device="meta")
def test_over_on_another_device(): torch.zeros(1000, device="meta")
""",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*took 3.91 KiB on meta at once*"])


def test_the_plugin_loads_neither_torch_nor_numpy():
    code = "import memfit.integrations.pytest_plugin, sys; print({'torch', 'numpy', 'msgspec'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_without_torch_a_marked_test_runs_as_if_it_had_no_marker(pytester: pytest.Pytester, monkeypatch):
    pytester.makepyfile("import pytest\n@pytest.mark.memfit_budget('1B')\ndef test_plain(): pass\n")
    monkeypatch.setattr("memfit.integrations.pytest_plugin.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)


def test_the_marker_judges_each_test_in_the_worker_that_runs_it(pytester: pytest.Pytester):
    body = """
@pytest.mark.memfit_budget("1MiB")
@pytest.mark.parametrize("size", [1 << 10, 1 << 16, 1 << 20, 1 << 21])
def test_size(size): torch.ones(size)
"""
    pytester.makepyfile(HEAD + body)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n", "2")
    result.assert_outcomes(passed=2, failed=2)


def test_a_budget_that_cannot_be_read_fails_its_test_in_a_worker_and_no_other(pytester: pytest.Pytester):
    marked = "import pytest\n@pytest.mark.memfit_budget(peak='1MiB')\ndef test_bad(): pass\ndef test_good(): pass\n"
    pytester.makepyfile(marked)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n", "1")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*test_bad: memfit_budget takes one budget*found: 0 budgets and peak*"])
