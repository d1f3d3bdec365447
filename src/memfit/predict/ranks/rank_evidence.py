"""Evidence of what a rank's number decides in its job: sharded shapes, stages, groups, lines that ask for it."""

from __future__ import annotations

import msgspec


class Mesh(msgspec.Struct, frozen=True, kw_only=True):
    """A mesh of ranks, such as 2 x 4."""

    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    """In the order of a flattened array."""

    def coordinate_of(self, rank: int) -> tuple[int, ...] | None:
        """Where a rank stands; None for one that is not in it."""
        if rank not in self.ranks:
            return None
        place, found = self.ranks.index(rank), []
        for size in reversed(self.shape):
            place, coordinate = divmod(place, size)
            found.append(coordinate)
        return tuple(reversed(found))


class ShardedShape(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that ranks hold in parts."""

    mesh: Mesh
    split: tuple[int | None, ...]
    """For each dimension of the mesh the dimension of the tensor that is split over it; None where it is not."""
    shape: tuple[int, ...]


class StageFact(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of a pipeline that this rank holds."""

    group: tuple[int, ...]
    """The ranks of its pipeline, in their order."""
    stage: int
    num_stages: int


class RankEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank's run showed of how ranks differ."""

    meshes: tuple[Mesh, ...] = ()
    sharded: tuple[ShardedShape, ...] = ()
    stages: tuple[StageFact, ...] = ()
    communicators: tuple[tuple[int, ...], ...] = ()
    """Groups of more than one rank in which something was sent."""
    asked_at: tuple[str, ...] = ()
    """Lines of the job itself that ask for its rank."""
    mail: dict[str, str] = {}
    """Shapes that a pipeline stage sent to the next one, as '0>1'."""
