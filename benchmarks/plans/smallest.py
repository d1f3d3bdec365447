"""The smallest budget each model can be fitted into, as a share of its plain peak, and what fitting itself costs.

    python -m benchmarks.plans.smallest [NAME ...] [--publish docs/fit.md]

Each model is run in a process of its own, under a counter that is preloaded below torch's allocator and knows nothing
of memfit (`peers_counter.c`). The plain peak is counted over two steps of training with AdamW. Then `fit_to_budget` is
asked for a quarter of it, and for the budget that the refusal names: once with plans of whole blocks alone
(`planner="nested"`), once with everything (`planner="best"`), once with a folder to move tensors to as well. Peaks of
the fitted model, and the most that fitting itself held, are counted; gradients and weights are compared by digests; the
seconds of fitting are divided by those of a plain step, forward and backward. Seconds are those of the processor, of
one thread, so that other programs of the machine count little.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.plans.execution_results import publish
from benchmarks.plans.peers_count import PRELOAD, counter_library
from memfit.units import format_bytes

KEPT = Path("benchmark-results/smallest")
BEGIN, END = "<!-- smallest: begin -->", "<!-- smallest: end -->"
ASKED = 4
"""The first budget is the plain peak divided by this."""
WAYS = {"blocks": "nested", "all": "best", "folder": "best"}


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One model with one set of planners."""

    named_bytes: int | None
    """The smallest budget."""
    counted_bytes: int | None = None
    """What the fitted model takes, by the counter."""
    solver: str = ""
    slowdown: float = 0.0
    equal: bool | None = None
    fitting_bytes: int | None = None
    fitting_steps: float = 0.0
    """Seconds of one fit over those of a plain step."""
    failure: str = ""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """One model."""

    name: str
    what: str
    plain_bytes: int
    plain_seconds: float
    ways: dict[str, Found]


def main() -> None:
    """Run each model in a process of its own, keep, print, publish."""
    options = _options()
    if options.child:
        _keep(_examine(options.child))
        return
    from benchmarks.plans.smallest_torch import MODELS

    library = counter_library()
    if library is None and options.names != ["-"]:
        raise SystemExit("there is no C compiler (cc), and without one no counter below torch's allocator")
    for name in [] if options.names == ["-"] else options.names or list(MODELS):
        command = [sys.executable, "-m", "benchmarks.plans.smallest", "--child", name]
        done = subprocess.run(command, env={**os.environ, PRELOAD: str(library)}, capture_output=True, text=True)
        print(f"{name}: {'done' if done.returncode == 0 else done.stderr[-600:]}", flush=True)
    page = table([found for name in MODELS if (found := _kept(name)) is not None])
    print(page)
    if options.publish is not None:
        publish(options.publish, page, BEGIN, END)


# ---- one model, in a process with the counter ------------------------------------------------------------------------


def _examine(name: str) -> Results:
    import warnings

    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    counter = ctypes.CDLL(os.environ[PRELOAD])
    counter.counted_live.restype = counter.counted_peak.restype = ctypes.c_long
    gc.collect()
    base_bytes = counter.counted_live()
    step, optimizer = _built(name)
    digests, peak_bytes = _train(counter, step, optimizer)
    seconds = min(_seconds(step.run) for _ in range(5))
    what, plain_bytes = step.what, peak_bytes - base_bytes
    del step, optimizer
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KEPT.parent) as folder:
        ways = {
            way: _smallest(counter, name, planner, folder if way == "folder" else None, plain_bytes, digests, seconds)
            for way, planner in WAYS.items()
        }
    return Results(name=name, what=what, plain_bytes=plain_bytes, plain_seconds=seconds, ways=ways)


def _smallest(
    counter: Any, name: str, planner: str, disk: str | None, plain_bytes: int, digests: list[str], seconds: float
) -> Found:
    import memfit
    from memfit.errors import DoesNotFit, MemfitError

    gc.collect()
    base_bytes = counter.counted_live()
    step, optimizer = _built(name)

    def fit(budget_bytes: int) -> Any:
        given = step.model, step.batch, step.loss, optimizer
        return memfit.fit_to_budget(*given, budget=budget_bytes, planner=planner, disk=disk)

    try:
        try:
            fit(plain_bytes // ASKED).undo()
            named_bytes = plain_bytes // ASKED
        except DoesNotFit as refusal:
            named_bytes = refusal.needed_bytes or plain_bytes
        counter.counted_reset()
        begin = time.process_time()
        fitted = fit(named_bytes)
        taken = time.process_time() - begin
    except MemfitError as error:
        return Found(named_bytes=None, failure=str(error).splitlines()[0])
    fitting_bytes = counter.counted_peak() - base_bytes
    found, peak_bytes = _train(counter, step, optimizer)
    return Found(
        named_bytes=named_bytes,
        counted_bytes=peak_bytes - base_bytes,
        solver=fitted.plan.solver,
        slowdown=min(_seconds(step.run) for _ in range(5)) / seconds,
        equal=found == digests,
        fitting_bytes=fitting_bytes,
        fitting_steps=taken / seconds,
    )


def _built(name: str) -> tuple[Any, Any]:
    import torch

    from benchmarks.plans.smallest_torch import build

    step = build(name)
    step.model.train()
    return step, torch.optim.AdamW([p for p in step.model.parameters() if p.requires_grad], lr=1e-3)


def _train(counter: Any, step: Any, optimizer: Any) -> tuple[list[str], int]:
    """Digests of what two steps of training leave, and the most that was alive in them."""
    import torch

    torch.manual_seed(7)
    found: list[str] = []
    peak_bytes = 0
    for _ in range(2):
        step.model.zero_grad(set_to_none=True)
        gc.collect()
        counter.counted_reset()
        step.run()
        peak_bytes = max(peak_bytes, counter.counted_peak())
        found += [_digest(p.grad) for p in step.model.parameters()]
        counter.counted_reset()
        optimizer.step()
        peak_bytes = max(peak_bytes, counter.counted_peak())
    step.model.zero_grad(set_to_none=True)
    tensors = [*step.model.parameters(), *step.model.buffers(), torch.get_rng_state()]
    return [*found, *(_digest(tensor) for tensor in tensors)], peak_bytes


def _digest(tensor: Any) -> str:
    import torch

    if tensor is None:
        return ""
    return hashlib.sha256(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def _seconds(run: Any) -> float:
    begin = time.process_time()
    run()
    return time.process_time() - begin


# ---- keeping and printing ----------------------------------------------------------------------------------------


def _keep(found: Results) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{found.name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))


def _kept(name: str) -> Results | None:
    path = KEPT / f"{name}.json"
    return msgspec.json.decode(path.read_bytes(), type=Results) if path.exists() else None


def table(found: list[Results]) -> str:
    """Everything that is kept."""
    columns = ("model", "plain", "blocks alone", "slower", "with operators", "counted", "slower", "plan",
               "with a folder", "counted", "bit-equal", "fitting held", "fitting took, plain steps")  # fmt: skip
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cells(each)) + " |" for each in found]
    return "\n".join([*lines, "", *(f"- {each.name}: {each.what}" for each in found)]) + "\n"


def _cells(each: Results) -> list[str]:
    blocks, best, moved = each.ways["blocks"], each.ways["all"], each.ways["folder"]

    def share(num_bytes: int | None) -> str:
        return "" if num_bytes is None else f"{num_bytes / each.plain_bytes:.2f}"

    first = [each.name, format_bytes(each.plain_bytes)]
    first += [share(blocks.named_bytes) or "none", f"{blocks.slowdown:.2f}" if blocks.named_bytes else ""]
    if best.named_bytes is None:
        return [*first, best.failure, *[""] * 8]
    equal = "yes" if all(way.equal for way in each.ways.values() if way.named_bytes is not None) else "**no**"
    return [
        *first, share(best.named_bytes), share(best.counted_bytes), f"{best.slowdown:.2f}", best.solver,
        share(moved.named_bytes), share(moved.counted_bytes), equal, share(best.fitting_bytes),
        f"{best.fitting_steps:.0f}",
    ]  # fmt: skip


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; all by default, none with '-'")
    parser.add_argument("--publish", type=Path, metavar="PAGE", help="put all results that are kept into this page")
    parser.add_argument("--child", metavar="NAME", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
