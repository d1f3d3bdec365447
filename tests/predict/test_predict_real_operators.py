"""Does --allow-real run the operators it names, and only those?"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from memfit.errors import UsageError  # noqa: E402
from memfit.job.description import describe_job  # noqa: E402
from memfit.predict.child.messages import Failure, Reply, TraceReply, TraceRequest  # noqa: E402
from memfit.predict.fake.child_main import answer  # noqa: E402
from memfit.predict.real_operators import is_allowed, operator_name, operator_names  # noqa: E402

JOB = """
import torch

ran = {ran!r}

@torch.library.custom_op("memfit_{tag}::scan", mutates_args=())
def scan(x: torch.Tensor) -> torch.Tensor:
    with open(ran, "a") as stream:
        stream.write("scan ")
    return x.cumsum(0)

@torch.library.custom_op("memfit_{tag}::sieve", mutates_args=())
def sieve(x: torch.Tensor) -> torch.Tensor:
    with open(ran, "a") as stream:
        stream.write("sieve ")
    return x.clone()

def make():
    model = torch.nn.Linear(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def step():
        values = model(torch.ones(3, 6))
        for used in {used}:
            used(values.detach())
        values.sum().backward()
        optimizer.step()
    return step
"""
TAGS = itertools.count()


def traced(folder: Path, *allow_real: str, used: str) -> tuple[Reply, str]:
    """A reply, and which of the job's own operators really ran."""
    tag = f"test_{next(TAGS)}"
    ran = folder / f"{tag}.txt"
    ran.write_text("")
    (folder / f"{tag}.py").write_text(JOB.format(tag=tag, used=used, ran=str(ran)))
    allowed = operator_names([name.format(tag=tag) for name in allow_real])
    job = describe_job(f"{folder / tag}.py:make")
    reply = answer(TraceRequest(job=job, device="cpu", with_probes=False, allow_real=allowed))
    return reply, ran.read_text()


def test_an_operator_without_a_fake_kernel_is_named_with_the_option_that_allows_it(tmp_path: Path):
    reply, ran = traced(tmp_path, used="[scan]")
    assert isinstance(reply, Failure)
    assert reply.kind == "operator"
    assert reply.hint.startswith("--allow-real memfit_test_")
    assert "::scan" in reply.hint
    assert ran == ""


def test_an_allowed_operator_runs_for_real_and_its_result_is_in_the_timeline(tmp_path: Path):
    reply, ran = traced(tmp_path, "memfit_{tag}::scan", used="[scan]")
    assert isinstance(reply, TraceReply), reply
    assert ran.split() == ["scan", "scan"], "once in each of two steps"
    sizes = [span.num_bytes for span in reply.timeline.spans if ".scan" in span.operator]
    assert sizes == [3 * 6 * 4] * 2


def test_allowing_one_operator_allows_no_other(tmp_path: Path):
    reply, ran = traced(tmp_path, "memfit_{tag}::scan", used="[scan, sieve]")
    assert isinstance(reply, Failure)
    assert reply.kind == "operator"
    assert "::sieve" in reply.what.replace(".", "::")
    assert "sieve" not in ran


def test_a_job_without_such_operators_needs_no_permission(tmp_path: Path):
    reply, _ = traced(tmp_path, used="[]")
    assert isinstance(reply, TraceReply)


@given(st.from_regex(r"[a-z_]{1,8}::[a-z_]{1,12}(\.[a-zA-Z_]{1,9})?", fullmatch=True))
def test_both_spellings_of_a_name_mean_the_same(name: str):
    assert operator_name(name) == operator_name(name.replace("::", "."))
    assert is_allowed(name, (name.partition(".")[0],))
    assert not is_allowed(name, (name + "x",))


def test_a_name_that_is_none_is_refused_with_an_example():
    with pytest.raises(UsageError, match="not the name of an operator"):
        operator_names(("topk",))
