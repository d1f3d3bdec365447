"""What does cuDNN take beside the tensors a program sees? Assumed, by named rules; pure.

Convolutions. A workspace is taken for the length of a call, and which plan cuDNN chooses (so how large it is) depends
on the card and the library. Common plans either need none, or copy what they work on into channels-last order. So
four stories are told and the allocator is run through each: none; one operand copied (the input forwards, the
output's gradient for the input's gradient); all three operands copied in every pass; all three only for weight
gradients. A workspace can also lower the reserved bytes, because the block it leaves is used again. Depthwise
convolutions in single precision are torch's own kernels, without a workspace.

The point goes without a workspace: of 52 measured convolutional jobs used for tuning (docs/accuracy.md, xMem's jobs) no
story, and no mean of stories, was nearer in the median. But the stories alone held only 48 % of these jobs, most of
the others a few percent below: blocks are cut and used again otherwise than in any story. So the range is at least what
held 90 % of them around the point, whatever the stories say.

Batch normalisation is cuDNN's only in channels-last order; it keeps no reserve, and takes up to one bit per element and
a few sums for the length of a call (asked of cuDNN 9.24 by the phantom GPU).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Pass = Literal["forward", "input gradient", "weight gradient", "batch norm"]
Story = Literal["one copied", "all copied", "all copied for weight gradients"]
STORIES: tuple[Story, ...] = ("one copied", "all copied", "all copied for weight gradients")

SUMS_BYTES = 4096
LEAST_SHARE, MOST_SHARE = 0.895, 1.195
"""Real over predicted reserved bytes: the range of the 52 tuning jobs without the outermost on either side, which is
the 90 % range of split conformal prediction (Vovk et al., 2005) for that many. RTX 3060 and 4060, torch 2.6."""


class Scratch(msgspec.Struct, frozen=True, kw_only=True):
    """One call of cuDNN, and what it could take for its length."""

    event: int
    """The event of the timeline before which the call ends."""
    kind: Pass
    one_bytes: int
    """A copy of one operand."""
    all_bytes: int
    """Copies of all operands."""


def scratch_bytes(scratch: Scratch, story: Story) -> int:
    """How much this call takes in this story."""
    if scratch.kind == "batch norm":
        return scratch.one_bytes
    match story:
        case "one copied":
            return scratch.one_bytes
        case "all copied":
            return scratch.all_bytes
        case "all copied for weight gradients":
            return scratch.all_bytes if scratch.kind == "weight gradient" else 0


def range_of(point_bytes: int, story_bytes: Sequence[int]) -> tuple[int, int]:
    """The least and the most reserved bytes: at least 90 % of measured jobs lie within, and every story does."""
    peaks = [point_bytes, *story_bytes]
    return min(*peaks, int(point_bytes * LEAST_SHARE)), max(*peaks, int(point_bytes * MOST_SHARE))


def with_scratches(events: Sequence[tuple[int, int]], scratches: Sequence[Scratch], story: Story) -> list[int]:
    """Requests to an allocator, with those of cuDNN put in.

    `events` are pairs of place in the timeline and request, in order: n > 0 allocates n bytes, -1 - k frees the k-th
    allocation of these events. The result numbers all allocations anew.
    """
    waiting = sorted(((s.event, scratch_bytes(s, story)) for s in scratches), key=lambda pair: pair[0])
    result: list[int] = []
    number_of: list[int] = []
    made = place = 0
    for event, request in events:
        while place < len(waiting) and waiting[place][0] <= event:
            if waiting[place][1] > 0:
                result += [waiting[place][1], -1 - made]
                made += 1
            place += 1
        if request > 0:
            number_of.append(made)
            made += 1
            result.append(request)
        else:
            result.append(-1 - number_of[-1 - request])
    return result


def batch_norm_scratch(event: int, num_elements: int) -> Scratch:
    """The workspace of batch normalisation, forwards or backwards."""
    num_bytes = num_elements // 8 + SUMS_BYTES
    return Scratch(event=event, kind="batch norm", one_bytes=num_bytes, all_bytes=num_bytes)


def convolution_scratch(
    event: int, kind: Pass, *, picture_bytes: int, weight_bytes: int, result_bytes: int, depthwise: bool
) -> Scratch | None:
    """The workspace of one pass of a convolution over a picture (its input) to a result."""
    if depthwise:
        return None
    one = {"forward": picture_bytes, "input gradient": result_bytes}.get(kind, 0)
    return Scratch(event=event, kind=kind, one_bytes=one, all_bytes=picture_bytes + weight_bytes + result_bytes)
