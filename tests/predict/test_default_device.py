"""Where a script's tensors lie that it does not place itself: the default device, layers without a shape yet."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import memfit  # noqa: E402
from memfit.predict.fake.choose_route import can_fake_cuda  # noqa: E402
from memfit.predict.observe.data_loading import loading_here  # noqa: E402

BY_DEFAULT = """
import numpy, torch
torch.set_default_device("cuda")
made = [torch.tensor([1.0]), torch.randn(3), torch.as_tensor([1, 2]), torch.as_tensor(numpy.ones(2)), torch.zeros(2)]
assert all(each.is_cuda for each in made) and torch.get_default_device().type == "cuda"
assert not torch.from_numpy(numpy.ones(2)).is_cuda and int(torch.tensor([3, 4])[1]) == 4
generator = torch.Generator("cuda").manual_seed(0)
assert generator.device.type == "cuda"
model = torch.nn.Sequential(torch.nn.LazyLinear(512), torch.nn.Linear(512, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(300, 16, generator=generator))
for (x,) in torch.utils.data.DataLoader(data, batch_size=100, shuffle=True, generator=generator):
    with torch.autograd.profiler.emit_nvtx():
        model(x).sum().backward()
    optimizer.step()
assert all(each.is_cuda for each in model.parameters())
"""
WITHOUT_A_SHAPE = """
import copy, torch
lazy = torch.nn.LazyLinear
layers = [
    lazy(5).to("cuda"), lazy(5).cuda(), lazy(5, device="cuda"), copy.deepcopy(lazy(5).to("cuda")),
    lazy(5).double().to("cuda").float(), lazy(5).to("cuda").cpu().to(torch.device("cuda", 0)),
]
assert all(layer.weight.is_cuda and layer.weight.device.type == "cuda" for layer in layers)
batches = torch.nn.LazyBatchNorm1d().to("cuda")
optimizer = None
for step in range(3):
    for layer in layers:
        layer(batches(torch.randn(3, 7, device="cuda"))).sum().backward()
    optimizer = optimizer or torch.optim.SGD([p for layer in layers for p in layer.parameters()], lr=0.1)
    optimizer.step()
assert all(layer.weight.shape == (5, 7) and layer.weight.grad.is_cuda for layer in layers)
assert {each.device.type for each in batches.state_dict().values()} == {"cuda"}
"""


@pytest.mark.skipif(bool(can_fake_cuda()), reason="fake CUDA tensors do not work with this build of torch")
@pytest.mark.parametrize("text", [BY_DEFAULT, WITHOUT_A_SHAPE], ids=["by default", "without a shape"])
def test_tensors_of_a_script_lie_where_they_would(tmp_path: Path, text: str):
    (tmp_path / "train.py").write_text(text)
    prediction = memfit.predict_peak(str(tmp_path / "train.py"), device="cuda:a100-40gb", engine="fake")
    assert prediction.num_steps == 3
    assert not [item.text for item in prediction.assumptions if "not followed to the end" in item.text]


def test_the_arguments_of_a_loader_keep_their_names():
    loader = torch.utils.data.DataLoader
    names = inspect.signature(loader.__init__)
    with loading_here(nullcontext, lambda batch: None, pinned=True):
        assert inspect.signature(loader.__init__) == names
