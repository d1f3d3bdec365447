"""Are steps and phases of a torch program seen as they happen, and is torch afterwards as it was?"""

from __future__ import annotations

import copy
import inspect
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.optim.optimizer as torch_optimizer
from torch import nn
from torch.nn.modules import module as torch_module
from torch_jobs import mlp

from memfit import inside
from memfit.runfolder.marks import MarksFile, read_marks

X, Y = torch.randn(8, 256), torch.randint(0, 10, (8,))


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Path]:
    assert inside.start_marks(tmp_path)
    yield tmp_path
    inside.stop_marks()


def letters(folder: Path) -> str:
    """The marks in order, one letter each; the opening and closing ones left out."""
    inside.stop_marks()
    (path,) = folder.glob("marks-*.txt")
    lines = path.read_text().splitlines()
    return "".join(line[0] for line in lines if line[0] in "FBUSVXNG")


def read(folder: Path) -> MarksFile:
    inside.stop_marks()
    (path,) = folder.glob("marks-*.txt")
    found = read_marks(path, process=0, clock_start_ns=0)
    assert found is not None
    return found


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(X), Y).backward()
    optimizer.step()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def test_a_plain_step_is_forward_backward_update_and_end(recording: Path):
    model = mlp()
    optimizer = sgd(model)
    for _ in range(3):
        step(model, optimizer)
    assert letters(recording) == "FBUS" * 3


def test_the_phases_of_a_step_have_peaks_of_their_own(recording: Path):
    class Greedy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.ones(25 * 2**20).sum()
            return self.inner(x)

    model = Greedy()
    optimizer = sgd(model)
    for _ in range(3):
        step(model, optimizer)
    steps = read(recording).steps
    above = steps.forward_peak_bytes - steps.backward_peak_bytes
    assert all(above[1:] > 95 * 2**20)


def test_accumulated_backwards_belong_to_one_step(recording: Path):
    model = mlp()
    optimizer = sgd(model)
    for _ in range(3):
        nn.functional.cross_entropy(model(X), Y).backward()
    optimizer.step()
    assert letters(recording) == "FBBBUS"
    assert len(read(recording).steps) == 1


def test_two_optimizers_have_two_numbers_in_the_order_of_their_first_step(recording: Path):
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    of_generator, of_critic = sgd(generator), sgd(critic)
    for _ in range(2):
        critic(generator(torch.randn(2, 4)).detach()).mean().backward()
        of_critic.step()
        critic(generator(torch.randn(2, 4))).mean().backward()
        of_generator.step()
    assert list(read(recording).steps.optimizer) == [0, 1, 0, 1]


def test_an_evaluation_between_steps_is_one_mark_and_training_after_it_is_marked_again(recording: Path):
    model = mlp()
    optimizer = sgd(model)
    step(model, optimizer)
    with torch.no_grad():
        for _ in range(5):
            model(X)
    step(model, optimizer)
    with torch.inference_mode():
        model(X)
    step(model, optimizer)
    assert letters(recording) == "FBUS" + "V" + "FBUS" + "V" + "FBUS"
    assert not model._forward_hooks, "the hook that waits for the end of an evaluation is gone"


def test_the_step_behind_an_evaluation_is_marked_in_full_however_short(recording: Path):
    model = mlp()
    optimizer = sgd(model)
    for _ in range(60):
        step(model, optimizer)
    with torch.no_grad():
        model(X)
    step(model, optimizer)
    before, after = letters(recording).split("V")
    assert "G" in before, "these steps are too long to have groups among them"
    assert after == "FBUS"


def test_light_steps_leave_backward_as_it_was_and_never_take_out_somebody_elses(
    recording: Path, monkeypatch: pytest.MonkeyPatch
):
    model = mlp()
    optimizer = sgd(model)
    marks, seen = inside.this_process.marks, set()
    plain = inspect.unwrap(torch.autograd.backward)
    for _ in range(60):
        seen.add((marks.is_light, "plain" if torch.autograd.backward is plain else "marked"))
        step(model, optimizer)
    assert (True, "plain") in seen
    assert (True, "marked") not in seen

    def others(*args, _before=torch.autograd.backward, **kwargs):
        return _before(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "backward", others)
    for _ in range(60):
        step(model, optimizer)
    assert torch.autograd.backward is others


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "fault"),
    [
        ("forward", "model(torch.randn(8, 3))"),
        ("backward", "loss = model(x).sum(); loss.register_hook(stop); loss.backward()"),
        ("update", 'optimizer.param_groups[0]["lr"] = None; optimizer.step()'),
    ],
)
def test_an_exception_in_a_light_step_names_the_phase_it_came_from(hooked, phase: str, fault: str):
    run = hooked(f"""
        import torch
        torch.set_num_threads(1)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        x = torch.randn(8, 64)
        def stop(gradient):
            raise RuntimeError("stop")
        import memfit_inside
        marks = memfit_inside.this_process.marks
        while marks.step < 20 or not marks.is_light:
            optimizer.zero_grad(set_to_none=False)
            model(x).sum().backward()
            optimizer.step()
        {fault}
    """)
    exception = run.marks().exception
    assert exception is not None
    assert exception["phase"] == phase


def test_an_exception_in_an_evaluation_does_not_end_the_marks(recording: Path):
    model = mlp()
    optimizer = sgd(model)
    with torch.no_grad(), pytest.raises(RuntimeError):
        model(torch.randn(8, 3))
    step(model, optimizer)
    assert letters(recording) == "VFBUS"
    assert not model._forward_hooks


def test_an_exception_in_a_forward_or_an_update_leaves_the_next_step_whole(recording: Path):
    model = mlp()
    optimizer = sgd(model)
    with pytest.raises(RuntimeError):
        model(torch.randn(8, 3))
    step(model, optimizer)

    class Failing(torch.optim.SGD):
        def step(self, closure=None):  # type: ignore[override]
            raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        Failing(model.parameters(), lr=0.1).step()
    step(model, optimizer)
    assert letters(recording) == "FBUS" + "U" + "FBUS"


def test_modules_without_parameters_are_no_forward_pass(recording: Path):
    model, transform = mlp(), nn.Sequential(nn.Flatten(), nn.Dropout(0.1))
    optimizer = sgd(model)
    transform(X)
    transform(X)
    step(model, optimizer)
    assert letters(recording) == "FBUS"


def test_an_optimizer_inside_of_another_is_part_of_it(recording: Path):
    model = mlp()

    class Wrapper(torch.optim.Optimizer):
        def __init__(self) -> None:
            super().__init__(model.parameters(), {})
            self.inner = sgd(model)

        def step(self, closure=None):  # type: ignore[override]
            self.inner.step()

    step(model, Wrapper())
    assert letters(recording) == "FBUS"


def test_every_closure_that_an_update_calls_has_its_own_forward_and_backward(recording: Path):
    model = nn.Linear(256, 10)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    num_calls = 0

    def closure():
        nonlocal num_calls
        num_calls += 1
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert num_calls > 1
    assert letters(recording) == "U" + "FBU" * num_calls + "S"


def test_the_phases_of_a_step_with_a_closure_keep_their_order_and_their_peaks(recording: Path):
    class Greedy(torch.optim.Optimizer):
        def step(self, closure):  # type: ignore[override]
            loss = closure()
            torch.ones(64 << 18)
            return loss

    model = nn.Linear(256, 10)
    optimizer = Greedy(model.parameters(), {})

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    steps = read(recording).steps
    edges = [getattr(steps, f"{name}_seconds") for name in ("begin", "forward", "backward", "update", "end")]
    assert all(bool((edge <= later).all()) for edge, later in itertools.pairwise(edges))
    assert bool((steps.update_peak_bytes - steps.backward_peak_bytes > 60 << 20).all())


def test_the_gradient_scaler_of_mixed_precision_is_seen_through(recording: Path):
    model = mlp()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu")
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(X), Y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert letters(recording) == "FBUS" * 2


def test_a_wrapper_around_a_model_is_one_forward_pass(recording: Path):
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args):
            return self.module(*args)

    model = Wrapper(mlp())
    step(model, sgd(model))
    assert letters(recording) == "FBUS"


def test_training_in_another_thread_is_marked(recording: Path):
    model = mlp()
    optimizer = sgd(model)
    thread = threading.Thread(target=step, args=(model, optimizer))
    thread.start()
    thread.join()
    assert letters(recording) == "FBUS"


def test_a_gradient_asked_for_by_hand_is_no_backward_pass(recording: Path):
    model = mlp()
    loss = nn.functional.cross_entropy(model(X), Y)
    torch.autograd.grad(loss, list(model.parameters()))
    assert letters(recording) == "F"


@pytest.mark.parametrize("way", ["wrapped", "in place", "function"])
def test_a_compiled_model_compiles_once_and_nothing_is_warned(recording: Path, way: str):
    """Warnings are errors here: torch warns about global hooks at the call of a compiled module. A forward pass inside
    of compiled code has no mark, because that code must stay whole."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(256, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.inner(x))

    torch._dynamo.reset()
    model = Net()
    compiled = []

    def counter(graph, _inputs):
        compiled.append(graph)
        return graph.forward

    optimizer = sgd(model)
    called: nn.Module = model
    if way == "wrapped":
        called = torch.compile(model, backend=counter, fullgraph=True)  # pyright: ignore[reportAssignmentType]
    elif way == "in place":
        model.compile(backend=counter, fullgraph=True)
    loss = torch.compile(lambda x: model(x).sum(), backend=counter, fullgraph=True)
    for _ in range(4):
        if way == "function":
            loss(X).backward()
            optimizer.step()
        else:
            step(called, optimizer)
    assert len(compiled) == 1
    seen = letters(recording)
    assert seen.startswith(("FBUS" if way == "wrapped" else "BUS") * 3)
    assert seen.count("S") == 4
    torch._dynamo.reset()


def test_stopping_puts_torch_back_as_it_was(tmp_path: Path):
    def state():
        dictionaries = [
            torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks,
            torch_module._global_forward_hooks_always_called, torch_optimizer._global_optimizer_pre_hooks,
            torch_optimizer._global_optimizer_post_hooks,
        ]  # fmt: skip
        return [copy.copy(d) for d in dictionaries], torch.autograd.backward, torch_module._has_any_global_hook

    before = state()
    model = mlp()
    optimizer = sgd(model)
    for ledger_every in (None, 1):
        inside.start_marks(tmp_path, ledger_every)
        assert state() != before
        for _ in range(3):
            step(model, optimizer)
        with torch.no_grad():
            model(X)
        inside.stop_marks()
        assert state() == before
        assert torch._C._len_torch_dispatch_stack() == 0
        assert not model._forward_hooks


def test_torch_keeps_its_own_loader_and_is_not_imported_by_the_hook(hooked):
    run = hooked("""
        import sys
        assert "torch" not in sys.modules
        import importlib.util, torch
        print(type(torch.__loader__).__module__, torch.__spec__.loader is torch.__loader__)
        print([type(finder).__module__ for finder in sys.meta_path if "memfit" in type(finder).__module__])
    """)
    assert run.stdout == "_frozen_importlib_external True\n[]\n", run.stderr


@pytest.mark.slow
def test_data_workers_by_fork_and_by_spawn_leave_no_files_and_the_training_is_marked(hooked):
    run = hooked("""
        import torch
        from torch import nn
        class Squares(torch.utils.data.Dataset):
            def __len__(self): return 12
            def __getitem__(self, i): return nn.Flatten(0)(torch.full((4, 1), float(i)))
        if __name__ == "__main__":
            model = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            for method in ("fork", "spawn"):
                loader = torch.utils.data.DataLoader(
                    Squares(), batch_size=4, num_workers=1, multiprocessing_context=method)
                for x in loader:
                    optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
    """)
    assert (run.returncode, run.stderr) == (0, "")
    marks = run.marks()
    assert len(marks.steps) == 6
    assert marks.exited


def in_a_group(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Train until the next step is one that is only counted."""
    marks = inside.this_process.marks
    for _ in range(2000):
        step(model, optimizer)
        if marks.is_light and marks.is_grouping and marks.quick[0]:
            return
    raise AssertionError("these steps are too long to form groups")


@pytest.mark.parametrize("way", ["eval", "no_grad", "inference_mode", "decorator"])
def test_an_evaluation_between_steps_that_are_only_counted_is_told_apart(recording: Path, way: str):
    model = mlp()
    optimizer = sgd(model)
    in_a_group(model, optimizer)
    if way == "eval":
        model.eval()
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        model(X)
        torch.set_grad_enabled(before)
        model.train()
    elif way == "decorator":
        torch.no_grad()(lambda: model(X))()
    else:
        with getattr(torch, way)():
            model(X)
    step(model, optimizer)
    before, after = letters(recording).split("V")
    assert before.endswith(("G", "S"))
    assert after == "FBUS"


def test_a_step_by_a_closure_right_after_an_evaluation_between_counted_steps_is_a_step(recording: Path):
    model = mlp()
    optimizer = sgd(model)

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        return float(loss.detach())

    num_steps = 0
    for _ in range(3):
        for _ in range(400):
            optimizer.step(closure)
            num_steps += 1
            marks = inside.this_process.marks
            if marks.is_light and marks.is_grouping and marks.quick[0]:
                break
        else:
            raise AssertionError("these steps are too long to form groups")
        model.eval()
        with torch.no_grad():
            model(X)
        model.train()
        optimizer.step(closure)
        num_steps += 1
    assert read(recording).steps.total == num_steps
    assert letters(recording).count("V") == 3


def test_counted_steps_call_no_forward_hook_and_a_context_without_gradients_leaves_none_behind(recording: Path):
    model = mlp()
    optimizer = sgd(model)
    in_a_group(model, optimizer)
    assert not torch_module._global_forward_pre_hooks
    with torch.no_grad():
        X.sum()
    assert not torch_module._global_forward_pre_hooks


def test_steps_of_an_optimizer_inside_of_another_are_never_grouped(recording: Path):
    model = mlp()
    inner = sgd(model)

    class Outer(torch.optim.SGD):
        def step(self, closure=None):
            return inner.step(closure)

    outer = Outer(model.parameters(), lr=0.01)
    for _ in range(100):
        step(model, outer)
    steps = read(recording).steps
    assert steps.total == 100
    assert (steps.group_size == 1).all()


def test_an_update_that_failed_does_not_hide_the_steps_of_other_optimizers(recording: Path):
    model = mlp()
    first, second = sgd(model), sgd(model)
    step(model, first)
    in_a_group(model, second)
    num_before = inside.this_process.marks.step - 1
    first.param_groups[0]["lr"] = None
    with pytest.raises(TypeError):
        first.step()
    for _ in range(50):
        step(model, second)
    assert read(recording).steps.total >= num_before + 49  # the first of them is taken for a part of what failed
