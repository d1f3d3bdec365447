"""A loop that is fitted while it runs: does it train as the plain one does, and is every pass in the budget?"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_fit_models import left_over_bytes

from memfit.api import fitting_loop
from memfit.errors import DoesNotFit, UsageError
from memfit.fit import pass_peaks
from memfit.fit.tensors_alive import alive_bytes
from memfit.model.refused_models import refuse_model
from memfit.profile.meter.meter import Meter, WindowPeak, record_events
from memfit.records.fit import LoopFit
from memfit.show.terminal.fit import loop_fit_text

WIDTH = 64


def blocks(num_blocks: int = 10, dropout: float = 0.1) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(dropout)) for _ in range(num_blocks)),
        nn.Linear(WIDTH, 8),
    )


def batches(num_batches: int, rows: int = 512) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(rows, WIDTH), torch.randint(0, 8, (rows,))) for _ in range(num_batches)]


Losses = list[float]
Loop = Callable[[], tuple[Losses, nn.Module]]


def plain_loop() -> tuple[Losses, nn.Module]:
    model = blocks()
    optimizer, criterion, losses = torch.optim.AdamW(model.parameters()), nn.CrossEntropyLoss(), []
    for x, y in batches(6):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def late_zero_grad() -> tuple[Losses, nn.Module]:
    """Gradients of the step before are alive in the forward; logits and loss stay in variables of the loop."""
    model = blocks()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for x, y in batches(6):
        logits = model(x)
        loss = F.cross_entropy(logits.float(), y, label_smoothing=0.1) + 1e-4 * sum(
            p.square().sum() for p in model[0].parameters()
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def accumulating() -> tuple[Losses, nn.Module]:
    model = blocks()
    optimizer, losses = torch.optim.Adam(model.parameters()), []
    for number, (x, y) in enumerate(batches(9)):
        loss = F.cross_entropy(model(x), y) / 3
        loss.backward()
        losses.append(loss.item())
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    return losses, model


def mixed_precision() -> tuple[Losses, nn.Module]:
    model = blocks()
    optimizer, losses = torch.optim.AdamW(model.parameters()), []
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for x, y in batches(6):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, model


def evaluating() -> tuple[Losses, nn.Module]:
    model = blocks()
    optimizer, losses = torch.optim.AdamW(model.parameters()), []
    held_out = torch.randn(256, WIDTH)
    for x, y in batches(6):
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            losses += [loss.item(), model(held_out).sum().item()]
    return losses, model


class WithNoise(nn.Module):
    """Two roots in one pass, keyword arguments, a dictionary, an auxiliary loss on a module, noise in the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.balance = blocks(), None

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
        hidden = self.blocks[:-1](x * scale)
        self.balance = hidden.square().mean()
        return {"logits": self.blocks[-1](hidden), "hidden": hidden}


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(-3, 3)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> torch.Tensor:
        return grad_outputs[0] * 0.5


def several_roots() -> tuple[Losses, nn.Module]:
    encoder, decoder = WithNoise(), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    optimizer, losses = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()]), []
    for x, y in batches(6):
        optimizer.zero_grad()
        output = encoder(x, scale=0.5)
        noisy = output["hidden"] + 0.1 * torch.randn_like(output["hidden"])
        again = decoder(noisy)
        wrong = (again - x).square().mean(dim=1)
        kept = wrong[wrong < wrong.detach().median()]
        assert encoder.balance is not None
        loss = F.cross_entropy(Clipped.apply(output["logits"]), y) + kept.mean() + 0.01 * encoder.balance
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, nn.ModuleList([encoder, decoder])


def distilling() -> tuple[Losses, nn.Module]:
    """A teacher that is called after its student, normalises with the batch and follows it; a sum kept in a tensor."""
    model, running = blocks(), torch.zeros(())
    teacher = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 8))
    optimizer, losses = torch.optim.AdamW(model.parameters()), []
    for x, y in batches(6):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x)
        with torch.no_grad():
            wanted = teacher(x).softmax(1)
        loss = F.cross_entropy(logits.float(), y) + F.mse_loss(logits.float().softmax(1), wanted)
        with torch.no_grad():
            running += loss
        loss.backward()
        optimizer.step()
        losses += [loss.item(), running.item()]
    return losses, nn.ModuleList([model, teacher])


def growing() -> tuple[Losses, nn.Module]:
    model = blocks()
    optimizer, losses = torch.optim.AdamW(model.parameters()), []
    for rows in (256, 256, 512, 384, 512, 640, 256, 640):
        x, y = torch.randn(rows, WIDTH), torch.randint(0, 8, (rows,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def gradient_penalty() -> tuple[Losses, nn.Module]:
    """A gradient of a gradient, by an input that the pass itself declares to need one."""
    first, critic = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), blocks(dropout=0.0)
    optimizer, losses = torch.optim.Adam([*first.parameters(), *critic.parameters()]), []
    for x, _ in batches(5):
        optimizer.zero_grad()
        made = first(x)
        mixed = (0.5 * x + 0.5 * made.detach()).requires_grad_(True)
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        loss = (slope.norm(dim=1) - 1).square().mean() + made.mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, nn.ModuleList([first, critic])


LOOPS: dict[str, Loop] = {
    each.__name__: each
    for each in (
        plain_loop,
        late_zero_grad,
        accumulating,
        mixed_precision,
        evaluating,
        several_roots,
        distilling,
        growing,
    )
}


def weights_of(model: nn.Module) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]


def run(
    loop: Loop, own_bytes: int | None = None, measure_every: int = 1
) -> tuple[Losses, list[torch.Tensor], LoopFit | None]:
    """Run a loop, on request within so many bytes for itself; what other tests left alive here comes on top."""
    budget_bytes = (own_bytes or 0) + left_over_bytes()
    torch.manual_seed(0)
    if own_bytes is None:
        losses, model = loop()
        return losses, weights_of(model), None
    fitter = fitting_loop(budget_bytes, measure_every=measure_every)
    fitter.start()
    try:
        losses, model = loop()
    finally:
        found = fitter.stop()
    return losses, weights_of(model), found


QUICK_LOOPS = ("plain_loop", "accumulating", "several_roots")


def everything_kept_bytes(loop: Loop) -> int:
    """What the plain loop takes, by the allocator's events."""
    torch.manual_seed(0)
    meter = Meter(torch.device("cpu"))
    assert meter.start()
    meter.begin_window(0)
    loop()
    (peak,) = meter.stop(alive_bytes(torch.device("cpu")))
    assert peak is not None
    return peak.most_bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK_LOOPS else pytest.mark.slow) for name in LOOPS]
)
def test_a_fitted_loop_trains_as_the_plain_one_within_its_budget(name: str):
    loop = LOOPS[name]
    own_bytes = int(0.75 * everything_kept_bytes(loop))
    losses, weights, _ = run(loop)
    fitted_losses, fitted_weights, found = run(loop, own_bytes)
    assert fitted_losses == losses
    assert all(torch.equal(a, b) for a, b in zip(weights, fitted_weights, strict=True))
    assert found is not None
    # Gradients from before a recording are released unseen in its first pass, which then tells nothing.
    assert found.num_passes - len(found.fits) <= found.num_measured <= found.num_passes
    assert found.num_measured > 0
    assert found.within_budget, (found.measured_peak_bytes, found.num_over_budget, found.budget_bytes)
    assert found.first_peak_bytes is not None
    assert found.first_peak_bytes <= found.budget_bytes
    assert all(fit.proof is not None and fit.proof.bit_equal for fit in found.fits)


@pytest.mark.slow
def test_a_loop_with_a_gradient_penalty_trains_as_the_plain_one():
    losses, weights, _ = run(gradient_penalty)
    fitted_losses, fitted_weights, _ = run(gradient_penalty, 1 << 40)
    assert fitted_losses == losses
    assert all(torch.equal(a, b) for a, b in zip(weights, fitted_weights, strict=True))


def test_a_window_that_another_profiler_ended_is_unknown_and_not_zero():
    device = torch.device("cpu")
    meter = Meter(device)
    assert meter.start()
    meter.begin_window(0)
    record_events(lambda: torch.ones(1000), device)
    meter.begin_window(0)
    assert meter.stop(0) == [None, None]


@pytest.mark.slow
def test_larger_batches_get_plans_of_their_own():
    found = run(growing, int(0.75 * everything_kept_bytes(growing)))[2]
    assert found is not None
    assert len(found.fits) == 3


@pytest.mark.slow
def test_torch_is_as_it_was_afterwards():
    before = (nn.Module.__call__, torch.autograd.backward, torch.autograd.Function.__dict__["apply"])
    run(plain_loop, 1 << 40)
    assert (nn.Module.__call__, torch.autograd.backward, torch.autograd.Function.__dict__["apply"]) == before
    assert torch.overrides._get_current_function_mode() is None


@pytest.mark.slow
def test_a_budget_that_nothing_fits_into_is_refused_with_one_that_does():
    before_bytes = left_over_bytes()
    with pytest.raises(DoesNotFit) as refused:
        run(plain_loop, int(0.35 * everything_kept_bytes(plain_loop)))
    needed_bytes = refused.value.needed_bytes
    assert needed_bytes is not None
    del refused  # with its frames, which hold the tensors of the first loop: they would count
    found = run(plain_loop, needed_bytes - before_bytes)[2]
    assert found is not None
    assert found.within_budget


def test_passes_of_more_calls_than_the_planned_one_are_measured_and_told_of():
    """Episodes that grow: the input of a call stays as it is, and unmeasured passes took more without a word."""

    def loop() -> tuple[Losses, nn.Module]:
        model = blocks(2)
        for number in range(8):
            outputs = [model(torch.randn(256, WIDTH)) for _ in range(max(1, 3 * number - 9))]
            torch.stack([output.square().mean() for output in outputs]).sum().backward()
            model.zero_grad()
        return [], model

    found = run(loop, int(0.5 * everything_kept_bytes(loop)), measure_every=50)[2]
    assert found is not None
    assert found.within_budget is False
    assert any("more often than the planned one (1 time)" in each for each in found.departures)
    assert found.num_measured > 3


def test_a_refusal_says_that_a_module_is_called_twice():
    """Two views of one encoder: plans keep what both calls keep, and the refusal did not say why nothing fits."""

    def loop() -> tuple[Losses, nn.Module]:
        model = blocks()
        for x, y in batches(2):
            (F.cross_entropy(model(x), y) + F.cross_entropy(model(x + 1), y)).backward()
        return [], model

    with pytest.raises(DoesNotFit, match="no plan fits") as refused:
        run(loop, int(0.4 * everything_kept_bytes(loop)))
    assert "a pass calls Sequential 2 times" in refused.value.found
    assert "one call with both inputs joined" in refused.value.hint


def test_the_compiler_leaves_the_frames_of_fitting_alone():
    """Blocks that are compiled one by one call them through torch's modes."""
    model = blocks()
    model[1].compile(backend="eager")
    rules: Any = importlib.import_module("torch._dynamo.trace_rules")
    refuse_model(model)
    assert rules.check_file(sys.modules[refuse_model.__module__].__file__).skipped
    assert not rules.check_file(__file__).skipped


def test_a_loss_from_nowhere_is_refused_by_name():
    caught: list[torch.Tensor] = []

    def loop() -> tuple[Losses, nn.Module]:
        model = blocks()
        model[3].register_forward_hook(lambda *call: caught.append(call[2]))
        for x, y in batches(3):
            (F.cross_entropy(model(x), y) + caught[-1].mean()).backward()
        return [], model

    with pytest.raises(UsageError, match="cannot be run again") as refused:
        run(loop, 1 << 40)
    assert "came from elsewhere" in refused.value.found


def test_a_loop_whose_optimizer_runs_the_step_itself_is_refused_by_name():
    def loop() -> tuple[Losses, nn.Module]:
        model = blocks()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
        for x, y in batches(2):

            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)  # noqa: B023
                loss.backward()
                return loss

            optimizer.step(closure)  # pyright: ignore[reportArgumentType]
        return [], model

    with pytest.raises(UsageError, match="LBFGS runs the forward and the backward itself"):
        run(loop, 1 << 40)


def test_wrapped_and_compiled_models_are_refused_by_name():
    def compiled() -> tuple[Losses, nn.Module]:
        model = torch.compile(blocks(), backend="eager")
        for x, y in batches(3):
            F.cross_entropy(model(x), y).backward()
        return [], blocks()

    with pytest.raises(UsageError, match="compiled"):
        run(compiled, 1 << 40)

    def parallel() -> tuple[Losses, nn.Module]:
        model = nn.DataParallel(blocks())
        for x, y in batches(3):
            F.cross_entropy(model(x), y).backward()
        return [], model

    with pytest.raises(UsageError, match="DataParallel"):
        run(parallel, 1 << 40)

    def compiled_in_place() -> tuple[Losses, nn.Module]:
        model = blocks()
        model.compile(backend="eager")
        for x, y in batches(3):
            F.cross_entropy(model(x), y).backward()
        return [], model

    with pytest.raises(UsageError, match="compiled"):
        run(compiled_in_place, 1 << 40)


def test_what_fails_while_a_pass_is_measured_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch):
    """Not as the number of windows that then does not come out even."""

    def fails(device: torch.device) -> int:
        raise OSError("the cause")

    fitter = fitting_loop("1GiB")
    monkeypatch.setattr(pass_peaks, "alive_bytes", fails)
    fitter.start()
    try:
        with pytest.raises(OSError, match="the cause"):
            plain_loop()
    finally:
        fitter.stop()


def test_a_pass_that_departs_from_the_plan_is_told_of_and_those_after_it_are_measured():
    """The pass itself was not measured: nobody may say that it was within the budget."""

    def loop(departs: bool) -> LoopFit:
        model = blocks()
        fitter = fitting_loop("1GiB", measure_every=1000)
        fitter.start()
        try:
            for number, (x, y) in enumerate(batches(12)):
                if departs and number == 7:
                    at_work: Any = fitter._at_work
                    at_work.fitted.applied.listeners.say("kept", "a block is not recomputed")
                F.cross_entropy(model(x), y).backward()
        finally:
            found = fitter.stop()
        return found

    plain = loop(departs=False)
    with pytest.warns(RuntimeWarning, match="a block is not recomputed"):
        found = loop(departs=True)
    assert found.departures == ("a block is not recomputed",)
    assert found.num_measured >= plain.num_measured + 4
    assert "may have taken more" in loop_fit_text(found, width=200, color=False)
    assert "may have taken more" not in loop_fit_text(plain, width=200, color=False)


@pytest.mark.slow
def test_an_evaluation_that_takes_more_than_the_budget_is_told_of():
    """It runs as it is, so that no plan makes it smaller: the passes alone are within the budget."""

    def loop() -> tuple[Losses, nn.Module]:
        torch.manual_seed(0)
        model = blocks()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        losses, held_out = [], torch.randn(40_000, WIDTH)
        for number, (inputs, targets) in enumerate(batches(12)):
            loss = F.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if number % 4 == 3:
                with torch.no_grad():
                    losses.append(model.eval()(held_out).square().mean().item())
                model.train()
        return losses, model

    losses, _, _ = run(loop)
    fitted_losses, _, found = run(loop, int(0.75 * everything_kept_bytes(plain_loop)) + 40_000 * WIDTH * 4)
    assert fitted_losses == losses
    assert found is not None
    assert found.within_budget is False
    assert found.num_over_budget == 0
    assert found.num_between == 3
    assert found.between_peak_bytes is not None
    assert found.between_peak_bytes > found.budget_bytes
    text = " ".join(loop_fit_text(found, width=120, color=False).split())
    assert "between passes (evaluation) the program took MORE" in text
    assert "try smaller batches there, or --budget" in text


@pytest.mark.parametrize("num_kept", [1, 6])
def test_passes_beside_what_an_evaluation_keeps_are_planned_again_or_told_of(num_kept: int):
    """An evaluation with gradients, whose graphs the program holds on to: the passes after it take more."""

    def loop() -> tuple[Losses, nn.Module]:
        torch.manual_seed(0)
        model, kept = blocks(), []
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        losses = []
        for number, (inputs, targets) in enumerate(batches(12)):
            loss = F.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if number == 7:
                model.eval()
                kept.extend(model(inputs[: len(inputs) // 2]) for _ in range(num_kept))
                model.train()
        return losses, model

    losses, _, _ = run(loop)
    fitted_losses, _, found = run(loop, int(0.75 * everything_kept_bytes(plain_loop)), measure_every=1000)
    assert fitted_losses == losses
    assert found is not None
    assert found.between_peak_bytes is not None
    if num_kept == 1:
        assert found.between_peak_bytes <= found.budget_bytes
        assert len(found.fits) == 2
        assert found.within_budget
    else:  # nothing holds beside that much: the plan stays, and nobody is told that it was kept
        assert found.num_over_budget > 0
        assert found.within_budget is False


def test_tensors_without_a_storage_are_refused_by_name():
    model = nn.Linear(4, 4)
    adjacency = torch.eye(4).to_sparse()

    class Propagates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, adjacency: torch.Tensor) -> torch.Tensor:
            return self.inner(torch.sparse.mm(adjacency, torch.ones(4, 4)))

    def sparse_input() -> tuple[Losses, nn.Module]:
        network = Propagates()
        for _ in range(3):
            network(adjacency).sum().backward()
        return [], model

    def inside_of_a_transform() -> tuple[Losses, nn.Module]:
        torch.func.grad(lambda x: model(x).sum())(torch.ones(4))
        return [], model

    with pytest.raises(UsageError, match="a step with sparse tensors cannot be fitted"):
        run(sparse_input, 1 << 20)
    with pytest.raises(UsageError, match=r"a step inside of torch\.func"):
        run(inside_of_a_transform, 1 << 20)


@pytest.mark.slow
def test_what_the_program_releases_in_a_pass_does_not_count_as_the_trainings_peak():
    """Outputs that hooks keep are released by the next forward, which the first pass of a recording does not see."""
    meter = Meter(torch.device("cpu"))

    def loop(is_metered: bool = False) -> tuple[Losses, nn.Module]:
        model, outputs = blocks(), {}
        for name, module in model.named_modules():
            module.register_forward_hook(lambda *call, name=name: outputs.update({name: call[2].detach()}))
        for number, (x, y) in enumerate(batches(6)):
            if is_metered and number == 1:
                meter.start()
            if is_metered and number:
                meter.begin_window(alive_bytes(torch.device("cpu")))
            F.cross_entropy(model(x), y).backward()
            model.zero_grad()
        return [], model

    left_bytes = left_over_bytes()
    loop(is_metered=True)
    windows = meter.stop(alive_bytes(torch.device("cpu")))
    plain_bytes = max(peak.most_bytes for peak in windows[1:] if peak is not None) - left_bytes
    left_bytes = left_over_bytes()
    _, _, found = run(loop, 1 << 30)
    assert found is not None
    assert found.measured_peak_bytes is not None
    assert not found.is_upper_bound
    assert abs(found.measured_peak_bytes - left_bytes - plain_bytes) < 4096


def test_backwards_that_follow_no_call_of_a_module_are_told_of_early():
    """As layers that are trained one by one through `forward` itself."""
    said: list[tuple[int, str]] = []
    layer = nn.Linear(WIDTH, WIDTH)
    number = 0
    fitter = fitting_loop("1GiB", say=lambda sentence: said.append((number, sentence)))
    fitter.start()
    try:
        for number in range(6):  # noqa: B007  (read by what is said)
            layer.forward(torch.randn(4, WIDTH)).square().mean().backward()
    finally:
        fitter.stop()
    assert [(when, "not model.forward(x)" in what) for when, what in said] == [(2, True)]


def test_gradients_count_before_anybody_has_asked_for_them():
    """They have no Python object then; a loop that accumulates took a whole set of them more than was measured."""
    model = nn.Linear(300, 300)
    before_bytes = left_over_bytes()
    model(torch.zeros(1, 300)).sum().backward()
    assert left_over_bytes() - before_bytes == sum(p.nbytes for p in model.parameters())


def test_what_was_made_before_recording_and_is_released_in_a_later_window_leaves_bounds():
    device = torch.device("cpu")
    kept = [torch.zeros(1000)]
    meter = Meter(device)
    assert meter.start()
    meter.begin_window(alive_bytes(device))
    small = torch.zeros(10)
    meter.begin_window(alive_bytes(device))
    kept.clear()
    large = torch.zeros(500)
    first, second = meter.stop(alive_bytes(device))
    assert first is not None
    assert second is not None
    assert first.is_exact
    assert second.most_bytes - second.least_bytes == 4000
    del small, large


def test_what_a_kept_graph_holds_counts():
    """Saved tensors of a graph have no Python object; what hooks have packed is left as it is."""
    layer, x = nn.Linear(40, 50), torch.ones(60, 40)
    before_bytes = left_over_bytes()
    kept = layer(x).exp().sum()
    assert left_over_bytes() - before_bytes == 60 * 50 * 4 + kept.nbytes
    kept.backward()
    assert left_over_bytes() - before_bytes == sum(p.nbytes for p in layer.parameters()) + kept.nbytes

    def refuse(packed: object) -> torch.Tensor:
        raise AssertionError("unpacked")

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: "packed", refuse):
        packed = layer(x).exp().sum()
    assert left_over_bytes() - before_bytes == sum(p.nbytes for p in layer.parameters()) + kept.nbytes + packed.nbytes


def test_a_pass_of_which_only_bounds_are_known_is_not_called_within_the_budget():
    fitter = fitting_loop(1000)
    fitter.start()
    fitter.peaks.count(1, WindowPeak(900, 1100), is_first=True)
    assert fitter.peaks.measured.num_unsure == fitter.peaks.measured.num_measured == 0
    fitter.peaks.count(2, WindowPeak(900, 1100), is_first=False)
    assert fitter.peaks.measured.num_unsure == 1
    assert fitter.peaks.measured.num_measured == 0
    fitter.peaks.count(3, WindowPeak(700, 700), is_first=False)
    fitter.peaks.count(4, WindowPeak(800, 900), is_first=False)
    assert fitter.peaks.measured.highest_bytes == 900
    found = fitter.stop()
    assert found.within_budget
    assert "may have taken more" in loop_fit_text(found, width=100, color=False)


def test_a_pass_over_the_budget_stays_the_highest_beside_lower_ones_that_are_exact():
    fitter = fitting_loop(1000)
    fitter.start()
    fitter.peaks.count(1, WindowPeak(1200, 1300), is_first=False)
    fitter.peaks.count(2, WindowPeak(600, 600), is_first=False)
    found = fitter.stop()
    assert (found.measured_peak_bytes, found.highest_pass, found.num_over_budget) == (1300, 1, 1)


def test_the_first_pass_over_the_budget_is_told_at_once_and_the_end_names_what_was_enough():
    said: list[str] = []
    fitter = fitting_loop(10_000)
    fitter.say = said.append
    fitter.start()
    fitter.peaks.count(1, WindowPeak(20_480, 20_480), is_first=False)
    fitter.peaks.count(2, WindowPeak(20_480, 20_480), is_first=False)
    assert [text for text in said if "MORE than the budget" in text] == said
    assert len(said) == 1
    assert "try --budget 20.0KiB" in loop_fit_text(fitter.stop(), width=200, color=False)


@pytest.mark.parametrize("also", [{}, {"departures": ("a block ran off its plan",)}, {"num_unsure": 2}])
def test_a_pass_before_the_plan_that_took_more_is_in_every_headline(also: dict[str, Any]):
    found = LoopFit(
        name="train.py", budget_bytes=1000, num_passes=9, num_measured=3, measured_peak_bytes=900,
        first_peak_bytes=1200, **also,
    )  # fmt: skip
    assert "before there was a plan, a pass took MORE" in loop_fit_text(found, width=300, color=False)


class Shortening(nn.Module):
    """Blocks behind an embedding whose rows torch shortens in place where they are read."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.ModuleList([nn.Embedding(8, WIDTH, max_norm=0.3) for _ in range(2)])
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, 512), nn.GELU(), nn.Linear(512, 8))])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0](self.words[0](x) + self.words[1](x))


def test_a_first_pass_that_recomputes_blocks_which_write_into_their_parameters_goes_on():
    def first_pass(budget: int | None) -> tuple[list[torch.Tensor], list[str]]:
        torch.manual_seed(0)
        model, said = nn.Sequential(Shortening()), list[str]()
        fitter = None if budget is None else fitting_loop(budget, say=said.append)
        if fitter is not None:
            fitter.start()
        try:
            model(torch.randint(0, 8, (512,))).square().mean().backward()
        finally:
            if fitter is not None:
                fitter.stop()
        return [tensor for p in model.parameters() for tensor in (p.detach(), p.grad) if tensor is not None], said

    plain, _ = first_pass(None)
    fitted, said = first_pass(alive_bytes(torch.device("cpu")) + 1_500_000)
    assert any("recomputes every block" in text for text in said)
    assert all(torch.equal(*pair) for pair in zip(plain, fitted, strict=True))


def as_dcgan_does(num_rounds: int = 8) -> tuple[Losses, nn.Module]:
    """Three passes a round: real images, made ones without their history, and the same ones with it."""
    maker, critic = blocks(8, dropout=0.1), blocks(6, dropout=0.0)
    maker.append(nn.Linear(8, WIDTH))
    steps = [torch.optim.Adam(each.parameters(), 1e-3) for each in (critic, maker)]
    losses = []
    for x, _ in batches(num_rounds):
        critic.zero_grad()
        real = critic(x).square().mean()
        real.backward()
        made = maker(torch.randn(512, WIDTH))
        told = critic(made.detach()).square().mean()
        told.backward()
        steps[0].step()
        maker.zero_grad()
        fooled = critic(made).square().mean()
        fooled.backward()
        steps[1].step()
        losses += [real.item(), told.item(), fooled.item()]
    return losses, nn.ModuleList([maker, critic])


def critic_more_often(num_rounds: int = 8) -> tuple[Losses, nn.Module]:
    """The critic is called twice in a pass of its own, and trained thrice for each pass of the maker."""
    maker, critic = blocks(4), blocks(8)
    maker.append(nn.Linear(8, WIDTH))
    steps = [torch.optim.Adam(each.parameters(), 1e-3) for each in (critic, maker)]
    losses = []
    for x, _ in batches(num_rounds):
        for _ in range(3):
            steps[0].zero_grad()
            loss = critic(x).mean() - critic(maker(torch.randn(512, WIDTH)).detach()).mean()
            loss.backward()
            steps[0].step()
            losses.append(loss.item())
        steps[1].zero_grad()
        fooled = critic(maker(torch.randn(512, WIDTH))).mean()
        fooled.backward()
        steps[1].step()
        losses.append(fooled.item())
    return losses, nn.ModuleList([maker, critic])


def two_models_in_turns(num_rounds: int = 8) -> tuple[Losses, nn.Module]:
    small, large = blocks(3), blocks(12)
    steps = [torch.optim.AdamW(each.parameters()) for each in (small, large)]
    losses = []
    for number, (x, y) in enumerate(batches(2 * num_rounds)):
        steps[number % 2].zero_grad()
        loss = F.cross_entropy((small, large)[number % 2](x), y)
        loss.backward()
        steps[number % 2].step()
        losses.append(loss.item())
    return losses, nn.ModuleList([small, large])


KINDS: list[tuple[Loop, float, float]] = [
    (as_dcgan_does, 0.75, 0.5),
    (critic_more_often, 1.02, 0.0),  # refused before it is known that there is another kind
    (two_models_in_turns, 0.75, 0.4),
]
"""With a share of the highest pass that can be held, and one that cannot."""


def highest_of_all(loop: Loop) -> int:
    """The most that any pass takes while nothing is recomputed."""
    found = run(loop, 2**30, measure_every=1)[2]
    assert found is not None
    return max(found.measured_peak_bytes or 0, found.first_peak_bytes or 0) - left_over_bytes()


@pytest.mark.parametrize(("loop", "share"), [(loop, share) for loop, share, _ in KINDS])
def test_every_kind_of_pass_gets_a_plan_of_its_own(loop: Loop, share: float):
    losses, weights, _ = run(loop)
    fitted_losses, fitted_weights, found = run(loop, int(share * highest_of_all(loop)), measure_every=1)
    assert fitted_losses == losses
    assert all(map(torch.equal, weights, fitted_weights))
    assert found is not None
    assert len(found.fits) >= 2
    assert found.within_budget
    assert found.num_measured >= found.num_passes - len(found.fits)
    assert not found.departures


@pytest.mark.parametrize(("loop", "share"), [(loop, share) for loop, _, share in KINDS if share])
def test_the_smallest_budget_that_is_named_for_several_kinds_of_passes_holds(loop: Loop, share: float):
    found = run(loop, _named_for(loop, int(share * highest_of_all(loop))), measure_every=1)[2]
    assert found is not None
    assert found.within_budget


def test_a_file_gets_the_plan_of_the_first_kind_of_pass():
    """Its next run applies it to what the first pass begins with."""
    fitter = fitting_loop(2**30)
    fitter.start()
    try:
        as_dcgan_does(3)
    finally:
        found = fitter.stop()
    assert len(found.fits) == 2
    assert fitter.to_write is found.fits[0]


def test_a_refusal_before_another_kind_was_seen_says_so():
    with pytest.raises(DoesNotFit, match="another optimizer of the program has not been at work"):
        run(critic_more_often, int(0.85 * highest_of_all(critic_more_often)))


def test_the_state_that_another_optimizer_has_not_made_has_room():
    """Its first step comes after the plan was made: two values for each parameter, and gradients stay."""

    def loop() -> tuple[Losses, nn.Module]:
        model, late = blocks(8), nn.Linear(WIDTH, 5000)
        optimizer, rare = torch.optim.SGD(model.parameters(), 0.1), torch.optim.Adam(late.parameters())
        losses = []
        for number, (x, y) in enumerate(batches(8)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if number == 4:
                for parameter in late.parameters():
                    parameter.grad = torch.ones_like(parameter)
                rare.step()
                rare.zero_grad()
        return losses, model

    late_bytes = 4 * 5000 * (WIDTH + 1)
    found = run(loop, 2**30)[2]
    assert found is not None
    (fit,) = found.fits
    assert fit.plan.chain.fixed.other_bytes >= 2 * late_bytes


def _named_for(loop: Loop, own_bytes: int) -> int:
    left_bytes = left_over_bytes()
    try:
        run(loop, own_bytes)
    except DoesNotFit as refusal:  # whose frames hold tensors: it must not stay
        return (refusal.needed_bytes or 0) - left_bytes
    raise AssertionError("it fits")


def test_a_graph_that_comes_into_the_first_pass_is_left_for_its_own_backward():
    """The pass is predicted before it runs, and a backward through what the program gave would use up its graph."""

    def loop() -> tuple[Losses, nn.Module]:
        model, scale = blocks(3), nn.Parameter(torch.ones(WIDTH))
        optimizer, losses = torch.optim.SGD([*model.parameters(), scale], 0.1), []
        for x, y in batches(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x * scale.exp()), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, model

    first = []

    def only_first() -> tuple[Losses, nn.Module]:
        model, scale = blocks(3), nn.Parameter(torch.ones(WIDTH))
        F.cross_entropy(model(torch.randn(64, WIDTH) * scale.exp()), torch.zeros(64, dtype=torch.long)).backward()
        assert scale.grad is not None
        first.append(scale.grad.clone())
        return [], model

    run(only_first)
    run(only_first, 2**30)
    assert torch.equal(*first)
    assert run(loop, 2**30)[0] == run(loop)[0]


def trained_then_evaluated(evaluate: Callable[[nn.Module], object], num_blocks: int = 3) -> LoopFit:
    """A loop of eight passes in 4 MiB, with what is done to the model after the sixth."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(num_blocks)), nn.Linear(8, 2000))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    fitter = fitting_loop(2**22 + left_over_bytes(), measure_every=1000)
    fitter.start()
    try:
        for number in range(8):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()
            if number == 5:
                evaluate(model.eval())
                model.train()
    finally:
        found = fitter.stop()
    return found


@pytest.mark.slow
def test_the_last_block_of_an_evaluation_counts_as_its_first():
    def evaluate(model: nn.Module) -> None:
        with torch.no_grad():
            model(torch.randn(4000, 8)).sum()

    found = trained_then_evaluated(evaluate, num_blocks=20)
    assert (found.between_peak_bytes or 0) > 4000 * 2000 * 4
    assert found.within_budget is False


@pytest.mark.slow
def test_calls_of_an_evaluation_that_grow_are_looked_at_to_its_end():
    def evaluate(model: nn.Module) -> None:
        with torch.no_grad():
            for length in range(1, 101):
                model(torch.randn(10 * length, 8)).sum()

    found = trained_then_evaluated(evaluate)
    assert (found.between_peak_bytes or 0) > 0.8 * 1000 * 2000 * 4
    assert found.num_between == 1
    assert found.within_budget is False


@pytest.mark.slow
def test_a_view_whose_graph_torch_refuses_to_tell_ends_no_program():
    """A part of the weights kept for a log: since the update has written into its base, its `grad_fn` is an error."""
    kept: list[torch.Tensor] = []

    def evaluate(model: nn.Module) -> None:
        with torch.no_grad():
            kept.append(next(model.parameters())[:3])
        for each in model.parameters():  # in place, with gradients: what torch refuses to tell of
            each.detach_().mul_(1.0).requires_grad_()

    torch.manual_seed(0)
    weight = nn.Parameter(torch.ones(4, 4)).clone()
    with torch.no_grad():
        kept.append(weight[:3])
    weight.mul_(2)
    with pytest.raises(RuntimeError, match="no_grad mode"):
        _ = kept[0].grad_fn
    assert alive_bytes(torch.device("cpu")) > 0
    assert trained_then_evaluated(evaluate).within_budget
    bindings: Any = torch._C
    assert not bindings._autograd._profiler_enabled()


def test_a_profiler_of_ours_ends_when_the_tensors_cannot_be_counted(monkeypatch: pytest.MonkeyPatch):
    fitter = fitting_loop(2**30)
    fitter.start()
    fitter.peaks.start_meter(torch.device("cpu"))
    fitter.peaks.begin_window(torch.device("cpu"), 1)

    def fail(device: torch.device) -> int:
        raise RuntimeError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(pass_peaks, "alive_bytes", fail)
        with pytest.raises(RuntimeError, match="no answer"):
            fitter.peaks.end()
    bindings: Any = torch._C
    assert not bindings._autograd._profiler_enabled()
    fitter.stop()


def test_lazy_parameters_are_no_obstacle_to_counting():
    lazy = nn.LazyLinear(3)
    assert alive_bytes(torch.device("cpu")) >= 0
    assert isinstance(lazy.weight, nn.UninitializedParameter)


class WithHiddenWeights(nn.Module):
    """Weights in a plain list: no parameters of the model, and trained all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = blocks(6, dropout=0.0)
        self.hidden = [torch.ones(WIDTH, requires_grad=True), nn.Linear(WIDTH, WIDTH)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.hidden[1](x * self.hidden[0]))


def weights_in_a_list() -> tuple[Losses, nn.Module]:
    model, losses = WithHiddenWeights(), []
    hidden = [model.hidden[0], *model.hidden[1].parameters()]
    optimizer = torch.optim.SGD([*model.parameters(), *hidden], lr=0.1)
    for x, y in batches(5):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model


def attacked_by_backward() -> tuple[Losses, nn.Module]:
    """An input that is a leaf with a gradient, which the program reads (fast gradient sign)."""
    model, losses = blocks(6), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches(4):
        x.requires_grad_()
        F.cross_entropy(model(x), y).backward()
        assert x.grad is not None
        attacked = (x + 0.1 * x.grad.sign()).detach()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(attacked), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@pytest.mark.parametrize(("loop", "share"), [(weights_in_a_list, 1e6), (attacked_by_backward, 0.9)])
def test_leaves_that_are_no_parameters_have_the_gradients_of_the_plain_loop(loop: Loop, share: float):
    """The first pass is tried on fakes, the second in earnest: both have a backward that reaches those leaves."""
    losses, weights, _ = run(loop)
    fitted_losses, fitted_weights, _ = run(loop, int(share * everything_kept_bytes(loop)))
    assert fitted_losses == losses
    assert all(torch.equal(a, b) for a, b in zip(weights, fitted_weights, strict=True))


def unfreezing() -> tuple[Losses, nn.Module]:
    """The last blocks are trained first, then all of them, with an optimizer that begins anew."""
    model, losses = blocks(8), []
    for num_frozen in (6, 0):
        for number, block in enumerate(model.children()):
            block.requires_grad_(number >= num_frozen)
        optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
        for x, y in batches(4):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, model


def growing_in_depth() -> tuple[Losses, nn.Module]:
    """Blocks are added to a model that has a plan."""
    model, losses = blocks(4), []
    for _ in range(2):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in batches(4):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        for block in list(blocks(4).children())[:-1]:
            model.insert(1, block)
    return losses, model


@pytest.mark.parametrize("loop", [unfreezing, growing_in_depth])
def test_passes_that_train_more_than_the_plan_was_made_for_get_a_plan_of_their_own(loop: Loop):
    losses, weights, _ = run(loop)
    own_bytes = int(0.8 * everything_kept_bytes(loop))
    fitted_losses, fitted_weights, found = run(loop, own_bytes)
    assert fitted_losses == losses
    assert all(torch.equal(a, b) for a, b in zip(weights, fitted_weights, strict=True))
    assert found is not None
    assert found.within_budget, (found.measured_peak_bytes, found.budget_bytes)
    assert len(found.fits) == 2


def attacked_for_free() -> tuple[Losses, nn.Module]:
    """What is added to the input was made before the model's call, and gets a gradient."""
    model, losses, added = blocks(8, dropout=0.0), [], torch.zeros(512, WIDTH, requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches(3):
        for _ in range(2):
            loss = F.cross_entropy(model(x + added[: len(x)]), y)
            optimizer.zero_grad()
            loss.backward()
            assert added.grad is not None
            added.data = added.data + 0.1 * added.grad.sign()
            added.grad.zero_()
            optimizer.step()
            losses.append(loss.item())
    return losses, model


def test_an_input_with_a_history_from_before_the_pass_is_no_obstacle():
    losses, weights, _ = run(attacked_for_free)
    fitted_losses, fitted_weights, found = run(attacked_for_free, int(0.95 * everything_kept_bytes(attacked_for_free)))
    assert fitted_losses == losses
    assert all(torch.equal(a, b) for a, b in zip(weights, fitted_weights, strict=True))
    assert found is not None
    assert found.within_budget, (found.measured_peak_bytes, found.budget_bytes)
    assert any("computed before the pass began" in note for note in found.notes)


@pytest.mark.parametrize("has_history", [False, True])
def test_weights_that_the_program_gives_a_model_for_one_call_run_without_a_plan(has_history: bool):
    """A block run again in the backward would take the model's own weights: another gradient, without an error."""
    from torch.func import functional_call

    def loop() -> tuple[Losses, nn.Module]:
        model, losses = blocks(8, dropout=0.0), []
        given = {name: nn.Parameter(p.detach() * 0.5) for name, p in model.named_parameters()}
        optimizer = torch.optim.SGD(given.values(), lr=0.1)
        for x, y in batches(4):
            weights = {name: p * 0.9 if has_history else p for name, p in given.items()}
            loss = F.cross_entropy(functional_call(model, weights, (x,)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, model

    losses = run(loop)[0]
    fitted_losses, _, found = run(loop, int(0.6 * everything_kept_bytes(loop)))
    assert fitted_losses == losses
    assert found is not None
    assert not found.fits
    assert any("functional_call" in note for note in found.notes)


def test_a_pass_that_calls_a_model_with_other_weights_as_well_is_refused():
    from torch.func import functional_call

    def loop() -> tuple[Losses, nn.Module]:
        model = blocks(3)
        for x, y in batches(3):
            weights = {name: p * 0.5 for name, p in model.named_parameters()}
            (F.cross_entropy(model(x), y) + F.cross_entropy(functional_call(model, weights, (x,)), y)).backward()
        return [], model

    with pytest.raises(UsageError, match="cannot be run again") as refused:
        run(loop, 1 << 40)
    assert "other weights" in refused.value.found
