"""Rank of a job among others: its number, the size of the group, and the variables that `torchrun` would set."""

from __future__ import annotations

from dataclasses import dataclass

GPUS_PER_NODE = 8
"""Ranks beyond it are on further nodes, with a number of their own there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """One rank of a group."""

    rank: int = 0
    count: int = 1

    @property
    def local_rank(self) -> int:
        """The number on its own node, which is that of its GPU."""
        return self.rank % GPUS_PER_NODE

    @property
    def local_count(self) -> int:
        """Ranks on one node."""
        return min(self.count, GPUS_PER_NODE)


def environment_of(ranks: Ranks) -> dict[str, str]:
    """What `torchrun` sets for a rank; nothing for a job that runs alone."""
    if ranks.count == 1:
        return {}
    return {
        "RANK": str(ranks.rank),
        "LOCAL_RANK": str(ranks.local_rank),
        "GROUP_RANK": str(ranks.rank // GPUS_PER_NODE),
        "ROLE_RANK": str(ranks.rank),
        "WORLD_SIZE": str(ranks.count),
        "LOCAL_WORLD_SIZE": str(ranks.local_count),
        "ROLE_WORLD_SIZE": str(ranks.count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "memfit",
    }
