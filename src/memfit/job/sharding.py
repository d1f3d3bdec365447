"""Names of the ways in which ranks divide a training, as `--shard` has them."""

from __future__ import annotations

from typing import Literal, cast, get_args

from memfit.errors import UsageError

Sharding = Literal["ddp", "zero1", "zero2", "zero3", "fsdp"]


def check_sharding(num_ranks: int, sharding: str | None) -> Sharding | None:
    """Read the two options; None when nothing is sharded."""
    if num_ranks < 1:
        raise UsageError("a training has at least one rank", found=str(num_ranks), hint="--ranks 8 --shard fsdp")
    if sharding is None:
        return None
    if sharding not in get_args(Sharding):
        raise UsageError(f"there is no sharding {sharding!r}", hint=", ".join(get_args(Sharding)))
    return cast(Sharding, sharding) if num_ranks > 1 else None
