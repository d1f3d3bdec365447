"""Do small integers and masks have the values a GPU would give them? The oracle is torch's own CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memfit.job.description import describe_job
from memfit.predict.child.messages import UNSEEN
from memfit.predict.devices.parse import parse_device
from memfit.predict.phantom.library.build import has_cuda_torch
from memfit.records.prediction import Prediction
from memfit.testing.engines import on_phantom

pytestmark = [
    pytest.mark.skipif(not has_cuda_torch(), reason="needs a CUDA build of torch (make test-gpu)"),
    pytest.mark.timeout(300),
]

LAWS = """
import torch
F = torch.nn.functional

def mask(d): return torch.tensor([[1, 1, 0], [1, 1, 1]]).to(d)
def row(d): return torch.arange(10, device=d)

def changed(d):
    a = row(d); a[2] = 77; a += 1; a[a > 60] = 5; a[:3].fill_(9); a.view(2, 5)[1, 1] = 4
    return a
def copied(d):
    a = torch.empty(5, dtype=torch.long, device=d); a.copy_(torch.arange(5)); return a
def scattered(d):
    return torch.zeros(3, dtype=torch.long, device=d).scatter_(0, torch.tensor([1], device=d), 9)
def positions(d):
    return (mask(d).cumsum(-1) - 1).masked_fill(mask(d) == 0, 1)
def selected(d):
    x = torch.zeros(2, 3, 7, device=d); x[mask(d).bool()] = 1
    return torch.tensor([*x[mask(d).bool()].shape, *x[..., 0].masked_select(mask(d).bool()).shape])
def lengths(d):
    return torch.tensor([t.shape[0] for t in torch.zeros(5, device=d).split(mask(d).sum(-1).tolist())])
def spent(d):
    total = torch.zeros((), dtype=torch.long, device=d)
    for part in mask(d): total += part.sum()
    return total

LAWS = [
    mask, row, changed, copied, scattered, positions, selected, lengths, spent,
    lambda d: mask(d).bool().all(), lambda d: (mask(d)[1] == 1).all(), lambda d: mask(d).sum(-1),
    lambda d: mask(d).nonzero(), lambda d: torch.argwhere(mask(d)), lambda d: torch.stack(torch.where(mask(d).bool())),
    lambda d: torch.tensor(list(range(10))[row(d)[4]]), lambda d: torch.unique(row(d) // 3),
    lambda d: torch.stack(torch.unique(row(d) // 3, return_inverse=True)[1:]),
    lambda d: torch.unique_consecutive(row(d) // 4), lambda d: torch.unique(mask(d).bool()),
    lambda d: F.one_hot(row(d)), lambda d: F.one_hot(row(d), 12), lambda d: torch.bincount(row(d) // 3),
    lambda d: torch.repeat_interleave(torch.tensor([1, 2, 3], device=d)),
    lambda d: torch.repeat_interleave(row(d)[:3], torch.tensor([1, 2, 3], device=d), dim=0),
    lambda d: torch.tensor(torch.equal(row(d), row(d).clone())), lambda d: torch.tensor(5 in row(d)),
    lambda d: torch.tensor([int(v) for v in row(d)]), lambda d: mask(d).t().contiguous(), lambda d: row(d)[::3],
    lambda d: mask(d).t(), lambda d: torch.cat([row(d), row(d).flip(0)]), lambda d: mask(d).float().mean(),
    lambda d: torch.ones(4, 4, device=d, dtype=torch.bool).tril(), lambda d: torch.sort(row(d), descending=True)[0],
    lambda d: torch.argsort(-row(d)), lambda d: row(d).max(), lambda d: torch.topk(row(d), 3)[1],
    lambda d: row(d).gather(0, torch.tensor([2, 0], device=d)), lambda d: row(d).new_tensor([4, 5]),
    lambda d: torch.isin(row(d), torch.tensor([7], device=d)), lambda d: torch.full((2,), 5, device=d),
    lambda d: (mask(d)[:, None] * mask(d)[:, :, None]).nonzero(), lambda d: torch.where(mask(d) > 0, mask(d), -100),
    lambda d: torch.searchsorted(row(d), torch.tensor([3, 8], device=d)), lambda d: mask(d).to(torch.int32),
    lambda d: torch.tensor(float(mask(d).sum() / 2)), lambda d: torch.tensor(bool((row(d) > 8).any())),
]

def check(device="cuda"):
    def step():
        for number, law in enumerate(LAWS):
            there, here = law(device).cpu(), law("cpu")
            assert there.shape == here.shape and torch.equal(there, here), (number, there, here)
    return step
"""

MASKED = """
import torch
model, words = torch.nn.Linear(64, 64).cuda(), torch.nn.Embedding(100, 64).cuda()
optimizer = torch.optim.SGD([*model.parameters(), *words.parameters()], lr=0.1)
for step in range(3):
    ids = torch.arange(512, device="cuda").view(8, 64) % 100
    y, mask = model(words(ids)), ids % 7 == 0
    chosen, spread, rest = y[mask], y.clone(), torch.zeros_like(y)
    spread[mask] = 0.0
    rest[~mask] = y[~mask]
    (chosen.sum() + torch.masked_select(y, mask[..., None]).sum() + spread.sum() + rest.sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

SCRIPT = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.randn(8, 64, device="cuda")).sum()
    loss.backward()
    if loss.item() > 0.5:
        kept = torch.zeros(3_000_000, device="cuda")
    optimizer.step()
"""

ROUTING = """
import torch
def route(device="cuda"):
    experts = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(4)).to(device)
    router = torch.nn.Linear(32, 4).to(device)
    def step():
        x = torch.randn(64, 32, device=device)
        chosen = router(x).topk(2)[1]
        sizes = []
        for number, expert in enumerate(experts):
            tokens, _ = torch.where(chosen == number)
            sizes.append(tokens.shape[0])
            expert(x[tokens]).sum().backward()
        assert sizes == [32, 32, 32, 32], sizes
    return step
"""


def predict(target: str, num_steps: int = 2, answer: tuple[str, ...] = ()) -> Prediction:
    device = parse_device("cuda:l4-24gb")  # for which torch has no kernels of its own
    return on_phantom(describe_job(target), device, num_steps=num_steps, answer=answer)


def reads(prediction: Prediction) -> list[tuple[str, str, int]]:
    return [(item.text, item.line, item.count) for item in prediction.assumptions if item.kind == "value read"]


def test_integers_and_masks_have_the_values_that_the_cpu_gives_them(script: Callable[..., str]):
    prediction = predict(f"{script(LAWS, 'laws.py')}:check", num_steps=1)
    assert reads(prediction) == []


def test_a_floating_value_that_was_read_is_listed_with_its_line_and_can_be_answered(script: Callable[..., str]):
    path = script(SCRIPT)
    plain = predict(path, num_steps=3)
    assert reads(plain) == [("an unknown float32 was read and answered with 0", "train.py:8", 3)]
    told = predict(path, num_steps=3, answer=("train.py:8=0.75",))
    assert reads(told) == [("an unknown float32 was read and answered with 0.75", "train.py:8", 3)]
    levels = [prediction.level("tensors") for prediction in (plain, told)]
    assert levels[0] is not None
    assert levels[1] is not None
    assert (levels[1].value or 0) - (levels[0].value or 0) >= 12_000_000


def test_tokens_are_routed_evenly_and_that_is_said(script: Callable[..., str]):
    prediction = predict(f"{script(ROUTING, 'routing.py')}:route")
    assert [text for text, _, _ in reads(prediction)] == ["indices from topk of unknown values are spread evenly"]


def test_a_backward_through_a_mask_counts_what_its_forward_counted(script: Callable[..., str]):
    said = on_phantom(describe_job(script(MASKED)), parse_device("cuda:a100-40gb"), num_steps=3)
    assert said.num_steps >= 3
    assert not any(item.kind == "value read" for item in said.assumptions), said.assumptions


DEFAULT_DEVICE = """
import torch
torch.set_default_device("cuda")
lengths = torch.tensor([3, 5])
assert lengths.tolist() == [3, 5] and torch.arange(4).sum().item() == 6
base = torch.distributions.MultivariateNormal(torch.zeros(8), torch.eye(8))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    with torch.device("cuda"):
        x = base.sample((int(lengths.max()),))
    model(x).sum().backward()
    optimizer.step()
"""


def test_values_are_known_on_a_default_device(script: Callable[..., str]):
    tensors = predict(script(DEFAULT_DEVICE), num_steps=3).level("tensors")
    assert tensors is not None
    assert tensors.value


PER_SAMPLE = """
import torch
from torch.func import functional_call, grad, stack_module_state, vmap
models = [torch.nn.Linear(64, 64).cuda() for _ in range(3)]
params, buffers = stack_module_state(models)
base = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(list(params.values()), lr=0.1)
for epoch in range(2):
    for step in range(400):
        x = torch.randn(16, 64, device="cuda")
        vmap(lambda p, x: functional_call(base, p, (x,)), in_dims=(0, None))(params, x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    single = {name: value[0].detach() for name, value in params.items()}
    def loss(p, x):
        return functional_call(base, p, (x[None],)).sum()
    gradients = vmap(grad(loss), in_dims=(None, 0))(single, torch.randn(2000, 64, device="cuda"))
"""


def test_gradients_of_every_sample_behind_the_loop_are_reached_or_listed(script: Callable[..., str]):
    path = script(PER_SAMPLE)
    long = predict(path, num_steps=3)
    line = next(i for i, text in enumerate(PER_SAMPLE.splitlines(), 1) if "vmap(grad" in text)
    assert [item.text for item in long.assumptions if item.kind == UNSEEN and f"train.py:{line}" in item.text]
    short = predict(script(PER_SAMPLE.replace("400", "6")), num_steps=3).level("tensors")
    assert short is not None
    assert (short.value or 0) > 2000 * 64 * 64 * 4
