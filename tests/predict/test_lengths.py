"""Are lengths of batches counted as they are drawn, and the peaks over them those of real steps?"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.api import predict_peak
from memfit.errors import UsageError
from memfit.job.description import describe_job
from memfit.predict.lengths import (
    NUM_STEPS,
    QUANTILES,
    BatchSizes,
    longest_of_batches,
    num_too_large,
    read_lengths,
    step_of,
    with_length,
)
from memfit.records.prediction import BatchLengths, LengthPoint

# ---- files of lengths --------------------------------------------------------------------------------------------


@given(st.dictionaries(st.integers(1, 10_000), st.integers(1, 50), min_size=1, max_size=20), st.sampled_from("12j"))
def test_every_way_to_write_lengths_is_read_alike(tmp_path_factory, counts, form):
    path = tmp_path_factory.mktemp("lengths") / "lengths.txt"
    samples = list(Counter(counts).elements())
    if form == "1":
        path.write_text("# lengths\n\n" + "\n".join(map(str, samples)))
    elif form == "2":
        path.write_text("\n".join(f"{length}, {count}" for length, count in counts.items()))
    else:
        path.write_text(str(samples))
    assert read_lengths(str(path)) == Counter(counts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "12\nmany\n",
        "1 2 3\n",
        "-4\n",
        "0\n",
        "1.5\n",
        "[1, true]",
        "[1, 2",
        '["4"]',
        "9" * 40,
        "٣\n",
    ],
)
def test_what_is_no_list_of_lengths_is_refused(tmp_path, text):
    path = tmp_path / "lengths.txt"
    path.write_text(text)
    with pytest.raises(UsageError) as refusal:
        read_lengths(str(path))
    assert str(path) in refusal.value.what
    assert refusal.value.hint


@pytest.mark.parametrize("path", ["/dev/zero", "/nowhere/lengths.txt", "."])
def test_what_is_no_file_is_refused(path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_lengths(path)


# ---- the longest sample of a batch -------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 8))
def test_drawn_batches_are_as_long_as_all_ways_to_draw_them_say(lengths, batch_size):
    sizes = longest_of_batches(Counter(lengths), batch_size)
    drawn = [max(batch) for batch in itertools.combinations(lengths, min(batch_size, len(lengths)))]
    for size in range(11):
        expected = sum(longest > size for longest in drawn) / len(drawn)
        assert sizes.num_above(size) / sum(sizes.counts) == pytest.approx(expected, abs=1e-9)
    for share in QUANTILES.values():
        found = sizes.quantile(share)
        assert sum(longest <= found for longest in drawn) >= share * len(drawn) - 1e-6
        assert found == 1 or sum(longest <= found - 1 for longest in drawn) < share * len(drawn) + 1e-6
    assert sizes.quantile(1.0) == max(lengths)


@given(st.dictionaries(st.integers(1, 500), st.integers(1, 9), min_size=1), st.integers(1, 1000), st.integers(0, 1000))
def test_more_room_never_means_more_batches_too_large(counts, slope, room):
    values = tuple(sorted(counts))
    sizes = BatchSizes(values=values, counts=tuple(float(counts[value]) for value in values))

    def too_large(room_bytes: int) -> float:
        points = [
            LengthPoint(name=name, size=size, shape="", peak_bytes=slope * size, fits=slope * size <= room_bytes)
            for name, size in ((name, sizes.quantile(share)) for name, share in QUANTILES.items())
        ]
        return num_too_large(sizes, points, room_bytes)

    truth = sum(count for value, count in counts.items() if value * slope > room * slope)
    if sizes.quantile(0.5) <= room:
        assert too_large(room * slope) == truth
    else:
        assert too_large(room * slope) <= truth
    assert too_large((room + 1) * slope) <= too_large(room * slope) or sizes.quantile(0.5) == room + 1


# ---- where the length goes ---------------------------------------------------------------------------------------


def test_the_length_is_put_into_settings_and_arguments():
    job = describe_job("gpt", {"length": "{length}", "note": "up to {length}", "layers": 2})
    assert with_length(job, 96).settings == {"length": 96, "note": "up to 96", "layers": 2}


def test_a_job_that_is_not_told_the_length_is_refused(tmp_path):
    path = tmp_path / "lengths.txt"
    path.write_text("16\n")
    with pytest.raises(UsageError, match="does not get the length"):
        predict_peak("gpt", settings={"batch_size": 2}, lengths=str(path))


@pytest.mark.slow
def test_a_file_of_lengths_gives_the_peak_at_each(tmp_path):
    path = tmp_path / "lengths.txt"
    path.write_text("16 900\n64 99\n128 1\n")
    settings = {"layers": 1, "width": 32, "heads": 2, "batch_size": 2, "words": 64}
    prediction = predict_peak("gpt", settings={**settings, "length": "{length}"}, lengths=str(path), probes=False)
    assert prediction.lengths is not None
    by_name = {point.name: point for point in prediction.lengths.points}
    assert {name: point.size for name, point in by_name.items()} == {
        "typical": 16, "90 %": 64, "99 %": 64, "longest": 128,
    }  # fmt: skip
    for point in by_name.values():
        alone = predict_peak("gpt", settings={**settings, "length": point.size}, probes=False).level("tensors")
        assert alone is not None
        assert alone.value == point.peak_bytes
    assert prediction.lengths.num_batches == 500


# ---- a script's own batches --------------------------------------------------------------------------------------

SCRIPT = """
import sys, torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
lengths = [int(part) for part in sys.argv[1].split(",")]
ahead = len(sys.argv) > 2
class Sentences(torch.utils.data.Dataset):
    def __len__(self): return len(lengths)
    def __getitem__(self, index): return torch.ones(lengths[index], dtype=torch.long)
layers = [torch.nn.Embedding(50, 64), torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 50)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.Adam(model.parameters())
def batches():
    pad = lambda rows: {"ids": pad_sequence(rows, batch_first=True)}
    loader = DataLoader(Sentences(), batch_size=4, collate_fn=pad)
    following = iter(loader)
    waiting = [next(following)] if ahead else []
    for batch in following:
        waiting.append(batch)
        yield waiting.pop(0)
for epoch in range(3):
    for batch in batches():
        optimizer.zero_grad()
        model(batch["ids"]).mean().backward()
        optimizer.step()
"""
LENGTHS = [20] * 4 * 160 + [40] * 4 * 30 + [150] * 4 * 9 + [600] * 4
"""Of 200 batches: 160 typical, 30 longer than most, 9 long ones, one that is the longest."""


def _predicted(tmp_path: Path, lengths: list[int], *more: str, memory: str | None = None, auto: bool = True):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    arguments = (",".join(map(str, lengths)), *more)
    options = {"lengths": "auto"} if auto else {"num_steps": 3}
    return predict_peak(str(script), arguments=arguments, memory=memory, probes=False, **options)  # pyright: ignore[reportArgumentType]


def _peaks(found: BatchLengths | None) -> dict[str, tuple[str, int]]:
    assert found is not None
    return {point.name: (point.shape, point.peak_bytes) for point in found.points}


@pytest.mark.parametrize("ahead", [(), ("ahead",)])
@pytest.mark.slow
def test_steps_on_chosen_batches_peak_as_trainings_on_such_batches_alone(tmp_path, ahead):
    lengths = LENGTHS[::-1]
    found = _predicted(tmp_path, lengths, *ahead).lengths
    assert found is not None
    assert (found.num_batches, found.num_seen) == (200, 200)
    expected = {"typical": 20, "90 %": 40, "99 %": 150, "longest": 600}
    alone = {
        name: _predicted(tmp_path, [length] * 40, *ahead, auto=False).level("tensors")
        for name, length in expected.items()
    }
    for name, (shape, peak_bytes) in _peaks(found).items():
        assert shape == f"4 x {expected[name]}"
        figure = alone[name]
        assert figure is not None
        assert figure.value == pytest.approx(peak_bytes, abs=8 * 4 * 600 * 2)  # batches that were fetched ahead


@pytest.mark.slow
def test_batches_that_would_not_fit_are_counted(tmp_path):
    peaks = _peaks(_predicted(tmp_path, LENGTHS).lengths)
    between = (peaks["99 %"][1] + peaks["longest"][1]) // 2
    beside = _predicted(tmp_path, LENGTHS, memory=f"{64 * 1024}MiB")
    assert beside.lengths is not None
    assert beside.lengths.num_too_large == 0
    # without probes the bare process is not known, so that the limit is one of tensors alone
    tight = _predicted(tmp_path, LENGTHS, memory=f"{between}B")
    assert tight.failed is not None
    assert tight.lengths is not None
    assert [point.fits for point in tight.lengths.points] == [True, True, True, False]
    assert tight.lengths.num_too_large == 1


def test_a_script_without_a_loader_is_told_how(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nmodel = torch.nn.Linear(4, 4)\noptimizer = torch.optim.SGD(model.parameters())\n"
        "for step in range(20):\n    model(torch.ones(2, 4)).sum().backward()\n    optimizer.step()\n"
    )
    with pytest.raises(UsageError, match="lengths of the batches are not known") as refusal:
        predict_peak(str(script), lengths="auto", probes=False)
    assert "--lengths FILE" in refusal.value.hint


def test_what_lengths_cannot_go_with_is_refused_at_once(tmp_path):
    with pytest.raises(UsageError, match="only a script"):
        predict_peak("gpt", lengths="auto")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with pytest.raises(UsageError, match=f"needs {NUM_STEPS} steps"):
        predict_peak(str(script), lengths="auto", num_steps=3)
    with pytest.raises(UsageError, match="the length alone"):
        predict_peak("gpt", settings={"length": "{length}"}, lengths="lengths.txt", sweep="batch_size=1:4")


def test_steps_of_quantiles_are_the_last_of_their_pairs():
    assert [step_of(index) for index in range(len(QUANTILES))] == [3, 5, 7, 9]


def test_a_script_that_ends_before_its_longest_batch_claims_nothing_of_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("range(3)", "range(1)"))
    lengths = ",".join(map(str, [20] * 16 + [600] * 4))  # five batches, so five steps
    found = predict_peak(str(script), arguments=(lengths,), memory="64GiB", probes=False, lengths="auto").lengths
    assert found is not None
    assert [point.name for point in found.points] == ["typical", "90 %"]
    assert found.num_too_large is None
    assert not found.is_whole


EVALUATES = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Sequential(torch.nn.Embedding(50, 64), torch.nn.Linear(64, 50))
optimizer = torch.optim.Adam(model.parameters())
def loader(lengths):
    return DataLoader([torch.ones(length, dtype=torch.long) for length in lengths], batch_size=1)
def evaluate():
    for batch in loader([70, 80, 90]):  # fetched with gradients
        with torch.no_grad():
            model(batch)
evaluate()
for epoch in range(2):
    for batch in loader([20] * 9 + [30] * 3):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    evaluate()
"""


def test_batches_of_an_evaluation_are_not_taken_for_those_of_the_training(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(EVALUATES)
    found = predict_peak(str(script), probes=False, lengths="auto").lengths
    assert found is not None
    assert found.num_batches == 12
    assert [point.shape for point in found.points] == ["1 x 20", "1 x 30", "1 x 30", "1 x 30"]
