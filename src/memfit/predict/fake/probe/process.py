"""Probe process: runs single CPU operators for real, and measures what they and a bare process take.

`python -m memfit.predict.fake.probe.process` reads a request on standard input and writes a reply on standard output,
both JSON. It runs each distinct call once for real under torch.profiler and reads the allocator's events within it. A
crash in an operator ends only this process; the calls answered until then were already written, one line each, and
the call that was running was named before it began.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO, cast

import torch
from torch._ops import OpOverload

from memfit.predict.fake.kernels.sparse import parts_of
from memfit.predict.fake.probe.real_reference import memory_events
from memfit.predict.fake.probe.replies import Answered, NotRun, Taken
from memfit.predict.fake.probe.signatures import bytes_of_signature, decode, flops_of_signature, masks_in
from memfit.predict.fake.probe.touched_pages import pin_mmap_threshold, touched_bytes
from memfit.predict.observe.storage_tracker import storage_of, tensors_in

HALF_IS_SLOWER = 8.0
SECONDS_HERE = 5.0
"""More time where calls are run with another number of threads as well."""


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    replies, sys.stdout = sys.stdout, sys.stderr  # whatever imported code prints must not mix with the replies
    torch.set_num_threads(request["num_threads"])
    os.environ.update(request["environment"])
    sys.path += [folder for folder in request["folders"] if folder not in sys.path]
    base, missing = baseline_bytes(request["imports"], request["optimizer"])
    pin_mmap_threshold()
    num_here = request["num_threads_here"]
    flops, copied = machine_rates()
    flops_here, copied_here = _with_threads(num_here, request["num_threads"]) if num_here else (flops, copied)
    _write(
        replies,
        {
            "baseline_bytes": base,
            "not_imported": missing,
            "flops_per_second": flops_here,
            "bytes_per_second": copied_here,
        },
    )
    deadline = time.monotonic() + request["most_seconds"]
    _end_after(request["most_seconds"] + (SECONDS_HERE if num_here else 0))
    taken: dict[int, tuple[str, Taken]] = {}
    for number, text in sorted(request["signatures"], key=lambda pair: _effort(pair[1])):
        if time.monotonic() + seconds_of_probe(text, flops) > deadline:
            _write(replies, {"signature": number, "skipped": "it would take too long here"})
        elif bytes_of_signature(text) * 4 > request["available_bytes"]:
            _write(replies, {"signature": number, "skipped": "too large for this machine"})
        else:
            _write(replies, {"trying": number})
            reply = attempt(text)
            _write(replies, {"signature": number, **reply})
            if "skipped" not in reply:
                taken[number] = text, reply
    if num_here:
        torch.set_num_threads(num_here)
        _write(replies, {"all_here": list(_otherwise(taken))})


def _otherwise(taken: Mapping[int, tuple[str, Taken]]) -> Iterator[Answered]:
    """The calls that take something else with another number of threads, which is set now.

    What takes nothing inside with one thread takes nothing with more: in all probed calls of nine networks.
    """
    for number, (text, before) in taken.items():
        if before["inside_bytes"] > sum(before["output_bytes"]):
            reply = attempt(text)
            if "skipped" not in reply and reply["inside_bytes"] != before["inside_bytes"]:
                yield {"signature": number, **reply}


def _with_threads(num_here: int, num_threads: int) -> tuple[float, float]:
    """The rates of this machine with the threads that torch takes on it, for the time of a step."""
    torch.set_num_threads(num_here)
    rates = machine_rates()
    torch.set_num_threads(num_threads)
    return rates


def _end_after(seconds: float) -> None:
    """A call that takes longer than was thought is left alone; what was answered until then has been written."""
    watch = threading.Timer(seconds, os._exit, (0,))
    watch.daemon = True
    watch.start()


def _effort(text: str) -> tuple[float, int]:
    """Small calls are asked first."""
    return flops_of_signature(text), bytes_of_signature(text)


def seconds_of_probe(text: str, flops_per_second: float) -> float:
    """How long a call will take, a CPU being slower in half precision by about this factor."""
    slower = HALF_IS_SLOWER if "float16" in text else 1.0  # also in "bfloat16"
    return slower * flops_of_signature(text) / flops_per_second


def _write(replies: TextIO, reply: dict[str, object]) -> None:
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


def attempt(text: str) -> Taken | NotRun:
    """Probe one call, or say why it could not be."""
    try:
        return probe(text)
    except Exception as error:  # an operator may refuse made-up values; that is an answer too
        return {"skipped": f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"}


def probe(text: str) -> Taken:
    """Run one call for real: the most it held at once, the true sizes of its results, and what it wrote to."""
    name, args, kwargs, with_grad, *num_true = json.loads(text)
    function = _operator(name)
    real_args, real_kwargs = cast("list[object]", decode(args)), cast("dict[str, object]", decode(kwargs))
    if "mkldnn_rnn_layer_backward" in name:
        real_args = _with_true_workspace(real_args)
    if num_true:
        for mask, count in zip(masks_in(real_args), num_true[0], strict=True):
            _choose(mask, count)
    given = _storages((real_args, real_kwargs))
    before = sum(map(_touched, given))
    watched = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    with watched as profiler, torch.set_grad_enabled(with_grad):
        result = function(*real_args, **real_kwargs)
    known = {id(storage) for storage in given}
    live = inside = 0
    for _, change in memory_events(profiler):
        live += change
        inside = max(inside, live)
    parts = [part for tensor in tensors_in(result) for part in parts_of(tensor)]
    made = [storage if id(storage) not in known else None for storage in map(storage_of, parts)]
    return {
        "inside_bytes": inside,
        "output_bytes": [0 if storage is None else storage.nbytes() for storage in made],
        "touched_bytes": [0 if storage is None else _touched(storage) for storage in made],
        "filled_bytes": max(0, sum(map(_touched, given)) - before),
    }


def _choose(mask: torch.Tensor, count: int) -> None:
    """Let a mask hold for so many elements; of one that is expanded, for as many of those that it has."""
    own = mask[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in mask.stride())]
    num_own = math.ceil(count * own.numel() / max(1, mask.numel()))
    own.copy_((torch.arange(own.numel()) < num_own).reshape(own.shape))


def _storages(value: object) -> list[torch.UntypedStorage]:
    """The storages of all tensors in a nest, each once."""
    parts = [part for tensor in tensors_in(value) for part in parts_of(tensor)]
    found = {id(storage): storage for storage in map(storage_of, parts) if storage is not None}
    return list(found.values())


def _touched(storage: torch.UntypedStorage) -> int:
    return touched_bytes(storage.data_ptr(), storage.nbytes())


def _with_true_workspace(args: list[object]) -> list[object]:
    """Run the forward that belongs to this backward, and hand on the workspace it leaves."""
    reverse, mode, hidden_size, num_layers, has_biases, train, bidirectional, batch_sizes, batch_first = args[13:22]
    output, hy, cy, workspace = torch.ops.aten.mkldnn_rnn_layer.default(
        *args[:7], reverse, batch_sizes, mode, hidden_size, num_layers, has_biases, bidirectional, batch_first, train
    )
    return [*args[:7], output, hy, cy, *args[10:22], workspace]


def _operator(name: str) -> OpOverload:
    value: Any = torch.ops
    for part in name.split("."):
        value = getattr(value, part)
    return value


def baseline_bytes(imports: list[str], optimizer: str) -> tuple[int, list[str]]:
    """Resident bytes of a process with these imports after two steps of a tiny model: what every job has.

    With the names of packages that could not be imported.
    """
    missing: dict[str, None] = {}
    for name in imports:
        try:
            importlib.import_module(name)
        except Exception:  # whatever somebody's package may raise when it is imported
            missing[name.partition(".")[0]] = None
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    stepper: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with contextlib.suppress(Exception):  # some refuse biases (Muon) or dense gradients
        stepper = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1)
    for _ in range(2):
        torch.nn.functional.cross_entropy(model(torch.ones(2, 4)), torch.zeros(2, dtype=torch.long)).backward()
        with contextlib.suppress(Exception):
            stepper.step()
        stepper.zero_grad()
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * 4096, list(missing)


def machine_rates() -> tuple[float, float]:
    """Floating-point operations per second of a matrix product, and bytes per second of a copy, best of three."""
    matrix, target = torch.ones(768, 768), torch.empty(4 * 1024**2)
    source = torch.ones(4 * 1024**2)
    product = min(_seconds(lambda: matrix @ matrix) for _ in range(3))
    copy = min(_seconds(lambda: target.copy_(source)) for _ in range(3))
    return 2 * 768**3 / product, 2 * source.nbytes / copy


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
