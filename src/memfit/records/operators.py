"""Trace of a step operator by operator, and the choice of tensors that are dropped and made again.

Moments number the step: one for each operator of the forward, then one for each use of a saved tensor in the backward.
A tensor that autograd saves may be *dropped*: nothing holds it for the backward, and the operators that made it are
run again, from tensors that are kept, when the backward asks for it. Or it is *moved*: its bytes lie in a larger memory
until then.
"""

from __future__ import annotations

import msgspec


class Operator(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operator of the forward."""

    name: str
    """As torch calls it: 'aten::gelu'."""
    where: str = ""
    """Path of the module in whose forward it ran."""
    seconds: float = 0.0
    transient_bytes: int = 0
    """Held in passing while it runs, beside what it reads and makes."""
    reads: tuple[int, ...] = ()
    """Numbers of the tensors it needs; parameters, buffers and the batch are not among them."""
    makes: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    """Tensors that it changes in place."""
    repeatable: bool = True
    is_constant: bool = False
    """Whether nothing that it makes needs a gradient: it may be kept from one forward for the next."""


class TracedTensor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One storage that the forward made."""

    num_bytes: int
    operator: int
    """Which made it."""
    output: int = 0
    """The how many-th new tensor of that operator."""
    writers: tuple[int, ...] = ()
    """All operators that wrote it, the one that made it first."""
    is_saved: bool = False
    may_drop: bool = False
    may_move: bool = False
    gone: int = 0
    """The moment from which on it is not there when autograd does not hold it."""
    used: int = 0
    """The moment at which the backward first asks for it."""
    ends: int = 0
    """The moment in which the step without a choice frees it."""
    depth: int = 99
    """How deep the outermost module lies that returned it; 99 when none did."""


class OperatorTrace(msgspec.Struct, frozen=True, kw_only=True):
    """One step, as it was measured with everything kept that the plan keeps."""

    operators: tuple[Operator, ...]
    tensors: tuple[TracedTensor, ...]
    starts: tuple[int, ...]
    """Bytes alive when each moment begins, above what was there before the step."""
    peaks: tuple[int, ...]
    """The most alive within each moment."""
    labels: tuple[str, ...]
    """What happens in each moment."""


class DroppedTensor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tensor that a plan drops and makes again, or moves and fetches."""

    operator: int
    output: int = 0
    name: str
    """Of the operator that made it."""
    where: str = ""
    num_bytes: int
    stays: bool = True
    """Whether it stays once it was made again for another; if not, it is made once more for its own use."""
    is_moved: bool = False
    """Whether its bytes are moved and fetched; no operator is run again for it."""


class OperatorChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a plan that is decided operator by operator."""

    names: tuple[str, ...]
    """The operators of the forward in order, up to the last that matters: another order is noticed."""
    dropped: tuple[DroppedTensor, ...]
    repeated: tuple[int, ...]
    """Operators that are run again in the backward, perhaps; their calls are noted."""
    sources: tuple[int, ...] = ()
    """Operators that make what is kept and read by these."""
    input_bytes: int = 0
    """Of the batch that the choice was made with."""
    constants: tuple[int, ...] | None = None
    """Operators that another forward may leave out, as those that fill a cache; None in plans of older versions."""
