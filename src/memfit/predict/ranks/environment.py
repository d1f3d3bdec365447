"""Rank of a job among others: its number, the size of the group, and the variables that `torchrun` would set."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """One rank of a group."""

    rank: int = 0
    count: int = 1


def environment_of(ranks: Ranks, *, own_node: bool) -> dict[str, str]:
    """What `torchrun` sets for a rank, on one node or on a node of its own; nothing for a job that runs alone.

    A GPU that is not there is the only one of its machine: with a node for each rank, it has the number 0 on all.
    """
    if ranks.count == 1:
        return {}
    return {
        "RANK": str(ranks.rank),
        "LOCAL_RANK": "0" if own_node else str(ranks.rank),
        "GROUP_RANK": str(ranks.rank) if own_node else "0",
        "ROLE_RANK": str(ranks.rank),
        "WORLD_SIZE": str(ranks.count),
        "LOCAL_WORLD_SIZE": "1" if own_node else str(ranks.count),
        "ROLE_WORLD_SIZE": str(ranks.count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "memfit",
    }
