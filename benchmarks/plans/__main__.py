"""python -m benchmarks.plans: every claim about planners, tried and printed; exit code 1 when one does not hold."""

from __future__ import annotations

import argparse
import sys
import time

from benchmarks.plans.exactness import (
    combined_claims,
    nested_claims,
    offload_claims,
    persistence_claims,
    rounding_claims,
)
from benchmarks.plans.report import Claim, print_claims
from benchmarks.plans.revolve_peer import revolve_claims
from benchmarks.plans.side_by_side import print_comparison
from benchmarks.plans.speed import speed_claims

PARTS = ("nested", "rounding", "revolve", "offload", "combined", "speed", "side_by_side")


def main() -> None:
    """Parse, run, show."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans", description="Do planners keep their claims?")
    parser.add_argument("--quick", action="store_true", help="fewer cases: below a minute")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts alone")
    arguments = parser.parse_args()
    all_claims: list[Claim] = []
    for part in arguments.only or PARTS:
        started = time.perf_counter()
        if part == "side_by_side":
            print_comparison(quick=arguments.quick)
            continue
        claims = _run(part, quick=arguments.quick)
        print_claims(f"{part} ({time.perf_counter() - started:.0f} s)", claims)
        all_claims += claims
    broken = [claim for claim in all_claims if claim.holds is False]
    print(f"\n{len(all_claims)} claims, {len(broken)} broken")
    sys.exit(1 if broken else 0)


def _run(part: str, *, quick: bool) -> list[Claim]:
    if part == "nested":
        return nested_claims(300 if quick else 10_000) + persistence_claims(60 if quick else 600)
    if part == "rounding":
        return rounding_claims(50 if quick else 1000)
    if part == "revolve":
        return revolve_claims(quick=quick)
    if part == "offload":
        return offload_claims(60 if quick else 600, longest=8 if quick else 12)
    if part == "combined":
        return combined_claims(40 if quick else 600)
    return speed_claims(quick=quick)


if __name__ == "__main__":
    main()
