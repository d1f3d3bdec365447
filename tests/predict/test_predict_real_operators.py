"""Does --allow-real run the operators it names, and only those?"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from memfit.errors import UsageError  # noqa: E402
from memfit.job.description import describe_job  # noqa: E402
from memfit.predict.messages import Failure, Reply, TraceReply, TraceRequest  # noqa: E402
from memfit.predict.real_operators import is_allowed, operator_name, operator_names  # noqa: E402
from memfit.predict.torch_child import answer  # noqa: E402

JOB = """
import torch

def make():
    model = torch.nn.Linear(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def step():
        values = model(torch.ones(3, 6))
        extra = torch.linalg.eigvals(values.detach()[:3, :3])
        cut = torch.histogramdd(values.detach()[:, :2], bins=[2, 2]) if {second} else None
        values.sum().backward()
        optimizer.step()
    return step
"""


def traced(folder: Path, *allow_real: str, second: bool = False) -> Reply:
    (folder / "job.py").write_text(JOB.format(second=second))
    job = describe_job(f"{folder / 'job.py'}:make")
    return answer(TraceRequest(job=job, device="cpu", with_probes=False, allow_real=operator_names(allow_real)))


def test_an_operator_without_a_fake_kernel_is_named_with_the_option_that_allows_it(tmp_path: Path):
    reply = traced(tmp_path, second=True)
    assert isinstance(reply, Failure)
    assert reply.kind == "operator"
    assert "--allow-real aten::" in reply.hint
    name = reply.hint.split()[1]
    allowed = traced(tmp_path, name, second=True)
    assert not (isinstance(allowed, Failure) and name.partition(".")[0] in allowed.hint)


def test_allowing_one_operator_allows_no_other(tmp_path: Path):
    reply = traced(tmp_path, "aten::some_other_operator", second=True)
    assert isinstance(reply, Failure)
    assert reply.kind == "operator"


def test_a_job_without_such_operators_needs_no_permission(tmp_path: Path):
    assert isinstance(traced(tmp_path), TraceReply)


@given(st.from_regex(r"[a-z_]{1,8}::[a-z_]{1,12}(\.[a-zA-Z_]{1,9})?", fullmatch=True))
def test_both_spellings_of_a_name_mean_the_same(name: str):
    assert operator_name(name) == operator_name(name.replace("::", "."))
    assert is_allowed(name, (name.partition(".")[0],))
    assert not is_allowed(name, (name + "x",))


def test_a_name_that_is_none_is_refused_with_an_example():
    with pytest.raises(UsageError, match="not the name of an operator"):
        operator_names(("topk",))
