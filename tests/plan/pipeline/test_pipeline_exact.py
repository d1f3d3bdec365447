"""Does the exact planner find what an exhaustive search finds, and does every plan do what it promises?"""

from __future__ import annotations

import math
from random import Random

import msgspec
import pytest

from memfit.errors import DoesNotFit, InvalidSchedule, UsageError
from memfit.plan.pipeline.case import PipelineCase
from memfit.plan.pipeline.partition import ContiguousProgram, exact_contiguous, fewest_bytes
from memfit.plan.pipeline.planners import (
    BASELINES,
    PLANNERS,
    candidate_of,
    explain_cut,
    judge,
    plan_pipeline,
    plan_schedule,
)
from memfit.plan.pipeline.schedule.schedules import STAGES_PER_RANK, most_in_flight
from memfit.plan.pipeline.schedule.simulate import replay_periodic
from memfit.records.pipeline import Layer, PipelineChain, PipelinePlan, RankLink, decode_pipeline, encode_pipeline
from memfit.testing.oracles.pipeline_search import best_contiguous, made_pipeline_chain


def made_case(random: Random, most_layers: int = 6) -> PipelineCase:
    chain = made_pipeline_chain(random, random.randint(2, most_layers))
    num_ranks = random.randint(1, min(4, len(chain.layers)))
    limits = [random.randint(10, 130)] * num_ranks
    if random.random() < 0.3:
        limits = [random.randint(10, 130) for _ in limits]
    link = RankLink(
        bytes_per_second=random.choice((1.0, 3.0, 1e9)), latency_seconds=random.choice((0.0, 0.5)),
        full_duplex=random.random() < 0.4,
    )  # fmt: skip
    return PipelineCase(chain, tuple(limits), link)


def period_of(case: PipelineCase) -> float:
    proposal = exact_contiguous(case)
    if proposal is None:
        return math.inf
    outcome = judge(case, proposal)
    assert outcome is not None
    return outcome.period_seconds


@pytest.mark.parametrize("seed", range(60))
def test_the_exact_planner_finds_what_an_exhaustive_search_finds(seed: int):
    case = made_case(Random(seed))
    expected = best_contiguous(case.chain, case.limits_bytes, case.link)
    assert period_of(case) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("seed", range(60))
def test_the_period_that_the_dynamic_program_promises_is_the_one_that_is_replayed(seed: int):
    case = made_case(Random(seed), 8)
    found = ContiguousProgram(case).shortest()
    if found is not None:
        assert period_of(case) == pytest.approx(found[0], rel=1e-7)


@pytest.mark.parametrize("seed", range(25))
def test_no_planner_beats_the_exact_one_and_all_stay_within_memory(seed: int):
    case = made_case(Random(seed))
    best = period_of(case)
    for name in (*BASELINES, "exact"):
        found = candidate_of(case, PLANNERS[name])
        if found.fits:
            assert found.period_seconds is not None
            assert found.period_seconds >= best * (1 - 1e-7), name
            assert found.fullest_bytes is not None
            assert found.fullest_bytes <= max(case.limits_bytes)


@pytest.mark.parametrize("seed", range(15))
def test_more_memory_or_ranks_never_make_it_slower(seed: int):
    case = made_case(Random(seed), 7)
    base = period_of(case)
    assert period_of(case.with_limits(tuple(limit + 15 for limit in case.limits_bytes))) <= base * (1 + 1e-7)
    if case.num_ranks < case.num_layers:
        assert period_of(case.with_limits((*case.limits_bytes, 60))) <= base * (1 + 1e-7)


@pytest.mark.parametrize("seed", range(20))
def test_the_least_memory_is_the_least_to_a_byte(seed: int):
    case = made_case(Random(seed))
    least = fewest_bytes(case)
    assert period_of(case.with_limits((least,) * case.num_ranks)) < math.inf
    assert period_of(case.with_limits((least - 1,) * case.num_ranks)) == math.inf


def fitting_plan(seed: int) -> tuple[PipelineCase, PipelinePlan]:
    random = Random(seed)
    while True:
        case = made_case(random)
        try:
            return case, plan_pipeline(case, baselines=False)
        except DoesNotFit:
            continue


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_survives_its_file_and_its_steady_part_has_the_promised_period(seed: int):
    case, plan = fitting_plan(seed)
    assert decode_pipeline(encode_pipeline(plan)) == plan
    longer = msgspec.structs.replace(case.chain)
    many = plan_pipeline(PipelineCase(longer, case.limits_bytes, case.link, 60), baselines=False)
    fewer = plan_pipeline(PipelineCase(longer, case.limits_bytes, case.link, 30), baselines=False)
    steady = (many.step.seconds - fewer.step.seconds) / 30
    assert steady <= plan.period_seconds * (1 + 1e-6)
    assert all(rank.fits for rank in many.ranks)


@pytest.mark.parametrize("seed", range(8))
def test_the_replay_refuses_a_schedule_with_a_shorter_period_or_an_early_operation(seed: int):
    case, plan = fitting_plan(seed)
    duplex = case.link.full_duplex
    busiest = max(
        sum(o.seconds for o in plan.operations if o.kind in ("forward", "backward") and o.stage == s)
        for s in range(len(plan.cut.stages))
    )
    with pytest.raises(InvalidSchedule):
        replay_periodic(plan.operations, plan.cut, busiest * 0.9, full_duplex=duplex)
    late = [
        o if o.kind != "forward" or o.stage else msgspec.structs.replace(o, shift=o.shift + 50) for o in plan.operations
    ]
    with pytest.raises(InvalidSchedule, match="before what it needs"):
        replay_periodic(late, plan.cut, plan.period_seconds, full_duplex=duplex)


def even_case(num_ranks: int, num_micro_batches: int = 8) -> PipelineCase:
    chain = made_pipeline_chain(Random(3), 1)
    layer = msgspec.structs.replace(chain.layers[0], forward_seconds=1.0, backward_seconds=2.0, output_bytes=1)
    layers = tuple(msgspec.structs.replace(layer, name=f"layer{i}") for i in range(8))
    link = RankLink(bytes_per_second=1e9)
    return PipelineCase(PipelineChain(layers=layers), (10**6,) * num_ranks, link, num_micro_batches)


@pytest.mark.parametrize("schedule", list(STAGES_PER_RANK))
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_named_schedules_have_the_micro_batches_in_flight_that_torch_was_counted_to_have(schedule, num_ranks: int):
    plan = plan_schedule(even_case(num_ranks), schedule, baselines=False)
    found = [_most_of(plan, rank) for rank in range(num_ranks)]
    assert found == [most_in_flight(schedule, num_ranks, rank, 8) for rank in range(num_ranks)]
    counted = {
        ("1f1b", 4): [4, 3, 2, 1], ("interleaved-1f1b", 4): [11, 9, 7, 5], ("interleaved-zero-bubble", 2): [4, 4],
        ("zbv-zero-bubble", 4): [8] * 4, ("dualpipev", 2): [5, 5],
    }  # fmt: skip
    assert found == counted.get((schedule, num_ranks), found)


def _most_of(plan: PipelinePlan, rank: int) -> int:
    held = most = 0
    split = {text.replace("W", "") for text in plan.cut.orders[rank] if "W" in text}
    for text in plan.cut.orders[rank]:
        if "F" in text:
            held += 1
        elif "W" in text or text.replace("B", "").replace("I", "") not in split:
            held -= 1
        most = max(most, held)
    return most


@pytest.mark.parametrize("schedule", list(STAGES_PER_RANK))
def test_every_rank_does_each_operation_of_its_stages_once(schedule):
    plan = plan_schedule(even_case(4), schedule, baselines=False)
    done = [text for order in plan.cut.orders for text in order]
    assert len(done) == len(set(done))
    for index in range(len(plan.cut.stages)):
        for k in range(8):
            assert f"{index}F{k}" in done
            assert (f"{index}B{k}" in done) != (f"{index}I{k}" in done)


def test_bubbles_of_gpipe_are_those_of_the_textbook():
    plan = plan_schedule(even_case(4), "gpipe", baselines=False)
    assert plan.step.idle_shares == pytest.approx([3 / 11] * 4, rel=1e-6)


def test_zero_bubble_idles_less_than_1f1b():
    idle = {s: max(plan_schedule(even_case(4, 16), s, baselines=False).step.idle_shares) for s in STAGES_PER_RANK}
    assert idle["zbv-zero-bubble"] < idle["1f1b"]
    assert idle["interleaved-zero-bubble"] < idle["interleaved-1f1b"] < idle["1f1b"]


def test_when_nothing_fits_the_answer_names_memory_and_ranks_that_do():
    case = even_case(2).with_limits((40, 40))
    with pytest.raises(DoesNotFit) as refused:
        plan_pipeline(case)
    needed, hint = refused.value.needed_bytes, refused.value.hint
    assert needed is not None
    assert period_of(case.with_limits((needed,) * 2)) < math.inf
    assert period_of(case.with_limits((needed - 1,) * 2)) == math.inf
    num_ranks = int(hint.split("--ranks ")[1].split(",")[0])
    assert period_of(case.with_limits((40,) * num_ranks)) < math.inf
    assert period_of(case.with_limits((40,) * (num_ranks - 1))) == math.inf


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"limits_bytes": (10,) * 9}, "more ranks than pieces"),
        ({"limits_bytes": ()}, "at least one rank"),
        ({"limits_bytes": (0, 5)}, "above zero"),
        ({"num_micro_batches": 0}, "above zero"),
        ({"link": RankLink(bytes_per_second=0.0)}, "speed above zero"),
        ({"link": RankLink(bytes_per_second=math.nan)}, "speed above zero"),
    ],
)
def test_numbers_without_sense_are_refused(change, words: str):
    case = even_case(2)
    given = {
        "chain": case.chain, "limits_bytes": case.limits_bytes, "link": case.link,
        "num_micro_batches": case.num_micro_batches,
    }  # fmt: skip
    with pytest.raises(UsageError, match=words):
        PipelineCase(**{**given, **change})


def test_a_layer_with_a_negative_size_is_named():
    chain = even_case(2).chain
    bad = msgspec.structs.replace(chain.layers[3], saved_bytes=-1)
    broken = msgspec.structs.replace(chain, layers=(*chain.layers[:3], bad, *chain.layers[4:]))
    with pytest.raises(UsageError, match="layer3 has a saved bytes"):
        PipelineCase(broken, (10**6,) * 2, RankLink(bytes_per_second=1.0))


def timed_case(seconds: list[float], num_ranks: int = 2, speed: float = 1e12) -> PipelineCase:
    layers = tuple(
        Layer(
            name=f"layer {index}", forward_seconds=each, backward_seconds=each, parameter_bytes=10, gradient_bytes=10,
            output_bytes=100, saved_bytes=300,
        )
        for index, each in enumerate(seconds)
    )  # fmt: skip
    link = RankLink(bytes_per_second=speed)
    return PipelineCase(PipelineChain(layers=layers), (10**6,) * num_ranks, link, num_micro_batches=4)


@pytest.mark.parametrize("seconds", [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0]])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zbv-zero-bubble"])
def test_a_stage_that_takes_no_time_still_holds_its_bytes(seconds: list[float], schedule):
    case = timed_case(seconds)
    plan = explain_cut(case, [1, 3] if schedule != "zbv-zero-bubble" else [0, 1, 2, 3], schedule)
    for rank in plan.ranks:
        assert max(plan.step.curves[rank.rank].num_bytes) == rank.total_bytes


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("seconds", "speed"), [([0.0, 0.0, 0.0, 1.0], 1e12), ([1.0] * 4, 1.0)])
def test_a_named_schedule_has_a_stage_on_every_rank_however_little_that_helps(schedule, seconds, speed: float):
    plan = plan_schedule(timed_case(seconds, speed=speed), schedule)
    assert [stage.rank for stage in plan.cut.stages] == [0, 1]
    best = min(explain_cut(timed_case(seconds, speed=speed), [end, 3], schedule).period_seconds for end in (0, 1, 2))
    assert plan.period_seconds == pytest.approx(best)


@pytest.mark.parametrize(("update_bytes", "counted"), [(0, 0), (5, 5), (900, 30), (10**9, 30)])
def test_a_rank_has_room_for_the_update_of_its_own_parameters(update_bytes: int, counted: int):
    light = timed_case([1.0], num_ranks=1)
    layer = msgspec.structs.replace(light.chain.layers[0], saved_bytes=2, output_bytes=1, optimizer_bytes=20)
    chain = PipelineChain(layers=(layer,), update_bytes=update_bytes)
    case = PipelineCase(chain, (10**6,), light.link)
    held = layer.parameter_bytes + layer.gradient_bytes + layer.optimizer_bytes
    assert fewest_bytes(case) == held + max(layer.saved_bytes, counted)
    assert plan_pipeline(case.with_limits((fewest_bytes(case),))).fits


def test_under_torch_the_first_rank_holds_the_whole_batch_and_no_part_of_it_twice():
    chain = msgspec.structs.replace(timed_case([1.0, 1.0]).chain, input_bytes=1000)
    case = PipelineCase(chain, (10**6,) * 2, RankLink(bytes_per_second=1e9), num_micro_batches=4, receives_all=True)
    for schedule in ("gpipe", "1f1b"):
        first, second = plan_schedule(case, schedule).ranks
        in_flight = first.in_flight[0]
        assert first.total_bytes == 20 + 4 * 1000 + 4 * 100 + in_flight * 300
        assert second.total_bytes == 20 + 4 * 100 + second.in_flight[0] * 300
