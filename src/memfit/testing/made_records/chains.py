"""Made chains for tests and benchmarks of planners: small odd ones, and long ones that look like networks."""

from __future__ import annotations

from random import Random

import msgspec

from memfit.records.plan import Chain, Fixed, Link, Option, Stage

MIB = 2**20


def odd_chain(
    random: Random, num_stages: int, *, options: bool = True, rules: bool = True, checkpoints_cost: bool = True
) -> Chain:
    """A chain of a few bytes and seconds with every peculiarity there is: times of zero, empty values, rules."""
    chain = Chain(
        stages=tuple(
            _odd_stage(random, index, options=options, rules=rules, checkpoints_cost=checkpoints_cost)
            for index in range(num_stages)
        ),
        input_bytes=random.randint(0, 3),
        input_gradient_bytes=random.choice([0, 0, 2]),
        fixed=Fixed(parameter_bytes=random.randint(0, 5), other_bytes=random.randint(0, 2)),
        update_transient_bytes=random.choice([0, 0, 0, 30]),
        update_seconds=random.choice([0, 1]),
    )
    inputs = (chain.input_gradient_bytes, *(stage.output_bytes for stage in chain.stages))
    stages = tuple(_freeing(random, stage, given) for stage, given in zip(chain.stages, inputs, strict=False))
    return msgspec.structs.replace(chain, stages=stages)


def _freeing(random: Random, stage: Stage, input_bytes: int) -> Stage:
    """Some stages, with a backward that frees a part of what was saved before it makes its gradients."""
    if random.random() < 0.7:
        return stage
    most = min(input_bytes + stage.gradient_bytes, stage.saved_bytes + stage.output_bytes)
    return msgspec.structs.replace(stage, backward_transient_bytes=-random.randint(0, most))


def _odd_stage(random: Random, index: int, *, options: bool, rules: bool, checkpoints_cost: bool) -> Stage:
    output_bytes = random.randint(0, 6)
    another = options and random.random() < 0.25
    return Stage(
        name=f"s{index}",
        forward_seconds=random.randint(0, 5),
        backward_seconds=random.randint(0, 8),
        output_bytes=output_bytes,
        saved_bytes=output_bytes + random.randint(0, 8),
        forward_transient_bytes=random.choice([0, 0, 1, 5]),
        backward_transient_bytes=random.choice([0, 0, 1, 5]),
        gradient_bytes=random.choice([0, 0, 1, 4]),
        options=(_odd_option(random, output_bytes),) if another else (),
        kind=random.choice(["", "conv", "norm"]),
        recomputable=not rules or random.random() < 0.93,
        joins_next=not rules or random.random() < 0.93,
        checkpoint_seconds=random.choice([0, 0, 1]) if checkpoints_cost else 0,
    )


def _odd_option(random: Random, output_bytes: int) -> Option:
    return Option(
        name="less",
        forward_seconds=random.randint(1, 4),
        backward_seconds=random.randint(1, 8),
        saved_bytes=output_bytes + random.randint(0, 4),
        forward_transient_bytes=random.randint(0, 3),
        backward_transient_bytes=random.randint(0, 3),
    )


def odd_link(random: Random, *, limited: bool = True) -> Link:
    """A link about as fast as odd chains compute."""
    return Link(
        name="host",
        out_bytes_per_second=random.choice([0.5, 1.0, 2.0, 4.0]),
        in_bytes_per_second=random.choice([0.5, 1.0, 2.0, 4.0]),
        latency_seconds=random.choice([0.0, 0.0, 0.25]),
        capacity_bytes=random.choice([None, None, 8]) if limited else None,
    )


def rough_chain(random: Random, num_stages: int) -> Chain:
    """A chain with sizes of megabytes that share no divisor, so that rounding matters."""
    stages = []
    for index in range(num_stages):
        output_bytes = random.randint(MIB // 4, 4 * MIB)
        stages.append(
            Stage(
                name=f"layer{index}",
                forward_seconds=random.uniform(1, 3),
                backward_seconds=random.uniform(2, 6),
                output_bytes=output_bytes,
                saved_bytes=output_bytes + random.randint(0, 12 * MIB),
                forward_transient_bytes=random.randint(0, MIB),
                backward_transient_bytes=random.randint(0, MIB),
                gradient_bytes=random.randint(0, MIB // 8),
                kind=random.choice(["conv", "norm", "activation"]),
                checkpoint_seconds=random.choice([0.0, 0.25]),
            )
        )
    return Chain(stages=tuple(stages), input_bytes=MIB, fixed=Fixed(parameter_bytes=MIB, optimizer_state_bytes=2 * MIB))


def narrowing_chain(num_stages: int) -> Chain:
    """Like a convolutional network: large early values, heavy late computation."""
    stages = []
    for index in range(num_stages):
        part = index / max(1, num_stages - 1)
        output_bytes = round(32 * MIB * (1 - part) ** 2) + MIB
        seconds = 0.004 + 0.012 * part
        stages.append(
            Stage(
                name=f"block{index}", forward_seconds=seconds, backward_seconds=2 * seconds, output_bytes=output_bytes,
                saved_bytes=4 * output_bytes, backward_transient_bytes=output_bytes,
                gradient_bytes=round(4 * MIB * part), kind="conv",
            )
        )  # fmt: skip
    return Chain(stages=tuple(stages), input_bytes=8 * MIB, fixed=Fixed(parameter_bytes=100 * MIB))


def even_chain(num_stages: int) -> Chain:
    """Like a transformer: equal blocks, each with a leaner way to be kept, and logits at the end."""
    block = Stage(
        name="block", forward_seconds=0.01, backward_seconds=0.02, output_bytes=4 * MIB, saved_bytes=68 * MIB,
        forward_transient_bytes=8 * MIB, backward_transient_bytes=16 * MIB, gradient_bytes=12 * MIB, kind="attention",
        options=(
            Option(
                name="matmuls", forward_seconds=0.01, backward_seconds=0.0235, saved_bytes=34 * MIB,
                forward_transient_bytes=8 * MIB, backward_transient_bytes=40 * MIB,
            ),
        ),
    )  # fmt: skip
    logits = Stage(
        name="logits", forward_seconds=0.02, backward_seconds=0.04, output_bytes=4, saved_bytes=150 * MIB,
        backward_transient_bytes=75 * MIB, gradient_bytes=40 * MIB, kind="linear",
    )  # fmt: skip
    blocks = tuple(
        Stage(**{f: getattr(block, f) for f in block.__struct_fields__ if f != "name"}, name=f"blocks.{index}")
        for index in range(num_stages - 1)
    )
    fixed = Fixed(parameter_bytes=13 * num_stages * MIB, optimizer_state_bytes=26 * num_stages * MIB)
    return Chain(stages=(*blocks, logits), input_bytes=MIB, fixed=fixed)
