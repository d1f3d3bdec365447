"""Axes of a study: one line per hyperparameter over its search space, with a place between 0 and 1 for every value.

The options of a `choice` are ticks of equal distance, numbers in the order of numbers; a range goes from end to end of
the space on its own scale, whether trials went there or not. What is not set at a point (another branch was chosen) has
a place of its own below. A value that the space does not know, such as one of a custom tuner, widens the axis.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from memfit.records.files.only_text import only_text
from memfit.records.study import (
    PATH_SEPARATOR,
    Bell,
    Choice,
    Integers,
    Nested,
    Parameter,
    SearchSpace,
    Span,
    Study,
    TrialRecord,
)
from memfit.show.wording import cut

NOT_SET = "not set"


class NullOption(str):
    """A null that was drawn, which is an option like any other; the text 'null' is another one."""

    __slots__ = ()


NULL_OPTION = NullOption("null")
GAP_PLACE = -0.12
"""Where a value stands that is not there."""
_LOG_SPAN = 50
"""A range that no space describes is drawn on a logarithmic scale from this factor on."""
_LABEL_LETTERS = 18
_MOST_WHOLE = 12
"""A range of whole numbers no longer than this has a tick for each."""
_SERIES = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?([-x,_ /]\d+(\.\d+)?)*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyAxis:
    """One hyperparameter, or one result, as places on a line."""

    name: str
    options: tuple[str, ...] = ()
    """Labels from the bottom to the top; empty for a range of numbers."""
    quoted: frozenset[str] = frozenset()
    """Texts that read like another option ('1' beside 1); their labels stand in quotes."""
    low: float = 0.0
    high: float = 1.0
    """Ends of a range, as written."""
    is_log: bool = False
    is_whole: bool = False
    """Whether only whole numbers stand on it."""
    has_gaps: bool = False
    gap_word: str = NOT_SET

    @property
    def is_number(self) -> bool:
        """Whether it is a range and not a list of options."""
        return not self.options

    @property
    def title(self) -> str:
        """The name, with the scale where that is not the usual one."""
        return drawn_text(self.name, 60) + (" (log)" if self.is_log else "")

    @property
    def num_places(self) -> int | None:
        """How many values can stand on it, where they are few enough to be spread around their ticks."""
        if self.options:
            return len(self.options)
        is_short = self.is_whole and self.high - self.low <= _MOST_WHOLE
        return round(self.high - self.low) + 1 if is_short else None

    def label(self, value: object) -> str:
        """A value as it is called among the options of this axis."""
        return json.dumps(value) if type(value) is str and value in self.quoted else option_label(value)

    def place(self, value: object) -> float:
        """Between 0 and 1; what is not set stands below."""
        return float(self.places([value])[0])

    def places(self, values: Sequence[object]) -> np.ndarray:
        """The place of each value."""
        if self.options:
            index = {option: self.place_of_option(number) for number, option in enumerate(self.options)}
            return np.array([GAP_PLACE if value is None else index[self.label(value)] for value in values])
        numbers = np.array([math.nan if value is None else value for value in values], dtype=float)
        return np.where(np.isnan(numbers), GAP_PLACE, self._along(numbers))

    def _along(self, numbers: np.ndarray) -> np.ndarray:
        if self.high == self.low:
            return np.full(len(numbers), 0.5)
        if self.is_log:
            first, last = math.log(self.low), math.log(self.high)  # their quotient may be beyond all numbers
            return (np.log(numbers) - first) / (last - first)
        return (numbers - self.low) / (self.high - self.low)

    def ticks(self, most: int = 12, letters: int = _LABEL_LETTERS) -> list[tuple[float, str]]:
        """Places with their words; of more than `most` options every k-th is named."""
        if self.options:
            every = math.ceil(len(self.options) / most)
            named = iter(distinct_cut(self.options[::every], letters))
            found = [(self.place_of_option(k), "" if k % every else next(named)) for k in range(len(self.options))]
        else:
            values = self._tick_values()
            words = [f"{value:,.0f}" for value in values] if self.is_whole else distinct_words(values)
            found = list(zip(self.places(values).tolist(), words, strict=True))
        return found + ([(GAP_PLACE, self.gap_word)] if self.has_gaps else [])

    def place_of_option(self, index: int) -> float:
        """The place of the k-th option."""
        return 0.5 if len(self.options) == 1 else index / (len(self.options) - 1)

    def _tick_values(self) -> list[float]:
        if self.high == self.low:
            return [self.low]
        if self.is_whole and self.high - self.low <= _MOST_WHOLE:
            return [float(number) for number in range(round(self.low), round(self.high) + 1)]
        inner = _round_inside(self.low, self.high, self.is_log)
        return [self.low, *(value for value in inner if 0.07 < float(self.places([value])[0]) < 0.93), self.high]


def _round_inside(low: float, high: float, is_log: bool) -> list[float]:
    """A few round numbers between two ends: powers of ten, or multiples of 1, 2, 2.5 or 5."""
    if is_log and high / low >= 10:
        powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
        return [10.0**power for power in powers][:: max(1, len(powers) // 6)]
    rough = (high - low) / 4
    if not 0 < rough < math.inf:
        return []
    unit = 10.0 ** math.floor(math.log10(rough))
    step = min((factor * unit for factor in (1, 2, 2.5, 5, 10)), key=lambda step: abs(step - rough))
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def drawn_text(text: str, letters: int = 80) -> str:
    """One line of a user's text that any font takes: no control characters, no halves of characters."""
    plain = "".join(letter if letter.isprintable() else " " for letter in only_text(text))
    return cut(plain, letters)


def distinct_cut(words: Sequence[str], letters: int) -> list[str]:
    """Texts in at most so many letters; where cutting would make two of them alike, what all share goes first."""
    plain = [drawn_text(word, 10**6) for word in words]
    inner = _without_common_ends([word for word in plain if len(word) > letters])
    for shorter in ({}, inner):
        found = [cut(shorter.get(word, word), letters) for word in plain]
        if len(set(found)) == len(set(plain)):
            return found
    return [cut(word, letters - 4) + f" #{place}" if len(word) > letters else word for place, word in enumerate(plain)]


def _without_common_ends(words: Sequence[str]) -> dict[str, str]:
    """Each text with an ellipsis in place of the beginning and the end that all of them have."""
    head = _num_shared(words)
    tail = _num_shared([word[head:][::-1] for word in words])
    head, tail = (number if number > 1 else 0 for number in (head, tail))
    return {word: "…" * bool(head) + word[head : len(word) - tail] + "…" * bool(tail) for word in words}


def _num_shared(words: Sequence[str]) -> int:
    """How many letters all texts begin with."""
    first, last = min(words, default=""), max(words, default="")
    return next((k for k, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))


def study_title(study: Study) -> str:
    """The name of a study, as a figure has it."""
    return drawn_text(study.settings.name or study.study_id)


def distinct_words(values: Sequence[float]) -> list[str]:
    """Numbers in as few digits, from three on, as keep their distances; up to a million without a power of ten."""
    gaps = np.diff(np.unique(np.asarray(values, dtype=float)))
    least = float(gaps.min()) if len(gaps) else math.inf
    for digits in range(3 if len(gaps) else 5, 17):
        words = [f"{value:.{digits}g}" for value in values]
        if all(abs(float(word) - value) <= 0.1 * least for word, value in zip(words, values, strict=True)):
            return [f"{float(word):,.0f}" if "e+0" in word else word for word in words]
    return [repr(float(value)) for value in values]


def option_label(value: object) -> str:
    """An option in words; 8 and 8.0 are one option, True and 1 are two."""
    if isinstance(value, str):
        return str(value)  # of a drawn null as well, which no encoder of JSON takes as it is
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:.12g}" if isinstance(value, float) else str(value)
    return json.dumps(value, sort_keys=True, default=str)


def point_of(trial: TrialRecord) -> dict[str, object]:
    """The hyperparameters of a trial by their paths; one that is there and is null is an option, not a gap."""
    return {name: NULL_OPTION if value is None else value for name, value in trial.flat_parameters.items()}


def axes_of(values: Sequence[Mapping[str, object]], space: SearchSpace | None = None) -> list[StudyAxis]:
    """An axis for every hyperparameter: those of the space in its order, then those that only trials have."""
    parameters = dict(_paths(space.parameters)) if space is not None else {}
    names = dict.fromkeys([*parameters, *(name for point in values for name in point)])
    return [axis_over(name, [point.get(name) for point in values], parameters.get(name)) for name in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTrials:
    """The finished trials of a study with their places on every axis, worked out once for all of its figures."""

    axes: list[StudyAxis]
    places: np.ndarray
    """A row per trial, a column per axis."""
    row_of: dict[int, int]
    """The row of a trial, by its number."""

    def rows(self, trials: Iterable[TrialRecord]) -> np.ndarray:
        """The places of these trials."""
        return self.places[[self.row_of[trial.number] for trial in trials]]


def placed_trials(study: Study) -> PlacedTrials:
    """Axes over the search space and over every finished trial, and the places of those trials on them."""
    trials = [trial for trial in study.trials if trial.is_finished]
    points = [point_of(trial) for trial in trials]
    axes = axes_of(points, study.settings.space)
    columns = [axis.places([point.get(axis.name) for point in points]) for axis in axes]
    places = np.column_stack(columns) if columns else np.zeros((len(trials), 0))
    return PlacedTrials(axes=axes, places=places, row_of={trial.number: row for row, trial in enumerate(trials)})


def _paths(parameters: Iterable[Parameter], prefix: str = "") -> Iterator[tuple[str, Parameter]]:
    """Every parameter of a space with its path, those of branches behind the choice they belong to."""
    for parameter in parameters:
        path = f"{prefix}{parameter.name}"
        yield path, parameter
        if isinstance(parameter, Nested):
            for branch in parameter.branches:
                yield from _paths(branch.parameters, PATH_SEPARATOR.join((path, branch.name, "")))


def axis_over(name: str, values: Sequence[object], parameter: Parameter | None = None) -> StudyAxis:
    """The axis of these values, over what the space allows where it is known."""
    known = [value for value in values if value is not None]
    has_gaps = len(known) < len(values)
    if isinstance(parameter, (Choice, Nested)):
        return _axis_of_options(name, [*_written_options(parameter), *known], has_gaps, is_fixed=True)
    numbers = [number for number in map(finite_number, known) if number is not None]
    if len(numbers) < len(known):
        return _axis_of_options(name, known, has_gaps, is_fixed=False)
    ends = [*_ends(parameter), *numbers] or [0.0]
    low, high = min(ends), max(ends)
    is_log = low > 0 and (_is_log(parameter) if parameter is not None else high / low >= _LOG_SPAN)
    is_whole = bool(numbers) and all(number.is_integer() for number in [low, high, *numbers])
    is_whole = is_whole and (isinstance(parameter, Integers) or parameter is None)
    return StudyAxis(name=name, low=low, high=high, is_log=is_log, is_whole=is_whole, has_gaps=has_gaps)


def _axis_of_options(name: str, options: Sequence[object], has_gaps: bool, is_fixed: bool) -> StudyAxis:
    texts = {option for option in options if type(option) is str}
    others = {option_label(option) for option in options if type(option) is not str}
    axis = StudyAxis(name=name, quoted=frozenset(texts & others), has_gaps=has_gaps)
    labels = dict.fromkeys(axis.label(option) for option in options)
    return replace(axis, options=in_order(list(labels), is_fixed) or ("",))


def finite_number(value: object) -> float | None:
    """The number that a value is; None for truth values, infinities and what is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number beyond all floats is a label like any other
        return None


def _written_options(parameter: Choice | Nested) -> list[object]:
    if isinstance(parameter, Choice):
        return [NULL_OPTION if option is None else option for option in parameter.options]
    return [branch.name for branch in parameter.branches]


def _ends(parameter: Parameter | None) -> list[float]:
    if isinstance(parameter, Integers):
        return [float(parameter.low), float(max(parameter.low, parameter.end - 1))]
    return [float(parameter.low), float(parameter.high)] if isinstance(parameter, Span) else []


def _is_log(parameter: Parameter) -> bool:
    return isinstance(parameter, (Span, Bell)) and parameter.log


def in_order(labels: Sequence[str], is_fixed: bool = False) -> tuple[str, ...]:
    """Numbers, and series of numbers such as '64-32', in the order of numbers; others as written, or by letters."""
    if all(_SERIES.fullmatch(label) for label in labels):
        return tuple(sorted(labels, key=_numbers_in))
    return tuple(labels) if is_fixed else tuple(sorted(labels))


def _numbers_in(label: str) -> tuple[float, ...]:
    try:
        return (float(label),)
    except ValueError:
        return tuple(float(piece) for piece in re.findall(r"\d+(?:\.\d+)?", label))
