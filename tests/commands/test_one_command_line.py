"""Is there one command line: verbs by question, one spelling for one thing, options where one looks for them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from memfit.commands import QUESTIONS, VERBS, cli, main

MEANINGS = {
    "-o --output": "where it writes",
    "-f --force": "replace what is there",
    "-q --quiet": "say less",
    "--json": "print the record",
    "--set": "a setting of the workload",
    "--device": "the kind of device",
    "--gpu": "the number of a GPU in a file",
    "--memory": "what the device has",
    "--limit": "above this a running job is ended",
    "--budget": "what a plan may take",
    "--timeout": "give up after this long",
    "--time": "start nothing new after this long",
    "--trial-time": "end one trial after this long",
    "--for": "watch for this long",
    "--grace": "time between two signals",
    "--interval": "time between samples",
    "--steps": "optimizer steps",
    "--trials": "how many points",
    "--part": "parts of a published result",
    "--random": "how many new points of published ranges",
    "--repeat": "how often each is run",
    "--concurrency": "how many at a time",
    "--ranks": "how many ranks",
    "--rank": "which of them",
    "--threads": "how many threads",
    "--points": "how many budgets of a curve",
    "--seed": "of random choices",
    "--alloc-conf": "settings of the CUDA allocator",
    "--malloc": "settings of the C heap",
    "--stable": "pin the C heap of a measured job",
    "--ledger": "trace the tensors of some steps",
    "--ledger-every": "trace the tensors of every K-th step",
    "--no-marks": "put nothing into the job",
    "--no-report": "no page after a run",
    "--no-figures": "no figures after a study",
    "--no-probes": "run no operator",
    "--no-predict": "reject no point by prediction",
    "--assume-watts": "power of a machine without counters",
    "--allow-real": "run this operator",
    "--unknown-is": "an unknown boolean",
    "--answer": "an unknown value at one place",
    "--sweep": "over one setting",
    "--fit-batch": "the largest batch",
    "--lengths": "over the lengths of the data",
    "--shard": "what ranks divide",
    "--routing": "where tokens go",
    "--engine": "how it is predicted",
    "--show-output": "let the job's output through",
    "--html": "a page",
    "--png": "a PNG picture",
    "--svg": "an SVG picture",
    "--over": "a second run",
    "--predicted": "a prediction to draw",
    "--open": "open the page",
    "--port": "where a server listens",
    "--host": "the address a server listens on",
    "--token-file": "where a server keeps its token",
    "--resume": "go on with interrupted repeats",
    "--fail-above": "exit code 1 above this",
    "--to": "the format",
    "--table": "one table of many",
    "--curve": "a trial whose results are drawn by themselves",
    "--beside": "a trace to add to",
    "--trial": "one trial of a study",
    "--disk": "a folder to move tensors to",
    "--optimizer": "a row of a grid",
    "--technique": "a column of a grid",
    "--base": "the row of where the user is",
    "--measure": "cells are trained as well",
    "--epoch-steps": "the length of an epoch",
    "--batch-size": "examples of a step",
    "--length": "tokens of an example",
    "--train-length": "tokens of an example that is trained here",
    "--layers": "layers of the network that is trained here",
    "--planner": "who plans",
    "--accumulate": "gradients add up",
    "--allow": "a lever that may be pulled",
    "--plan": "a plan to reuse",
    "--dry-run": "stop when planned",
    "--space": "the search space",
    "--tuner": "who chooses points",
    "--pareto": "memory is an objective",
    "--metric": "what is optimised",
    "--maximize": "more is better",
    "--minimize": "less is better",
    "--storage": "the database",
    "--on": "the cluster",
    "--partition": "partition or queue of jobs",
    "--account": "who pays for jobs",
    "--gpus": "GPUs of a job",
    "--cpus": "cores of a job",
    "--job-memory": "memory of a job",
    "--job-time": "how long a job may run",
    "--interface": "network of a cluster",
    "--job-option": "a line for the batch system",
    "--env": "a variable for trials",
    "--now": "end what runs",
    "--profile": "a torch.profiler trace",
    "--name": "what to call it",
    "--quantity": "what is explained",
    "--network": "which network",
    "--bandwidth": "bytes per second of a link to the host",
    "--data": "which data set",
    "--squad": "where the questions lie",
    "--whole": "all published epochs",
    "--link-mbit": "speed of a link",
    "--link-watts": "power of a link",
    "--device-gflops": "speed of a device",
    "--device-watts": "power of a device",
    "--images-per-day": "how many images",
    "--image-size": "bytes of an image",
    "--passes": "over a day's images",
    "--link": "speed between ranks",
    "--graph": "a profile of layers",
    "--latency": "what a transfer takes at least",
    "--full-duplex": "a link carries both ways at once",
    "--micro-batches": "parts of a batch in a pipeline",
    "--run": "a plan is carried out here",
    "--schedule": "the order of forwards and backwards",
    "--explain": "a cut of the user's",
    "--recompute": "stages may recompute",
    "--host-link": "stages may move to the host",
    "--weights": "versions of the weights",
    "--optimizer-copies": "values per parameter",
    "--cuts": "where a profile may be cut",
    "--count-in-place": "in-place outputs count again",
    "--runtime": "whose transfer buffers",
    "--from": "files of one's own",
    "--check": "read every file",
}
"""Every option of every verb, and what it means; a new option is entered here, beside what there is already."""
OWN_HELP = {
    "-o --output", "--device", "--memory", "--limit", "--steps", "--repeat", "--seed", "--alloc-conf", "--interval",
    "--ranks", "--planner", "--open", "--trial", "--measure", "--epoch-steps", "--threads",
}  # fmt: skip
"""Shared options that say in each verb what they do there."""
FIRST, LAST = ["-o --output", "-f --force"], ["-q --quiet", "--json"]


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every verb and every verb below it, by its path."""
    context = click.Context(cli)
    waiting = [(verb, cli.get_command(context, verb)) for verb in VERBS]
    for path, command in waiting:
        assert command is not None
        yield path, command
        if isinstance(command, click.Group):
            waiting += [(f"{path} {name}", below) for name, below in command.commands.items()]


def options_of(command: click.Command) -> list[click.Option]:
    return [each for each in command.params if isinstance(each, click.Option) and not each.hidden]


def spelling(option: click.Option) -> str:
    return " ".join(option.opts)


PATHS = dict(commands())


def test_every_option_is_known_and_one_thing_has_one_spelling():
    used = {spelling(option) for command in PATHS.values() for option in options_of(command)}
    assert used == set(MEANINGS)
    assert [meaning for meaning, count in Counter(MEANINGS.values()).items() if count > 1] == []


def test_an_option_that_several_verbs_share_has_one_form():
    seen: dict[str, tuple[str, tuple[object, ...], str]] = {}
    for path, command in PATHS.items():
        context = click.Context(command)
        for option in options_of(command):
            name = spelling(option)
            form = (option.is_flag, option.make_metavar(context) if not option.is_flag else "")
            first, known, text = seen.setdefault(name, (path, form, option.help or ""))
            assert form == known, f"{name} is {form} in {path} and {known} in {first}"
            if name not in OWN_HELP and "such as" not in text:
                assert option.help == text, f"{name} says something else in {path} than in {first}"


@pytest.mark.parametrize("path", PATHS)
def test_options_stand_where_one_looks_for_them(path: str):
    names = [spelling(option) for option in options_of(PATHS[path])]
    first, last = [name for name in FIRST if name in names], [name for name in LAST if name in names]
    assert names[: len(first)] == first
    assert names[len(names) - len(last) :] == last


@pytest.mark.parametrize("path", PATHS)
def test_help_is_a_sentence_that_gives_defaults_in_brackets(path: str):
    for option in options_of(PATHS[path]):
        text = option.help or ""
        assert text[:1].isupper() or text[:1].isdigit(), f"{spelling(option)}: {text}"
        assert text.endswith("."), f"{spelling(option)}: {text}"
        assert "Default" not in text, f"{spelling(option)}: write [default: ...]"
    assert (PATHS[path].help or "").strip()


def test_the_overview_groups_the_verbs_by_question_and_fits_a_terminal():
    shown = CliRunner().invoke(cli, ["--help"], terminal_width=80).output
    places = [shown.index(f"{question}:") for question in QUESTIONS]
    assert places == sorted(places)
    for verb, line in VERBS.items():
        assert f"  {verb.ljust(10)}  {line}\n" in shown


def test_alone_it_shows_a_quick_start_of_six_lines_that_fit_a_terminal():
    shown = CliRunner().invoke(cli, [])
    assert shown.exit_code == 0
    lines = shown.output.splitlines()
    assert len(lines) == 6
    assert max(map(len, lines)) < 80
    assert {line.split()[1] for line in lines[:-1]} <= set(VERBS)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["predict", "train.py", "--budget", "1GiB"], "there is no option '--budget'; here it is --memory"),
        (["fit", "train.py", "--memory", "1GiB"], "there is no option '--memory'; here it is --budget"),
        (["predict", "train.py", "--batch-size", "64"], "memfit predict train.py -- --batch-size ..."),
    ],
)
def test_an_option_of_another_verb_or_of_the_script_is_answered_with_what_was_meant(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
