"""python -m benchmarks.pipeline: every claim about pipeline planners, tried and printed; exit code 1 when one fails.

python -m benchmarks.pipeline --profiles FOLDER     FOLDER/vgg16/graph.txt and others of PipeDream
python -m benchmarks.pipeline --quick               a tenth of the random chains
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.pipeline.exactness import oracle_claims, solver_claims
from benchmarks.pipeline.profiles import rule_claims, shared_claims, speed_claims, split_claims
from benchmarks.plans.report import Claim, print_claims
from memfit.profile.pipeline.pipedream_graph import read_graph
from memfit.records.pipeline import PipelineChain

NAMES = ("alexnet", "vgg16", "resnet50", "gnmt")
PARTS = ("oracle", "solver", "splits", "speed", "rules", "shared")


def main() -> None:
    """Parse, run, show."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description="Do planners keep their claims?")
    parser.add_argument("--quick", action="store_true", help="a tenth of the random chains")
    parser.add_argument("--profiles", type=Path, help="folder with NAME/graph.txt of PipeDream")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts alone")
    arguments = parser.parse_args()
    wanted, share = arguments.only or PARTS, 10 if arguments.quick else 1
    claims: list[Claim] = []
    if "oracle" in wanted:
        claims += _shown("Exact planner against trying all cuts and schedules", oracle_claims(1000 // share))
    if "solver" in wanted:
        claims += _shown("Integer program against the exact planner", solver_claims(200 // share))
    chains = _chains(arguments.profiles)
    if not chains:
        print("\nno profiles: --profiles FOLDER with alexnet, vgg16, resnet50 and gnmt of PipeDream")
    elif chains:
        parts = {"splits": split_claims, "speed": speed_claims, "rules": rule_claims, "shared": shared_claims}
        for name, part in parts.items():
            if name in wanted:
                claims += _shown(f"Profiles: {name}", part(chains))
    sys.exit(1 if any(claim.holds is False for claim in claims) else 0)


def _shown(title: str, claims: list[Claim]) -> list[Claim]:
    print_claims(title, claims)
    return claims


def _chains(folder: Path | None) -> dict[str, PipelineChain]:
    if folder is None:
        return {}
    paths = {name: folder / name / "graph.txt" for name in NAMES}
    return {name: read_graph(path) for name, path in paths.items() if path.is_file()}


if __name__ == "__main__":
    main()
