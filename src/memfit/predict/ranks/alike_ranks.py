"""Classes of ranks that are alike, from the evidence of one rank's run; pure.

A rank's number decides its memory through the parts of sharded tensors that it holds and through its place in a
pipeline. Both follow from its coordinates in the meshes that the job made, for every rank without running it: ranks
with equal parts and equal places form a class. Where lines of the job itself ask for the rank, rank 0 is taken out of
its class, since that is what such lines usually single out. The first and the last rank of a class are then run, where
lines ask also the one in the middle, and a class whose events differ is halved until they agree (`every_rank.py`).
"""

from __future__ import annotations

from collections.abc import Hashable

from memfit.predict.ranks.rank_evidence import Mesh, RankEvidence, ShardedShape


def local_shape(sharded: ShardedShape, rank: int) -> tuple[int, ...] | None:
    """The part of a tensor that a rank holds; None for a rank outside of the mesh.

    As torch divides: parts of equal size, rounded up, so that the last ones are smaller or empty.
    """
    coordinate = sharded.mesh.coordinate_of(rank)
    if coordinate is None:
        return None
    shape = list(sharded.shape)
    for position, size, dim in zip(coordinate, sharded.mesh.shape, sharded.split, strict=True):
        if dim is not None:
            part = -(-shape[dim] // size)
            shape[dim] = max(0, min(part, shape[dim] - position * part))
    return tuple(shape)


def group_position(group: tuple[int, ...], rank: int, evidence: RankEvidence) -> int | None:
    """The place of a rank in its own group of the same kind; None where the job's meshes do not say."""
    if rank in group:
        return group.index(rank)
    for mesh in evidence.meshes:
        for dim, size in enumerate(mesh.shape):
            if size == len(group) and _line_of(mesh, dim, group[0]) == group:
                coordinate = mesh.coordinate_of(rank)
                return None if coordinate is None else coordinate[dim]
    return None


def _line_of(mesh: Mesh, dim: int, rank: int) -> tuple[int, ...]:
    """The ranks along one dimension of a mesh through one rank."""
    here = mesh.coordinate_of(rank)
    if here is None:
        return ()
    found = []
    for other in mesh.ranks:
        there = mesh.coordinate_of(other)
        if there is not None and all(a == b for i, (a, b) in enumerate(zip(here, there, strict=True)) if i != dim):
            found.append(other)
    return tuple(found)


def key_of(rank: int, evidence: RankEvidence) -> Hashable:
    """What the evidence says of a rank: its parts of sharded tensors, and its places in pipelines."""
    parts = tuple(local_shape(sharded, rank) for sharded in evidence.sharded)
    groups = dict.fromkeys(stage.group for stage in evidence.stages)
    places = tuple(group_position(group, rank, evidence) for group in groups)
    unknown = rank if None in places else None
    return parts, places, unknown


def classes_of(num_ranks: int, evidence: RankEvidence) -> list[tuple[int, ...]]:
    """Ranks with equal keys; rank 0 alone where the job asks for its rank."""
    found: dict[Hashable, list[int]] = {}
    for rank in range(num_ranks):
        singled = rank == 0 and bool(evidence.asked_at)
        found.setdefault((singled, key_of(rank, evidence)), []).append(rank)
    return [tuple(ranks) for ranks in found.values()]


def why_alike(ranks: tuple[int, ...], traced: tuple[int, ...], evidence: RankEvidence) -> str:
    """How it is known that ranks are alike, in a sentence."""
    if len(ranks) == 1:
        return "run by itself"
    what = []
    if evidence.sharded:
        what.append(f"their parts of {len(evidence.sharded)} sharded shapes are equal")
    if evidence.stages:
        what.append("they hold the same stages of their pipelines")
    if not what:
        what.append("nothing in the job is sharded by rank")
    equal = ", ".join(str(rank) for rank in traced)
    said = f"{', '.join(what)}; ranks {equal} were run and made the same allocations, event by event"
    if evidence.asked_at and len(traced) < len(ranks):
        said += f"; the job asks for its rank ({evidence.asked_at[0]}), and one singled out there would not be seen"
    return said
