"""Contract of a prediction engine: what fake tensors and the phantom GPU both promise. Subclass it, give an engine.

class TestMyEngine(EngineContract):
    make_engine = MyEngine
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from memfit.errors import PredictionFailed, UsageError
from memfit.predict.choose_engine import refused_options
from memfit.predict.engine import Engine, Question
from memfit.predict.options import DEFAULTS, PredictOptions, flag_of
from memfit.predict.predict import ask, predict_once
from memfit.records.prediction import LevelName, Prediction

DEVICE = "cuda:a100-40gb"
TRAINS = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(int(sys.argv[1]), 256, device="cuda")).sum().backward()
    optimizer.step()
open("left.txt", "w").write("x")
"""
FAILS = TRAINS.replace("optimizer.zero_grad()", "raise ValueError('of the script')")
STAYS = TRAINS.replace(".cuda()", "").replace(', device="cuda"', "")
LEVELS: tuple[LevelName, ...] = ("tensors", "allocated", "reserved", "device")
OTHER_VALUES = {
    "malloc": "pinned",
    "probes": False,
    "allow_real": ("aten::topk",),
    "unknown_is": False,
    "routing": "worst",
    "shard": "fsdp",
    "alloc_conf": "expandable_segments:True",
}
"""A value other than the default, for options that an engine may refuse."""


def bytes_of(prediction: Prediction, level: LevelName) -> float:
    """The value of one level, which must be there."""
    figure = prediction.level(level)
    assert figure is not None, level
    assert figure.value is not None, level
    return figure.value


class EngineContract:
    """Laws of an engine that predicts for a GPU."""

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Engine:
        """The engine under test."""
        make: Callable[[], Engine] = vars(cls)["make_engine"]
        return make()

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("jobs")
        for name, text in (("trains.py", TRAINS), ("fails.py", FAILS), ("stays.py", STAYS)):
            (folder / name).write_text(text, encoding="utf-8")
        return folder

    @pytest.fixture(scope="class")
    @classmethod
    def prediction(cls, engine: Engine, folder: Path) -> Prediction:
        return predict_once(engine, cls.question(folder, "trains.py"))

    @staticmethod
    def question(folder: Path, script: str, **options: object) -> Question:
        """A script of the folder on the device, with these options."""
        asked = PredictOptions(**{"device": DEVICE, **options})  # pyright: ignore[reportArgumentType]
        return ask(str(folder / script), asked, arguments=("64",))

    def test_levels_contain_each_other(self, prediction: Prediction):
        values = [bytes_of(prediction, level) for level in LEVELS]
        assert values == sorted(values)
        assert values[0] > 0

    def test_what_is_alive_at_the_peak_is_named_and_adds_up(self, prediction: Prediction):
        alive = {share.name: share.num_bytes for share in prediction.at_peak.by_category}
        parameters = 4 * (256 * 512 + 512 + 512 * 10 + 10)
        assert alive["parameter"] >= parameters
        assert alive["optimizer state"] >= 2 * parameters
        assert sum(alive.values()) <= bytes_of(prediction, "allocated")

    def test_every_number_says_where_it_is_from(self, prediction: Prediction):
        for level in prediction.levels:
            assert level.figure.source is not None or level.figure.reason
        assert prediction.error_band
        assert prediction.route

    def test_the_same_question_has_the_same_answer(self, engine: Engine, folder: Path, prediction: Prediction):
        again = predict_once(engine, self.question(folder, "trains.py"))
        assert [bytes_of(again, level) for level in LEVELS] == [bytes_of(prediction, level) for level in LEVELS]

    def test_nothing_is_left_in_the_folder_of_the_script(self, folder: Path, prediction: Prediction):
        assert not (folder / "left.txt").exists()

    def test_a_gpu_that_is_too_small_names_the_allocation_and_the_levels_stay(
        self, engine: Engine, folder: Path, prediction: Prediction
    ):
        little = self.question(folder, "trains.py", memory="600MiB")
        plenty_bytes = bytes_of(prediction, "device")
        found = predict_once(engine, little)
        assert (found.failed is not None) == (plenty_bytes > 600 * 2**20)
        assert found.memory_limit_bytes == 600 * 2**20

    def test_an_error_of_the_script_is_the_scripts(self, engine: Engine, folder: Path):
        with pytest.raises(PredictionFailed) as error:
            predict_once(engine, self.question(folder, "fails.py"))
        assert "ValueError" in f"{error.value.what} {error.value.found}"
        assert "fails.py" in f"{error.value.found} {error.value.traceback}"

    def test_a_job_that_stays_on_the_cpu_is_said_so(self, engine: Engine, folder: Path):
        with pytest.raises(UsageError, match="put nothing on"):
            predict_once(engine, self.question(folder, "stays.py"))

    def test_options_it_cannot_honour_are_refused_by_name(self, engine: Engine):
        for name, why in engine.cannot.items():
            given = PredictOptions(**{name: OTHER_VALUES[name]})
            assert refused_options(engine, given) == {flag_of(name): why}
        assert refused_options(engine, DEFAULTS) == {}
