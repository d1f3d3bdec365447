"""Is what NCCL may take a range of its own that changes no other figure than that of the device?"""

from __future__ import annotations

import dataclasses
from typing import Any

from memfit.predict.devices.parse import parse_device
from memfit.predict.engine import Traced
from memfit.predict.levels.network import LEAST_BYTES, MOST_BYTES, with_network
from memfit.predict.ranks.rank_evidence import RankEvidence
from memfit.records.figure import Figure
from memfit.records.prediction import Level


def traced(device: str, num_communicators: int) -> Traced:
    known: dict[str, Any] = {field.name: None for field in dataclasses.fields(Traced)}
    whole = Figure(value=1000, unit="bytes", source="predicted", low=900, high=1200)
    known |= {
        "device": parse_device(device, None),
        "assumptions": (),
        "levels": (Level(name="reserved", figure=whole, meaning=""), Level(name="device", figure=whole, meaning="")),
        "evidence": RankEvidence(communicators=tuple((0, number) for number in range(1, num_communicators + 1))),
    }
    return Traced(**known)


def test_each_communicator_adds_to_the_device_and_to_nothing_else():
    before, after = traced("cuda:a100-40gb", 3), with_network(traced("cuda:a100-40gb", 3))
    assert [level.name for level in after.levels] == ["reserved", "network", "device"]
    assert after.levels[0] == before.levels[0]
    assert after.levels[1].figure.value is None
    assert after.levels[2].figure.value == 1000 + 3 * LEAST_BYTES
    assert after.levels[2].figure.low == 900 + 3 * LEAST_BYTES
    assert after.levels[2].figure.high == 1200 + 3 * MOST_BYTES


def test_there_is_none_without_a_transfer_or_on_a_cpu():
    for device, count in (("cuda:a100-40gb", 0), ("cpu", 2)):
        assert with_network(traced(device, count)) == traced(device, count)
