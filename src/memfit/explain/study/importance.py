"""Importance of hyperparameters for memory by PED-ANOVA: which decide whether a trial is among the largest.

PED-ANOVA (Watanabe, Bansal and Hutter, "PED-ANOVA: efficiently quantifying hyperparameter importance in arbitrary
subspaces", IJCAI 2023): a hyperparameter matters when its values among the top trials are spread differently than
among all; the measure is the Pearson divergence of the two distributions. Here with histograms (up to ten bins of
equal counts) instead of kernel densities. Few trials give a divergence by chance: what shuffled data give on average
is taken off. It ranks hyperparameters whose effect was found; it finds none by itself.

Known limits: each hyperparameter is looked at by itself, so one that acts only together with another is not seen.
"""

from __future__ import annotations

import numpy as np

from memfit.explain.study.statistics.factors import Factor
from memfit.records.study_findings import Importance

TOP_SHARE = 0.25
MIN_TRIALS = 16
_MOST_BINS = 10
_NUM_SHUFFLES = 199
_SEED = 20_260_502


def importances_of(factors: list[Factor], memory_bytes: np.ndarray) -> tuple[tuple[Importance, ...], str]:
    """EffectShares of importance, largest first; or none, and why."""
    n = len(memory_bytes)
    if n < MIN_TRIALS:
        return (), f"{n} trials; {MIN_TRIALS} or more are needed"
    num_top = max(2, round(TOP_SHARE * n))
    bins = [_bins_of(factor, max(2, min(_MOST_BINS, num_top // 2 + 1))) for factor in factors]
    is_top = np.argsort(np.argsort(-memory_bytes, kind="stable")) < num_top
    generator = np.random.default_rng(_SEED)
    tops = np.vstack([is_top, generator.permuted(np.tile(is_top, (_NUM_SHUFFLES, 1)), axis=1)])
    divergences = np.array([_divergences(bin_of, tops) for bin_of in bins])
    above = np.maximum(divergences[:, 0] - divergences[:, 1:].mean(axis=1), 0.0)
    if not above.any():
        return (), "the largest quarter of the trials has the same values as the rest"
    ranked = sorted(zip(factors, above / above.sum(), strict=True), key=lambda pair: -pair[1])
    return tuple(Importance(name=factor.name, share=float(share)) for factor, share in ranked), ""


def _bins_of(factor: Factor, most_bins: int) -> np.ndarray:
    """The number of the bin that each trial lies in."""
    if factor.scale == "choice":
        return np.unique(np.round(factor.columns, 9), axis=0, return_inverse=True)[1].reshape(-1)
    values = factor.columns[:, 0]
    if len(np.unique(values)) <= most_bins:
        return np.unique(values, return_inverse=True)[1].reshape(-1)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, most_bins + 1)[1:-1]))
    return np.searchsorted(edges, values, side="right")


def _divergences(bin_of: np.ndarray, tops: np.ndarray) -> np.ndarray:
    """The Pearson divergence of each choice of top trials from all trials."""
    member = (bin_of[:, None] == np.unique(bin_of)[None, :]).astype(float)
    everywhere = member.mean(axis=0)
    among_top = tops @ member / tops.sum(axis=1, keepdims=True)
    return ((among_top - everywhere) ** 2 / everywhere).sum(axis=1)
