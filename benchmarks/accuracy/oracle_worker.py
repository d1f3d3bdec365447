"""What does the real allocator do? Runs where torch has CUDA: reads requests as JSON lines, plays them, answers what
happened.

Needs the phantom GPU's folder in PHANTOM_FOLDER (or a real GPU without it) and nothing of memfit.
"""

from __future__ import annotations

import json
import os
import sys
import warnings

if os.environ.get("PHANTOM_FOLDER"):
    sys.path.insert(0, os.environ["PHANTOM_FOLDER"])
    import phantom  # type: ignore[import-not-found]  # noqa: F401

import torch

warnings.simplefilter("ignore")


class Player:
    """Plays one sequence after another on the same device."""

    def __init__(self) -> None:
        self.tensors: dict[int, torch.Tensor] = {}
        self.streams = [torch.cuda.default_stream(), torch.cuda.Stream()]

    def play(self, operations: list, check_every: int) -> dict:
        """What each operation gave, and the state after every so many."""
        results, checks = [], {}
        for number, operation in enumerate(operations):
            results.append(self.one(operation))
            if number % check_every == check_every - 1 or number == len(operations) - 1:
                checks[number] = state()
        return {"results": results, "checks": checks}

    def one(self, operation: list) -> object:
        """The address of an allocation, the message of a failed one, or nothing."""
        kind, rest = operation[0], operation[1:]
        if kind == "allocate":
            return self.allocate(*rest)
        if kind == "free":
            self.tensors.pop(rest[0], None)
        elif kind == "record" and rest[0] in self.tensors:
            self.tensors[rest[0]].record_stream(self.streams[rest[1]])
        elif kind == "empty":
            torch.cuda.empty_cache()
        elif kind == "fraction":
            torch.cuda.set_per_process_memory_fraction(rest[0])
        return None

    def allocate(self, name: int, num_bytes: int, stream: int) -> object:
        """Make a tensor of bytes on a stream."""
        try:
            with torch.cuda.stream(self.streams[stream]):
                self.tensors[name] = torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            return str(error)
        return self.tensors[name].data_ptr()


def state() -> dict:
    """Every statistic and every block."""
    keep = ("address", "total_size", "segment_type", "is_expandable")
    segments = [
        [*(segment[key] for key in keep), [[b["address"], b["size"], b["state"]] for b in segment["blocks"]]]
        for segment in torch.cuda.memory_snapshot()
    ]
    return {"stats": torch.cuda.memory_stats(), "segments": segments}


def main() -> None:
    """One JSON line in, one out."""
    player = Player()
    hello = {"torch": torch.__version__, "total": torch.cuda.mem_get_info()[1], "free": torch.cuda.mem_get_info()[0]}
    print(json.dumps(hello), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(player.play(request["operations"], request["check_every"])), flush=True)


if __name__ == "__main__":
    main()
