"""How do the planners compare on standard networks, and what does a small device take?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memfit.api.fit import foreseen_chain

if TYPE_CHECKING:
    from memfit.records.plan import Chain
    from memfit.records.reproduction import EdgeTables, OffloadingExperiment


def run_offloading(
    *,
    device: str = "cuda:v100-16gb",
    networks: Sequence[str] = (),
    bandwidths: Sequence[float] = (12e9, 25e9, 50e9),
    num_points: int = 7,
) -> OffloadingExperiment:
    """Compare all planners on standard networks over budgets and links; predicted and simulated, nothing is run."""
    from memfit.job.standard_networks import examples_in, networks_called
    from memfit.plan.experiment import compare_networks, describe_network, rank_planners
    from memfit.plan.experiment_remarks import remarks_on
    from memfit.records.plan import Link
    from memfit.records.reproduction import OffloadingExperiment
    from memfit.show.progress.experiment import ExperimentProgress

    chosen = networks_called(networks)
    _require_rates(device)
    links = [
        Link(name="host memory", out_bytes_per_second=speed, in_bytes_per_second=speed, latency_seconds=2e-5)
        for speed in dict.fromkeys(bandwidths)
    ]
    progress = ExperimentProgress()
    foreseen = {}
    try:
        for index, (name, settings) in enumerate(chosen.items()):
            progress.show(f"foreseeing {name} ({index + 1} of {len(chosen)})", 0.0)
            foreseen[name] = foreseen_chain(name, settings, device)
        chains = {name: chain for name, (chain, _, _) in foreseen.items()}
        panels = compare_networks(chains, links, num_points=num_points, show=progress.show)
    finally:
        progress.close()
    described = tuple(
        describe_network(name, chosen[name], examples_in(chosen[name]), chain, links[0], notes)
        for name, (chain, _, notes) in foreseen.items()
    )
    return OffloadingExperiment(
        device=device, networks=described, panels=panels, standings=rank_planners(panels),
        remarks=remarks_on(panels, described), took_seconds=progress.took_seconds,
    )  # fmt: skip


def _require_rates(device: str) -> None:
    """A device whose speed is not known is refused, before anything slow is done."""
    from memfit.errors import UsageError
    from memfit.predict.devices.parse import parse_device

    if parse_device(device).single_tflops is None:
        raise UsageError(
            f"a comparison needs the rates of the device, and those of {device} are not known",
            hint="a GPU of the table, such as --device cuda:v100-16gb",
        )


def run_edge(
    *, budget_bytes: int = 2 * 2**30, networks: Sequence[str] = (), num_points: int = 9, **question: Any
) -> EdgeTables:
    """The tables of training at the edge: memory, its price, and whether it is worth it for a link and a device.

    Further options, as on the command line: link_mbit, link_watts, device_gflops, device_watts, images_per_day,
    image_bytes, num_epochs.
    """
    from memfit.job.workloads.vision import family_called, resnet_called, stage_names
    from memfit.plan.edge import Question
    from memfit.plan.edge_tables import edge_tables, num_chains
    from memfit.profile.shapes import shape_chain
    from memfit.show.progress.experiment import ExperimentProgress

    names = family_called(networks)
    progress = ExperimentProgress()
    num_made = 0

    def tick(what: str) -> None:
        nonlocal num_made
        progress.show(what, num_made / num_chains(names))
        num_made += 1

    def chain_of(network: str, image_size: int, batch_size: int) -> Chain:
        target = f"{network} at {image_size}x{image_size}, batch {batch_size}"
        return shape_chain(lambda: resnet_called(network), stage_names, (batch_size, 3, image_size, image_size), target)

    try:
        return edge_tables(
            chain_of, names, budget_bytes=budget_bytes, num_points=num_points, question=Question(**question), tick=tick
        )
    finally:
        progress.close()


def check_output(path: str | Path, *, force: bool = False) -> None:
    """Refuse to replace what is there, before anything slow is done."""
    from memfit.model.step import check_output as check

    check(str(path), force)


def print_experiment(found: OffloadingExperiment | EdgeTables, *, as_json: bool = False) -> None:
    """Write an experiment to the standard output."""
    from memfit.records.reproduction import EdgeTables
    from memfit.show.as_json import to_json
    from memfit.show.paper import write_json, write_text
    from memfit.show.terminal.reproduction import edge_text, experiment_text

    if as_json:
        write_json(to_json(found))
    elif isinstance(found, EdgeTables):
        write_text(lambda width, color: edge_text(found))
    else:
        write_text(lambda width, color: experiment_text(found, width=max(width, 100), color=color))


def write_experiment(found: OffloadingExperiment | EdgeTables, folder: str | Path) -> tuple[Path, ...]:
    """Write an experiment into a folder: the record, its tables, and its curves as PNG and SVG."""
    from memfit.records.reproduction import EdgeTables
    from memfit.show.export.reproduction_files import write_tables

    if isinstance(found, EdgeTables):
        from memfit.show.figures.edge import draw_edge

        return (*write_tables(found, folder), *draw_edge(found, folder))
    from memfit.show.figures.experiment import draw_experiment

    return (*write_tables(found, folder), *draw_experiment(found, folder))
