"""One recorded pass of a program as a job: a model, its optimizer, and a step that plays the tape."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from memfit.errors import MemfitError
from memfit.fit.recorded_pass import Tape
from memfit.fit.replaced_results import LastResult, bytes_replaced, bytes_to_release
from memfit.fit.tensors_alive import bytes_around, optimizer_of, other_optimizers
from memfit.model.module_state import State, Watch
from memfit.model.step import Job, storage_bytes, tensors_of
from memfit.profile.optimizer_update import measure_update


class Together(torch.nn.Module):
    """Several modules that one pass calls, as one model."""

    def __init__(self, modules: list[torch.nn.Module], *, keeps_apart: bool) -> None:
        super().__init__()
        self.keeps_apart = keeps_apart
        """Whether no checkpoint may reach from one to another: other passes call them by themselves."""
        self.parts = torch.nn.ModuleList(modules)


def job_of_pass(
    tape: Tape,
    name: str,
    *,
    keeps_apart: bool = False,
    last_result: LastResult | None = None,
    given: Sequence[torch.Tensor] = (),
) -> Job:
    """The step that a tape plays, with gradients and states of what is not its model left as they are.

    What the program gives now stands in the place of what it gave then, where only the tape still holds that. What it
    holds of the last result is there until the call that began the pass has returned.
    """
    replaced_bytes = bytes_replaced(tape, given)
    model = model_of(tape.modules, keeps_apart=keeps_apart)
    parameters = {id(p) for p in model.parameters()}
    held = tape.held()
    outside = [t for t in held if t.requires_grad and t.is_leaf and id(t) not in parameters]
    outside += [p for other in tape.others for p in other.parameters() if id(p) not in parameters]
    batch = [t for t in held if id(t) not in parameters]
    job = Job(model=model, run=lambda: None, optimizer=optimizer_of([model]), batch=batch, name=name)
    job.released_bytes = 0 if last_result is None else bytes_to_release(last_result, job.device)

    def run() -> object:
        gradients = [(tensor, tensor.grad) for tensor in outside]
        before = [State.now(Watch(other)) for other in tape.others]
        old_result = [torch.empty(job.released_bytes, dtype=torch.uint8, device=job.device)]
        try:
            loss = tape.play(after_first_call=old_result.clear)
        finally:
            for state in before:
                state.lay()
            for tensor, gradient in gradients:
                tensor.grad = gradient
        if loss is not None:
            job.seen["loss"] = loss.detach()
        return job.seen.get("loss")

    job.run = run
    job.accumulates = any(p.grad is not None for p in model.parameters())
    job.counts_everything = True
    around_bytes = max(0, bytes_around(job) - job.released_bytes - replaced_bytes)
    job.around_bytes = around_bytes + sum(map(_state_to_come, other_optimizers(job.optimizer)))
    return job


def _state_to_come(optimizer: torch.optim.Optimizer) -> int:
    """What another optimizer of the program has not made of its state, for it has not stepped all of its parameters."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if all(optimizer.state.get(p) for p in parameters if p.requires_grad):
        return 0
    job = Job(model=torch.nn.ParameterList(parameters), run=lambda: None, optimizer=optimizer)
    there_bytes = storage_bytes(tensors_of([dict(each) for each in optimizer.state.values()]))
    try:
        return max(0, measure_update(job).state_bytes - there_bytes)
    except MemfitError:  # it cannot be measured, and is none of those that are fitted
        return 0


def model_of(modules: list[torch.nn.Module], *, keeps_apart: bool = False) -> torch.nn.Module:
    """The module that a pass calls, or several as one."""
    if len(modules) == 1:
        return modules[0]
    whole = Together(modules, keeps_apart=keeps_apart)
    whole.training = True  # not through train(): the parts keep what they have
    return whole
