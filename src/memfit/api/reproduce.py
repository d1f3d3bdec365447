"""Published results run again: joins the tables and statements of `reproduce` with prediction, profiles and studies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from memfit.api.compare import compare_recipes
from memfit.api.fit import predicted_chain
from memfit.api.pipeline import pipeline_chain
from memfit.api.shared.options import checked_options
from memfit.api.study import run_study

if TYPE_CHECKING:
    from memfit.api.study import StudyFollower
    from memfit.records.pipeline import PipelineChain
    from memfit.records.plan import Chain
    from memfit.records.reproduction import (
        EdgeTables,
        HyperparameterTrials,
        LayerShare,
        OffloadingExperiment,
        OptimizerResult,
        PipeliningResult,
        PublishedResult,
        Rerun,
    )
    from memfit.records.study import Study, StudySettings

ShareProgress = Callable[[str, float], None]
"""Called with what is at hand, and which share of all work is over, from 0 to 1."""


def list_reproductions() -> tuple[PublishedResult, ...]:
    """The published results that can be run again, with their sources and statements.

    >>> [result.name for result in list_reproductions()]
    ['hyperparameters', 'offloading', 'edge', 'optimizers', 'pipelining']
    """
    from memfit.reproduce.registry import RESULTS

    return RESULTS


@checked_options
def reproduce_offloading(
    *,
    device: str = "cuda:v100-16gb",
    networks: Sequence[str] = (),
    bandwidths: Sequence[float] = (12e9, 25e9, 50e9),
    num_points: int = 7,
    progress: ShareProgress | None = None,
) -> OffloadingExperiment:
    """Compare all planners on standard networks over budgets and links; predicted and simulated, nothing is run.

    >>> found = reproduce_offloading(networks=["vgg16"], num_points=3)  # doctest: +SKIP
    >>> [statement.verdict for statement in found.statements]  # doctest: +SKIP
    """
    from memfit.records.plan import Link
    from memfit.records.reproduction import OffloadingExperiment
    from memfit.reproduce.offloading import (
        compare_networks,
        describe_network,
        examples_in,
        networks_called,
        rank_planners,
        statements_on,
    )

    chosen = networks_called(networks)
    _require_rates(device)
    show = progress or _no_progress
    started = time.monotonic()
    links = [
        Link(name="host memory", out_bytes_per_second=speed, in_bytes_per_second=speed, latency_seconds=2e-5)
        for speed in dict.fromkeys(bandwidths)
    ]
    predicted = {}
    for index, (name, settings) in enumerate(chosen.items()):
        show(f"predicting {name} ({index + 1} of {len(chosen)})", 0.0)
        predicted[name] = predicted_chain(name, settings, device)
    chains = {name: chain for name, (chain, _, _) in predicted.items()}
    panels = compare_networks(chains, links, num_points=num_points, show=show)
    described = tuple(
        describe_network(name, chosen[name], examples_in(chosen[name]), chain, links[0], notes)
        for name, (chain, _, notes) in predicted.items()
    )
    return OffloadingExperiment(
        device=device, networks=described, panels=panels, standings=rank_planners(panels),
        statements=statements_on(panels, described), took_seconds=time.monotonic() - started,
    )  # fmt: skip


def _no_progress(what: str, share_done: float) -> None:
    """Progress that is not shown."""


def _require_rates(device: str) -> None:
    """A device whose speed is not known is refused, before anything slow is done."""
    from memfit.errors import UsageError
    from memfit.predict.devices.parse import parse_device

    if parse_device(device).single_tflops is None:
        raise UsageError(
            f"a comparison needs the rates of the device, and those of {device} are not known",
            hint="a GPU of the table, such as --device cuda:v100-16gb",
        )


@checked_options
def reproduce_edge(
    *,
    budget_bytes: int = 2 * 2**30,
    networks: Sequence[str] = (),
    num_points: int = 9,
    link_mbit: float = 10.0,
    link_watts: float = 2.0,
    device_gflops: float = 20.0,
    device_watts: float = 10.0,
    images_per_day: int = 5000,
    image_bytes: int = 250_000,
    num_epochs: int = 1,
    progress: ShareProgress | None = None,
) -> EdgeTables:
    """The tables of training at the edge: memory, its price, and whether it is worth it for a link and a device.

    >>> found = reproduce_edge(networks=["resnet18"], link_mbit=5, device_watts=8)  # doctest: +SKIP
    >>> found.worth.train_hours  # doctest: +SKIP
    """
    from memfit.job.workloads.vision import family_called, resnet_called, stage_names
    from memfit.profile.chain_from_shapes import shape_chain
    from memfit.reproduce.edge import EdgeQuestion, edge_tables, num_chains

    names = family_called(networks)
    show = progress or _no_progress
    num_made = 0

    def tick(what: str) -> None:
        nonlocal num_made
        show(what, num_made / num_chains(names))
        num_made += 1

    def chain_of(network: str, image_size: int, batch_size: int) -> Chain:
        target = f"{network} at {image_size}x{image_size}, batch {batch_size}"
        return shape_chain(lambda: resnet_called(network), stage_names, (batch_size, 3, image_size, image_size), target)

    question = EdgeQuestion(
        link_mbit=link_mbit, link_watts=link_watts, device_gflops=device_gflops, device_watts=device_watts,
        images_per_day=images_per_day, image_bytes=image_bytes, num_epochs=num_epochs,
    )  # fmt: skip
    return edge_tables(chain_of, names, budget_bytes=budget_bytes, num_points=num_points, question=question, tick=tick)


@checked_options
def reproduce_hyperparameters(
    *,
    data: Sequence[str] = (),
    output: str | Path = "reproduce-hyperparameters",
    overwrite: bool = False,
    steps: int | None = 20,
    replicates: int = 3,
    num_random: int | None = None,
    parts: Sequence[Literal["tables", "single-changes", "future-work"]] = ("tables", "single-changes", "future-work"),
    seed: int = 0,
    concurrency: int = 1,
    progress: StudyFollower | None = None,
) -> HyperparameterTrials:
    """Run the published trials again, or `num_random` new points of their ranges, and judge the published conclusions.

    'single-changes' are trials that change one hyperparameter alone (fully connected and convolutional networks),
    'future-work' what the source leaves open: the cause by layer, GANs, other learners, energy. Neither is run with
    `num_random`.

    Each data set of `data` (all three when none is named) is a study in a folder below `output`, which the same call
    goes on with. `steps` caps every trial, because memory does not change after the second step; None trains all the
    published epochs, which takes hours.

    >>> found = reproduce_hyperparameters(data=["mnist"], steps=5, replicates=1)  # doctest: +SKIP
    >>> found.reruns[0].rows[0].peak.value  # doctest: +SKIP
    """
    import msgspec

    from memfit.records.reproduction import HyperparameterTrials, Learner, SingleChange
    from memfit.reproduce.hyperparameters import single_changes as single
    from memfit.reproduce.hyperparameters.future_work import answers_of
    from memfit.reproduce.hyperparameters.rerun import data_sets_called, rerun_of, rerun_settings
    from memfit.reproduce.hyperparameters.statements import statements_on

    chosen = data_sets_called(data)
    wanted = ("tables",) if num_random is not None else tuple(parts)
    sets = [each for name in chosen for each in single.CHANGE_SETS[name]] if "single-changes" in wanted else []
    again: dict[str, Any] = {"replicates": replicates, "steps": steps, "seed": seed}
    reruns: list[Rerun] = []
    changes: list[SingleChange] = []
    learners: list[Learner] = []
    notes: dict[str, None] = {}
    was_interrupted = False

    def ran(settings: StudySettings) -> Study | None:
        """Run a study, or go on with it; None once one was interrupted."""
        nonlocal was_interrupted
        if was_interrupted:
            return None
        settings = msgspec.structs.replace(settings, concurrency=concurrency)
        run = run_study(settings, output=Path(output) / settings.name, overwrite=overwrite, progress=progress)
        was_interrupted = run.was_interrupted
        notes.update(dict.fromkeys(note for note in run.study.settings.notes if note.startswith("The images are")))
        return run.study

    for name in chosen if "tables" in wanted else ():
        study = ran(rerun_settings(name, num_random=num_random, **again))
        reruns += [rerun_of(study)] if study is not None else []
    for each in sets:
        study = ran(single.change_settings(each, **again))
        changes += single.changes_in(study, each) if study is not None else ()
    for name in single.LEARNERS if "future-work" in wanted else ():
        study = ran(single.learner_settings(name, **again))
        learners += single.learners_in(study) if study is not None else ()
    layers = _layers_of(chosen) if "future-work" in wanted and not was_interrupted else ()
    return HyperparameterTrials(
        reruns=tuple(reruns), statements=statements_on(reruns, changes), changes=tuple(changes),
        learners=tuple(learners), layers=layers,
        answers=answers_of(layers, learners, reruns) if "future-work" in wanted else (),
        notes=tuple(notes), was_interrupted=was_interrupted,
    )  # fmt: skip


def _layers_of(data_sets: Sequence[str]) -> tuple[LayerShare, ...]:
    """What each layer holds at the peak of a step, predicted, of the base networks of the single changes."""
    from memfit.api.predict import predict_peak
    from memfit.errors import MemfitError
    from memfit.records.figure import Figure
    from memfit.records.reproduction import LayerShare
    from memfit.reproduce.hyperparameters.single_changes import CHANGE_SETS

    found: list[LayerShare] = []
    for each in (each for name in data_sets for each in CHANGE_SETS[name]):
        try:
            prediction = predict_peak(each.workload, settings={"data": each.data, "optimizer": "adam", **each.base})
        except MemfitError:
            continue
        for share in prediction.at_peak.by_module:
            held = Figure(value=float(share.num_bytes), unit="bytes", source="predicted", method="fake tensors")
            network = f"{each.workload} on {each.data}"
            found.append(LayerShare(network=network, layer=share.name or "outside of layers", held=held))
    return tuple(found)


@checked_options
def reproduce_optimizers(
    *,
    device: str = "cuda:a100-40gb",
    engine: Literal["auto", "fake", "phantom"] = "fake",
    batch_size: int = 16,
    length: int = 384,
    measure: bool = False,
    layers: int = 2,
    train_length: int = 64,
    epoch_steps: int = 6,
    squad: str | Path | None = None,
    output: str | Path = "reproduce-optimizers",
    progress: ShareProgress | None = None,
) -> OptimizerResult:
    """DistilBERT under optimizers and techniques, predicted for a GPU, and the published statements judged on it.

    `measure` also trains one of fewer `layers` here, batch 8, `train_length` tokens, for two epochs of `epoch_steps`
    steps. `squad` is a SQuAD file or a folder with one; without it, what is in the folder squad of MEMFIT_DATA, else
    synthetic questions. Finished cells are kept in the folder `output`.

    >>> found = reproduce_optimizers(device="cuda:rtx3060-12gb")  # doctest: +SKIP
    >>> found.configurations[0].adam_error  # doctest: +SKIP
    """
    import msgspec

    from memfit.job.data.questions import choose_squad
    from memfit.reproduce.optimizer_grids import SlideOptions, fill_grids

    started = time.monotonic()
    options = SlideOptions(
        device=device, engine=engine, batch_size=batch_size, length=length, measure=measure, layers=layers,
        train_length=train_length, epoch_steps=epoch_steps, squad=choose_squad(None if squad is None else str(squad)),
    )  # fmt: skip
    found = fill_grids(compare_recipes, options, Path(output), progress or _no_progress)
    return msgspec.structs.replace(found, took_seconds=time.monotonic() - started)


@checked_options
def reproduce_pipelining(
    *,
    graphs: Sequence[str | Path] = (),
    device: str = "cuda:v100-16gb",
    networks: Sequence[str] = (),
    link_bytes_per_second: float = 12e9,
    num_random: int = 60,
    progress: ShareProgress | None = None,
) -> PipeliningResult:
    """Pipelines within the memory of their ranks, beside cuts that ignore it, and the published statements judged.

    `graphs` are profiles of PipeDream (graph.txt); without them, standard networks are predicted for a GPU.

    >>> found = reproduce_pipelining(graphs=["vgg16/graph.txt"])  # doctest: +SKIP
    >>> [statement.verdict for statement in found.statements]  # doctest: +SKIP
    """
    from importlib.util import find_spec

    import msgspec

    from memfit.records.pipeline import RankLink
    from memfit.records.reproduction import PipeliningResult
    from memfit.reproduce import pipelining

    show, started = progress or _no_progress, time.monotonic()
    link = RankLink(bytes_per_second=link_bytes_per_second)
    chains = _pipeline_chains(graphs, networks, device, show)
    comparisons = pipelining.compare_rules(chains, link, lambda what, share: show(what, 0.2 + 0.2 * share))
    found = PipeliningResult(chains=tuple(chains), comparisons=comparisons)
    if find_spec("scipy") is not None:
        show("random chains by integer program", 0.4)
        solved, equal, better = pipelining.solver_against_exact(num_random)
        show("loads that are hard to share out", 0.5)
        packing = tuple((loads, *pipelining.solve_packing(loads)) for loads in pipelining.PACKING)
        shared = pipelining.shared_ranks(chains, link, lambda what, share: show(what, 0.55 + 0.45 * share))
        found = msgspec.structs.replace(
            found, num_solved=solved, num_equal=equal, num_better=better, packing=packing, shared=shared
        )
    statements = pipelining.statements_on(found, chains, link)
    return msgspec.structs.replace(found, statements=statements, took_seconds=time.monotonic() - started)


def _pipeline_chains(
    graphs: Sequence[str | Path], networks: Sequence[str], device: str, show: ShareProgress
) -> dict[str, PipelineChain]:
    """Profiles by the name of their folder, or standard networks predicted for a device."""
    if graphs:
        named = [(Path(graph).parent.name or Path(graph).stem, graph) for graph in graphs]
        return {name: pipeline_chain(str(graph)) for name, graph in named}
    from memfit.reproduce.offloading import networks_called

    _require_rates(device)
    chains = {}
    for name, settings in networks_called(networks).items():
        show(f"predicting {name}", 0.2 * len(chains) / 4)
        chains[name] = pipeline_chain(name, settings=tuple(settings), device=device)
    return chains


def beside_published(study: Study) -> Rerun | None:
    """The published trials beside those of a study that runs them again; None for any other study."""
    from memfit.reproduce.hyperparameters.rerun import published_data, rerun_of

    return rerun_of(study) if published_data(study) else None


@checked_options
def write_reproduction(
    found: OffloadingExperiment | EdgeTables | HyperparameterTrials | OptimizerResult | PipeliningResult,
    folder: str | Path,
) -> tuple[Path, ...]:
    """Write a result into a folder: the record, its tables and, where it has any, its curves as PNG and SVG."""
    from memfit.records.reproduction import (
        EdgeTables,
        HyperparameterTrials,
        OffloadingExperiment,
        OptimizerResult,
    )
    from memfit.show.export.reproduction_files import write_tables

    written = write_tables(found, folder)
    if isinstance(found, OptimizerResult):
        from memfit.show.figures.optimizers import draw_optimizers

        return (*written, *draw_optimizers(found, folder))
    if isinstance(found, (EdgeTables, OffloadingExperiment)):
        from memfit.show.figures.reproduction import draw_edge, draw_offloading

        curves = draw_edge(found, folder) if isinstance(found, EdgeTables) else draw_offloading(found, folder)
        return (*written, *curves)
    if isinstance(found, HyperparameterTrials):
        from memfit.show.figures.reproduction import draw_hyperparameters

        return (*written, *draw_hyperparameters(found, folder))
    return written
