"""Do recurrent networks, CTC, batch normalisation and factorisations take what NVIDIA's libraries say of them?

The sizes come from the real cuDNN and cuSOLVER; the oracles are formulas found by asking cuDNN outside of torch,
figures it gave there, and laws. Needs CUDA in torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from memfit.job.description import describe_job
from memfit.predict.devices.parse import parse_device
from memfit.predict.gpu_rules.recurrent import RecurrentCall, is_persistent, reserve_bytes, workspace_bytes
from memfit.predict.phantom.library.build import has_cuda_torch
from memfit.predict.phantom.library.installed import find_torch
from memfit.records.prediction import Prediction
from memfit.testing.engines import on_phantom

pytestmark = [
    pytest.mark.skipif(not has_cuda_torch(), reason="needs a CUDA build of torch (make test-gpu)"),
    pytest.mark.timeout(300),
]

RECURRENT = """
import torch
KINDS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn_tanh": torch.nn.RNN}
def recurrent(device="cuda"):
    nets = [
        (mode, KINDS[mode](64, 96 + 32 * layers, num_layers=layers, bidirectional=both, dropout=dropout).to(device))
        for mode in KINDS for layers in (1, 2) for both in (False, True) for dropout in (0.0, 0.25)[:layers]
    ]
    projected = torch.nn.LSTM(64, 128, proj_size=32).to(device)
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(9, 3, 64, device=device), torch.tensor([9, 5, 2]))
    def step():
        for mode, net in nets:
            net(torch.randn(50, 8, 64, device=device))[0].sum().backward()
            with torch.no_grad():
                net.eval()(torch.randn(50, 8, 64, device=device))
            net.train()
        projected(torch.randn(50, 8, 64, device=device))[0].sum().backward()
        nets[0][1](packed)[0].data.sum().backward()
        with torch.autocast("cuda", torch.float16):
            nets[0][1](torch.randn(50, 8, 64, device=device))[0].sum().backward()
    return step
"""

OTHERS = """
import torch
F = torch.nn.functional
def ctc(device="cuda"):
    def step():
        scores = torch.randn(50, 8, 20, device=device, requires_grad=True).log_softmax(-1)
        short = {"dtype": torch.int32, "device": device}  # the kinds of tensors for which torch takes cuDNN
        lengths, labels = (torch.full((8,), 50, **short), torch.full((8,), 10, **short)), torch.ones(80, **short)
        F.ctc_loss(scores, labels, *lengths).backward()
    return step
def normalise(last=0, device="cuda"):
    order = torch.channels_last if last else torch.contiguous_format
    net = torch.nn.BatchNorm2d(64).to(device)
    def step():
        x = torch.randn(32, 64, 56, 56, device=device).to(memory_format=order).requires_grad_()
        net(x).sum().backward()
    return step
"""

FACTORS = """
import torch
def factors(size=256, batch=0, kind="qr", device="cuda"):
    uses = {
        "qr": torch.linalg.qr, "svd": torch.linalg.svd, "eigh": torch.linalg.eigh, "inv": torch.linalg.inv,
        "cholesky": torch.linalg.cholesky, "solve": lambda a: torch.linalg.solve(a, a), "det": torch.linalg.det,
        "lstsq": lambda a: torch.linalg.lstsq(a, a), "pinv": torch.linalg.pinv, "lu": torch.linalg.lu,
        "prod": lambda a: a.prod(-1),
    }
    shape = (batch, size, size) if batch else (size, size)
    def step():
        for use in uses.values() if kind == "all" else [uses[kind]]:
            use(torch.zeros(shape, device=device))
    return step
"""


def predict(target: str, device: str = "a100-40gb", **settings: int | str) -> Prediction:
    return on_phantom(describe_job(target, settings), parse_device(f"cuda:{device}"), num_steps=1)


def sizes(prediction: Prediction) -> Counter[int]:
    assert prediction.timeline is not None
    return Counter(span.num_bytes for span in prediction.timeline.spans)


def workspace_of(call: RecurrentCall, *, is_backward: bool = False) -> int:
    """What one call over a padded batch in single precision takes on an A100."""
    a100 = (8, 0)
    chip = is_persistent(call, is_backward=is_backward, is_fp16=False, capability=a100, num_processors=108)
    return workspace_bytes(replace(call, is_persistent=chip), a100)


def expected_sizes() -> list[int]:
    found = []
    for mode in ("lstm", "gru", "rnn_tanh"):
        for layers in (1, 2):
            for directions in (1, 2):
                for dropout in (False, True)[:layers]:
                    call = RecurrentCall(
                        mode=mode, places=400, batch=8, length=50, input_size=64, hidden_size=96 + 32 * layers,
                        num_layers=layers,
                        directions=directions, item_bytes=4, has_dropout=dropout,
                    )  # fmt: skip
                    found.append(reserve_bytes(call))
                    found += [workspace_of(call), workspace_of(replace(call, is_training=False, has_dropout=False))]
                    found += 2 * [workspace_of(call, is_backward=True)]
    same = {
        "mode": "lstm",
        "batch": 8,
        "length": 50,
        "input_size": 64,
        "hidden_size": 128,
        "num_layers": 1,
        "directions": 1,
    }
    found.append(reserve_bytes(RecurrentCall(**same, places=400, item_bytes=4, projected_size=32)))
    found.append(
        reserve_bytes(RecurrentCall(**{**same, "batch": 3, "length": 9, "is_packed": True}, places=16, item_bytes=4))
    )
    found.append(reserve_bytes(RecurrentCall(**same, places=400, item_bytes=2)))
    return found


def test_reserves_and_workspaces_of_recurrent_networks_are_what_cudnn_asks_for(script: Callable[..., str]):
    prediction = predict(f"{script(RECURRENT, 'jobs.py')}:recurrent")
    missing = Counter(expected_sizes()) - sizes(prediction)
    assert not missing
    assert not [item for item in prediction.assumptions if item.kind == "refused"]


def test_a_hopper_takes_a_stream_for_each_layer_and_an_ampere_does_not(script: Callable[..., str]):
    path = script(RECURRENT, "jobs.py")
    only = [set(sizes(predict(f"{path}:recurrent", device))) for device in ("a100-40gb", "h100-80gb")]
    stacked = {size for size in only[1] - only[0] if size - 2 * 8 * 2**20 in only[0] - only[1]}
    assert stacked, "the workspace of two layers is larger by two times 8 MiB"


def test_ctc_and_batch_normalisation_take_the_workspaces_that_cudnn_asks_for(script: Callable[..., str]):
    path = script(OTHERS, "jobs.py")
    assert sizes(predict(f"{path}:ctc"))[1_683_616] == 1
    plain, last = (sizes(predict(f"{path}:normalise", last=order)) for order in (0, 1))
    assert last[810_164] == 1
    assert last[536_612] == 1
    assert set(plain) & {810_164, 536_612} == set()


@pytest.mark.parametrize("batch", [0, 3])
def test_factorisations_run_and_their_buffers_grow_with_the_matrix(batch: int, script: Callable[..., str]):
    path = script(FACTORS, "jobs.py")
    small, large = (predict(f"{path}:factors", kind="all", size=size, batch=batch) for size in (128, 512))
    assert not [item for item in (*small.assumptions, *large.assumptions) if item.kind == "refused"]
    beyond = [sum(count for size, count in sizes(each).items() if size > 2**20) for each in (small, large)]
    assert beyond[1] > beyond[0]


def test_the_buffer_of_an_eigendecomposition_is_what_cusolver_asked_for_outside_of_torch(script: Callable[..., str]):
    if find_torch().cuda != "13.0":
        pytest.skip("the cuSOLVER of CUDA 13.0 was asked; others answer otherwise")
    assert sizes(predict(f"{script(FACTORS, 'jobs.py')}:factors", kind="eigh", size=512))[4_981_132] == 1
