"""Routing of a mixture of experts as a scenario: which experts each token goes to; pure.

  even    tokens go round all experts
  worst   all tokens of all ranks go to the experts of the rank that is predicted (experts lie on ranks in order)
  FILE    experts get these shares of the tokens: a JSON list, or a number in each line

A token goes to k different experts, so that no expert can get more than all tokens.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from memfit.errors import UsageError
from memfit.predict.ranks.environment import Ranks

NAMED = ("even", "worst")


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Where tokens go."""

    name: str
    shares: tuple[float, ...] = ()
    ranks: Ranks

    def experts_of(self, num_tokens: int, num_chosen: int, num_experts: int) -> list[list[int]]:
        """The experts of every token."""
        if self.name == "worst":
            first = self._own_expert(num_experts)
            return [[(first + place) % num_experts for place in range(num_chosen)] for _ in range(num_tokens)]
        if self.name == "even":
            return [
                [(token * num_chosen + place) % num_experts for place in range(num_chosen)]
                for token in range(num_tokens)
            ]
        return self._by_shares(num_tokens, num_chosen, num_experts)

    def _own_expert(self, num_experts: int) -> int:
        """The first expert on this rank; with fewer experts than ranks, groups of ranks hold all of them."""
        ranks = self.ranks
        return ranks.rank * num_experts // ranks.count if num_experts >= ranks.count else ranks.rank % num_experts

    def _by_shares(self, num_tokens: int, num_chosen: int, num_experts: int) -> list[list[int]]:
        if num_chosen > num_experts:
            raise UsageError(
                f"a token cannot go to {num_chosen} of {num_experts} experts", hint="fewer experts a token"
            )
        if len(self.shares) != num_experts:
            what = f"{self.name} has {len(self.shares)} shares, and the job {num_experts} experts"
            raise UsageError(what, hint="one share for each expert")
        dealt = [expert for expert, count in enumerate(self._counts(num_tokens, num_chosen)) for _ in range(count)]
        return [[dealt[place * num_tokens + token] for place in range(num_chosen)] for token in range(num_tokens)]

    def _counts(self, num_tokens: int, num_chosen: int) -> list[int]:
        """Tokens of each expert: by its share, at most all of them, adding up to all choices."""
        total, whole = num_tokens * num_chosen, sum(self.shares)
        counts = [min(num_tokens, int(total * share / whole)) for share in self.shares]
        by_share = sorted(range(len(counts)), key=lambda expert: -self.shares[expert])
        while sum(counts) < total:
            for expert in by_share:
                if counts[expert] < num_tokens and sum(counts) < total:
                    counts[expert] += 1
        return counts


def read_routing(given: str | None, ranks: Ranks) -> Routing | None:
    """What `--routing` says; None without it."""
    if given is None:
        return None
    if given in NAMED:
        return Routing(name=given, ranks=ranks)
    return Routing(name=given, shares=_read_shares(given), ranks=ranks)


def _read_shares(path: str) -> tuple[float, ...]:
    hint = "even, worst, or a file with a share for each expert"
    try:
        text = Path(path).read_text()
        found = json.loads(text) if text.lstrip().startswith("[") else text.split()
        shares = tuple(float(share) for share in found)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"there is no routing {path!r}", found=str(error), hint=hint) from None
    if not shares or min(shares) < 0 or not 0 < sum(shares) < float("inf"):
        raise UsageError(f"{path} holds no shares", found=f"{len(shares)} numbers", hint=hint)
    return shares
