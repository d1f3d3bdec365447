"""Does Revolve repeat as many steps as its closed form and as the package checkpoint_schedules?"""

from __future__ import annotations

from benchmarks.plans.report import Claim
from memfit.plan.recompute.revolve import DiskCosts, DiskRevolve, advances, revolve_nodes
from memfit.records.plan import Checkpoint, Node, stages_of

STEPS = (1, 2, 3, 5, 8, 13, 21, 34, 50, 101, 152)
SNAPSHOTS = (1, 2, 3, 5, 8, 10)


def revolve_claims(*, quick: bool = False) -> list[Claim]:
    """Closed form, own schedule and the peer side by side."""
    steps = STEPS[:8] if quick else STEPS
    cases = [(length, count) for length in steps for count in SNAPSHOTS]
    own = sum(_repeated(revolve_nodes(0, length, count)) != advances(length, count) for length, count in cases)
    claims = [Claim("Revolve's schedule = closed form", f"{len(cases)} cases", f"{own} differ", own == 0)]
    try:
        import checkpoint_schedules  # pyright: ignore[reportMissingImports]
    except ImportError:
        reason = "not installed: pip install -r benchmarks/plans/requirements.txt"
        return [*claims, Claim("Revolve = checkpoint_schedules", "", reason, None)]
    peers = [(length, count) for length, count in cases if length > 1]
    wrong = sum(_peer_forwards(checkpoint_schedules, *case) != advances(*case) + case[0] for case in peers)
    claims.append(Claim("Revolve = checkpoint_schedules", f"{len(peers)} cases", f"{wrong} differ", wrong == 0))
    return [*claims, _disk_claim(checkpoint_schedules, quick=quick)]


def _repeated(nodes: tuple[Node, ...]) -> int:
    inner = [node for node in nodes if isinstance(node, Checkpoint)]
    return sum(len(list(stages_of(node.inside))) + _repeated(node.inside) for node in inner)


def _peer_forwards(peer, num_steps: int, num_snapshots: int) -> int:
    return sum(action.n1 - action.n0 for action in _actions(peer, peer.Revolve(num_steps, num_snapshots)))


def _actions(peer, schedule):
    for action in schedule:
        if isinstance(action, peer.Forward):
            yield action
        if isinstance(action, peer.EndReverse):
            return


def _disk_claim(peer, *, quick: bool) -> Claim:
    """With a disk: never dearer than the peer's H-Revolve, whose actions are counted with the same costs."""
    dearer, cheaper, cases = 0, 0, 0
    for write, read in ((0.5, 0.5), (2.0, 1.0), (5.0, 5.0)):
        own = DiskRevolve(DiskCosts(1.0, write, read))
        for num_steps in (6, 12) if quick else (6, 12, 20, 30):
            for num_snapshots in (1, 2, 3):
                ours = own.seconds(num_steps, num_snapshots)
                theirs = _peer_seconds(peer, num_steps, num_snapshots, write, read)
                cases += 1
                dearer += ours > theirs + 1e-9
                cheaper += ours < theirs - 1e-9
    result = f"{dearer} dearer, {cheaper} cheaper, {cases - dearer - cheaper} equal"
    return Claim("Revolve with disk <= H-Revolve of checkpoint_schedules", f"{cases} cases", result, dearer == 0)


def _peer_seconds(peer, num_steps: int, num_snapshots: int, write: float, read: float) -> float:
    schedule = peer.HRevolve(num_steps, num_snapshots, num_steps, uf=1, ub=1, wd=write, rd=read)
    disk, seconds = peer.StorageType.DISK, 0.0
    for action in schedule:
        if isinstance(action, peer.Forward):
            seconds += action.n1 - action.n0 - (1 if action.write_adj_deps else 0)
            seconds += write if action.write_ics and action.storage == disk else 0.0
        elif isinstance(action, (peer.Copy, peer.Move)):
            seconds += read if action.from_storage == disk else 0.0
        elif isinstance(action, peer.EndReverse):
            return seconds
    return seconds
