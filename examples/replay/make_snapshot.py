"""Writes snapshot.pickle as torch.cuda.memory._dump_snapshot would on a GPU: two blocks, one of them freed."""

import pickle

MIB = 2**20
FIRST, SECOND = 1 << 40, (1 << 40) + 64 * MIB
FORWARD = [{"name": "forward", "filename": "model.py", "line": 12}]
LOSS = [{"name": "cross_entropy", "filename": "train.py", "line": 40}]


def event(action: str, address: int, size: int, time_us: int, frames: list | tuple = ()) -> dict:
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time_us, "frames": list(frames)}


def block(address: int, size: int, frames: list) -> dict:
    state = "active_allocated" if frames else "inactive"
    return {"address": address, "size": size, "requested_size": size if frames else 0, "state": state, "frames": frames}


def segment(address: int, size: int, blocks: list[dict]) -> dict:
    return {"device": 0, "address": address, "total_size": size, "segment_type": "large", "blocks": blocks}


events = [
    event("segment_alloc", FIRST, 22 * MIB, 0),
    event("alloc", FIRST, 22 * MIB, 1, FORWARD),
    event("free_requested", FIRST, 22 * MIB, 2),
    event("free_completed", FIRST, 22 * MIB, 3),
    event("segment_alloc", SECOND, 24 * MIB, 4),
    event("alloc", SECOND, 24 * MIB, 5, LOSS),
]
segments = [
    segment(FIRST, 22 * MIB, [block(FIRST, 22 * MIB, [])]),
    segment(SECOND, 24 * MIB, [block(SECOND, 24 * MIB, LOSS)]),
]
with open("snapshot.pickle", "wb") as file:
    pickle.dump({"segments": segments, "device_traces": [events]}, file)
