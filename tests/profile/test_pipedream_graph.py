"""Is a PipeDream profile read with its traps handled, and is bad input named with its line?"""

from __future__ import annotations

from pathlib import Path

import pytest

from memfit.errors import RecordError
from memfit.plan.pipeline import pipedream
from memfit.plan.pipeline.case import PipelineCase
from memfit.profile.pipeline.pipedream_graph import chain_of_graph, read_graph
from memfit.records.pipeline import PipelineChain, RankLink

PROFILES = Path(__file__).parents[3] / "shared" / "profiles" / "pipedream"
MADE = """\
node1 -- Input -- forward_compute_time=500.000, backward_compute_time=0.000, activation_size=64.000, parameter_size=0.000
node2 -- Conv2d(3, 8) -- forward_compute_time=2.000, backward_compute_time=4.000, activation_size=100.000, parameter_size=40.000
node3 -- ReLU(inplace) -- forward_compute_time=1.000, backward_compute_time=1.000, activation_size=100.000, parameter_size=0.000
node4 -- LSTM(8, 8) -- forward_compute_time=3.000, backward_compute_time=5.000, activation_size=[60.0; 20.0; 20.0], parameter_size=80.000
node5 -- __getitem__(0) -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=60.0, parameter_size=0.000
node6 -- Size(0) -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=4.000, parameter_size=0.000
node7 -- View(60) -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=60.000, parameter_size=0.000
node8 -- Linear(60, 10) -- forward_compute_time=1.000, backward_compute_time=2.000, activation_size=10.000, parameter_size=2400.000, stage_id=1
\tnode1 -- node2
\tnode2 -- node3
\tnode3 -- node4
\tnode4 -- node5
\tnode5 -- node6
\tnode5 -- node7
\tnode6 -- node7
\tnode7 -- node8
"""  # noqa: E501


def test_traps_of_the_format_are_handled():
    chain = chain_of_graph(MADE, cuts="all")
    names = [layer.name for layer in chain.layers]
    assert names[0] == "node2 Conv2d"
    assert len(names) == 7
    assert chain.input_bytes == 64
    by_name = {layer.name.split()[0]: layer for layer in chain.layers}
    assert by_name["node3"].saved_bytes == 0, "an in-place output lies in the storage of its input"
    assert by_name["node4"].saved_bytes == 100, "sizes of a list add up"
    assert by_name["node5"].saved_bytes == by_name["node7"].saved_bytes == 0
    assert sum(layer.saved_bytes for layer in chain.layers) == 100 + 100 + 10
    assert (
        sum(layer.saved_bytes for layer in chain_of_graph(MADE, count_in_place=True).layers)
        == 100 * 3 + 60 * 2 + 10 + 4
    )
    assert sum(layer.forward_seconds for layer in chain.layers) == pytest.approx(0.007)
    assert by_name["node8"].parameter_bytes == 2400
    assert by_name["node5"].output_bytes == 60


def test_single_cuts_keep_nodes_together_where_two_tensors_cross():
    text = MADE.replace("\tnode7 -- node8", "\tnode7 -- node8\n\tnode2 -- node8")
    chain = chain_of_graph(text, cuts="single")
    assert chain.layers[-1].name == "node4 to node8"
    assert sum(layer.parameter_bytes for layer in chain.layers) == 2520


def test_the_optimizer_keeps_as_many_values_as_asked():
    chain = chain_of_graph(MADE, optimizer_copies=2)
    assert sum(layer.optimizer_bytes for layer in chain.layers) == 2 * 2520


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("forward_compute_time=2.000", "forward_compute_time=-2.000"), "line 2 .* negative"),
        (("forward_compute_time=2.000", "forward_compute_time=nan"), "line 2 .* not finite"),
        (("forward_compute_time=2.000", "forward_compute_time=fast"), "line 2 .* no number"),
        (("backward_compute_time=4.000, ", ""), "line 2 .* no backward_compute_time for node2"),
        (("[60.0; 20.0; 20.0]", "[60.0; ; 20.0]"), "line 4 .* no number"),
        (("node3 -- ReLU", "node2 -- ReLU"), "line 3 .* gives node2 again, which line 2 has"),
        (("\tnode7 -- node8", "\tnode7 -- node80"), "line 16 .* node80, which is no node"),
        (("\tnode7 -- node8", "\tnode7 -- node8\n\tnode8 -- node3"), "form a cycle through line"),
        (("\tnode1 -- node2", "what is this"), "line 9 .* neither a node nor an edge"),
    ],
)
def test_bad_input_is_named_with_its_line(change: tuple[str, str], words: str):
    with pytest.raises(RecordError, match=words):
        chain_of_graph(MADE.replace(*change))


def test_a_cycle_is_named_by_its_nodes():
    with pytest.raises(RecordError) as refused:
        chain_of_graph(MADE.replace("\tnode7 -- node8", "\tnode7 -- node8\n\tnode8 -- node3"))
    assert refused.value.found == "node3 -> node4 -> node5 -> node7 -> node8 -> node3"


def test_an_empty_file_is_refused():
    with pytest.raises(RecordError, match="no nodes beside its input"):
        chain_of_graph("\n\n")


# ---- the real profiles -----------------------------------------------------------------------------------------


def real(name: str, **options) -> PipelineChain:
    path = PROFILES / name / "graph.txt"
    if not path.is_file():
        pytest.skip("the profiles of PipeDream are not on this machine")
    return read_graph(path, **options)


@pytest.mark.parametrize(
    ("name", "megabytes", "num_layers"),
    [("alexnet", 244.4, 22), ("vgg16", 553.4, 40), ("resnet50", 102.2, 40), ("gnmt", 775.1, 9)],
)
def test_weights_of_real_profiles_are_the_known_numbers_of_parameters(name: str, megabytes: float, num_layers: int):
    chain = real(name, cuts="single")
    assert sum(layer.parameter_bytes for layer in chain.layers) / 1e6 == pytest.approx(megabytes, abs=0.1)
    assert len(chain.layers) == num_layers


@pytest.mark.parametrize(
    ("name", "replicas", "speedup"),
    [("vgg16", [3, 1], 3.27), ("alexnet", [3, 1], None), ("resnet50", [2, 2], None), ("gnmt", [1, 1, 1, 1], 3.46)],
)
def test_published_splits_of_pipedream_come_out_again(name: str, replicas: list[int], speedup: float | None):
    chain = real(name)
    case = PipelineCase(chain, (10**14,) * 4, RankLink(bytes_per_second=1e9))
    proposal = pipedream.replicated(case)
    assert proposal is not None
    assert [stage.num_replicas for stage in proposal.stages] == replicas
    alone = sum(layer.forward_seconds + layer.backward_seconds for layer in chain.layers)
    if speedup is not None:
        assert alone / pipedream.predicted_period(case) == pytest.approx(speedup, abs=0.01)
