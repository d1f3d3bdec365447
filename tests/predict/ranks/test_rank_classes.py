"""Are ranks put together that hold the same bytes, and is that shown and not only assumed?"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import PredictionFailed, UsageError
from memfit.predict.options import PredictOptions
from memfit.predict.predict import ask
from memfit.predict.ranks.alike_ranks import classes_of, local_shape
from memfit.predict.ranks.environment import Ranks, environment_of
from memfit.predict.ranks.every_rank import RankRun, RankRuns, predict_every_rank
from memfit.predict.ranks.rank_evidence import Mesh, RankEvidence, ShardedShape, StageFact
from memfit.records.prediction import named_ranks

torch = pytest.importorskip("torch")


def mesh(*shape: int) -> Mesh:
    count = 1
    for size in shape:
        count *= size
    return Mesh(shape=shape, ranks=tuple(range(count)))


@given(st.integers(0, 40), st.integers(1, 12))
def test_the_parts_of_all_ranks_are_those_that_torch_cuts(rows: int, num_ranks: int):
    sharded = ShardedShape(mesh=mesh(num_ranks), split=(0,), shape=(rows, 3))
    ours = [local_shape(sharded, rank) for rank in range(num_ranks)]
    torchs = [tuple(part.shape) for part in torch.empty(rows, 3).chunk(num_ranks)]
    assert ours == (torchs + [(0, 3)] * num_ranks)[:num_ranks]


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 60), st.integers(1, 60))
def test_the_parts_of_a_mesh_of_two_dimensions_add_up_to_the_tensor(a: int, b: int, rows: int, columns: int):
    sharded = ShardedShape(mesh=mesh(a, b), split=(0, 1), shape=(rows, columns))
    parts = [local_shape(sharded, rank) for rank in range(a * b)]
    assert sum(part[0] * part[1] for part in parts if part is not None) == rows * columns


def test_ranks_with_whole_partial_and_empty_parts_are_three_classes():
    sharded = ShardedShape(mesh=mesh(8), split=(0,), shape=(11, 4))
    found = classes_of(8, RankEvidence(sharded=(sharded,)))
    assert found == [(0, 1, 2, 3, 4), (5,), (6, 7)]


def test_ranks_at_the_same_place_of_their_pipelines_are_alike():
    grid = mesh(2, 4)  # two pipelines of four stages
    evidence = RankEvidence(meshes=(grid,), stages=(StageFact(group=(0, 1, 2, 3), stage=0, num_stages=4),))
    assert classes_of(8, evidence) == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_a_rank_whose_place_is_not_known_stands_alone():
    evidence = RankEvidence(stages=(StageFact(group=(0, 2), stage=0, num_stages=2),))
    assert classes_of(4, evidence) == [(0,), (1,), (2,), (3,)]


def test_rank_0_is_singled_out_where_the_job_asks_for_its_rank():
    assert classes_of(4, RankEvidence(asked_at=("train.py:3",))) == [(0,), (1, 2, 3)]
    assert classes_of(4, RankEvidence()) == [(0, 1, 2, 3)]


@dataclass
class Job:
    """Ranks whose events are known."""

    digests: dict[int, str]
    evidence: RankEvidence = field(default_factory=RankEvidence)
    needs: dict[int, int] = field(default_factory=dict)
    run_ranks: list[int] = field(default_factory=list)

    def run(self, question: Any, mail: dict[str, str]) -> RankRun:
        rank = question.options.rank
        needed = self.needs.get(rank)
        if needed is not None and f"{needed}>{rank}" not in mail:
            raise PredictionFailed("shapes", kind="rank", needs_rank=needed)
        self.run_ranks.append(rank)
        sent = {f"{rank}>{rank + 1}": "shape"}
        evidence = RankEvidence(sharded=self.evidence.sharded, asked_at=self.evidence.asked_at, mail=sent)
        return RankRun(prediction=MADE, evidence=evidence, digest=self.digests[rank])


class _Made:
    device = "cpu"


MADE: Any = _Made()


@pytest.mark.parametrize("odd", [None, 0, 3, 7])
def test_a_class_whose_ends_differ_is_halved_until_they_agree(odd: int | None):
    job = Job({rank: "odd" if rank == odd else "same" for rank in range(8)})
    found = predict_every_rank(ask("mlp", PredictOptions(ranks=8, rank="all")), job.run)
    ranks = [each.ranks for each in found.classes]
    assert sorted(rank for part in ranks for rank in part) == list(range(8))
    if odd in (0, 7):
        assert (odd,) in ranks
        assert len(job.run_ranks) < 8
    if odd is None:
        assert ranks == [tuple(range(8))]
        assert job.run_ranks == [0, 7]


def test_a_stage_waits_for_the_shapes_of_the_stages_before():
    job = Job({rank: str(rank) for rank in range(4)}, needs={1: 0, 2: 1, 3: 2})
    runs = RankRuns(ask("mlp", PredictOptions(ranks=4, rank=3)), job.run)
    assert runs.of(3).digest == "3"
    assert job.run_ranks == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("num_ranks", "num_stages", "shape"), [(2, 4, "loop"), (3, 6, "loop"), (2, 4, "v"), (3, 6, "v")]
)
def test_ranks_with_several_stages_hand_on_what_they_sent_before_they_waited(
    num_ranks: int, num_stages: int, shape: str
):
    holder = [
        stage % num_ranks if shape == "loop" else min(stage, num_stages - 1 - stage) for stage in range(num_stages)
    ]

    def run(question: Any, mail: dict[str, str]) -> RankRun:
        rank, sent = question.options.rank, {}
        for stage in (stage for stage in range(num_stages) if holder[stage] == rank):
            if stage and f"{stage - 1}>{stage}" not in {**mail, **sent}:
                raise PredictionFailed("shapes", kind="rank", needs_rank=holder[stage - 1], mail=sent)
            sent[f"{stage}>{stage + 1}"] = "shape"
        return RankRun(prediction=MADE, evidence=RankEvidence(mail=sent), digest=str(rank))

    for rank in range(num_ranks):
        runs = RankRuns(ask("mlp", PredictOptions(ranks=num_ranks, rank=rank)), run)
        assert runs.of(rank).digest == str(rank)


def test_ranks_that_wait_for_each_other_are_no_endless_loop():
    job = Job({rank: str(rank) for rank in range(2)}, needs={0: 1, 1: 0})
    with pytest.raises(PredictionFailed):
        RankRuns(ask("mlp", PredictOptions(ranks=2, rank=0)), job.run).of(0)


def test_a_rank_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match="no rank 8"):
        ask("mlp", PredictOptions(ranks=8, rank=8))
    with pytest.raises(UsageError, match="shards itself"):
        ask(__file__, PredictOptions(ranks=8, shard="fsdp"))


def test_a_rank_has_the_variables_of_torchrun():
    assert environment_of(Ranks(), own_node=True) == {}
    for own_node, local in ((False, "11"), (True, "0")):
        variables = environment_of(Ranks(rank=11, count=16), own_node=own_node)
        assert (variables["RANK"], variables["LOCAL_RANK"], variables["WORLD_SIZE"]) == ("11", local, "16")
    assert named_ranks((0, 2, 3, 4, 7)) == "0, 2-4, 7"


@pytest.mark.parametrize(("rows", "num_ranks"), [(10, 4), (3, 4), (8, 4), (0, 2)])
def test_parts_made_one_by_one_are_those_of_torch_and_come_to_an_end(rows: int, num_ranks: int):
    torch = pytest.importorskip("torch")
    from memfit.predict.fake.patches.fully_sharded import OneByOne

    whole = torch.arange(rows * 2).reshape(rows, 2)
    found = [part.flatten().tolist() for part in itertools.islice(OneByOne(whole, num_ranks, 0), 2 * num_ranks)]
    chunks = [part.flatten().tolist() for part in torch.chunk(whole, num_ranks)]
    assert found == [*chunks, *[[]] * (num_ranks - len(chunks))]
