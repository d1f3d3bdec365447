"""Does the error band stand only where it was earned?"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from memfit.predict.child.messages import COMPILER_LEFT_OUT, TRANSLATED, TraceReply
from memfit.predict.devices.parse import DeviceSpec
from memfit.predict.gpu_rules.cudnn import Scratch
from memfit.predict.levels.error_band import earned, error_band, kept_for_long, scratch_share
from memfit.records.prediction import Assumption
from memfit.records.timeline import INSIDE_A_KERNEL, LiveSpan, PhaseMark, Timeline

BASE = "within 1 %"


def band(kind: str, text: str) -> str:
    return earned(BASE, [Assumption(kind=kind, text=text, line="train.py:3")])


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("upper bound", "the size of the result of nonzero depends on data; the largest possible was taken"),
        ("scalar answer", "a boolean was asked for and answered with True"),
        ("scalar answer", "whether two tensors are equal was asked for and answered with True"),
    ],
)
def test_a_guess_that_decides_leaves_no_band(kind: str, text: str):
    said = band(kind, text)
    assert BASE not in said
    assert "not known" in said
    assert "train.py:3" in said


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("scalar answer", "a number was asked for and answered with 1.0"),
        ("scalar answer", "an integer was asked for and answered with 7, as set"),
        ("upper bound", "the size of the result of nonzero was taken as 7, as set"),
        ("script", "a checkpoint was not written"),
    ],
)
def test_a_number_and_the_user_s_own_answer_leave_it_standing(kind: str, text: str):
    assert band(kind, text) == BASE


@pytest.mark.parametrize("what", ["an integer", "a list of integers"])
def test_a_guessed_integer_leaves_it_standing_on_a_condition(what: str):
    said = band("scalar answer", f"{what} was asked for and answered with 1")
    assert said.startswith("only as long as no size follows from this guess")
    assert "train.py:3" in said


def test_results_that_stay_for_steps_leave_it_standing_on_a_condition():
    """A best result may be replaced in every step or in none."""
    marks = tuple(PhaseMark(start=10 * step, step=step, phase="forward") for step in range(1, 5))
    spans = tuple(
        LiveSpan(start=start, end=60, num_bytes=num_bytes, category="activation", phase="forward", operator="aten.mm",
                 device="cpu", line=f"train.py:{start}")
        for start, num_bytes in ((11, 2000), (41, 1000))
    )  # fmt: skip
    kept = kept_for_long(Timeline(spans=spans, num_events=60, phases=marks), "cpu")
    assert kept == "1.95 KiB of results of step 1 (train.py:11) are alive at the peak, in step 4"
    assert kept_for_long(Timeline(spans=spans[1:], num_events=60, phases=marks), "cpu") == ""


def test_copies_that_stay_for_steps_leave_it_standing_on_a_condition():
    """The state that gave the best result; data that was made before the steps is nobody's choice."""
    marks = (
        PhaseMark(start=0, step=1, phase="setup"),
        *(PhaseMark(start=10 * step, step=step, phase="forward") for step in range(1, 5)),
    )
    data, copied, last = (
        LiveSpan(start=start, end=60, num_bytes=2000, category="temporary", phase="forward", operator="", device="cpu")
        for start in (5, 11, 41)
    )
    kept = kept_for_long(Timeline(spans=(data, copied, last), num_events=60, phases=marks), "cpu")
    assert kept.startswith("1.95 KiB of results of step 1")
    assert kept_for_long(Timeline(spans=(data, last), num_events=60, phases=marks), "cpu") == ""


@pytest.mark.parametrize(("device", "place"), [("cpu", "cpu"), ("cuda", "cuda:0")])
def test_a_guess_over_results_that_stay_is_said_on_every_device(device: Literal["cpu", "cuda"], place: str):
    marks = tuple(PhaseMark(start=10 * step, step=step, phase="forward") for step in range(1, 5))
    spans = tuple(
        LiveSpan(start=start, end=60, num_bytes=2000, category="activation", phase="forward", operator="", device=place)
        for start in (11, 41)
    )
    guess = Assumption(kind="scalar answer", text="a number was asked for and answered with 1.0")
    reply = reply_of(timeline=Timeline(spans=spans, num_events=60, phases=marks), assumptions=(guess,))
    said = error_band(DeviceSpec(kind=device, name=device), reply, with_probes=True, num_ranks=1)
    assert said.startswith("only as long as no guess decides what is kept")


def test_what_was_not_seen_stands_before_the_band():
    said = band("not seen", "an evaluation was not reached")
    assert said.startswith("not known for the whole job: an evaluation was not reached")
    assert said.endswith(BASE)


def test_a_script_that_fails_after_its_steps_says_so_in_its_band(tmp_path: Path):
    pytest.importorskip("torch")
    import memfit

    script = tmp_path / "train.py"
    script.write_text("""
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x in DataLoader(torch.randn(400, 8), batch_size=8, shuffle=True):
    model(x).sum().backward()
    optimizer.step()
raise ValueError("mine")
""")
    prediction = memfit.predict_peak(str(script), probes=False)
    assert "ValueError: mine" in prediction.error_band
    assert prediction.error_band.startswith("not known for the whole job")
    assert not any(item.kind == "assumed value" for item in prediction.assumptions), "only the order was drawn"


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("a mask of 512 unknown values is taken to be all true", "not known, since a guess"),
        ("indices from topk of unknown values are spread evenly", "only as long as no size follows"),
        ("every other rank is taken to send the same values as this one", "only as long as no size follows"),
        ("an unknown bool was read and answered with 0", "only as long as no size follows"),
        ("an unknown int64 was read and answered with 0", "only as long as no size follows"),
        ("an unknown float32 was read and answered with 0", "the band"),
    ],
)
def test_reads_on_the_phantom_gpu_that_sizes_follow_from_leave_no_band(text: str, begins: str):
    assert earned("the band", [Assumption(kind="value read", text=text)]).startswith(begins)


def span(start: int, end: int, num_bytes: int, operator: str = "aten.mm") -> LiveSpan:
    return LiveSpan(start=start, end=end, num_bytes=num_bytes, category="temporary", phase="forward", operator=operator)


def test_the_share_of_scratch_is_what_the_peak_loses_without_it():
    spans = span(0, 3, 60), span(1, 2, 40, INSIDE_A_KERNEL), span(4, 5, 80)
    assert scratch_share(Timeline(spans=spans, num_events=6)) == pytest.approx(1 - 80 / 100)


def test_scratch_below_the_peak_has_no_share_in_it():
    spans = span(0, 3, 60), span(1, 2, 10, INSIDE_A_KERNEL), span(4, 5, 80)
    assert scratch_share(Timeline(spans=spans, num_events=6)) == 0.0
    assert scratch_share(Timeline(spans=(), num_events=0)) == 0.0


def reply_of(**known: object) -> TraceReply:
    """A traced job without anything in it."""
    empty = {
        "timeline": Timeline(spans=(), num_events=0), "route": "fake cpu", "torch_version": "2.13.0", "num_steps": 2,
        "num_operators": 1, "trace_seconds": 1.0, "probe_seconds": 0.0, "host_peak_bytes": 0, "assumptions": (),
    }  # fmt: skip
    return TraceReply(**(empty | known))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("device", "known", "words"),
    [
        ("cpu", {"num_unprobed": 3, "num_probed": 1}, "not known, since 3 of 4 distinct operator calls"),
        ("cpu", {"assumptions": (Assumption(kind="not seen", text=COMPILER_LEFT_OUT),)}, "without torch.compile"),
        ("cuda", {"route": TRANSLATED}, "not known, since this route"),
    ],
)
def test_several_ranks_do_not_earn_a_band_that_one_does_not(device: str, known: dict[str, object], words: str):
    spec = DeviceSpec(kind="cuda" if device == "cuda" else "cpu", name=device)
    for num_ranks in (1, 4):
        said = error_band(spec, reply_of(**known), with_probes=True, num_ranks=num_ranks)
        assert words in said
        assert "equal to the byte" not in said
    assert "equal to the byte" in error_band(
        DeviceSpec(kind="cpu", name="cpu"), reply_of(), with_probes=True, num_ranks=4
    )


@pytest.mark.parametrize(("num_bytes", "is_said"), [(3 * 2**20, True), (0, False)])
def test_a_band_of_convolutions_says_that_allocated_is_without_their_workspaces(num_bytes: int, is_said: bool):
    taken = Scratch(event=0, taker="tensor cores" if num_bytes else "none", num_bytes=num_bytes)
    reply = reply_of(route="fake cuda", scratches=(taken,))
    for capability in ((8, 0), (8, 6)):
        spec = DeviceSpec(kind="cuda", name="card", capability=capability)
        said = error_band(spec, reply, with_probes=False, num_ranks=1)
        assert ("allocated are without these workspaces, by rule up to 3.00 MiB" in said) == is_said
        assert ("allocated are without these workspaces, unknown for convolutions of fewer than" in said) != is_said


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "depends"), [("Conv2d(3, 8, 3)", True), ("Linear(32, 32)", False)])
def test_the_band_of_a_convolution_stands_for_its_number_of_threads(tmp_path: Path, layer: str, depends: bool):
    pytest.importorskip("torch")
    import memfit

    script = tmp_path / "train.py"
    script.write_text(f"""
import torch
model = torch.nn.{layer}
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.rand(16, 3, 32, 32)).sum().backward()
    optimizer.step()
""")
    assert ("for this number of threads" in memfit.predict_peak(str(script)).error_band) == depends


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cuda:a100-40gb"])
def test_a_compiled_job_has_the_band_of_one_without_the_compiler_and_says_so(tmp_path: Path, device: str):
    pytest.importorskip("torch")
    import memfit

    script = tmp_path / "train.py"
    script.write_text(f"""
import torch
model = torch.compile(torch.nn.Linear(32, 32).to("{device.partition(":")[0]}"))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.rand(16, 32, device=model.weight.device)).sum().backward()
    optimizer.step()
""")
    said = memfit.predict_peak(str(script), device=device, engine="fake").error_band
    assert "equal to the byte" not in said
    assert "without torch.compile" in said or "torch.compile was left out" in said


@pytest.mark.parametrize(("operator", "is_known"), [("cumprod(1)", False), ("prod(1)", False), ("cumsum(1)", True)])
def test_a_gradient_that_takes_another_path_on_fake_tensors_leaves_no_band(operator: str, is_known: bool):
    torch = pytest.importorskip("torch")
    from memfit.predict.fake.recording import Recording, trace_training

    recording = Recording()

    def build() -> object:
        layer, x = torch.nn.Linear(4, 4), torch.ones(8, 4)
        return lambda: eval(f"layer(x).{operator}.sum()", {"layer": layer, "x": x}).backward()

    trace_training(build, recording=recording, num_steps=1)
    said = [text for kind, text, _ in recording.shadow.answered if kind == "not seen"]
    assert bool(said) != is_known
