"""Is the route to a GPU that is not there chosen safely, and does the fallback behave like one?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from memfit.api import predict_peak  # noqa: E402
from memfit.job.description import describe_job  # noqa: E402
from memfit.predict.child.messages import Failure, TraceReply, TraceRequest  # noqa: E402
from memfit.predict.child.parent import reply_or_raise  # noqa: E402
from memfit.predict.devices.parse import parse_device  # noqa: E402
from memfit.predict.fake import engine  # noqa: E402
from memfit.predict.fake.child_main import answer  # noqa: E402
from memfit.predict.fake.kernels.attention import choose_backend  # noqa: E402
from memfit.predict.fake.patches import cpu_build as patches  # noqa: E402
from memfit.predict.levels.cpu import process_level  # noqa: E402
from memfit.predict.levels.gpu import moved_to_cuda  # noqa: E402
from memfit.predict.options import PredictOptions  # noqa: E402
from memfit.testing.engines import on_fake_tensors  # noqa: E402
from memfit.units import MIB  # noqa: E402

SETTINGS = {"hidden": 64, "features": 32, "layers": 3, "batch_size": 4}


def test_an_untested_torch_is_never_patched(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "__version__", "3.0.0")
    assert "was not tested" in patches.why_not() or "CUDA build" in patches.why_not()
    with pytest.raises(patches.CannotPatch):
        patches.patch_process()


def test_another_machine_is_never_patched(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(patches.platform, "machine", lambda: "aarch64")
    assert patches.why_not()


def test_the_translated_route_takes_foreach_as_a_gpu_does():
    def update_temporaries(translate: bool) -> int:
        device = "cuda" if translate else "cpu"
        job = describe_job("mlp", SETTINGS)
        reply = answer(TraceRequest(job=job, device=device, translate=translate, options=PredictOptions(probes=False)))
        assert isinstance(reply, TraceReply)
        assert reply.route == ("fake cpu, translated to cuda" if translate else "fake cpu")
        return sum(s.num_bytes for s in reply.timeline.spans if s.operator.startswith("aten._foreach_sqrt"))

    assert update_temporaries(False) == 0
    assert update_temporaries(True) > 0


def test_when_fake_cuda_does_not_work_the_prediction_falls_back_and_says_so(monkeypatch: pytest.MonkeyPatch):
    asked: list[TraceRequest] = []

    def child(request: TraceRequest, **_: Any) -> TraceReply:
        asked.append(request)
        if not request.translate:
            return reply_or_raise(Failure(kind="route", what="no", found="not tested"))
        return reply_or_raise(answer(request))

    monkeypatch.setattr(engine, "trace_in_child", child)
    prediction = on_fake_tensors(describe_job("mlp", SETTINGS), parse_device("cuda"))
    assert [request.translate for request in asked] == [False, True]
    assert prediction.route == "fake cpu, translated to cuda"
    assert any("those of the CPU" in item.text for item in prediction.assumptions)
    assert prediction.level("reserved") is not None


def test_nothing_is_lost_when_a_timeline_is_moved():
    request = TraceRequest(job=describe_job("mlp", SETTINGS), device="cuda", translate=True)
    reply = answer(request)
    assert isinstance(reply, TraceReply)
    moved = moved_to_cuda(reply.timeline, 1000)
    kept = [span for span in reply.timeline.spans if span.category != "workspace"]
    assert len(moved.spans) == len(kept) + 2
    assert {span.device for span in moved.spans} == {"cuda:0"}


@pytest.mark.parametrize(
    ("dtype", "head_size", "masked", "capability", "backend"),
    [
        (torch.float16, 64, False, (8, 0), "flash"),
        (torch.bfloat16, 128, False, (9, 0), "flash"),
        (torch.bfloat16, 64, True, (8, 0), "efficient"),
        (torch.float16, 64, False, (7, 5), "efficient"),
        (torch.float32, 64, False, (8, 0), "efficient"),
        (torch.float32, 33, False, (8, 0), "math"),
        (torch.float64, 64, False, (8, 0), "math"),
    ],
)
def test_attention_is_chosen_as_torch_chooses_it(
    dtype: Any, head_size: int, masked: bool, capability: tuple[int, int], backend: str
):
    query = torch.empty(1, 2, 4, head_size, dtype=dtype, device="meta")
    mask = torch.empty(4, 4, dtype=dtype, device="meta") if masked else None
    assert choose_backend(query, query, query, mask, capability) == backend


def test_a_mask_that_is_trained_takes_the_memory_efficient_kernel_as_any_other():
    query, mask = (torch.empty(1, 2, 4, 64, device="meta", requires_grad=True) for _ in range(2))
    assert choose_backend(query, query, query, mask[..., :4], (8, 0)) == "efficient"


def test_a_cuda_build_without_a_driver_is_answered_with_a_line_and_another_route(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    reply = answer(TraceRequest(job=describe_job("mlp", SETTINGS), device="cuda", options=PredictOptions(probes=False)))
    assert isinstance(reply, Failure)
    assert reply.kind == "route"
    assert "phantom" in reply.found


@pytest.mark.parametrize("pinned", [True, False])
def test_a_data_set_is_part_of_the_process(pinned: bool):
    plain, with_data = (
        process_level(100 * MIB, 300 * MIB, pinned=pinned, data_bytes=data_bytes).figure
        for data_bytes in (0, 180 * MIB)
    )
    assert plain.low is not None
    assert with_data.low is not None
    assert with_data.low - plain.low == 180 * MIB


SHARDED = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(8, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.skipif(bool(patches.why_not()), reason="no fake CUDA tensors here")
def test_a_script_that_shards_over_its_default_mesh_has_its_part_on_the_gpu(tmp_path: Path):

    path = tmp_path / "sharded.py"
    path.write_text(SHARDED)
    prediction = predict_peak(str(path), device="a100-40gb", ranks=4, engine="fake")
    shares = {share.name: share.num_bytes for share in prediction.at_peak.by_category}
    every_rank_bytes = 4 * (512 * 512 + 512) * 4
    assert shares["parameter"] == every_rank_bytes // 4
    assert 2 * every_rank_bytes // 4 <= shares["optimizer state"] < every_rank_bytes
