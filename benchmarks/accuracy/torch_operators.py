"""Operators of torch's own test database on the CPU: predicted tensor peak against the allocator's own events.

  python -m benchmarks.accuracy.torch_operators [--samples 2] [NAME ...]

`torch.testing` has sample inputs for some six hundred operators, written by those who wrote the operators. Each is run
for real and on fake tensors with probes, forward alone and with its backward, in a forked process of its own. Needs the
package expecttest.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch
import torch._dynamo
from torch.utils import _pytree

from memfit.job.training import Training
from memfit.predict.fake.probe.client import result_of
from memfit.predict.fake.probe.process import probe
from memfit.predict.fake.probe.real_reference import real_tensor_peak
from memfit.predict.fake.probe.signatures import Signatures
from memfit.predict.fake.recording import Recording, trace_training
from memfit.predict.levels.liveness import peak_of
from memfit.predict.observe.storage_log import timeline_of

HOLDER_BYTES = 8
"""Parameters of the model that a job must have; a real run keeps the step alone."""
SMALL_BYTES = 64
"""Scalars of the dispatcher: a difference up to this is counted apart."""
MOST_SECONDS = 120


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of one operator."""

    operator: str
    with_backward: bool
    real_bytes: int | None = None
    predicted_bytes: int | None = None
    reason: str = ""

    @property
    def difference_bytes(self) -> int | None:
        """Predicted - real; None where one of them is not known."""
        if self.real_bytes is None or self.predicted_bytes is None:
            return None
        return self.predicted_bytes - HOLDER_BYTES - self.real_bytes


def build_of(operator: Any, sample: Any, with_backward: bool) -> Callable[[], Training]:
    """A job that calls the operator once a step, its inputs made anew from their values."""
    leaves, nest = _pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    given = [
        (leaf.detach().tolist(), leaf.dtype, tuple(leaf.shape), leaf.requires_grad) if torch.is_tensor(leaf) else leaf
        for leaf in leaves
    ]
    are_tensors = [torch.is_tensor(leaf) for leaf in leaves]

    def made() -> list[Any]:
        return [
            torch.tensor(value[0], dtype=value[1]).reshape(value[2]).requires_grad_(value[3] and with_backward)
            if is_tensor
            else value
            for value, is_tensor in zip(given, are_tensors, strict=True)
        ]

    def build() -> Training:
        inputs, holder = made(), torch.nn.Linear(1, 1)

        def step() -> None:
            first, args, kwargs = _pytree.tree_unflatten(inputs, nest)
            with torch.set_grad_enabled(with_backward):
                found = [
                    each for each in _pytree.tree_leaves(operator(first, *args, **kwargs)) if torch.is_tensor(each)
                ]
            needing = [each for each in found if each.requires_grad]
            if needing:
                torch.autograd.backward(needing, [torch.ones_like(each) for each in needing])
            for each in inputs:
                if torch.is_tensor(each):
                    each.grad = None

        return Training(model=holder, optimizer=torch.optim.SGD(holder.parameters()), batch=None, step=step)

    return build


def predicted_peak(build: Callable[[], Training]) -> int:
    """Of fake tensors, with probes made in this process."""
    signatures = Signatures()
    trace = trace_training(build, recording=Recording(signatures.sign))
    results = {number: result_of(probe(text)) for text, number in signatures.texts.items()}
    return peak_of(timeline_of(trace.log, trace.root_names, results), "cpu")[0]


def cases_of(operator: Any, num_samples: int) -> Iterator[Case]:
    """The largest samples of an operator, forward alone and with the backward where it has one."""
    kind = (
        torch.float32
        if operator.supports_dtype(torch.float32, "cpu")
        else min(operator.supported_dtypes("cpu"), key=str)
    )
    learns = operator.supports_autograd and kind.is_floating_point
    torch.manual_seed(0)
    samples = sorted(operator.sample_inputs("cpu", kind, requires_grad=learns), key=_num_elements)[-num_samples:]
    for sample in samples:
        for with_backward in (False, True) if learns else (False,):
            yield _case(operator, build_of(operator, sample, with_backward), with_backward)


def _num_elements(sample: Any) -> int:
    leaves = _pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return sum(leaf.numel() for leaf in leaves if torch.is_tensor(leaf))


def _case(operator: Any, build: Callable[[], Training], with_backward: bool) -> Case:
    case = Case(operator=_name(operator), with_backward=with_backward)
    gc.collect()
    try:
        real = real_tensor_peak(build)
    except Exception as error:
        return msgspec.structs.replace(case, reason=f"not run: {type(error).__name__}")
    try:
        return msgspec.structs.replace(case, real_bytes=real, predicted_bytes=predicted_peak(build))
    except Exception as error:
        words = (str(error).splitlines() or [""])[0][:80]
        return msgspec.structs.replace(case, real_bytes=real, reason=f"not predicted: {type(error).__name__}: {words}")


def _name(operator: Any) -> str:
    return operator.name + (f".{operator.variant_test_name}" if operator.variant_test_name else "")


def in_a_fork(operator: Any, num_samples: int) -> list[Case]:
    """The cases of one operator; an operator that crashes spoils no other."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(MOST_SECONDS)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        gc.disable()
        found: list[Case] = []
        with contextlib.suppress(Exception):
            found = list(cases_of(operator, num_samples))
        with os.fdopen(writing, "wb") as stream:
            stream.write(msgspec.json.encode(found))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        text = stream.read()
    os.waitpid(pid, 0)
    return msgspec.json.decode(text, type=list[Case]) if text else []


def main() -> None:
    """Run the samples and print how many are equal, and every operator that is not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help="only these operators")
    parser.add_argument("--samples", type=int, default=2, help="of each operator, the largest")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    from torch.testing._internal.common_methods_invocations import op_db  # torch 2.13

    chosen = [each for each in op_db if not options.names or _name(each) in options.names]
    cases: list[Case] = []
    for number, operator in enumerate(chosen, start=1):
        found = in_a_fork(operator, options.samples)
        cases += found or [Case(operator=_name(operator), with_backward=False, reason="gave no answer")]
        print(f"\r{number} of {len(chosen)} operators", end="", file=sys.stderr, flush=True)
    _report(cases)


def _report(cases: list[Case]) -> None:
    known = [case for case in cases if case.difference_bytes is not None]
    equal = [case for case in known if case.difference_bytes == 0]
    small = [case for case in known if 0 < abs(case.difference_bytes or 0) <= SMALL_BYTES]
    missing = [case for case in cases if case.reason.startswith(("not predicted", "gave"))]
    print(
        f"\n{len(cases)} calls of {len({case.operator for case in cases})} operators; of {len(known)} both run and "
        f"predicted {len(equal)} equal to the byte, {len(small)} within {SMALL_BYTES} bytes"
    )
    for case in sorted(known, key=lambda case: case.difference_bytes or 0):
        difference = case.difference_bytes or 0
        if abs(difference) > SMALL_BYTES:
            where = "with its backward" if case.with_backward else "forward"
            print(f"  {case.operator}, {where}: {difference:+,} of {case.real_bytes:,} bytes")
    print(f"{len(missing)} not predicted:")
    for case in missing:
        print(f"  {case.operator}: {case.reason}")


if __name__ == "__main__":
    main()
