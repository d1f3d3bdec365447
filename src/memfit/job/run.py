"""Trains a workload for real in a process of its own: `python -m memfit.job.run`.

    python -m memfit.job.run mlp --set data=mnist --set batch_size=32 --epochs 2
    python -m memfit.job.run train.py:make --set lr=0.1 --steps 20

Prints one line per epoch. In a study the hyperparameters come from the study and the metrics go to it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from memfit.errors import MemfitError, UsageError
from memfit.job.description import JobDescription, SettingValue, describe_job, parse_settings
from memfit.job.epochs import Extent, Reporter, Round, proposed_settings, train_all
from memfit.job.load import build_job, load_function
from memfit.job.network_size import NetworkSize
from memfit.job.recipes.recipe import PLAIN, Recipe, parse_techniques
from memfit.job.workloads.registry import WORKLOADS

NO_RECIPE = Recipe()
OWN_SETTINGS = ("epochs", "steps", "seed", "device")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    given: dict[str, Any] = {name: value for name in OWN_SETTINGS if (value := getattr(options, name)) is not None}
    try:
        settings = {**given, **parse_settings(tuple(options.settings)), **proposed_settings()}
        recipe = Recipe(optimizer=options.optimizer, techniques=parse_techniques(options.technique))
        run_job(options.target, settings, Reporter(as_json=options.json, quiet=options.quiet), recipe)
    except MemfitError as error:
        lines = [
            f"memfit: {error.what}",
            error.found and f"  found: {error.found}",
            error.hint and f"  try:   {error.hint}",
        ]
        print("\n".join(line for line in lines if line), file=sys.stderr)
        return error.exit_code
    return 0


def run_job(
    target: str, settings: Mapping[str, SettingValue], reporter: Reporter, recipe: Recipe = NO_RECIPE
) -> Round | None:
    """Build a job with these settings and train it; `epochs`, `steps`, `seed` and `device` are ours unless it knows
    them. A recipe is put on what was built."""
    job = describe_job(target, settings)
    if job.kind == "script":
        raise UsageError(
            "a script is run by itself", found=target, hint=f"python {target}; or name a function: {target}:train"
        )
    function, settings = load_function(job), dict(settings)
    own: dict[str, Any] = {
        name: settings.pop(name) for name in OWN_SETTINGS if name in settings and not _knows(function, name)
    }
    extent = Extent(epochs=_count("epochs", own.get("epochs")), steps=_count("steps", own.get("steps")))
    _seed(own.get("seed", 0))
    put_on = None if recipe == NO_RECIPE else recipe
    job = msgspec.structs.replace(job, settings=settings, recipe=put_on)
    built: Any = build_job(job, own.get("device", "cpu"))
    size = NetworkSize(getattr(built, "model", None))
    reporter.say(_announcement(job, built, size))
    last = train_all(built, target, extent, reporter.round)
    reporter.end(last, size.known())
    return last


def _knows(function: Callable[..., object], name: str) -> bool:
    from inspect import signature

    return name in signature(function).parameters and name != "device"


def _count(name: str, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or value < 1:
        raise UsageError(f"{name} must be a whole number above zero", found=f"{name}={value!r}", hint=f"--{name} 20")
    return int(value)


def _seed(seed: float | str) -> None:
    """Fix the randomness of the libraries that the job has loaded."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None:
        torch.manual_seed(int(seed))
    if numpy is not None:
        numpy.random.seed(int(seed) % 2**32)


def _announcement(job: JobDescription, built: object, size: NetworkSize) -> str:
    settings = " ".join(f"{name}={value}" for name, value in job.settings.items())
    parts = [f"{job.target} {settings}".strip()]
    if size.num_parameters is not None:
        parts.append(f"{size.num_parameters:,} parameters")
    data = _data_source(getattr(built, "data", ""))
    return ", ".join(filter(None, [*parts, data]))


def _data_source(data: str) -> str:
    """Whether the images are real; other data is what its name says."""
    from memfit.job.data.cache import is_cached
    from memfit.job.data.catalogue import DATA_SETS

    data_set = DATA_SETS.get(data)
    if data_set is None:
        return ""
    return "real data" if is_cached(data_set) else f"synthetic data (for the real one: memfit data fetch {data})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m memfit.job.run",
        description="Train a built-in workload, or what FILE:function builds, and print a line per epoch.",
        epilog=f"Workloads: {', '.join(WORKLOADS)}.",
    )
    parser.add_argument("target", help="a built-in workload, or FILE:function")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="NAME=VALUE", help="a setting")
    parser.add_argument("--epochs", type=int, help="passes over the data (1)")
    parser.add_argument("--steps", type=int, help="at most this many optimizer steps in all")
    parser.add_argument("--seed", type=int, help="of all random numbers (0)")
    parser.add_argument("--device", help="where to train (cpu)")
    parser.add_argument("--optimizer", default="", metavar="NAME", help="another optimizer than the job's own")
    parser.add_argument("--technique", default=PLAIN, metavar="NAMES", help="put on the job, such as bf16+checkpoint")
    parser.add_argument("--json", action="store_true", help="one JSON object per epoch")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
