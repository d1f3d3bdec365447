"""`memfit fit --experiment`: which options has it, and which of them go with which experiment?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from memfit.commands.options import BYTES
from memfit.errors import MissingExtra, UsageError

EXPERIMENTS = ("offloading", "edge")
POSITIVE = click.FloatRange(min=0, min_open=True)
_OPTIONS: tuple[tuple[str, tuple[str, ...], Any], ...] = (
    ("networks", EXPERIMENTS, click.option("--networks", metavar="A,B", help="Experiments: only these networks.")),
    ("num_points", EXPERIMENTS, click.option("--points", "num_points", type=click.IntRange(2), metavar="N",
     help="Experiments: budgets of each curve [7; edge 9].")),
    ("bandwidths", ("offloading",), click.option("--bandwidth", "bandwidths", type=BYTES, multiple=True, metavar="SIZE",
     help="Offloading: bytes per second of the link, again for more [12GB 25GB 50GB].")),
    ("link_mbit", ("edge",), click.option("--link-mbit", type=POSITIVE, help="Edge: speed of the link [10].")),
    ("link_watts", ("edge",), click.option("--link-watts", type=POSITIVE, help="Edge: power while it sends [2].")),
    ("device_gflops", ("edge",), click.option("--device-gflops", type=POSITIVE, help="Edge: 10^9 op/s reached [20].")),
    ("device_watts", ("edge",), click.option("--device-watts", type=POSITIVE, help="Edge: power in training [10].")),
    ("images_per_day", ("edge",), click.option("--images-per-day", type=click.IntRange(1), help="Edge: [5000].")),
    ("image_bytes", ("edge",), click.option("--image-size", "image_bytes", type=BYTES, metavar="SIZE",
     help="Edge: one image as it is sent [250kB].")),
    ("num_epochs", ("edge",), click.option("--passes", "num_epochs", type=click.IntRange(1),
     help="Edge: over a day's images [1].")),
)  # fmt: skip
"""Name, experiments that know it, option."""
_SHARED = {"offloading": ("device",), "edge": ("budget_bytes",)}
"""Options of a fit that an experiment knows as well."""


@dataclass(frozen=True, slots=True)
class ExperimentOptions:
    """What was given for an experiment; `values` holds only what was given."""

    name: str | None
    values: dict[str, Any]

    def refuse_without_name(self) -> None:
        """Options of experiments mean nothing in a fit."""
        if self.values:
            raise UsageError("these options are for experiments", found=", ".join(self.values), hint="--experiment")

    def refuse_others(self, target: str | None, options: dict[str, Any]) -> None:
        """What the experiment does not know is a mistake, not a detail."""
        wrong = [name for name in self.values if self.name not in _experiments_of(name)]
        wrong += [name for name in options if name not in _SHARED[self.name or ""]]
        if wrong or target is not None:
            words = [*([target] if target is not None else []), *(name.replace("_", "-") for name in wrong)]
            raise UsageError(
                f"the experiment {self.name} does not know this", found=", ".join(words), hint="leave it out"
            )


def _experiments_of(option: str) -> tuple[str, ...]:
    return next(experiments for name, experiments, _ in _OPTIONS if name == option)


def experiment_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of all experiments to a command."""
    for _, _, option in reversed(_OPTIONS):
        function = option(function)
    return click.option(
        "--experiment", type=click.Choice(EXPERIMENTS), is_flag=False, flag_value="offloading",
        help="Compare all planners (offloading, if nothing follows), or compute the tables of the edge.",
    )(function)  # fmt: skip


def split_options(given: dict[str, Any]) -> tuple[ExperimentOptions, dict[str, Any]]:
    """Options of experiments, those that were given, apart from the options of a fit."""
    names = [name for name, _, _ in _OPTIONS]
    values = {name: given[name] for name in names if given[name] not in (None, ())}
    rest = {name: value for name, value in given.items() if name not in (*names, "experiment")}
    return ExperimentOptions(given["experiment"], values), rest


def run_experiment(
    experiment: ExperimentOptions, target: str | None, options: dict[str, Any], output: str | None, as_json: bool
) -> None:
    """Run it, print it, and leave its files in a folder."""
    from memfit import api

    force = options.pop("force")
    given = {name: value for name, value in options.items() if value not in (None, ()) and value != "best"}
    experiment.refuse_others(target, given)
    folder = output or f"fit-{experiment.name}"
    api.check_output(folder, force=force)
    values = {**given, **experiment.values}
    if "networks" in values:
        values["networks"] = [name.strip() for name in values["networks"].split(",") if name.strip()]
    run = api.run_offloading if experiment.name == "offloading" else api.run_edge
    found = run(**values)
    api.print_experiment(found, as_json=as_json)
    try:
        written = api.write_experiment(found, folder)
    except MissingExtra as error:
        click.echo(f"memfit: no curves: {error}", err=True)
        return
    if not as_json:
        click.echo("\nWritten: " + ", ".join(str(path) for path in written))
