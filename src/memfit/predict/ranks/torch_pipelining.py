"""Pipeline parallelism (`torch.distributed.pipelining`) of one rank alone (read in torch 2.13).

A schedule begins with a vote over all stages on whether every one of them knows the shapes it will send and receive:
the other stages vote as this one does. Where shapes are not given, a stage learns those of its input from the stage
before, by an object that is sent; what such a stage sent in its own prediction is handed over (`RankFacts.mail`). The
gradient of an output has the shape of that output.
"""

from __future__ import annotations

import base64
import contextlib
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any, Protocol
from unittest.mock import patch

import torch
import torch.distributed as distributed

from memfit.predict.child.after_import import after_import
from memfit.predict.ranks.torch_rank_listener import NeedsRank, RankFacts

STAGE = "torch.distributed.pipelining.stage"
VOTES = ("_warmup_forward_vote", "_warmup_backward_result")


class TorchStage(Protocol):
    """What is asked of torch's stage."""

    group: distributed.ProcessGroup | None
    stage_index: int
    num_stages: int
    _user_meta: Any
    _stage_meta: Any
    _memfit_vote: int

    def _resolve_peer_global_rank(self, stage: int) -> int: ...


@contextlib.contextmanager
def pipelining_on_fakes(facts: RankFacts) -> Iterator[None]:
    """Within, a schedule runs although no other stage exists; nothing is imported that the job does not import."""
    with contextlib.ExitStack() as stack, after_import(STAGE, partial(_patch, stack, facts)):
        yield


def _patch(stack: contextlib.ExitStack, facts: RankFacts, module: ModuleType) -> None:
    stage, base = module.PipelineStage, module._PipelineStageBase
    construct = base.__init__

    def constructed(self: TorchStage, *args: object, **kwargs: object) -> None:
        construct(self, *args, **kwargs)
        facts.note_stage(self.group, self.stage_index, self.num_stages)

    stack.enter_context(patch.object(base, "__init__", constructed))
    for name in VOTES:
        if hasattr(stage, name):
            stack.enter_context(patch.object(stage, name, _voting(getattr(stage, name))))
    if hasattr(stage, "_recv_meta"):
        stack.enter_context(patch.object(stage, "_recv_meta", _receiving(facts)))
        stack.enter_context(patch.object(stage, "_send_meta", _sending(facts)))


def _voting(original: Callable[..., object]) -> Callable[..., object]:
    """A part of the vote in which every other stage says what this one says."""

    def vote(self: TorchStage, *args: object, **kwargs: object) -> object:
        if args and isinstance(args[0], bool):
            self._memfit_vote = _vote_of(self, args[0])

        def same(tensor: torch.Tensor, *rest: object, **others: object) -> int:
            tensor.fill_(self._memfit_vote)
            return 0

        with patch.object(distributed, "recv", same):
            return original(self, *args, **kwargs)

    return vote


def _vote_of(stage: TorchStage, has_backward: bool) -> int:
    from torch.distributed.pipelining._utils import InferenceMode

    return 0 if InferenceMode.needs_dynamic(stage._user_meta, has_backward) else 1


def _receiving(facts: RankFacts) -> Callable[[TorchStage, int], object]:
    """Shapes from the stage before: as its own prediction sent them; of gradients: those of the outputs."""

    def receive(self: TorchStage, src_stage: int) -> object:
        from torch.distributed.pipelining._utils import _derive_grad_metas, _StageBackwardMeta

        if src_stage > self.stage_index:
            return _StageBackwardMeta(backward_metas=_derive_grad_metas(self._stage_meta.outputs))
        sender = self._resolve_peer_global_rank(src_stage)
        sent = facts.received_mail.get(f"{src_stage}>{self.stage_index}")
        if sent is None:
            raise NeedsRank(sender, facts.mail)
        return pickle.loads(base64.b64decode(sent))

    return receive


def _sending(facts: RankFacts) -> Callable[[TorchStage, object, int], None]:
    def send(self: TorchStage, meta: object, dst_stage: int) -> None:
        if dst_stage > self.stage_index:
            packed = base64.b64encode(pickle.dumps(meta)).decode()
            facts.mail[f"{self.stage_index}>{dst_stage}"] = packed

    return send
