"""Process of one rank of `memfit pipeline --run`; also started by `torchrun`.

    torchrun --nproc-per-node 4 -m memfit.api.torch_pipeline_worker FOLDER

FOLDER holds order.json; what the rank found is left there as rank-R.json, and rank-R.step while it runs. Everything
that a run needs of torchrun are its variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec

from memfit.apply.pipeline.rank import PipelineRank
from memfit.errors import UsageError
from memfit.profile.pipeline.chain import refuse_other_steps
from memfit.records.pipeline import PipelineOrder, RankResult


def main() -> None:
    """Run the part of this rank."""
    folder = Path(sys.argv[1])
    order = msgspec.json.decode((folder / "order.json").read_bytes(), type=PipelineOrder)
    rank = int(os.environ["RANK"])
    if int(os.environ["WORLD_SIZE"]) != order.num_ranks:
        found = f"{os.environ['WORLD_SIZE']} processes, {order.num_ranks} ranks in {folder / 'order.json'}"
        raise UsageError("a pipeline has one process for each rank", found=found, hint="torchrun --nproc-per-node")
    run_rank(order, rank, folder)


def run_rank(order: PipelineOrder, rank: int, folder: Path) -> None:
    """Build the job, keep this rank's stages, make the steps; a prediction counts tensors itself."""
    import torch
    import torch.distributed as distributed

    if order.device.startswith("cuda"):
        number = int(os.environ.get("LOCAL_RANK", "0"))
        torch.cuda.set_device(number)
        order = msgspec.structs.replace(order, device=f"cuda:{number}")
    distributed.init_process_group("nccl" if order.device.startswith("cuda") else "gloo")
    worker = make_rank(order, rank)
    if distributed.get_backend() == "fake":
        for _ in range(order.num_steps):
            worker.step()
        return
    result = _measured(worker, order, rank, folder)
    (folder / f"rank-{rank}.json").write_bytes(msgspec.json.encode(result))
    distributed.destroy_process_group()


def make_rank(order: PipelineOrder, rank: int) -> PipelineRank:
    """The job of the order, cut."""
    import torch

    from memfit.job.description import describe_job
    from memfit.job.load import build_job
    from memfit.job.training import as_training

    torch.manual_seed(0)  # every rank builds the same model and batch
    job = describe_job(order.target, dict(order.settings), ())
    training = as_training(build_job(job, order.device), order.target)
    if training.model is None or training.optimizer is None or training.loss is None:
        raise UsageError("a pipeline needs a model, an optimizer and a loss", hint="return all four with the batch")
    refuse_other_steps(training)
    return PipelineRank(training.model, training.optimizer, training.loss, training.batch, order, rank)


def _measured(worker: PipelineRank, order: PipelineOrder, rank: int, folder: Path) -> RankResult:
    import torch

    from memfit.measure.in_process import load_inside

    load_inside()
    from memfit_inside.ledger.torch_tensor_peak import TensorWatch  # type: ignore[import-not-found]

    seconds, losses = [], []

    def keep_gradients() -> None:
        torch.save(worker.gradients(), folder / f"gradients-{rank}.pt")

    with TensorWatch() as watch:
        for step in range(1, order.num_steps + 1):
            (folder / f"rank-{rank}.step").write_text(str(step))
            started = time.perf_counter()
            found = worker.step(keep_gradients if order.keep_gradients and step == 1 else None)
            seconds.append(time.perf_counter() - started)
            losses.append(sum(found) / len(found) if found else float("nan"))
    peak = watch.peak(order.device)
    has_losses = order.num_stages - 1 in order.stages_of(rank)
    return RankResult(
        rank=rank, peak_bytes=peak.peak_bytes, step_seconds=tuple(seconds), losses=tuple(losses) if has_losses else ()
    )


if __name__ == "__main__":
    main()
