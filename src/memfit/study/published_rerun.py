"""How are the published trials run again? The same networks and hyperparameters, or new ones from the same ranges.

The tables do not say how long memory was read or which optimizer was used; the epochs are theirs, Adam is assumed.
With `steps` every trial is capped, because the memory of a training does not change after its second step: the
first step allocates gradients, its update the optimizer's state, and from then on every step repeats. The report
shows the evidence.
"""

from __future__ import annotations

from typing import Any

import msgspec

from memfit.errors import UsageError
from memfit.records.study import Study, StudySettings
from memfit.study.published import FEATURES, TABLES, network_size, published_study
from memfit.study.space.space import parameters_of
from memfit.study.tuners.ordered import NAME as ORDERED
from memfit.study.tuners.ordered import ordered_tool

PREFIX = "paper-"


def is_published(target: str) -> bool:
    """Whether a word names a published table."""
    return target.removeprefix(PREFIX) in TABLES and target.startswith(PREFIX)


def published_name(study: Study) -> str:
    """The published table a study runs again; empty for any other study."""
    name = study.settings.name.removeprefix(PREFIX)
    return name if study.settings.tuner.name == ORDERED and name in TABLES else ""


def rerun_settings(
    target: str, *, num_random: int | None = None, replicates: int = 3, steps: int | None = None, seed: int = 0
) -> StudySettings:
    """The study that runs a published table again, or `num_random` points of its ranges."""
    if not is_published(target):
        names = ", ".join(PREFIX + name for name in TABLES)
        raise UsageError(f"there are no published trials {target!r}", hint=f"one of {names}")
    published = published_study(target.removeprefix(PREFIX))
    points = [dict(trial.parameters) for trial in published.trials]
    if num_random is not None:
        points = _drawn(published.settings, num_random, seed)
    fixed = {**published.settings.fixed, **({} if steps is None else {"steps": steps})}
    return msgspec.structs.replace(
        published.settings,
        name=target + ("" if num_random is None else f"-random-{num_random}"),
        fixed=fixed,
        tuner=ordered_tool(points, replicates),
        seed=seed,
        max_trials=len(points) * replicates,
        notes=(*published.settings.notes, *_cap_note(steps)),
    )


def _drawn(settings: StudySettings, count: int, seed: int) -> list[dict[str, Any]]:
    from memfit.study.space.sampling import generator_for, random_draws

    space = settings.space
    return [parameters_of(space, random_draws(space, generator_for(seed, number))) for number in range(count)]


def _cap_note(steps: int | None) -> tuple[str, ...]:
    if steps is None:
        return ()
    return (f"Every trial was capped at {steps} optimizer steps; memory does not change after the second.",)


def size_of_network(settings: StudySettings, parameters: dict[str, Any]) -> dict[str, Any]:
    """Parameters and activations of a fully connected network on a known data set; nothing for any other training."""
    data, hidden = settings.fixed.get("data"), parameters.get("hidden")
    if settings.workload != "mlp" or data not in FEATURES or not isinstance(hidden, str):
        return {}
    num_parameters, num_activations = network_size(FEATURES[data], hidden)
    return {"num_parameters": num_parameters, "num_activations": num_activations}
