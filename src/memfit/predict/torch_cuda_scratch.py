"""Where in a trace stands what kernels of a GPU take beside their results: torch's own by rule, cuDNN's as a guess?"""

from __future__ import annotations

from typing import Any

import torch

from memfit.predict.cudnn_memory import Pass, Scratch, convolution_scratch
from memfit.predict.torch_cuda_insides import Card, Inside, insides_of
from memfit.predict.torch_cuda_recurrent import BACKWARD, FORWARD, workspace_bytes
from memfit.predict.torch_tracker import Tracker
from memfit.predict.trace import Birth, Entry

aten = torch.ops.aten
CONVOLUTION, CONVOLUTION_BACKWARD = aten.convolution.default, aten.convolution_backward.default
BATCH_NORMS = {
    aten.native_batch_norm.default, aten._native_batch_norm_legit.default, aten.cudnn_batch_norm.default,
    aten._batch_norm_with_update.default,
}  # fmt: skip
CALLS = {CONVOLUTION, CONVOLUTION_BACKWARD, FORWARD, BACKWARD}


def scratches_of_call(func: Any, args: tuple[Any, ...], result: Any) -> list[tuple[int, Scratch]]:
    """What this call of cuDNN could take, each with how many of its results are born before."""
    if args[0].device.type != "cuda":
        return []
    if func is CONVOLUTION:
        return _kept(1, _of_convolution("forward", args[0], args[1], result, args[8]))
    if func is CONVOLUTION_BACKWARD:
        gradient, picture, weight, groups = args[0], args[1], args[2], args[9]
        num_before = 1 if args[10][0] else 0
        found = _kept(num_before, _of_convolution("input gradient", picture, weight, gradient, groups))
        last = _kept(num_before + 1, _of_convolution("weight gradient", picture, weight, gradient, groups))
        return (found if args[10][0] else []) + (last if args[10][1] else [])
    num_bytes = workspace_bytes(args, backward=func is BACKWARD)
    return [(0, Scratch(event=0, kind="recurrent", one_bytes=num_bytes, all_bytes=num_bytes))]


def _kept(num_before: int, scratch: Scratch | None) -> list[tuple[int, Scratch]]:
    return [] if scratch is None else [(num_before, scratch)]


def _of_convolution(kind: Pass, picture: Any, weight: Any, result: Any, groups: int) -> Scratch | None:
    depthwise = groups > 1 and groups == picture.shape[1] and picture.dtype is torch.float32
    return convolution_scratch(
        0, kind, picture_bytes=picture.nbytes, weight_bytes=weight.nbytes, result_bytes=result.nbytes,
        depthwise=depthwise,
    )  # fmt: skip


def batch_norm_reserve_bytes(func: Any, args: tuple[Any, ...]) -> int:
    """At most one bit per element, in channels-last order."""
    picture = args[0]
    if func not in BATCH_NORMS or picture.device.type != "cuda" or picture.dim() != 4:
        return 0
    last = picture.is_contiguous(memory_format=torch.channels_last) and not picture.is_contiguous()
    return picture.numel() // 8 if last else 0


def note_scratch(card: Card, tracker: Tracker, func: Any, args: tuple[Any, ...], result: Any, start: int) -> None:
    """Put what a call takes, or could take, where it takes it: after the result it is computed into."""
    log = tracker.log
    for inside in reversed(insides_of(func, args, result, card)):
        _note_inside(tracker, inside, str(func), start)
    if func in BATCH_NORMS:
        step = tracker.places.step
        log.batch_norm_bytes[step] = log.batch_norm_bytes.get(step, 0) + batch_norm_reserve_bytes(func, args)
    if func not in CALLS:
        return
    for num_before, scratch in reversed(scratches_of_call(func, args, result)):
        log.scratch(scratch, _after_births(log.entries, start, num_before))


def _note_inside(tracker: Tracker, inside: Inside, operator: str, start: int) -> None:
    """Write requests into the log, and the releases of what they leave, from the last place to the first."""
    log = tracker.log
    phase, module, line = tracker.places.here()
    written: list[Entry] = []
    held: list[int] = []
    for request in inside.requests:
        if request < 0:
            written.append(("free", held[-1 - request]))
            continue
        device = f"cuda:{torch.cuda.current_device()}"
        birth = Birth(request, device, operator, phase, tracker.places.step, module, line, "workspace")
        held.append(log.born(birth))
        written.append(("alloc", held[-1]))
    freed = {uid for kind, uid in written if kind == "free"}
    left: list[Entry] = [("free", uid) for uid in reversed(held) if uid not in freed]
    last = _after_births(log.entries, start, inside.num_before if inside.until is None else inside.until)
    log.entries[last:last] = left
    place = _after_births(log.entries, start, inside.num_before)
    log.entries[place:place] = written


def _after_births(entries: list[Entry], start: int, num_births: int) -> int:
    """The place among the entries after this many births since `start`."""
    place = start
    while num_births and place < len(entries):
        num_births -= entries[place][0] == "alloc"
        place += 1
    return place
