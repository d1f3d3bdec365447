"""What does it cost to know the memory of every layer: spread over 50 steps, and in a traced step itself?"""

from __future__ import annotations

import tempfile
from statistics import median

from benchmarks.overhead.blocks import CONTROL, Pairs, Subject, run_pairs
from benchmarks.overhead.options import Options
from benchmarks.overhead.paired import Estimate, estimate, verdict_below
from benchmarks.overhead.report import Finding, Part, ratio_text
from benchmarks.overhead.samplers import NoSampler
from benchmarks.overhead.trainer import MODEL_NAMES, Block, Trainer

AMORTISED_TARGET, TRACED_TARGET = 1.05, 1.3
MEMFIT, OFTEN = "memfit ledger, 1 step in 50", "memfit ledger, 1 step in 10"
MEMTRACKER, PROFILER = "MemTracker", "torch.profiler (memory, shapes, stacks)"
NUM_WARM = 3
"""Step 2 is the first that memfit traces; what is timed begins after it."""
SUBJECTS = {
    CONTROL: ("off", 50),
    MEMFIT: ("ledger", 50),
    OFTEN: ("ledger 10", 50),
    MEMTRACKER: ("MemTracker", 10),
    PROFILER: ("torch.profiler", 10),
}
PAIRS_PER_ROUND = {CONTROL: 2, MEMFIT: 2}
METHOD = (
    "CPU time of blocks in one process, on against off, for each of three small models (1 thread, Adam). 'Over 50 "
    "steps' is the quotient of whole blocks of 50 steps, of which memfit traces one by default. 'Traced step' "
    "compares traced steps with their two neighbours, from blocks in which one step in 10 is traced. 'First "
    "traced' is step 2, with the optimizer's update traced as well and everything written. The peers trace every "
    "step of their blocks of 10; 'over 50 steps' is computed for them as if they were on in one of 50, at the "
    "price of that step alone."
)
Figures = dict[str, Estimate | None]


def measure(options: Options) -> Part:
    """All models, one process each."""
    rows, findings, raw = [], [], {}
    for model in MODEL_NAMES:
        figures = _run(model, options)
        rows += [_row(model, name, figures[name]) for name in figures]
        findings += _findings(model, figures)
        raw[model] = figures
    return Part(
        name="ledger",
        title="Layers",
        method=METHOD,
        columns=(
            "model",
            "switched on",
            "over 50 steps",
            "traced step",
            "with start and stop",
            "first traced",
            "pairs",
        ),
        rows=rows,
        findings=findings,
        raw=raw,
    )


def _run(model: str, options: Options) -> dict[str, Figures]:
    with Trainer(model) as trainer, tempfile.TemporaryDirectory(prefix="memfit-bench-") as folder:
        sampler = NoSampler(trainer.pid, folder)
        probe = trainer.block("ledger probe", folder, NUM_WARM, SUBJECTS[OFTEN][1])
        subjects = {name: _subject(name, sampler) for name in SUBJECTS}
        seconds = options.seconds(quick=3, full=35)
        found = run_pairs(
            trainer, subjects, seconds=seconds, num_rounds=200, quiet=options.quiet, seed=options.seed
        )  # fmt: skip
    return {name: _figures(name, pairs, probe.traced_steps, options.seed) for name, pairs in found.items()}


def _subject(name: str, sampler: NoSampler) -> Subject:
    inside, num_steps = SUBJECTS[name]
    num_pairs = PAIRS_PER_ROUND.get(name, 1)
    return Subject(sampler=sampler, inside=inside, num_steps=num_steps, num_warm=NUM_WARM, pairs_per_round=num_pairs)


def _figures(name: str, pairs: Pairs, traced_steps: list[int], seed: int) -> Figures:
    """What is known of a tool on one model; None where the question makes no sense for it."""
    loop = pairs.cpu_ratio(seed)
    if name == CONTROL:
        return {"amortised": loop, "traced": None, "whole": None, "first": None}
    whole = pairs.cpu_ratio_with_switching(seed)
    if name in (MEMTRACKER, PROFILER):
        return {"amortised": _spread(loop), "traced": loop, "whole": whole, "first": None}
    first = estimate([_first_quotient(on, off) for on, off in zip(pairs.on, pairs.off, strict=True)], seed)
    if name == MEMFIT:
        return {"amortised": loop, "traced": None, "whole": whole, "first": first}
    traced = [quotient for block in pairs.on for quotient in traced_quotients(block, traced_steps, NUM_WARM)]
    return {"amortised": loop, "traced": estimate(traced, seed), "whole": whole, "first": first}


def traced_quotients(block: Block, traced_steps: list[int], num_warm: int) -> list[float]:
    """CPU time of every traced step among the timed ones, over the mean of its two neighbours."""
    times = block.cpu_seconds
    indices = [step - num_warm - 1 for step in traced_steps]
    return [2 * times[i] / (times[i - 1] + times[i + 1]) for i in indices if 0 < i < len(times) - 1]


def _first_quotient(on: Block, off: Block) -> float:
    """The second step of a block with the ledger, over an ordinary step of its partner."""
    return on.warm_cpu_seconds[1] / median(off.cpu_seconds)


def _spread(every_step: Estimate) -> Estimate:
    """What a tool would cost over 50 steps if it were on in one of them."""
    low, value, high = (1 + (x - 1) / 50 for x in (every_step.low, every_step.value, every_step.high))
    return Estimate(value=value, low=low, high=high, num_values=every_step.num_values)


def _row(model: str, name: str, figures: Figures) -> tuple[str, ...]:
    texts = [ratio_text(e) if (e := figures[key]) else "" for key in ("amortised", "traced", "whole", "first")]
    amortised = figures["amortised"]
    assert amortised
    return (model, name, *texts, str(amortised.num_values))


def _findings(model: str, figures: dict[str, Figures]) -> list[Finding]:
    control, amortised, traced = figures[CONTROL]["amortised"], figures[MEMFIT]["amortised"], figures[OFTEN]["traced"]
    assert amortised
    assert traced
    return [
        Finding(
            what=f"layer ledger, over 50 steps, {model}",
            peers="",
            memfit=ratio_text(amortised),
            target=f"<= {AMORTISED_TARGET}",
            verdict=verdict_below(amortised, AMORTISED_TARGET, control),
        ),
        Finding(
            what=f"layer ledger, on a traced step, {model}",
            peers=f"MemTracker {_peer(figures[MEMTRACKER])}, torch.profiler {_peer(figures[PROFILER])}",
            memfit=ratio_text(traced),
            target=f"<= {TRACED_TARGET}",
            verdict=verdict_below(traced, TRACED_TARGET, control),
        ),
    ]


def _peer(figures: Figures) -> str:
    traced, whole = figures["traced"], figures["whole"]
    assert traced
    assert whole
    return f"{traced.value:.2f} ({whole.value:.2f} with start and stop)"
