"""Does the real TensorBoard read what is exported: every scalar to seven digits, every trial in HParams?"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from memfit import api
from memfit.records.run import RunRecord
from memfit.records.study import Study
from memfit.runfolder.reader import read_run
from memfit.show.export.formats import export
from memfit.show.export.tensorboard import METRIC_TAGS
from memfit.show.export.tensorboard_events import MOST_POINTS, masked_crc
from memfit.testing.made_records.runs import MadeRun, write_made_run
from memfit.testing.made_records.studies import made_study, write_made_study

pytest.importorskip("tensorboard", reason="tensorboard is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")

DIGITS = 2**-23
"""What 32 bits keep."""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("studies") / "mine"
    write_made_study(folder, made_study(30))
    return api.read_study(folder)


@pytest.fixture(scope="module")
def exported(study: Study) -> Path:
    trace = Path(study.folder, "trials", "00003", "tensorboard", "host.1.pt.trace.json")
    trace.parent.mkdir(parents=True)
    trace.write_text("{}")
    api.export_record(study, "tensorboard")
    return Path(study.folder, "trials")


def scalars_in(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar of a run folder, as TensorBoard itself reads it."""
    from tensorboard.backend.event_processing import event_accumulator  # pyright: ignore[reportMissingImports]
    from tensorboard.util import tensor_util  # pyright: ignore[reportMissingImports]

    found = event_accumulator.EventAccumulator(str(folder), size_guidance={"tensors": 0})
    found.Reload()
    tags = [tag for tag in found.Tags()["tensors"] if not tag.startswith("_hparams_")]
    return {
        tag: [(e.step, float(tensor_util.make_ndarray(e.tensor_proto))) for e in found.Tensors(tag)] for tag in tags
    }


def test_the_scalars_of_a_trial_come_back(study: Study, exported: Path):
    for trial in study.trials:
        found = scalars_in(exported / f"{trial.number:05d}" / "tensorboard")
        assert [step for step, _ in found.get("intermediate", [])] == [each.sequence for each in trial.intermediates]
        values = [value for _, value in found.get("intermediate", [])]
        assert values == pytest.approx([each.value for each in trial.intermediates], rel=DIGITS)
        assert found["memory/peak_bytes"] == [(0, pytest.approx(trial.peak.value, rel=DIGITS))]
        assert ("metric" in found) == (trial.metric is not None)
        assert "energy/joules" not in found  # it was not measured: left out, never zero


def hparams_of(folder: Path) -> Any:
    """TensorBoard's own answer to the question of its HParams page."""
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer  # pyright: ignore
    from tensorboard.context import RequestContext  # pyright: ignore[reportMissingImports]
    from tensorboard.plugins import base_plugin  # pyright: ignore[reportMissingImports]
    from tensorboard.plugins.hparams import (  # pyright: ignore[reportMissingImports]
        backend_context,
        list_session_groups,
    )

    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(folder))
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(folder))
    context = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    ctx = RequestContext()
    metadata = context.hparams_metadata(ctx, "")
    experiment = context.experiment_from_metadata(
        ctx, "", False, metadata, provider.list_hyperparameters(ctx, experiment_ids=[""])
    )
    request = import_module("tensorboard.plugins.hparams.api_pb2").ListSessionGroupsRequest(
        slice_size=1000, start_index=0
    )
    request.allowed_statuses.extend([0, 1, 2, 3])
    for tag in METRIC_TAGS:
        request.col_params.add().metric.tag = tag
    groups = list_session_groups.Handler(ctx, context, "", request).run()
    return experiment, groups


def test_hparams_finds_every_trial_with_its_hyperparameters_metrics_and_outcome(study: Study, exported: Path):
    experiment, groups = hparams_of(exported)
    names = {info.name for info in experiment.hparam_infos}
    assert names == {"lr", "batch_size", "hidden", "layers", "optimizer", "optimizer/sgd/momentum", "activation"}
    domains = {info.name: [v.number_value or v.string_value for v in info.domain_discrete.values]
               for info in experiment.hparam_infos}  # fmt: skip
    assert domains["hidden"] == [8, 16, 64, 100, 256, 1024]
    assert domains["optimizer"] == ["sgd", "adam"]
    assert groups.total_size == len(study.trials)
    by_name = {group.name: group for group in groups.session_groups}
    for trial in study.trials:
        group = by_name[f"trial {trial.number}"]
        found = {
            name: v.number_value if v.HasField("number_value") else v.string_value for name, v in group.hparams.items()
        }
        assert found == pytest.approx(trial.flat_parameters)
        metrics = {value.name.tag: value.value for value in group.metric_values}
        assert metrics["memory/peak_bytes"] == pytest.approx(trial.peak.value, rel=DIGITS)
        assert metrics.get("metric", -1.0) == pytest.approx(-1.0 if trial.metric is None else trial.metric, rel=DIGITS)
        is_good = trial.kind in ("done", "stopped early")
        assert group.sessions[0].status == (1 if is_good else 2)


def test_the_fast_loader_that_tensorboard_uses_by_default_finds_every_scalar(study: Study, exported: Path):
    ingester = import_module("tensorboard.data.server_ingester")
    binary = pytest.importorskip("tensorboard_data_server").server_binary()
    if binary is None:
        pytest.skip("this platform has no fast loader")
    credentials = import_module("tensorboard.util.grpc_util").ChannelCredsType.LOCAL
    started = ingester.SubprocessServerDataIngester(
        server_binary=ingester.ServerBinary(binary, None), logdir=str(exported), reload_interval=0,
        channel_creds_type=credentials,
    )  # fmt: skip
    before = set(psutil.Process().children())
    started.start()
    try:
        context = import_module("tensorboard.context").RequestContext()
        found = started.data_provider.list_scalars(context, experiment_id="", plugin_name="scalars")
    finally:
        started._stdin_handle.close()  # the loader ends with its standard input
        _, left = psutil.wait_procs(set(psutil.Process().children()) - before, timeout=20)
    assert not left
    assert {run: set(tags) for run, tags in found.items()} == {
        f"{trial.number:05d}/tensorboard": set(scalars_in(exported / f"{trial.number:05d}" / "tensorboard"))
        for trial in study.trials
    }


def test_profiler_traces_are_left_where_they_are_and_exporting_again_adds_no_file(study: Study, exported: Path):
    before = sorted(path for path in exported.rglob("*") if path.is_file())
    api.export_record(study, "tensorboard")
    assert sorted(path for path in exported.rglob("*") if path.is_file()) == before
    beside = {path.name.split(".")[0] for path in (exported / "00003" / "tensorboard").iterdir()}
    assert beside == {"host", "events"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return read_run(write_made_run(tmp_path_factory.mktemp("run"), MadeRun(gpu=True, seconds=30.0)))


def test_the_timeline_of_a_run_keeps_its_peak_and_fits_into_what_tensorboard_keeps(run: RunRecord, tmp_path: Path):
    (path,) = export(run, "tensorboard", tmp_path / "events")
    found = scalars_in(path.parent)
    assert len(run.tree.time_seconds) > MOST_POINTS
    assert all(len(points) <= MOST_POINTS + 2 for points in found.values())
    assert max(value for _, value in found["timeline/job_bytes"]) == pytest.approx(
        run.tree.tree_bytes.max(), rel=DIGITS
    )
    assert max(value for _, value in found["steps/peak_bytes"]) == pytest.approx(
        np.nanmax(run.steps.peak_bytes), rel=DIGITS
    )
    assert any(tag.startswith("timeline/gpu_") for tag in found)


def test_the_checksum_is_the_one_that_tensorboard_computes():
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c  # pyright: ignore

    for data in (b"", b"123456789", bytes(range(256)) * 3):
        assert masked_crc(data) == masked_crc32c(data)
