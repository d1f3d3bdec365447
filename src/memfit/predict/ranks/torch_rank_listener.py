"""Listener for what a rank's number decides while its job runs: meshes, sharded shapes, stages, groups, questions."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch.distributed as distributed
from torch.distributed.device_mesh import DeviceMesh

from memfit.predict.observe.source_files import kind_of_file
from memfit.predict.ranks.rank_evidence import Mesh, RankEvidence, ShardedShape, StageFact

if TYPE_CHECKING:
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

LOOKING_UP = ("os.py", "_collections_abc.py", "<frozen os>", "<frozen _collections_abc>")
"""Files between a line that reads a variable and the variable."""
MESH_QUESTIONS = ("get_rank", "get_local_rank", "get_coordinate")
GROUP_QUESTIONS = ("get_group_rank", "get_node_local_rank")
"""Other ways to ask for a rank's place: of a mesh, and of a group or node."""
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK")


class NeedsRank(Exception):
    """This rank cannot go on before another one was predicted, whose shapes it is sent."""

    def __init__(self, rank: int, mail: Mapping[str, str] | None = None) -> None:
        self.rank = rank
        self.mail = dict(mail or {})
        """What this rank's earlier stages have sent, for those that wait for it in turn."""
        super().__init__(f"the shapes that rank {rank} sends are needed")


class RankFacts:
    """Notes of one run."""

    def __init__(self, received_mail: Mapping[str, str] | None = None) -> None:
        self.received_mail = received_mail or {}
        self.mail: dict[str, str] = {}
        self._meshes: dict[Mesh, None] = {}
        self._sharded: dict[ShardedShape, None] = {}
        self._stages: dict[StageFact, None] = {}
        self._communicators: dict[tuple[int, ...], None] = {}
        self._asked_at: dict[str, None] = {}
        self._seen: dict[int, Mesh] = {}
        self._kept: list[DeviceMesh] = []
        """Meshes are kept alive, so that no other one gets the identity of one that was seen."""

    def evidence(self) -> RankEvidence:
        """As data."""
        return RankEvidence(
            meshes=tuple(self._meshes), sharded=tuple(self._sharded), stages=tuple(self._stages),
            communicators=tuple(self._communicators), asked_at=tuple(self._asked_at), mail=self.mail,
        )  # fmt: skip

    def note_stage(self, group: distributed.ProcessGroup | None, stage: int, num_stages: int) -> None:
        """This rank holds a stage of a pipeline."""
        ranks = tuple(distributed.get_process_group_ranks(group))
        self._stages[StageFact(group=ranks, stage=stage, num_stages=num_stages)] = None

    def note_communicator(self, group: distributed.ProcessGroup) -> None:
        """Something was sent in a group."""
        if group.size() > 1:
            ranks = tuple(distributed.get_process_group_ranks(group))
            self._communicators[ranks] = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Within, everything is noted."""
        from torch.distributed.tensor._dtensor_spec import DTensorSpec

        made: Any = DTensorSpec.__post_init__
        get_rank, read = distributed.get_rank, type(os.environ).__getitem__

        def specified(spec: DTensorSpec) -> None:
            made(spec)
            self._note_sharded(spec)

        def asked(group: distributed.ProcessGroup | None = None) -> int:
            self._note_question()
            return get_rank(group)

        def looked_up(environ: os._Environ[str], key: str) -> str:
            if key in RANK_VARIABLES:
                self._note_question()
            return read(environ, key)

        with contextlib.ExitStack() as stack:
            stack.enter_context(patch.object(DTensorSpec, "__post_init__", specified))
            stack.enter_context(patch.object(distributed, "get_rank", asked))
            stack.enter_context(patch.object(type(os.environ), "__getitem__", looked_up))
            for name in MESH_QUESTIONS:
                stack.enter_context(patch.object(DeviceMesh, name, self._asking(getattr(DeviceMesh, name))))
            for name in GROUP_QUESTIONS:
                stack.enter_context(patch.object(distributed, name, self._asking(getattr(distributed, name))))
            yield

    def _asking(self, original: Callable[..., object]) -> Callable[..., object]:
        """A function that answers with a place among the ranks; who asks is noted."""

        def ask(*args: object, **kwargs: object) -> object:
            self._note_question()
            return original(*args, **kwargs)

        return ask

    def _note_question(self) -> None:
        """List the line that asks, where it is the job's own."""
        frame = sys._getframe(1).f_back  # None at the bottom of a thread of autograd
        while frame is not None and frame.f_code.co_filename.endswith(LOOKING_UP):
            frame = frame.f_back
        if frame is not None and kind_of_file(frame.f_code.co_filename) == 0:
            self._asked_at[f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"] = None

    def _note_sharded(self, spec: DTensorSpec) -> None:
        if spec.tensor_meta is None:
            return
        mesh = self._mesh_of(spec.mesh)
        split = tuple(getattr(placement, "dim", None) for placement in spec.placements)
        if any(dim is not None for dim in split):
            self._sharded[ShardedShape(mesh=mesh, split=split, shape=tuple(spec.tensor_meta.shape))] = None

    def _mesh_of(self, mesh: DeviceMesh) -> Mesh:
        known = self._seen.get(id(mesh))
        if known is None:
            known = Mesh(shape=tuple(mesh.shape), ranks=_ranks_of(mesh))
            self._seen[id(mesh)] = known
            self._kept.append(mesh)
            self._meshes[known] = None
        return known


def _ranks_of(mesh: DeviceMesh) -> tuple[int, ...]:
    """Its ranks in order; unseen, unless it was made of fake tensors, whose values the modes know."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._python_dispatch import _disable_current_modes

    is_fake = isinstance(getattr(mesh, "_rank_map", None), FakeTensor)
    with contextlib.nullcontext() if is_fake else _disable_current_modes():
        return tuple(mesh.mesh.flatten().tolist())
