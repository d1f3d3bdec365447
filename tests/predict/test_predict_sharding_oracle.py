"""Is the arithmetic of sharding what torch's own FSDP2 holds, and what dividing element by element gives?

The oracle is torch: the same network under `fully_shard` on torch's fake process group, whose collectives move
nothing, so that rank 0 of any number of ranks can be looked at in one process. The stages of ZeRO have no code in
torch; they are checked against a partition of every element, counted one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from memfit.job.sharding import Sharding  # noqa: E402
from memfit.job.training import Training  # noqa: E402
from memfit.predict.fake.recording import Recording, trace_training  # noqa: E402
from memfit.predict.observe.storage_log import timeline_of  # noqa: E402
from memfit.records.timeline import Timeline  # noqa: E402
from memfit.testing.oracles.sharding_arithmetic import SCALAR_BYTES, shard  # noqa: E402

WIDTH, BATCH = 48, 4


def network(num_layers: int = 3) -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(num_layers)])

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x).relu()
            return x

    return Net()


def unsharded() -> Timeline:
    """One traced step; the job is kept until the timeline is made, or its end would be in it."""
    kept: list[Training] = []

    def build() -> Training:
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

        def step() -> None:
            model(torch.ones(BATCH, WIDTH)).sum().backward()
            optimizer.step()

        kept.append(Training(model=model, optimizer=optimizer, step=step))
        return kept[0]

    trace = trace_training(build, recording=Recording(), num_steps=1)
    return timeline_of(trace.log, trace.root_names)


def held(timeline: Timeline) -> Counter[str]:
    """Bytes of each category that are alive at the end."""
    sizes: Counter[str] = Counter()
    for span in timeline.spans:
        if span.end is None:
            sizes[span.category] += span.num_bytes
    return sizes


@contextmanager
def fake_ranks(num_ranks: int) -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=num_ranks)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def held_by_fsdp(num_ranks: int) -> Counter[str]:
    """What rank 0 of a real FSDP2 training holds after one step, read from torch's own local tensors."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with fake_ranks(num_ranks):
        mesh = init_device_mesh("cpu", (num_ranks,))
        model: Any = network()
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        model(torch.ones(BATCH, WIDTH)).sum().backward()
        optimizer.step()
        sizes: Counter[str] = Counter()
        for parameter in model.parameters():
            sizes["parameter"] += parameter.to_local().nbytes
            sizes["gradient"] += parameter.grad.to_local().nbytes
            for state in optimizer.state[parameter].values():
                local = state.to_local() if hasattr(state, "to_local") else state
                sizes["optimizer state"] += local.nbytes
        return sizes


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_fsdp_holds_what_torchs_own_fsdp_holds(num_ranks: int):
    ours, torchs = held(shard(unsharded(), num_ranks, "fsdp")), held_by_fsdp(num_ranks)
    for category in ("parameter", "gradient", "optimizer state"):
        assert ours[category] == torchs[category], category


def by_counting(timeline: Timeline, num_ranks: int, divided: set[str]) -> Counter[str]:
    """Deal the elements of every divided storage out to the ranks, one by one, and look at what rank 0 has."""
    sizes: Counter[str] = Counter()
    for span in timeline.spans:
        if span.end is not None:
            continue
        whole = span.category not in divided or (span.category == "optimizer state" and span.num_bytes <= SCALAR_BYTES)
        owned = span.num_bytes if whole else sum(1 for byte in range(span.num_bytes) if byte % num_ranks == 0)
        sizes[span.category] += owned
    return sizes


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
@pytest.mark.parametrize(
    ("way", "divided"),
    [
        ("zero1", {"optimizer state"}),
        ("zero2", {"optimizer state", "gradient"}),
        ("zero3", {"optimizer state", "gradient", "parameter"}),
    ],
)
def test_the_stages_of_zero_divide_what_a_count_of_elements_divides(way: Sharding, divided: set[str], num_ranks: int):
    timeline = unsharded()
    ours, counted = held(shard(timeline, num_ranks, way)), by_counting(timeline, num_ranks, divided)
    for category in ("parameter", "gradient", "optimizer state"):
        assert ours[category] == counted[category], category
