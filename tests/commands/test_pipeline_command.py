"""Does `memfit pipeline` plan, explain, export and refuse as a user needs it?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from memfit.commands import cli
from memfit.errors import BadQuantity, DoesNotFit, MemfitError, UsageError
from memfit.units import parse_speed

GRAPH = str(Path(__file__).parents[2] / "examples" / "pipeline" / "graph.txt")
BASE = ["pipeline", GRAPH, "--ranks", "4", "--link", "12GB/s"]


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words), catch_exceptions=True)


def error_of(*words: str) -> MemfitError:
    error = run(*words).exception
    assert isinstance(error, MemfitError), error
    return error


def test_the_plan_names_ranks_causes_and_the_reason():
    shown = run(*BASE, "--memory", "2GiB")
    assert shown.exit_code == 0, shown.output
    for words in ("Memory of every rank", "activations in flight", "keeps", "Other cuts", "PipeDream straight"):
        assert words in shown.output


def test_json_is_the_record_and_every_rank_fits():
    plan = json.loads(run(*BASE, "--memory", "2GiB", "--json").output)
    assert plan["format"] == "memfit-pipeline"
    assert len(plan["ranks"]) == 4
    assert all(sum(part["num_bytes"] for part in rank["parts"]) <= 2 * 2**30 for rank in plan["ranks"])


def test_when_nothing_fits_the_exit_code_is_3_and_the_hint_is_enough():
    refused = error_of(*BASE, "--memory", "300MiB")
    assert isinstance(refused, DoesNotFit)
    assert refused.exit_code == 3
    memory = refused.hint.split("--memory ")[1].split(",")[0]
    assert run(*BASE, "--memory", memory).exit_code == 0


def test_a_layout_is_explained_and_one_that_does_not_fit_ends_with_3():
    fits = run(*BASE, "--memory", "8GiB", "--explain", "0,5,11,16,22")
    assert fits.exit_code == 0
    assert "your layout, 1f1b" in " ".join(fits.output.split())
    assert isinstance(run(*BASE, "--memory", "1GiB", "--explain", "0,5,11,16,22").exception, DoesNotFit)


@pytest.mark.parametrize("layout", ["5x6x5x6", "t*5|t*6|t*5|t*6", "Etttt|tttttt|ttttt|tttttL"])
def test_layouts_of_three_kinds_say_the_same(layout: str):
    expected = json.loads(run(*BASE, "--memory", "8GiB", "--explain", "0,5,11,16,22", "--json").output)
    found = json.loads(run(*BASE, "--memory", "8GiB", "--explain", layout, "--json").output)
    assert found["cut"] == expected["cut"]


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("0,5,11,16,21", "rise from 0 to the 22 layers"),
        ("0,5,5,16,22", "rise from 0 to the 22 layers"),
        ("5x6x5x5", "does not cover the chain"),
        ("Ett|(tt|)*6mL", "does not cover the chain"),
        ("0,11,22", "needs 4 stages"),
        ("whatever", "no layout"),
    ],
)
def test_a_layout_that_drops_layers_is_refused(layout: str, words: str):
    refused = error_of(*BASE, "--memory", "8GiB", "--explain", layout)
    assert isinstance(refused, UsageError)
    assert words in str(refused)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--memory", "2GiB", "--ranks", "40"], "more ranks than pieces"),
        (["--memory", "2GiB", "--memory", "1GiB"], "one memory for all ranks, or one for each"),
        (["--memory", "2GiB", "--schedule", "1f1b", "--micro-batches", "3"], "as many micro-batches as ranks"),
        (["--memory", "2GiB", "--set", "a=1"], "was measured already"),
        (["--memory", "2GiB", "--planner", "nobody"], "no such planner"),
        (["--memory", "2GiB", "--explain", "10x10x10x10", "--planner", "special"], "explained, not planned"),
        (["--memory", "2GiB", "--explain", "10x10x10x10", "--recompute"], "only where the exact planner"),
        (["--memory", "2GiB", "--planner", "special", "--host-link", "1GB/s"], "only where the exact planner"),
        (["--memory", "2GiB", "--planner", "equal layers", "--recompute"], "only where the exact planner"),
        (["--memory", "2GiB", "--schedule", "dualpipev", "--recompute"], "only where the exact planner"),
        (["--memory", "2GiB", "--planner", "joint", "--weights", "stash"], "one version of the weights"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(words: list[str], said: str):
    assert said in str(error_of(*BASE, *words))


@pytest.mark.parametrize("words", [["--optimizer-copies", "2"], ["--cuts", "all"], ["--count-in-place"]])
def test_options_of_a_profile_are_refused_for_a_training(words: list[str]):
    said = str(error_of("pipeline", "gpt", "--ranks", "2", "--link", "1GB/s", "--memory", "2GiB", *words))
    assert "these options are for a profile" in said
    assert words[0] in said


def test_stages_that_may_move_do_not_recompute_unless_they_may():
    plan = json.loads(run(*BASE, "--memory", "700MiB", "--host-link", "12GB/s", "--json").output)
    names = {stage["choice"].get("name", "keep") for stage in plan["cut"]["stages"]}
    assert any(name.startswith("move") for name in names)
    assert not any(name.startswith("recompute") for name in names)


def test_a_link_without_a_speed_is_refused():
    refused = error_of("pipeline", GRAPH, "--ranks", "2", "--memory", "2GiB", "--link", "12GB")
    assert isinstance(refused, BadQuantity)


@pytest.mark.parametrize(("text", "speed"), [("12GB/s", 12e9), ("100Gbit/s", 12.5e9), ("1 GiB/s", 2**30)])
def test_a_speed_is_in_bytes_or_bits_a_second(text: str, speed: float):
    assert parse_speed(text) == speed


def test_the_folder_holds_every_layout_and_the_picture(tmp_path: Path):
    done = run(*BASE, "--memory", "2GiB", "-o", str(tmp_path / "plan"))
    assert done.exit_code == 0, done.output
    plan = json.loads((tmp_path / "plan" / "plan.json").read_text())
    parts = json.loads((tmp_path / "plan" / "deepspeed_parts.json").read_text())
    assert parts == [0, *(stage["last_layer"] + 1 for stage in plan["cut"]["stages"])]
    rows = (tmp_path / "plan" / "torch_schedule.csv").read_text().splitlines()
    assert len(rows) == 4
    assert rows[0].startswith("0F0")
    assert "|" in (tmp_path / "plan" / "layouts.txt").read_text()
    again = run(*BASE, "--memory", "2GiB", "--explain", ",".join(map(str, parts)))
    assert again.exit_code in (0, 1), again.output
    pytest.importorskip("matplotlib")
    assert (tmp_path / "plan" / "schedule.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["--schedule", "1f1b"], []),
        (["--schedule", "interleaved-1f1b"], ["DeepSpeed"]),
        (["--schedule", "zbv-zero-bubble"], ["Megatron", "DeepSpeed"]),
        (["--planner", "PipeDream"], ["Megatron", "DeepSpeed", "torchtitan", "torch.distributed"]),
    ],
)
def test_a_layout_that_cannot_say_the_plan_is_not_written_and_the_text_says_why(
    words: list[str], missing: list[str], tmp_path: Path
):
    base = ["pipeline", GRAPH, "--ranks", "4", "--link", "1GB/s", "--memory", "64GiB"]
    done = run(*base, *words, "-o", str(tmp_path / "plan"))
    assert done.exit_code == 0, done.output
    lines = (tmp_path / "plan" / "layouts.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines if "cannot say" in line] == [
        line.split()[0] for line in lines if line.startswith(tuple(missing))
    ]
    written = {path.name for path in (tmp_path / "plan").iterdir()}
    assert ("deepspeed_parts.json" in written) == ("DeepSpeed" not in missing)
    assert ("torch_schedule.csv" in written) == ("torch.distributed" not in missing)


def test_ranks_of_different_memory_are_planned_in_their_order():
    sizes = [word for size in ("3GiB", "1GiB", "1GiB", "1GiB") for word in ("--memory", size)]
    plan = json.loads(run(*BASE, *sizes, "--json").output)
    totals = [sum(part["num_bytes"] for part in rank["parts"]) for rank in plan["ranks"]]
    assert totals[0] > 2**30
    assert max(totals[1:]) <= 2**30


def test_recomputing_inside_a_stage_is_faster_where_memory_is_short():
    kept = json.loads(run(*BASE, "--memory", "700MiB", "--json").output)
    plan = json.loads(run(*BASE, "--memory", "700MiB", "--recompute", "--json").output)
    assert any(stage["choice"].get("name", "keep") != "keep" for stage in plan["cut"]["stages"])
    assert plan["period_seconds"] < kept["period_seconds"]
