"""The plain step as reference: run twice from one seed, kept as digests, compared bit by bit with other runs.

One seed, two runs: loss, every gradient, every buffer and the state of the random generators are compared bit by bit,
by digests, so that no second set of gradients is held. The plain step is run twice first, before anything else is done
with the model; the second of these runs is watched for the calls that it makes, and must come out the same. Where it
does not agree with itself by a rounding, its kernels are not deterministic, and there the largest difference between
two plain runs is the tolerance; the proof says so. A model that differs by more carries something from one step to the
next, and is refused.

Where this machine cannot hold the plain step, its place is taken by the step with every block recomputed alone, each
of whose blocks was compared with itself, saved tensor by saved tensor (`block_by_block`). Then there is no tolerance.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from memfit.errors import UsageError
from memfit.model.step import (
    Job,
    RandomState,
    hanging_bytes,
    leaving_no_trace,
    storage_bytes,
    tensors_of,
)
from memfit.model.tensors_in_arguments import bits_of
from memfit.model.written_parameters import written_among
from memfit.profile.meter.meter import record_events

Compared = torch.Tensor | bytes | None
TOLERANCE_FACTOR = 4.0
ROUNDINGS = 1000
"""By so many roundings a gradient may differ between two plain runs."""
ALLOWED_ROUNDINGS = 100
"""By so many roundings of the largest gradient a gradient may differ where a lever adds up in another order."""
MOST_DRIFT = 1e-5
"""Of the loss between two plain runs: sums in another order change the last digits only."""


@dataclass(slots=True)
class StepOutcome:
    """What one run computed."""

    loss: torch.Tensor | None
    gradients: dict[str, Compared]
    """Digests; tensors only where a tolerance needs them."""
    buffers: dict[str, Compared]
    random: RandomState
    gradient_bytes: int = 0
    left_bytes: int = 0
    """Of tensors that the run left hanging on the model, beside parameters and buffers; 0 where it was recorded."""
    carries_on: bool = False
    """Whether the run changed attributes of modules or what hangs on them, so that the next may be another one."""
    peak_bytes: int | None = None
    """Above what was alive before the run; None when it was not measured."""


@dataclass(slots=True)
class Reference:
    """The plain step, or what stands for it, run twice."""

    outcome: StepOutcome
    tolerance: dict[str, float]
    """Largest difference between two plain runs, only where there is one."""
    state: RandomState
    """Where all runs begin."""
    note: str = ""
    """For the user; empty where the first run was as all others."""


def run_once(job: Job, state: RandomState, *, watched: bool = False, whole: Collection[str] = ()) -> StepOutcome:
    """Run from one random state and keep digests of what came out; tensors of what is named in `whole`."""

    def kept(name: str, tensor: torch.Tensor | None) -> Compared:
        if tensor is None or tensor.is_meta:
            return None
        return tensor.detach().clone() if name in whole else digest_of(tensor)

    def kept_aside(name: str, tensor: torch.Tensor) -> Compared:
        return _copied_aside(tensor) if name in whole else kept(name, tensor)

    with leaving_no_trace(job) as before:
        state.put_back()
        job.seen.pop("loss", None)
        stepped: dict[str, Compared] = {}
        job.seen["keep"] = lambda name, tensor: stepped.update({name: kept_aside(f"gradient of {name}", tensor)})
        hanging = 0 if watched else hanging_bytes(job.whole)
        try:
            record = record_events(job.run, job.device) if watched else None
            if not watched:
                job.run()
        finally:
            job.seen.pop("keep", None)
        loss = job.seen.get("loss")
        return StepOutcome(
            loss=None if loss is None else loss.clone(),
            gradients={n: kept(f"gradient of {n}", p.grad) for n, p in job.whole.named_parameters()} | stepped,
            buffers={n: kept(f"buffer {n}", b) for n, b in _kept_by_model(job.whole)},
            random=RandomState.now(),
            gradient_bytes=storage_bytes([p.grad for p in job.whole.parameters() if p.grad is not None]),
            left_bytes=0 if watched else hanging_bytes(job.whole) - hanging,
            carries_on=not before.attributes.still_there(),
            peak_bytes=record.peak_bytes if watched and record is not None else None,
        )


def _kept_by_model(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Buffers with their names, and parameters that runs write into."""
    written = set(map(id, written_among(model.parameters())))
    return [*model.named_buffers(), *((name, p) for name, p in model.named_parameters() if id(p) in written)]


def _copied_aside(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that the allocator, whose events are being recorded, does not see."""
    bits = bits_of(tensor.detach().to("cpu"))
    return torch.from_numpy(bits.numpy().copy()).view(tensor.dtype).view(tensor.shape)


def tolerant(job: Job, reference: Reference) -> Reference:
    """The plain step once more, with all its gradients at hand, to be compared within roundings."""
    names = [f"gradient of {name}" for name, p in job.whole.named_parameters() if p.requires_grad]
    with contextlib.nullcontext() if job.block_by_block is None else job.block_by_block():
        outcome = run_once(job, reference.state, whole=names)
    largest = largest_gradient(outcome)
    tolerance = {
        f"gradient of {name}": ALLOWED_ROUNDINGS * torch.finfo(tensor.dtype).eps * largest / TOLERANCE_FACTOR
        for name, tensor in outcome.gradients.items()
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    }
    if outcome.loss is not None:
        tolerance["loss"] = MOST_DRIFT * abs(float(outcome.loss)) / TOLERANCE_FACTOR
    least = reference.tolerance
    return Reference(outcome, {n: max(gap, least.get(n, 0.0)) for n, gap in tolerance.items()}, reference.state)


def largest_gradient(outcome: StepOutcome) -> float:
    """Of all gradients."""
    tensors = [tensor for tensor in outcome.gradients.values() if isinstance(tensor, torch.Tensor) and tensor.numel()]
    return max((float(tensor.abs().max()) for tensor in tensors), default=0.0)


def digest_of(tensor: torch.Tensor) -> bytes:
    """A digest of the bits of a tensor, its shape and its type."""
    found = hashlib.blake2b(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), digest_size=16)
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    found.update(bits_of(tensor.detach().to("cpu")).numpy().data)
    return found.digest()


def reference_of(
    job: Job, state: RandomState, watching: contextlib.AbstractContextManager[object] | None = None
) -> Reference:
    """Run the plain step twice, or what stands for it; refuse a model that does not come near itself.

    The second run may be watched. Where it differs, two more are run unwatched, and their gap counts.
    """
    given = [(tensor, tensor._version) for tensor in tensors_of(job.batch)]
    with contextlib.nullcontext() if job.block_by_block is None else job.block_by_block():
        num_written = len(written_among(job.whole.parameters()))
        first = run_once(job, state)
        if len(written_among(job.whole.parameters())) > num_written:  # what it wrote was not kept for comparing
            first = run_once(job, state)
        with watching or contextlib.nullcontext():
            second = run_once(job, state)
        if any(tensor._version != version for tensor, version in given):
            raise UsageError(
                "the model writes into its batch, so that it cannot be run twice",
                hint="let it work on a copy: inputs.clone()",
            )
        _refuse_another_loss(first, second)
        apart = differences(first, second)
        job.is_exact = not apart
        if not apart:
            return Reference(first, {}, state)
        if job.block_by_block is not None:
            raise UsageError(
                "two runs of the step differ, and this machine cannot hold what a tolerance would need",
                found=names_of(sorted(apart)),
                hint="torch.use_deterministic_algorithms(True), or fit on a larger machine and load the plan here",
            )
        first, second = run_once(job, state, whole=apart), run_once(job, state, whole=apart)
    differing = differences(first, second)
    gaps = {name: gap for name, gap in differing.items() if math.isfinite(gap)}
    _refuse_another_gradient(first, gaps)
    if not differing:  # only the very first run was another one
        job.is_exact = True
        return Reference(run_once(job, state), {}, state, _first_run_note(sorted(apart)))
    return Reference(first, _for_all_that_differed(apart, gaps), state)


def _for_all_that_differed(apart: Collection[str], gaps: dict[str, float]) -> dict[str, float]:
    """The gaps, also for what differed in the first two runs and by chance not in the next two."""
    gradients = max((gap for name, gap in gaps.items() if name.startswith("gradient of ")), default=0.0)
    return {name: gradients if name.startswith("gradient of ") else 0.0 for name in apart} | gaps


def _first_run_note(apart: Sequence[str]) -> str:
    return (
        f"the first steps of this process computed other last digits than later ones ({names_of(apart)}), as code does "
        "that torch.jit compiles while it runs; the plan is equal to the later ones to the bit"
    )


def _refuse_another_loss(first: StepOutcome, second: StepOutcome) -> None:
    if first.loss is None or second.loss is None or torch.equal(first.loss, second.loss):
        return
    a, b = float(first.loss), float(second.loss)
    if not abs(a - b) <= MOST_DRIFT * max(abs(a), abs(b), 1e-12):
        raise UsageError(
            "the model cannot be run twice",
            found=f"with the same seed and the same weights the loss was {a:.6g}, then {b:.6g}",
            hint="find what it carries from one step to the next, or its own source of random numbers",
        )


def _refuse_another_gradient(outcome: StepOutcome, gaps: dict[str, float]) -> None:
    """Refuse what differs by more than sums in another order do."""
    tensors = {f"gradient of {name}": tensor for name, tensor in outcome.gradients.items()}
    # Against the largest gradient there is: some are nothing but rounding, as that of a bias before a BatchNorm.
    sizes = [float(t.abs().max()) for t in tensors.values() if isinstance(t, torch.Tensor) and t.numel()]
    for name, gap in gaps.items():
        tensor = tensors.get(name)
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            share = gap / max(*sizes, 1e-30, 1e-30)
            if share > ROUNDINGS * torch.finfo(tensor.dtype).eps:
                raise UsageError(
                    "the model cannot be run twice",
                    found=f"with the same seed and the same weights, the {name} differs by {share:.1g} of the largest",
                    hint="find what it carries from one step to the next, or its own source of random numbers",
                )


def differences(one: StepOutcome, other: StepOutcome) -> dict[str, float]:
    """Name and largest difference of everything that is not bit-equal; infinite where sizes or presence differ."""
    found: dict[str, float] = {}
    _compare(found, "loss", one.loss, other.loss)
    for kind, mine, theirs in (
        ("gradient of ", one.gradients, other.gradients),
        ("buffer ", one.buffers, other.buffers),
    ):
        for name in mine.keys() | theirs.keys():
            _compare(found, kind + name, mine.get(name), theirs.get(name))
    if not one.random.same_as(other.random):
        found["state of the random generators"] = float("inf")
    return found


def _compare(found: dict[str, float], name: str, mine: Compared, theirs: Compared) -> None:
    if mine is None and theirs is None:
        return
    if not isinstance(mine, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        if mine != theirs:
            found[name] = float("inf")
    elif mine.shape != theirs.shape:
        found[name] = float("inf")
    elif not _bit_equal(mine, theirs):
        gap = (mine.detach().double() - theirs.detach().double()).abs().max()
        found[name] = float(gap) if torch.isfinite(gap) else float("inf")


def _bit_equal(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Equal values; a NaN is equal to a NaN in the same place."""
    return torch.equal(mine, theirs) or torch.allclose(mine, theirs, rtol=0.0, atol=0.0, equal_nan=True)


def names_of(differences: Sequence[str], most: int = 3) -> str:
    """A few names for a message."""
    rest = f" and {len(differences) - most} more" if len(differences) > most else ""
    return ", ".join(differences[:most]) + rest
