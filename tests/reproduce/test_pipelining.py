"""Are the statements on pipelining judged by what was run, and is the result shown and written?"""

from __future__ import annotations

from pathlib import Path

import pytest

from memfit import api
from memfit.records.pipeline import RankLink
from memfit.reproduce import pipelining
from memfit.show.terminal.reproduction import pipelining_text

GRAPH = Path(__file__).parents[2] / "examples" / "pipeline" / "graph.txt"


def nothing(what: str, share: float) -> None:
    """Progress that is not shown."""


def test_sizes_of_memory_all_have_a_plan_and_rise():
    chain = api.pipeline_chain(str(GRAPH))
    sizes = pipelining.memory_sizes(chain, 4, RankLink(bytes_per_second=12e9))
    assert sizes == sorted(sizes)
    rows = pipelining.compare_rules({"made": chain}, RankLink(bytes_per_second=12e9), nothing)
    assert len(rows) == 15
    assert all(row.exact_seconds is not None for row in rows)
    assert min(pipelining.ratios(rows, "blind_seconds")) >= 1 - 1e-9
    assert min(pipelining.ratios(rows, "rule_seconds")) >= 1 - 1e-9


def test_without_a_solver_its_statements_cannot_be_told():
    found = api.list_reproductions()[-1]
    assert found.name == "pipelining"
    chain = api.pipeline_chain(str(GRAPH))
    link = RankLink(bytes_per_second=12e9)
    result = pipelining.PipeliningResult(
        chains=("made",), comparisons=pipelining.compare_rules({"made": chain}, link, nothing)
    )
    verdicts = {each.says: each.verdict for each in pipelining.statements_on(result, {"made": chain}, link)}
    assert tuple(verdicts) == pipelining.SAID
    assert verdicts[pipelining.ILP_SAYS] == verdicts[pipelining.SHARED_SAYS] == "cannot tell"
    assert verdicts[pipelining.MEMORY_SAYS] == "holds"


@pytest.mark.parametrize("loads", pipelining.PACKING[:2])
def test_the_joint_program_packs_as_well_as_trying_all(loads: tuple[int, ...]):
    pytest.importorskip("scipy")
    joint, packed, contiguous = pipelining.solve_packing(loads)
    assert joint == pytest.approx(packed, rel=1e-5)
    assert contiguous >= packed


@pytest.mark.slow
def test_the_whole_result_is_written_with_every_statement(tmp_path: Path):
    pytest.importorskip("scipy")
    found = api.reproduce_pipelining(graphs=[GRAPH], num_random=8)
    assert {each.verdict for each in found.statements} <= {"holds", "does not hold"}
    text = pipelining_text(found, width=100)
    assert all(each.says.split(",")[0] in " ".join(text.split()) for each in found.statements)
    written = api.write_reproduction(found, tmp_path / "out")
    assert [path.name for path in written] == ["pipelining.json", "pipelining.csv"]
