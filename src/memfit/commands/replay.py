"""memfit replay: what a CUDA memory snapshot recorded, and what other allocator settings would have given."""

from __future__ import annotations

from pathlib import Path

import click

from memfit import api
from memfit.commands.shared.options import BYTES, json_option
from memfit.commands.shared.output import write_record


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("snapshot", type=click.Path(path_type=Path))
@click.option("--gpu", type=int, metavar="N", help="Which GPU [default: the one that ran out, or has most events].")
@click.option("--device", "former_gpu", type=int, hidden=True)
@click.option(
    "--alloc-conf",
    "settings",
    multiple=True,
    metavar="TEXT",
    help="Also try these settings, written as for PYTORCH_ALLOC_CONF; repeatable.",
)
@click.option("--memory", type=BYTES, metavar="SIZE", help="Memory of the GPU on which the other settings are tried.")
@json_option
def command(
    snapshot: Path,
    gpu: int | None,
    former_gpu: int | None,
    settings: tuple[str, ...],
    memory: int | None,
    as_json: bool,
) -> None:
    """Replay a CUDA memory snapshot, as torch.cuda.memory._dump_snapshot writes it (also .gz or .xz).

    Nothing in the file is run. No GPU and no torch are needed.

    \b
    Examples:
      memfit replay snapshot.pickle
      memfit replay snapshot.pickle --alloc-conf expandable_segments:True,max_split_size_mb:256
      memfit replay snapshot.pickle --memory 24GiB --json
    """
    from memfit.show.terminal.replay import replay_text

    chosen = former_gpu if gpu is None else gpu
    found = api.replay_snapshot(snapshot, device=chosen, settings=settings, memory_bytes=memory)
    write_record(found, lambda width, color: replay_text(found, width=width, color=color), as_json=as_json)
