"""The names of `nni.typehint`, for trials and tuners that annotate with them."""

from typing import Any

Parameters = dict
SearchSpace = dict
TrialMetric = Any
ParameterRecord = dict
TrialRecord = dict
