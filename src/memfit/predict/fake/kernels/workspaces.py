"""Workspaces of GPU kernels in a trace: torch's own by rule, cuDNN's as an assumption."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch._ops import OpOverload

from memfit.predict.fake.kernels.kernel_call import Card, Inside
from memfit.predict.fake.kernels.not_followed import note_not_followed
from memfit.predict.fake.kernels.recurrent import BACKWARD, FORWARD, course_of, draws_dropout, library_workspace_bytes
from memfit.predict.fake.kernels.reductions import (
    RESULT_KEEPS_EVERY_ELEMENT,
    kept_by_loss_bytes,
    scratch_of,
)
from memfit.predict.gpu_rules.cudnn import Pass, Scratch, batch_norm_scratch, convolution_scratch
from memfit.predict.gpu_rules.embedding import embedding_course
from memfit.predict.gpu_rules.recurrent import WORKSPACE_BY_RULE, dropout_state_bytes
from memfit.predict.observe.arguments import Arguments, flags_at, integer_at, tensor_at
from memfit.predict.observe.storage_log import Birth, Entry
from memfit.predict.observe.storage_tracker import Tracker

aten = torch.ops.aten
CONVOLUTION, CONVOLUTION_BACKWARD = aten.convolution.default, aten.convolution_backward.default
BATCH_NORMS = {
    aten.native_batch_norm.default, aten._native_batch_norm_legit.default, aten.cudnn_batch_norm.default,
    aten._batch_norm_with_update.default, aten.native_batch_norm_backward.default,
}  # fmt: skip
CUDNN = {CONVOLUTION, CONVOLUTION_BACKWARD, *BATCH_NORMS}
EMBEDDING_BACKWARD, BAG_BACKWARD = aten.embedding_dense_backward.default, aten._embedding_bag_backward.default
BAG_OF_LARGEST = 2
Note = Callable[[str, str], None]


def scratches_of_call(func: object, args: Arguments, result: object) -> list[tuple[int, Scratch]]:
    """What this call of cuDNN could take, each with how many of its results are born before."""
    first = tensor_at(args, 0)
    if first.device.type != "cuda":
        return []
    if func in BATCH_NORMS:
        return _kept(1, _of_batch_norm(first))
    if func is CONVOLUTION:
        made = cast("torch.Tensor", result)
        return _kept(1, _of_convolution("forward", first, tensor_at(args, 1), made, integer_at(args, 8)))
    gradient, picture, weight, groups = first, tensor_at(args, 1), tensor_at(args, 2), integer_at(args, 9)
    wanted = flags_at(args, 10)
    num_before = 1 if wanted[0] else 0
    found = _kept(num_before, _of_convolution("input gradient", picture, weight, gradient, groups))
    last = _kept(num_before + 1, _of_convolution("weight gradient", picture, weight, gradient, groups))
    return (found if wanted[0] else []) + (last if wanted[1] else [])


def _kept(num_before: int, scratch: Scratch | None) -> list[tuple[int, Scratch]]:
    return [] if scratch is None else [(num_before, scratch)]


def _of_convolution(
    kind: Pass, picture: torch.Tensor, weight: torch.Tensor, result: torch.Tensor, groups: int
) -> Scratch | None:
    is_last = _is_last(picture) or _is_last(weight)
    if groups > 1 and groups == picture.shape[1] and picture.dtype is torch.float32 and not is_last:
        return None
    return convolution_scratch(
        0, kind, picture_bytes=picture.nbytes, weight_bytes=weight.nbytes, result_bytes=result.nbytes,
        num_channels=min(weight.shape[:2]), is_grouped=groups > 1, is_last=is_last,
    )  # fmt: skip


def _is_last(tensor: torch.Tensor) -> bool:
    """Whether a picture is in channels-last order and not in the plain one as well."""
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return last and not tensor.is_contiguous()


def _of_batch_norm(picture: torch.Tensor) -> Scratch | None:
    """Only in channels-last order is it cuDNN's."""
    return batch_norm_scratch(0, picture.numel()) if _is_last(picture) else None


def note_scratch(
    card: Card, note: Note, tracker: Tracker, func: OpOverload, args: Arguments, result: object, start: int
) -> None:
    """Put what a call takes, or could take, where it takes it: after the result it is computed into."""
    log = tracker.log
    note_not_followed(note, func, args)
    if func in RESULT_KEEPS_EVERY_ELEMENT and tensor_at(args, 0).device.type == "cuda":
        _keep_every_element(tracker, args, start)
    for inside in reversed(scratch_of(func, args, result, card)):
        note_inside(tracker, inside, str(func), start, f"cuda:{torch.cuda.current_device()}")
    if func in (FORWARD, BACKWARD):
        course = _course_of_layers(card, tracker, func, args)
        by_rule = library_workspace_bytes(func, args, card.processors.count)
        _note_course(tracker, course, str(func), start, by_rule=by_rule)
    if func in (EMBEDDING_BACKWARD, BAG_BACKWARD) and tensor_at(args, 0).device.type == "cuda":
        course = _course_of_embedding(args) if func is EMBEDDING_BACKWARD else _course_of_bags(args)
        _note_course(tracker, _with_gradient_in_order(tensor_at(args, 0), course), str(func), start)
    if func not in CUDNN:
        return
    for num_before, scratch in reversed(scratches_of_call(func, args, result)):
        log.scratch(scratch, _after_births(log.entries, start, num_before))


def _keep_every_element(tracker: Tracker, args: Arguments, start: int) -> None:
    """The result of a reduced loss lives in a storage for the loss of every element."""
    log, num_bytes = tracker.log, kept_by_loss_bytes(args)
    for kind, uid in log.entries[start:]:
        if kind == "alloc" and log.births[uid].num_bytes < num_bytes:
            log.live_bytes += num_bytes - log.births[uid].num_bytes
            log.births[uid] = replace(log.births[uid], num_bytes=num_bytes)


def note_inside(tracker: Tracker, inside: Inside, operator: str, start: int, device: str) -> None:
    """Write requests into the log, and the releases of what they leave, from the last place to the first."""
    log = tracker.log
    phase, module, line = tracker.places.here()
    written: list[Entry] = []
    held: list[int] = []
    for request in inside.requests:
        if request < 0:
            written.append(("free", held[-1 - request]))
            continue
        birth = Birth(request, device, operator, phase, tracker.places.step, module, line, "workspace")
        held.append(log.born(birth))
        written.append(("alloc", held[-1]))
    freed = {uid for kind, uid in written if kind == "free"}
    left: list[Entry] = [("free", uid) for uid in reversed(held) if uid not in freed]
    last = _after_births(log.entries, start, inside.num_before if inside.until is None else inside.until)
    log.entries[last:last] = left
    place = _after_births(log.entries, start, inside.num_before)
    log.entries[place:place] = written


def _note_course(
    tracker: Tracker, course: Sequence[int | None], operator: str, start: int, by_rule: int | None = None
) -> None:
    """Lay requests and results of one call in the order in which the call makes them; empty results come first.

    A request of `by_rule` bytes carries a name that says so.
    """
    log = tracker.log
    phase, module, line = tracker.places.here()
    noted = log.entries[start:]
    results = [entry for entry in noted if entry[0] == "alloc" and log.births[entry[1]].num_bytes]
    written = [entry for entry in noted if entry not in results]
    held: list[int] = []
    coming = iter(results)
    for step in course:
        if step is None:
            written += [entry for entry in (next(coming, None),) if entry is not None]
        elif step < 0:
            written.append(("free", held[-1 - step]))
        else:
            device = f"cuda:{torch.cuda.current_device()}"
            name = WORKSPACE_BY_RULE if step == by_rule else operator
            birth = Birth(step, device, name, phase, tracker.places.step, module, line, "workspace")
            held.append(log.born(birth))
            written.append(("alloc", held[-1]))
    log.entries[start:] = [*written, *coming]


def _course_of_layers(card: Card, tracker: Tracker, func: object, args: tuple[object, ...]) -> Sequence[int | None]:
    """A recurrent call; the first that drops values also makes the generators' state, which stays."""
    course = course_of(func, args, card.processors.count)
    if not draws_dropout(func, args) or "dropout state" in tracker.made_once:
        return course
    tracker.made_once.add("dropout state")
    state = dropout_state_bytes(card.processors.count, card.processors.threads)
    return [state, *(step if step is None or step > 0 else step - 1 for step in course)]


def _course_of_embedding(args: Arguments) -> Sequence[int | None]:
    gradient, indices, num_words = tensor_at(args, 0), tensor_at(args, 1), integer_at(args, 2)
    sum_bytes = max(4, gradient.element_size())
    return embedding_course(
        indices.numel(), num_words, gradient.shape[-1], index_bytes=indices.element_size(), sum_bytes=sum_bytes
    )


def _with_gradient_in_order(gradient: torch.Tensor, course: Sequence[int | None]) -> Sequence[int | None]:
    """A gradient that is not contiguous is copied for the whole call."""
    if gradient.is_contiguous():
        return course
    return [gradient.nbytes, *(step if step is None or step > 0 else step - 1 for step in course), -1]


def _course_of_bags(args: Arguments) -> Sequence[int | None]:
    gradient, indices, num_words = tensor_at(args, 0), tensor_at(args, 1), integer_at(args, 6)
    if args[8] == BAG_OF_LARGEST or args[9]:
        return [None]
    sum_bytes, index_bytes = max(4, gradient.element_size()), indices.element_size()
    width = gradient.shape[-1]
    return embedding_course(
        indices.numel(), num_words, width, index_bytes=index_bytes, sum_bytes=sum_bytes, is_bag=True
    )


def _after_births(entries: list[Entry], start: int, num_births: int) -> int:
    """The place among the entries after this many births since `start`, and after the phase they lie in."""
    place = start
    while place < len(entries) and entries[place][0] == "phase":
        place += 1
    while num_births and place < len(entries):
        num_births -= entries[place][0] == "alloc"
        place += 1
    return place
