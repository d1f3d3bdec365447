"""Files of a pipeline plan: the record, and layouts that torch, Megatron, torchtitan and DeepSpeed read.

A format that cannot say what the plan says is left out, and layouts.txt says why.
"""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import msgspec

from memfit.errors import StorageError
from memfit.records.pipeline import PipelineOrder, PipelinePlan, PipelineStage, encode_pipeline
from memfit.show.new_file import write_bytes
from memfit.show.terminal.pipeline import pipeline_text

TEXT_WIDTH = 120
EMBEDDING = re.compile(r"(^|[._ ])(tok|wte|emb)|embed", re.IGNORECASE)
HEAD = re.compile(r"head|classifier|loss|logits|output|(^|[._ ])fc\b", re.IGNORECASE)


def write_layouts(plan: PipelinePlan, folder: Path) -> tuple[Path, ...]:
    """Write the record and every layout that can say it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder} cannot be made", found=str(error), hint="another -o") from None
    contents = {
        "plan.json": encode_pipeline(plan),
        "plan.txt": pipeline_text(plan, width=TEXT_WIDTH).encode(),
        "layouts.txt": layouts_text(plan).encode(),
    }
    modules = torchtitan_modules(plan)
    if not why_not_torch(plan):
        contents["torch_schedule.csv"] = torch_csv(plan).encode()
        if modules is not None:
            contents["torchtitan_modules.json"] = json.dumps(modules, indent=1).encode()
    if not why_not_deepspeed(plan):
        contents["deepspeed_parts.json"] = json.dumps(deepspeed_parts(plan)).encode()
    return tuple(write_bytes(folder / name, content) for name, content in contents.items())


def write_order(order: PipelineOrder, folder: Path) -> Path:
    """What every rank is to do, as `torchrun -m memfit.api.torch_pipeline_worker FOLDER` reads it."""
    return write_bytes(folder / "order.json", msgspec.json.format(msgspec.json.encode(order), indent=1))


def torch_csv(plan: PipelinePlan) -> str:
    """One row per rank, one cell per action, as the schedule loader of torch.distributed.pipelining reads them."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(plan.cut.orders)
    return text.getvalue()


def deepspeed_parts(plan: PipelinePlan) -> list[int]:
    """Where each stage begins, and the number of layers at the end."""
    return [0, *(stage.last_layer + 1 for stage in plan.cut.stages)]


def torchtitan_modules(plan: PipelinePlan) -> list[list[str]] | None:
    """Names of the modules of every stage; None where the chain came without a model."""
    found = [_modules(plan, stage) for stage in plan.cut.stages]
    return found if all(found) else None


def _modules(plan: PipelinePlan, stage: PipelineStage) -> list[str]:
    return [name for layer in plan.chain.layers[stage.first_layer : stage.last_layer + 1] for name in layer.modules]


def megatron_layout(plan: PipelinePlan) -> str:
    """One letter per layer, a bar between stages: E for an embedding in front, L for a head at the end, else t."""
    letters = [_letter(plan, index) for index in range(len(plan.chain.layers))]
    return "|".join(
        "".join(letters[stage.first_layer : stage.last_layer + 1]) for stage in plan.cut.stages
    )  # fmt: skip


def _letter(plan: PipelinePlan, index: int) -> str:
    name = plan.chain.layers[index].name
    if index == 0 and EMBEDDING.search(name):
        return "E"
    return "L" if index == len(plan.chain.layers) - 1 and HEAD.search(name) else "t"


# ---- what a format cannot say ----------------------------------------------------------------------------------


def why_not_torch(plan: PipelinePlan) -> str:
    """Why torch's schedules and torchtitan's lists cannot say a plan; empty where they can."""
    if any(stage.num_replicas > 1 for stage in plan.cut.stages):
        return "stages are replicated"
    return "ranks stay idle" if len({stage.rank for stage in plan.cut.stages}) < plan.cut.num_ranks else ""


def why_not_megatron(plan: PipelinePlan) -> str:
    """Why Megatron's string cannot: its stages lie on the ranks in a loop, equally many on each."""
    ranks = [stage.rank for stage in plan.cut.stages]
    is_loop = not len(ranks) % plan.cut.num_ranks and ranks == [n % plan.cut.num_ranks for n in range(len(ranks))]
    return why_not_torch(plan) or ("" if is_loop else f"the stages lie on ranks {ranks}, not in a loop")


def why_not_deepspeed(plan: PipelinePlan) -> str:
    """Why DeepSpeed's parts cannot: they are one stage for each rank."""
    ranks = [stage.rank for stage in plan.cut.stages]
    return why_not_torch(plan) or ("" if ranks == list(range(len(ranks))) else f"the stages lie on ranks {ranks}")


def layouts_text(plan: PipelinePlan) -> str:
    """All layouts in one file, with what a format cannot say."""
    modules = torchtitan_modules(plan)
    titan = "this chain has no module names" if modules is None else json.dumps(modules)
    said = {
        "Megatron  --pipeline-model-parallel-layout": (megatron_layout(plan), why_not_megatron(plan)),
        "DeepSpeed parts": (str(deepspeed_parts(plan)), why_not_deepspeed(plan)),
        "torchtitan module_fqns_per_model_part": (titan, why_not_torch(plan)),
        "torch.distributed.pipelining:": ("torch_schedule.csv, one row per rank", why_not_torch(plan)),
    }
    lines = [f"{name} {f'cannot say this plan: {why}' if why else text}" for name, (text, why) in said.items()]
    if any(stage.choice.name != "keep" for stage in plan.cut.stages):
        lines.append("recomputation inside stages is not part of these layouts: see plan.json")
    return "\n".join(lines) + "\n"
