"""What does a sampler itself take from the machine: CPU while it watches, CPU to start, memory?"""

from __future__ import annotations

from benchmarks.overhead.options import Options
from benchmarks.overhead.paired import Estimate, estimate, verdict_below
from benchmarks.overhead.quiet import cpu_seconds, resident_bytes
from benchmarks.overhead.report import Finding, Part, mebibytes, percent_text
from benchmarks.overhead.samplers import Memfit, Mprof, NoSampler, Psrecord, Psutil, Sampler, paused_samplers
from benchmarks.overhead.trainer import Trainer

TARGET_SHARE = 0.01
MEMFIT, BESIDE_MARKS = "memfit, no marked steps, 10 ms", "memfit, its default: beside marked steps"
PEERS_TO_BEAT = ("psutil, own process, 10 ms", "mprof, 100 ms")
KINDS: dict[str, Sampler] = {
    MEMFIT: Memfit,
    BESIDE_MARKS: Memfit,
    "psutil, own process, 10 ms": Psutil,
    "mprof, 100 ms": Mprof,
    "psrecord, default": Psrecord,
}
INSIDE = {BESIDE_MARKS: "kept marks"}
MARKS_SHARE = 0.001
"""What the marks may take of the job's time."""
METHOD = (
    "Each sampler watches the same training for {total:.0f} s in windows of {window:.0f} s, taking turns, the "
    "others paused; a first turn of each is left out. CPU time of the sampler's process by the scheduler's clock; "
    "its start-up is listed apart. Beside marked steps memfit's sampler looks less often, since the marks read the "
    "exact peak inside of the job; they are held to a thousandth of the job's time (0.1 %) by their own clock, which "
    "comes on top."
)


def measure(options: Options) -> Part:
    """Let the samplers take turns."""
    window_seconds, num_windows = options.seconds(quick=0.5, full=3.5), options.count(quick=6, full=6)
    shares: dict[str, list[float]] = {name: [] for name in KINDS}
    with Trainer("mlp") as trainer, paused_samplers(KINDS, trainer.pid) as samplers:
        start_up = {name: sampler.start_up_seconds for name, sampler in samplers.items()}
        for index in range(1 + num_windows):
            options.quiet.wait()
            for name, sampler in samplers.items():
                share = _share(trainer, sampler, INSIDE.get(name, "off"), window_seconds)
                shares[name] += [share] if index else []  # in the first turn a sampler is still getting warm
        sizes = {name: resident_bytes(sampler.pid or 0) for name, sampler in samplers.items()}
    method = METHOD.format(total=window_seconds * num_windows, window=window_seconds)
    return _judge(shares, start_up, sizes, method, options.seed)


def _share(trainer: Trainer, sampler: NoSampler, inside: str, seconds: float) -> float:
    """The share of one core that a sampler takes while the job trains."""
    assert sampler.pid is not None
    sampler.go()
    before = cpu_seconds(sampler.pid)
    trainer.train_for(seconds, inside, sampler.folder)
    spent = cpu_seconds(sampler.pid) - before
    sampler.pause()
    return spent / seconds


def _judge(
    shares: dict[str, list[float]], start_up: dict[str, float | None], sizes: dict[str, int], method: str, seed: int
) -> Part:
    found = {name: estimate(values, seed) for name, values in shares.items()}
    ours = (found[MEMFIT], found[BESIDE_MARKS])
    rows = [
        (name, percent_text(found[name]), _start_up_text(start_up[name]), f"{mebibytes(sizes[name]):.0f} MiB")
        for name in found
    ]
    peers = ", ".join(f"{name.split(',')[0]} {100 * e.value:.2g} %" for name, e in found.items() if e not in ours)
    findings = [
        Finding(
            what="sampler's own CPU, of one core",
            peers=peers,
            memfit=percent_text(found[MEMFIT]),
            target="<= 1 %",
            verdict=verdict_below(found[MEMFIT], TARGET_SHARE),
        ),
        Finding(
            what="CPU of the default, of one core",
            peers=peers,
            memfit=f"{percent_text(found[BESIDE_MARKS])} and at most {100 * MARKS_SHARE:.1f} % in the job",
            target="below psutil and mprof",
            verdict="; ".join(f"{peer.split(',')[0]}: {_order(found, peer)}" for peer in PEERS_TO_BEAT),
        ),
    ]
    return Part(
        name="own_cost",
        title="The sampler itself",
        method=method,
        columns=("sampler", "CPU, of one core", "CPU to start", "its resident size"),
        rows=rows,
        findings=findings,
        raw={"shares": shares, "start_up_seconds": start_up, "resident_bytes": sizes},
    )


def _order(found: dict[str, Estimate], peer: str) -> str:
    """Whether the sampler and the marks together take less than a peer, by whole intervals."""
    ours, theirs = found[BESIDE_MARKS], found[peer]
    if ours.high + MARKS_SHARE < theirs.low:
        return "below"
    return "above" if ours.low > theirs.high else "intervals overlap"


def _start_up_text(seconds: float | None) -> str:
    return "never idle" if seconds is None else f"{seconds:.2f} s"
