"""The dispatch mode that answers a program's questions for the values of fake tensors.

Small tensors steer control flow (masks, lengths, positions, shuffles, layer widths), so their values are computed
beside the fake ones as long as all arguments are known (`compute.py`). Such questions are answered with the truth.
Everything else gets the user's answer for that line, or a fixed one (1.0, 1, or the chosen boolean), and is listed as a
guess. Where the size of a result depends on values that are not known, the largest possible size is taken and listed.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, UnsupportedOperatorException
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import _disable_current_modes

from memfit.predict.child.messages import UNSEEN
from memfit.predict.fake.kernels import attention as attention
from memfit.predict.fake.kernels import convolution as convolution
from memfit.predict.fake.kernels import ctc as ctc
from memfit.predict.fake.kernels import norm as norm
from memfit.predict.fake.kernels import recurrent as recurrent
from memfit.predict.fake.kernels import sparse as sparse
from memfit.predict.fake.kernels.layouts import laid_out
from memfit.predict.fake.probe.signatures import is_probed_on_sparse
from memfit.predict.fake.values import packed_sequences as packed
from memfit.predict.fake.values.compute import (
    ComputePlan,
    attach,
    begin_parts,
    compute,
    finite_answer,
    forget_written,
    is_small,
    plan_for,
    properties_of,
    small_copy,
    written_by,
)
from memfit.predict.fake.values.filled_in_parts import FilledInParts
from memfit.predict.fake.values.most_nonzero import NONZEROS, most_nonzero
from memfit.predict.levels.guesses import AS_SET, BOOLEAN, CHECKED, EQUALITY, INTEGER, OF_SEEN, Guesses
from memfit.predict.observe.arguments import (
    Arguments,
    Keywords,
    integer_at,
    several,
    tensor_at,
)
from memfit.predict.observe.error_guards import answer_without_error, number_without_error
from memfit.predict.observe.known_values import keep_shadow, shadow_of, why_assumed
from memfit.predict.observe.later.rounds_by_value import ROUNDS, rounds_by_value
from memfit.predict.observe.phase_and_module import is_called_by_library, is_for_order
from memfit.predict.observe.storage_tracker import (
    LIFTS,
    PRIM_DEVICE,
    LeanMode,
    device_of,
    is_distributed,
    lies_in_an_array,
    tensors_in,
)
from memfit.predict.ranks.expert_routing import Routing
from memfit.records.prediction import Assumption

aten = torch.ops.aten
NO_OPERATION = {
    name
    for packet in ("_fused_sgd_", "_fused_adagrad_")
    if hasattr(aten, packet)
    for name in (getattr(getattr(aten, packet), overload) for overload in getattr(aten, packet).overloads())
    if name._schema.name.endswith("_")
}
"""Update parameters in place and allocate nothing, but have no fake kernel (torch 2.13)."""

KEEPS_THE_BEST_BOXES = "torchvision::nms"
"""Of detectors: the best of overlapping boxes, at most all of them."""
Bound = Callable[..., object]
"""Answers for an operator: called with it, its arguments, and its result on known values."""
MASKS = (torch.bool, torch.uint8)
"""Types of indices that choose by being true."""
ANSWERED_BY_SIZE = (aten.bincount.default, aten.repeat_interleave.Tensor)
"""Operators whose results have no largest possible size: only the user can give one."""


class Shadow(LeanMode):
    """Answers questions for values, and keeps the values that can be known."""

    def __init__(
        self,
        line: Callable[[], str],
        truth: bool = True,
        answers: Mapping[str, float] | None = None,
        routing: Routing | None = None,
    ) -> None:
        super().__init__()
        self._routing = routing
        self._line = line
        self._truth = truth
        self._is_sparse = self.has_probes = False
        self._parts = FilledInParts()
        self._packed: dict[tuple[int, ...], set[int]] = {}
        """Places that are filled in packed batches, by the shape of the padded one."""
        self.guesses = Guesses(answers or {})
        self.answered: Counter[tuple[str, str, str]] = Counter()
        self._bounds: dict[OpOverload, Bound] = {
            aten.nonzero.default: self._nonzero,
            aten.masked_select.default: self._masked_select,
            aten._unique2.default: self._unique,
            aten.unique_consecutive.default: self._unique,
            aten.unique_dim.default: self._unique_rows,
            aten.bincount.default: self._counted,
            aten.repeat_interleave.Tensor: self._repeated,
            aten.index.Tensor: self._index,
            aten.equal.default: self._equal,
            convolution.FORWARD: convolution.answer_convolution,
            convolution.BACKWARD: convolution.answer_convolution,
            aten.add.Tensor: attention.answer_sum,
            aten._scaled_dot_product_efficient_attention.default: attention.answer_efficient,
            norm.FORWARD: norm.answer_norm,
            norm.BACKWARD: norm.answer_backward,
            recurrent.FORWARD: recurrent.answer_forward,
            recurrent.BACKWARD: recurrent.answer_backward,
            packed.PACK: self._pack,
            aten.linalg_lstsq.default: self._least_squares,
            **dict.fromkeys(packed.RECIPES, packed.answer_recipe),
            **sparse.answers(self._most, NONZEROS.keep, self.note, self._note_inside),
            **ctc.answers(self.note),
            **({aten.topk.default: self._routed} if routing is not None else {}),
        }

    def assumptions(self) -> list[Assumption]:
        """One line per kind of question and place."""
        found = [
            Assumption(kind=kind, text=text, line=line, count=count)
            for (kind, text, line), count in self.answered.items()
        ]
        return found + [
            Assumption(kind="scalar answer", text=f"nothing unknown was asked for at {place}: its answer was not used")
            for place in self.guesses.unused()
        ]

    @property
    def packs_unevenly(self) -> bool:
        """Whether batches of one shape held texts of different lengths, which were packed."""
        return any(len(sizes) > 1 for sizes in self._packed.values())

    def note(self, kind: str, text: str) -> None:
        """Remember an assumption with the line that needed it."""
        self.answered[kind, text, self._line()] += 1

    def _note_inside(self, func: OpOverload, args: Arguments) -> None:
        """List that a call on sparse tensors takes something inside, unless it is run for real to see that."""
        is_seen = func in sparse.AS_THEY_ARE or sparse.is_stolen(func)
        if not is_seen and not (self.has_probes and is_probed_on_sparse(func, args)):
            self.note(UNSEEN, sparse.INSIDE)

    def __torch_dispatch__(
        self, func: OpOverload, types: tuple[type, ...], args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        kwargs = kwargs or {}
        if func is PRIM_DEVICE:
            return device_of(tensor_at(args, 0))
        if is_distributed(types):
            return NotImplemented
        if func is aten._local_scalar_dense.default:
            return self.scalar(tensor_at(args, 0))
        if func in NO_OPERATION:
            return None
        if func in LIFTS and not isinstance(args[0], FakeTensor):
            return self._lifted(func, args, kwargs)
        self._is_sparse |= func in sparse.MADE_BY
        bound = self._bounds.get(func)
        if self._is_sparse and func not in sparse.ANSWERED and sparse.has_sparse((args, kwargs)):
            self._note_inside(func, args)
            result = sparse.answer_by_example(func, args, kwargs)
            if func is aten._to_dense.default:
                NONZEROS.keep(result, tensor_at(args, 0)._values().numel())
            return result
        plan = plan_for(func, args, kwargs)
        if properties_of(func).dynamic and (bound is not None or plan is not None):
            return self._sized_by_values(func, args, kwargs, plan, bound)
        if properties_of(func).is_mutable:
            self._note_writes(func, args, kwargs)
        if plan is None and _only_writes(func, args):
            forget_written(func, args, kwargs, self._parts)
            return args[0] if func._schema.returns else None
        result = bound(func, args, kwargs, None) if bound is not None else self._run(func, args, kwargs)
        NONZEROS.follow(func, args, result)
        self._follow(func, args, kwargs, result, plan)
        return result

    def _note_writes(self, func: OpOverload, args: Arguments, kwargs: Keywords) -> None:
        if properties_of(func).writes_lists:
            _count_writes(args)
        for tensor in written_by(func, args, kwargs):
            NONZEROS.forget(tensor)

    def _run(self, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
        """The fake operator; one of torch's own that has no fake kernel is run on made-up values to see its shapes."""
        try:
            return laid_out(func, args, func(*args, **kwargs))
        except UnsupportedOperatorException:
            if func.namespace != "aten" or func._schema.is_mutable or properties_of(func).dynamic:
                raise
            result = sparse.answer_by_example(func, args, kwargs)
        except DynamicOutputShapeException:
            if func.name() != KEEPS_THE_BEST_BOXES:
                raise
            self.note(UNSEEN, "what torchvision's nms takes inside, to sort boxes and compare them")
            return tensor_at(args, 0).new_empty((self._most(tensor_at(args, 1).numel(), "nms"),), dtype=torch.int64)
        self.note(
            "kernels", f"{func} has no fake kernel; the shapes of its results are those of a run on made-up values"
        )
        return result

    def _follow(
        self, func: OpOverload, args: Arguments, kwargs: Keywords, result: object, plan: ComputePlan | None
    ) -> None:
        """After the fake operator: compute the values of its results, or forget what it wrote to."""
        real = compute(func, plan) if plan is not None and is_small(func, result, args, kwargs) else None
        if plan is not None and (real is not None or (plan.ran and properties_of(func).is_mutable)):
            attach(func, args, kwargs, result, real, plan)
            return
        forget_written(func, args, kwargs, self._parts)
        if plan is None:
            begin_parts(func, result, self._parts)
            finite_answer(func, args, result)

    def _sized_by_values(
        self, func: OpOverload, args: Arguments, kwargs: Keywords, plan: ComputePlan | None, bound: Bound | None
    ) -> object:
        """An operator whose result, or the size of it, depends on values."""
        real = compute(func, plan)
        for tensor in tensors_in((args, kwargs)):
            if func is not aten.index.Tensor or tensor.dtype in MASKS:  # rows chosen by number are as many as numbers
                self.note_assumed(tensor)
        if bound is not None:
            result = bound(func, args, kwargs, real)
        elif real is None:
            result = func(*args, **kwargs)
        elif not any(True for _ in tensors_in(real)):
            return real
        else:
            like = next(tensors_in((args, kwargs)))
            made = [like.new_empty(part.shape, dtype=part.dtype) for part in tensors_in(real)]
            result = made[0] if isinstance(real, torch.Tensor) else tuple(made)
        if plan is not None and real is not None and is_small(func, result, args, kwargs):
            attach(func, args, kwargs, result, real, plan)
        return result

    def _lifted(self, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
        """A real tensor, made of a list or number, becomes a fake one that knows its values."""
        given = tensor_at(args, 0)
        values = small_copy(given)
        if lies_in_an_array(given):
            values = given  # whoever changes the array changes the tensor, and the other way round
        result = func(*args, **kwargs)
        if values is not None:
            keep_shadow(result, values)
        return result

    # ---- single values ---------------------------------------------------------------------------------------

    def scalar(self, tensor: torch.Tensor) -> complex:
        """The value of a one-element tensor: true where known, else the user's answer or a fixed one."""
        real = shadow_of(tensor)
        if real is not None:
            self.note_assumed(tensor)
            with _disable_current_modes():
                return real.item()
        if tensor.dtype is torch.bool:
            return bool(self._truth_of(BOOLEAN))
        kind, of_type = (
            (INTEGER, int) if not (tensor.is_floating_point() or tensor.is_complex()) else ("a number", float)
        )
        passing = number_without_error(sys._getframe(1), 1)
        if passing is not None:
            return of_type(self.guess(CHECKED, of_type(passing)))
        return of_type(self.guess(kind, of_type(1)))

    def _truth_of(self, what: str) -> bool:
        """The answer that keeps the job out of an error which it guards, else the chosen one."""
        passing = answer_without_error(sys._getframe(1))
        return bool(self.guess(what, self._truth) if passing is None else self.guess(CHECKED, passing))

    def guess(self, what: str, usual: float, shown: str = "") -> float:
        """The user's answer for the line that asks, else the usual one; both are listed."""
        line = self._line()
        given = self.guesses.answer(line)
        if given is not None:
            self.answered["scalar answer", f"{what} was asked for and answered with {given:g}{AS_SET}", line] += 1
            return given
        text = f"{what} was asked for and answered with {shown or usual}"
        if not self.answered["scalar answer", text, line] and what != CHECKED:
            self._note_rounds()
        self.answered["scalar answer", text, line] += 1
        self.guesses.add(line, text)
        return usual

    def _note_rounds(self) -> None:
        """List a loop whose number of rounds may follow from what is guessed."""
        loop = rounds_by_value(sys._getframe(2))
        if loop is not None:
            self.answered[UNSEEN, ROUNDS.format(line=loop), loop] += 1

    def note_assumed(self, tensor: torch.Tensor) -> None:
        """List that a value was read which is known only by assumption."""
        why = why_assumed(tensor)
        if why and not is_for_order() and not (why == OF_SEEN and is_called_by_library()):
            line = self._line()
            text = f"a value was read that is an assumption: {why}"
            self.answered["assumed value", text, line] += 1
            self.guesses.add(line, text)

    def forget_assumed(self, why: str) -> None:
        """Values that were read for this reason are true ones after all."""
        for each in [each for each in self.answered if each[0] == "assumed value" and each[1].endswith(why)]:
            del self.answered[each]

    def _equal(self, func: OpOverload, args: Arguments, kwargs: Keywords, real: object) -> bool:
        if real is not None:
            return cast("bool", real)
        if tuple(tensor_at(args, 0).shape) != tuple(tensor_at(args, 1).shape):
            return False
        return self._truth_of(EQUALITY)

    def _routed(self, func: OpOverload, args: Arguments, kwargs: Keywords, real: object) -> tuple[torch.Tensor, ...]:
        """The best k of some scores of tokens by experts: as the scenario of a mixture of experts has them."""
        scores, result = tensor_at(args, 0), func(*args, **kwargs)
        num_tokens, num_experts = (scores.numel() // scores.shape[-1], scores.shape[-1]) if scores.dim() else (0, 0)
        if self._routing is None or shadow_of(scores) is not None or not 1 <= result[1].shape[-1] < num_experts:
            return result
        experts = self._routing.experts_of(num_tokens, result[1].shape[-1], num_experts)
        with _disable_current_modes():
            values = torch.tensor(experts, dtype=torch.int64).reshape(result[1].shape)
        text = f"tokens go to experts as --routing {self._routing.name} says"
        keep_shadow(result[1], values, text)
        self.note("routing", f"{num_tokens} {text}, {result[1].shape[-1]} of {num_experts} each")
        return result

    # ---- results whose size depends on values ----------------------------------------------------------------

    def _nonzero(self, func: object, args: Arguments, kwargs: object, real: torch.Tensor | None) -> torch.Tensor:
        given = tensor_at(args, 0)
        rows = real.shape[0] if real is not None else self._most(most_nonzero(given), "nonzero")
        return given.new_empty((rows, given.dim()), dtype=torch.int64)

    def _masked_select(self, func: object, args: Arguments, kwargs: object, real: torch.Tensor | None) -> torch.Tensor:
        given, chosen, mask = tensor_at(args, 0), tensor_at(args, 1), shadow_of(args[1])
        shape = torch.broadcast_shapes(chosen.shape, given.shape)
        if mask is not None:
            with _disable_current_modes():
                return given.new_empty((int(mask.expand(shape).sum()),))
        num_of_each = math.prod(shape) // max(1, chosen.numel())
        return given.new_empty((self._most(num_of_each * most_nonzero(chosen), "masked_select"),))

    def _unique(self, func: OpOverload, args: Arguments, kwargs: Keywords, real: object) -> tuple[torch.Tensor, ...]:
        given = tensor_at(args, 0)
        if real is not None:
            return tuple(given.new_empty(part.shape, dtype=part.dtype) for part in several(real))
        rows = self._most(min(given.numel(), most_nonzero(given) + 1), "unique")
        index = given.new_empty(given.shape, dtype=torch.int64)
        return given.new_empty((rows,)), index, given.new_empty((rows,), dtype=torch.int64)

    def _unique_rows(self, func: object, args: Arguments, kwargs: object, real: Arguments | None) -> Arguments:
        if real is not None:
            return tuple(tensor_at(args, 0).new_empty(part.shape, dtype=part.dtype) for part in several(real))
        tensor, dim = tensor_at(args, 0), integer_at(args, 1)
        num_rows = tensor.shape[dim]
        rows = self._most(num_rows, "unique")
        shape = [*tensor.shape]
        shape[dim] = rows
        index, counts = (tensor.new_empty((count,), dtype=torch.int64) for count in (num_rows, rows))
        return tensor.new_empty(shape), index, counts

    def _counted(self, func: OpOverload, args: Arguments, kwargs: Keywords, real: torch.Tensor | None) -> torch.Tensor:
        """Numbers up to the largest are counted, and at least as many as asked for."""
        numbers, given = tensor_at(args, 0), args[1:]
        weights = cast("torch.Tensor | None", kwargs.get("weights", given[0] if given else None))
        least = cast("int", kwargs.get("minlength", given[1] if len(given) > 1 else 0))
        dtype = torch.int64 if weights is None else torch.float64
        if weights is not None and weights.dtype is torch.float32:
            dtype = torch.float32
        if real is not None:
            return numbers.new_empty(real.shape, dtype=real.dtype)
        return numbers.new_empty((self._size(func, "bincount", least or None, "minlength"),), dtype=dtype)

    def _repeated(self, func: OpOverload, args: Arguments, kwargs: Keywords, real: torch.Tensor | None) -> torch.Tensor:
        """As many indices as all repeats together."""
        given = cast("int | None", kwargs.get("output_size"))
        if given is None and real is not None:
            given = real.shape[0]
        if given is not None:
            return tensor_at(args, 0).new_empty((int(given),), dtype=torch.int64)
        return tensor_at(args, 0).new_empty((self._size(func, "repeat_interleave", None, ""),), dtype=torch.int64)

    def _size(self, func: OpOverload, name: str, usual: int | None, origin: str) -> int:
        """A size without an upper bound: the user's answer for that line, the usual one, or none."""
        line = self._line()
        given = self.guesses.answer(line)
        if given is None and usual is None:
            raise DynamicOutputShapeException(func)
        text = f"the size of the result of {name} depends on data; its {origin} was taken"
        if given is not None:
            text = f"the size of the result of {name} was taken as {given:g}{AS_SET}"
        else:
            self.guesses.add(line, text)
        self.answered["upper bound", text, line] += 1
        return int(given if given is not None else usual or 0)

    def _index(self, func: OpOverload, args: Arguments, kwargs: Keywords, real: object) -> torch.Tensor:
        """Boolean indices become as many rows as they have true elements, or could have."""
        source, indices = tensor_at(args, 0), list(cast("Sequence[torch.Tensor | None]", args[1]))
        if not any(i is not None and i.dtype in MASKS for i in indices):
            return func(*args, **kwargs)
        expanded: list[torch.Tensor | None] = []
        for index in indices:
            if index is None or index.dtype not in MASKS:
                expanded.append(index)
                continue
            mask = shadow_of(index)
            if mask is not None:
                with _disable_current_modes():
                    rows = int(mask.sum())
            else:
                rows = self._most(most_nonzero(index), "indexing by a boolean mask")
            expanded.extend(source.new_zeros((rows,), dtype=torch.int64) for _ in range(index.dim()))  # rows that exist
        return func(source, expanded)

    def _least_squares(
        self, func: OpOverload, args: Arguments, kwargs: Keywords, real: object
    ) -> tuple[torch.Tensor, ...]:
        """Solution, residuals, rank and singular values; matrices of measurements are taken to have their full rank."""
        matrix, right = several(args[:2])
        driver = kwargs.get("driver") or "gelsy"
        (*batch, rows, columns), is_vector = matrix.shape, right.dim() == matrix.dim() - 1
        wide = () if is_vector else right.shape[-1:]
        real_type = matrix.abs().dtype if matrix.is_complex() else matrix.dtype
        has_rest = rows > columns and driver != "gelsy"
        return (
            right.new_empty((*batch, columns, *wide)),
            right.new_empty((*batch, *wide) if has_rest else (0,), dtype=real_type),
            right.new_empty(tuple(batch) if driver != "gels" else (0,), dtype=torch.int64),
            right.new_empty((*batch, min(rows, columns)) if driver in ("gelsd", "gelss") else (0,), dtype=real_type),
        )

    def _pack(self, func: object, args: Arguments, kwargs: object, real: object) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = shadow_of(args[1])
        if lengths is None:
            self.note("upper bound", "the lengths of a packed batch are not known; all were taken as the longest")
        else:
            with _disable_current_modes():
                self._packed.setdefault(tuple(tensor_at(args, 0).shape), set()).add(int(lengths.sum()))
        return packed.pack(tensor_at(args, 0), tensor_at(args, 1), bool(args[2]))

    def _most(self, num_possible: int, name: str) -> int:
        """The size of a result that depends on data: as it was given for this line, else the largest possible."""
        line = self._line()
        given = self.guesses.answer(line)
        if given is not None:
            self.answered["upper bound", f"the size of the result of {name} was taken as {given:g}{AS_SET}", line] += 1
            return min(int(given), num_possible)
        text = f"the size of the result of {name} depends on data; the largest possible was taken"
        self.answered["upper bound", text, line] += 1
        self.guesses.add(line, text)
        return num_possible


_WRITERS = (
    "add_", "sub_", "mul_", "div_", "addcmul_", "addcdiv_", "lerp_", "sqrt_", "neg_", "exp_", "zero_", "fill_",
    "copy_", "normal_", "uniform_", "masked_fill_", "clamp_", "clamp_min_", "clamp_max_", "relu_",
    "reciprocal_", "bernoulli_", "pow_", "maximum_",
)  # fmt: skip
_only_writing: dict[OpOverload, bool] = {}


def _count_writes(args: Arguments) -> None:
    """Autograd refuses a backward through what was written since. Of lists of tensors the kernels themselves count that
    (torch 2.13), and a fake one does not."""
    increment_version([tensor for tensor in tensors_in(args[0]) if not tensor.is_inference()])


def _only_writes(func: OpOverload, args: Arguments) -> bool:
    """Whether the operator writes into its first argument and does nothing else: then there is nothing to fake."""
    known = _only_writing.get(func)
    if known is None:
        name = func._schema.name.removeprefix("aten::")
        known = _only_writing[func] = name.removeprefix("_foreach_") in _WRITERS
    if not known:
        return False
    first = args[0][0] if isinstance(args[0], (list, tuple)) and args[0] else args[0]
    return type(first) is FakeTensor and first.constant is None
