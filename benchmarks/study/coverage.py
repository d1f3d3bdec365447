"""How often do the intervals of `memfit explain` hold the truth, how often is something found where nothing is, and do
any two sentences of a report contradict each other?

Simulated studies with a known truth on four designs (`memfit.testing.made_records.simulated_studies`): points drawn
independently, near the good ones as a tuner does, in blocks with steps in time and repeats, and few points that are
each run several times (a grid of two by two). Of every design so many studies with effects (is the true change within
its 95 % interval? one that is asked with several options counts once, all of them together) and so many without (is
anything found?). Networks that follow the law are a fifth group. Every report is searched for contradictions
(`memfit.testing.oracles.contradictions`).

    python -m benchmarks.study.coverage [--studies 1000] [--first-seed 0] [--trials 10000]

Seeds 0 to 999 were looked at while the inference was chosen; from 1000 on they were not (`--first-seed 1000`).
`--trials` is the size of one large study whose time and memory are printed as well; 0 leaves it out.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections import Counter

import numpy as np

from memfit.explain.study.explain import explain_table, findings_of, report_of
from memfit.explain.study.law import Law, term_key
from memfit.explain.study.sentences.report import StudyReport
from memfit.explain.study.statistics.factors import Factor
from memfit.explain.study.statistics.inference import Interval
from memfit.testing.made_records.simulated_studies import (
    DESIGNS,
    DesignName,
    Simulated,
    Truth,
    simulate,
    simulate_networks,
)
from memfit.testing.oracles.contradictions import contradictions
from memfit.units import MIB

LEAST_COVERAGE, MOST_COVERAGE, MOST_FALSE = 0.93, 0.97, 0.05
MOST_SECONDS, MOST_MIB = 20.0, 500.0


def covered(report: StudyReport, truth: Truth) -> list[tuple[str, bool]]:
    """For every hyperparameter that was answered: does its interval hold the truth?"""
    return [
        (factor.name, _holds(factor, report.of(factor).intervals, truth))
        for factor in report.plan.factors
        if factor.name in truth.parts
    ]


def _holds(factor: Factor, intervals: tuple[Interval, ...], truth: Truth) -> bool:
    highs = factor.options if factor.scale == "choice" else (factor.high,)
    changes = [truth.change(factor.name, factor.low, high) for high in highs]
    return all(low <= change <= high for change, (_, low, high) in zip(changes, intervals, strict=True))


def law_covered(report: StudyReport, truth: Truth) -> list[tuple[str, bool]]:
    """For every term that is left in the law: does its interval hold the truth?"""
    if not isinstance(report.law, Law):
        return []
    hits = []
    for term in report.law.terms:
        _, low, high = report.answers[term_key(term)].change
        hits.append((term, low <= truth.parts[term](None) <= high))
    return hits


def one_design(design: DesignName, seeds: range) -> tuple[Counter[str], Counter[str], int, list[str]]:
    """Intervals, hits by name, studies with a false finding, and all contradictions."""
    asked, hits, num_false, broken = Counter[str](), Counter[str](), 0, []
    for seed in seeds:
        made = simulate(design, seed)
        report, unknown = report_of(made.table)
        for name, hit in covered(report, made.truth):
            asked[name] += 1
            hits[name] += hit
        broken += _broken(made, report, unknown)
        silent = simulate(design, seed, has_effects=False)
        report, unknown = report_of(silent.table)
        found = findings_of(report, unknown)
        num_false += any(each.verdict == "found" for each in found.findings)
        broken += contradictions(found, silent.table.labels)
    return asked, hits, num_false, broken


def _broken(made: Simulated, report: StudyReport, unknown: dict[str, str]) -> list[str]:
    return contradictions(findings_of(report, unknown), made.table.labels)


def show_design(design: DesignName, seeds: range) -> bool:
    began, num_studies = time.perf_counter(), len(seeds)
    asked, hits, num_false, broken = one_design(design, seeds)
    coverage = sum(hits.values()) / sum(asked.values())
    by_name = ", ".join(f"{name} {hits[name] / asked[name]:.1%}" for name in asked)
    took = time.perf_counter() - began
    print(f"{design:<12} coverage {coverage:6.1%} of {sum(asked.values())} intervals ({by_name})")
    print(
        f"{'':<12} {num_false} of {num_studies} studies without effects show a finding ({num_false / num_studies:.1%})"
    )
    print(f"{'':<12} {len(broken)} contradictions in {2 * num_studies} reports; {took:.0f} s", flush=True)
    for breach in broken[:5]:
        print(f"{'':<14}{breach}")
    return LEAST_COVERAGE <= coverage <= MOST_COVERAGE and num_false <= MOST_FALSE * num_studies and not broken


def show_networks(seeds: range) -> bool:
    """Studies that follow the law: its coefficients."""
    asked, hits, broken, num_laws, num_wrong = Counter[str](), Counter[str](), [], 0, 0
    for seed in seeds:
        made = simulate_networks(seed)
        report, unknown = report_of(made.table)
        for name, hit in law_covered(report, made.truth):
            asked[name] += 1
            hits[name] += hit
            num_wrong += made.truth.parts[name](None) == 0
        num_laws += report.found_law is not None
        broken += _broken(made, report, unknown)
    coverage = sum(hits.values()) / max(sum(asked.values()), 1)
    print(
        f"{'law':<12} coverage {coverage:6.1%} of {sum(asked.values())} coefficients; "
        f"found in {num_laws} of {len(seeds)}"
    )
    print(f"{'':<12} {num_wrong} terms that are not there; {len(broken)} contradictions", flush=True)
    for breach in broken[:5]:
        print(f"{'':<14}{breach}")
    return not broken


def show_large(num_trials: int) -> bool:
    """Seconds and memory of one large study, in a process of its own."""
    code = f"from benchmarks.study.coverage import large; large({num_trials})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, cpu_seconds, peak_mib = map(float, result.stdout.split())
    took = f"{seconds:.1f} s ({cpu_seconds:.1f} s of a core)"
    print(f"{num_trials} trials are explained in {took}; the process peaks at {peak_mib:.0f} MiB")
    return seconds < MOST_SECONDS and peak_mib < MOST_MIB


def large(num_trials: int) -> None:
    """Explain one large study and print seconds and the peak in MiB."""
    made = simulate("independent", 1, num_trials=num_trials)
    began, began_cpu = time.perf_counter(), time.process_time()
    explain_table(made.table)
    took, took_cpu = time.perf_counter() - began, time.process_time() - began_cpu
    print(took, took_cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=10_000)
    asked = parser.parse_args()
    first = asked.first_seed
    kept = [show_design(design, range(first, first + asked.studies)) for design in DESIGNS]
    kept.append(show_networks(range(first, first + max(asked.studies // 4, 10))))
    if asked.trials:
        kept.append(show_large(asked.trials))
    print("kept" if all(kept) else "NOT KEPT", f"(numpy {np.__version__})")
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
