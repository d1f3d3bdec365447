"""memfit show: the memory of one measured run, in the terminal, as a page or as pictures."""

from __future__ import annotations

from pathlib import Path

import click

from memfit import api
from memfit.commands.measure import print_run
from memfit.commands.shared.options import force_option, html_option, json_option


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run", type=click.Path(path_type=Path))
@force_option
@html_option
@click.option("--png", type=click.Path(path_type=Path), help="Write the timeline as a PNG picture.")
@click.option("--svg", type=click.Path(path_type=Path), help="Write the timeline as an SVG picture.")
@click.option(
    "--over", metavar="RUN", type=click.Path(path_type=Path), help="Lay this second run over the first (page)."
)
@click.option(
    "--predicted", metavar="FILE", type=click.Path(path_type=Path), help="Lay a prediction (predict --json) over it."
)
@click.option("--open", "open_page", is_flag=True, help="Open the page in a browser; without --html, RUN/report.html.")
@json_option
def command(
    run: Path, html: Path | None, png: Path | None, svg: Path | None, over: Path | None, predicted: Path | None,
    open_page: bool, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Show a run: a summary, or a page and pictures; of a study's folder, the table of its trials.

    \b
    Examples:
      memfit show runs/train-1
      memfit show runs/train-1 --html report.html --png timeline.png
      memfit show runs/train-1 --predicted prediction.json --png both.png
      memfit show runs/train-1 --json
    """
    if api.is_study(run):
        _show_study(run, as_json, asked=bool(html or png or svg or over or predicted or open_page))
        return
    if open_page and html is None:
        html, force = run / "report.html", True
    if over is not None and html is None:
        raise click.UsageError("--over is drawn in the page: give --html PATH as well")
    wanted = html is not None or png is not None or svg is not None
    if predicted is not None and not wanted:
        raise click.UsageError("--predicted is drawn: give --html, --png or --svg as well")
    explained = api.explain_run(api.read_run(run))
    written = ()
    if wanted:
        second = api.read_run(over) if over is not None else None
        prediction = api.read_prediction(predicted) if predicted is not None else None
        written = api.write_report(
            explained, html=html, png=png, svg=svg, over=second, prediction=prediction, overwrite=force
        )
    if as_json or not wanted:
        print_run(explained, as_json=as_json)
    else:
        for path in written:
            click.echo(f"wrote {path}")
    if open_page and html is not None:
        click.launch(str(html.resolve()))


def _show_study(folder: Path, as_json: bool, *, asked: bool) -> None:
    from memfit.commands.study import print_study

    if asked:
        raise click.UsageError("pages and pictures are of one run: give one of the study's trials/NUMBER/run")
    print_study(api.read_study(folder), as_json)
