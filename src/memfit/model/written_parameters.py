"""Parameters that a model writes into while it runs: found in the first run, put back after every run.

A model may change its own parameters in a step: an encoder that follows the trained one with a momentum, an embedding
with `max_norm`, a weight that is clamped or normalised in the forward. While the first run lasts, the values of all
parameters lie in a nameless file, where they take no memory of tensors. What differs afterwards is put back, and is
from then on noted and laid back as buffers are. A file, for nothing else tells of a write through `.data`, of a
compiled one and of one in C++.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.weak import WeakIdKeyDictionary

from memfit.errors import UsageError
from memfit.model.tensors_in_arguments import bits_of

_written: Any = WeakIdKeyDictionary()
"""Parameters that a run of their model has changed."""


def any_written() -> bool:
    """Whether there is a model that writes into a parameter of its own."""
    return len(_written) > 0


def written_among(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those that a run of their model has changed."""
    return [each for each in parameters if each in _written] if any_written() else []


def remember_written(parameters: Iterable[torch.Tensor]) -> None:
    """Let parameters be noted and laid back as buffers are from now on."""
    for each in parameters:
        _written[each] = True


@contextlib.contextmanager
def finding_written(model: torch.nn.Module) -> Iterator[None]:
    """Put back what a run writes into parameters, and remember which; refuse what an optimizer writes."""
    named = [(name, p) for name, p in model.named_parameters() if _is_readable(p) and p not in _written]
    shapes = [torch.empty_like(p, device="meta") for _, p in named]
    versions = [p._version for _, p in named]
    with contextlib.ExitStack() as stack:
        file = _with_values(stack, [p for _, p in named])
        try:
            yield
        finally:
            file.seek(0)
            changed = [pair for pair, like in zip(named, shapes, strict=True) if _put_back(file, pair[1], like)]
            same = {id(p) for (_, p), version in zip(named, versions, strict=True) if p._version == version}
    for name, parameter in changed:
        if parameter._post_accumulate_grad_hooks:
            raise UsageError(
                "the model's parameters are updated within the backward",
                found=f"a hook of {name} writes into it as soon as its gradient is there",
                hint="fit without those hooks; --allow step-in-backward updates within the backward as well",
            )
    # Some were written with the value that they had: a bias of zeros that follows a bias of zeros.
    remember_written([*(p for _, p in changed), *(p for _, p in named if id(p) not in same)])


class ParameterVersions:
    """How often parameters had been written into at one moment, beside those that are put back."""

    def __init__(self, model: torch.nn.Module) -> None:
        named = [(name, p) for name, p in model.named_parameters() if _is_readable(p) and p not in _written]
        self._before = [(name, p, p._version) for name, p in named]

    def refuse_changes(self) -> None:
        """Refuse a model that writes into a parameter which it had left alone in its first run."""
        for name, parameter, version in self._before:
            if parameter._version != version and parameter not in _written:
                raise UsageError(
                    "the model writes into its parameters in some runs and not in others, so that it cannot be tried",
                    found=f"{name} was changed, and not in the first run; it keeps the change",
                    hint="let the training loop change it, outside of the model",
                )


class ParameterValues:
    """Check sums of parameters at one moment, beside those that are put back."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._before = [(p, _sum_of(p)) for p in parameters if _is_readable(p) and p not in _written]

    def have_changed(self) -> bool:
        """Whether one of them has another value now."""
        return any(_sum_of(parameter) != before for parameter, before in self._before)


def _sum_of(parameter: torch.Tensor) -> int:
    return zlib.crc32(bits_of(parameter.detach().to("cpu")).numpy().data)


def _is_readable(parameter: torch.Tensor) -> bool:
    """Whether its bits can be read and written: neither a fake, nor one without a shape, nor of a class of its own."""
    is_plain = type(parameter) in (torch.nn.Parameter, torch.nn.Buffer, torch.Tensor)
    return is_plain and not (parameter.is_meta or isinstance(parameter.data, FakeTensor)) and _is_strided(parameter)


def _is_strided(parameter: torch.Tensor) -> bool:
    return parameter.layout == torch.strided and not parameter.is_inference() and parameter.numel() > 0


def _with_values(stack: contextlib.ExitStack, parameters: list[torch.Tensor]) -> IO[bytes]:
    """A file with the values of all; in memory where the disk has no room."""
    try:
        return _filled(stack.enter_context(tempfile.TemporaryFile()), parameters)
    except OSError:
        return _filled(io.BytesIO(), parameters)


def _filled(file: IO[bytes], parameters: list[torch.Tensor]) -> IO[bytes]:
    for parameter in parameters:
        file.write(bits_of(parameter.detach().to("cpu")).numpy().data)
    file.flush()
    return file


def _put_back(file: IO[bytes], parameter: torch.Tensor, like: torch.Tensor) -> bool:
    """Let a parameter have the value that comes next in the file, shaped `like` that; whether it had another one."""
    value = bytearray(file.read(like.nbytes))
    is_alike = parameter.shape == like.shape and parameter.dtype == like.dtype
    if is_alike and value == bits_of(parameter.detach().to("cpu")).numpy().data:
        return False
    before = torch.frombuffer(value, dtype=torch.uint8).view(like.dtype).view(like.shape)
    if is_alike:
        parameter.data.copy_(before)  # through `.data`, as buffers: a graph must not see a change that is undone
    else:
        parameter.data = before.to(parameter.device)
    return True
