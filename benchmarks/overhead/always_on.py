"""What does it cost to be watched all the time, with the exact peak of every step?"""

from __future__ import annotations

from benchmarks.overhead.blocks import CONTROL, Pairs, Subject, run_pairs
from benchmarks.overhead.options import Options
from benchmarks.overhead.paired import Estimate, verdict_below
from benchmarks.overhead.report import Finding, Part, ratio_text
from benchmarks.overhead.samplers import Memfit, Mprof, NoSampler, Psrecord, Psutil, Sampler, paused_samplers
from benchmarks.overhead.trainer import Trainer

TARGET = 1.01
MEMFIT = "memfit (default, exact peak of every step)"
NUM_WARM, NUM_STEPS = 2, 12
"""A pair of blocks is as noisy when it is long as when it is short, so many short ones tell most."""
KINDS: dict[str, Sampler] = {
    CONTROL: NoSampler,
    MEMFIT: Memfit,
    "psutil, own process, 10 ms": Psutil,
    "mprof, 100 ms": Mprof,
    "psrecord, default": Psrecord,
    "memray": NoSampler,
}
INSIDE = {MEMFIT: "kept marks", "memray": "memray"}
PAIRS_PER_ROUND = {CONTROL: 8, MEMFIT: 20, "psutil, own process, 10 ms": 4}
METHOD = (
    "Training loop of the MLP 784-512-512-10, Adam, batch 64, 1 thread; blocks of 12 steps in one process (after 2 "
    "that are not timed), each tool on in one block and off in the next, order alternating, tools shuffled. Median "
    "quotient on/off with its 90 % bootstrap interval. The control switches nothing on: what its interval covers is "
    "noise. memfit is all of its default in the middle of a run: the sampler, the exact peak of every step, and the "
    "peaks of the phases of as many steps as fit into its small share of the time (here about one in twelve; all of "
    "them where a step takes 0.1 s)."
)


def measure(options: Options) -> Part:
    """Run the blocks and judge them."""
    with Trainer("mlp") as trainer, paused_samplers(KINDS, trainer.pid) as samplers:
        subjects = {
            name: Subject(
                sampler=samplers[name],
                inside=INSIDE.get(name, "off"),
                pairs_per_round=PAIRS_PER_ROUND.get(name, 1),
                num_warm=NUM_WARM,
                num_steps=NUM_STEPS,
            )
            for name in KINDS
        }
        found = run_pairs(
            trainer,
            subjects,
            seconds=options.seconds(quick=15, full=500),
            num_rounds=1000,
            quiet=options.quiet,
            seed=options.seed,
        )
    return _judge(found, options.seed)


def _judge(found: dict[str, Pairs], seed: int) -> Part:
    cpu = {name: pairs.cpu_ratio(seed) for name, pairs in found.items()}
    wall = {name: pairs.wall_ratio(seed) for name, pairs in found.items()}
    rows = [
        (name, ratio_text(cpu[name]), ratio_text(wall[name]), str(wall[name].num_values), _verdict(name, wall))
        for name in found
    ]
    peers = ", ".join(f"{name.split(',')[0]} {wall[name].value:.3f}" for name in found if name not in (CONTROL, MEMFIT))
    findings = [
        Finding(
            what="wall time, always on", peers=peers, memfit=ratio_text(wall[MEMFIT]), target=f"<= {TARGET}",
            verdict=_verdict(MEMFIT, wall),
        ),
        Finding(
            what="CPU time of the job, always on", peers="", memfit=ratio_text(cpu[MEMFIT]), target=f"<= {TARGET}",
            verdict=verdict_below(cpu[MEMFIT], TARGET, cpu[CONTROL]),
        ),
    ]  # fmt: skip
    return Part(
        name="always_on",
        title="Always on",
        method=METHOD,
        columns=("switched on", "CPU in the loop", "wall in the loop", "pairs", "wall <= 1.01"),
        rows=rows,
        findings=findings,
        raw={"cpu": cpu, "wall": wall},
    )


def _verdict(name: str, wall: dict[str, Estimate]) -> str:
    return "" if name == CONTROL else verdict_below(wall[name], TARGET, wall[CONTROL])
