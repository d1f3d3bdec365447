"""Are experiment configs of NNI read as they are, in all three schemas, and refused with the field that is wrong?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from memfit.errors import UsageError
from memfit.records.study import GpuWish, StudySettings, Tool
from memfit.study.engine.engine import SearchEngine
from memfit.study.files.kinds import read_study_file

SPACE = {"lr": {"_type": "uniform", "_value": [0, 1]}}
V2: dict[str, Any] = {
    "experimentName": "a name",
    "searchSpaceFile": "space/search_space.json",
    "trialCommand": "python3 mnist.py --epochs 3",
    "trialCodeDirectory": "code",
    "trialConcurrency": 4,
    "trialGpuNumber": 0,
    "maxExperimentDuration": "1.5h",
    "maxTrialNumber": 10,
    "maxTrialDuration": 60,
    "tuner": {"name": "TPE", "classArgs": {"optimize_mode": "maximize"}},
    "assessor": {"name": "Medianstop", "classArgs": {"optimize_mode": "maximize", "start_step": 5}},
    "trainingService": {"platform": "local", "useActiveGpu": False, "maxTrialNumberPerGpu": 2, "gpuIndices": "1,2"},
}
V1: dict[str, Any] = {
    "authorName": "somebody",
    "experimentName": "a name",
    "searchSpacePath": "space/search_space.json",
    "trialConcurrency": 4,
    "maxExecDuration": "1.5h",
    "maxTrialNum": 10,
    "maxTrialDuration": 60,
    "trainingServicePlatform": "local",
    "useAnnotation": False,
    "multiPhase": False,
    "multiThread": False,
    "tuner": {"builtinTunerName": "TPE", "classArgs": {"optimize_mode": "maximize"}, "gpuIndices": "0"},
    "assessor": {"builtinAssessorName": "Medianstop", "classArgs": {"optimize_mode": "maximize", "start_step": 5}},
    "trial": {"command": "python3 mnist.py --epochs 3", "codeDir": "code", "gpuNum": 0},
    "localConfig": {"useActiveGpu": False, "maxTrialNumPerGpu": 2, "gpuIndices": "1,2"},
}


def snake(written: Any) -> Any:
    if not isinstance(written, dict):
        return written
    return {
        "".join(f"_{c.lower()}" if c.isupper() else c for c in key): snake(value) if key != "classArgs" else value
        for key, value in written.items()
    }


def write(folder: Path, written: Any, name: str = "config.yml") -> Path:
    (folder / "space").mkdir(exist_ok=True)
    (folder / "code").mkdir(exist_ok=True)
    (folder / "space" / "search_space.json").write_text(json.dumps(SPACE))
    (folder / name).write_text(yaml.safe_dump(written, sort_keys=False))
    return folder / name


def read(folder: Path, written: Any) -> StudySettings:
    return read_study_file(write(folder, written))


def changed(base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The config with some fields replaced, and those set to None removed."""
    merged = {**base, **changes}
    return {key: value for key, value in merged.items() if value is not None}


def test_all_schemas_and_spellings_say_the_same(tmp_path: Path):
    import msgspec

    first = read(tmp_path, V1)
    for other in (V2, snake(V2)):
        assert msgspec.structs.replace(read(tmp_path, other), source="") == msgspec.structs.replace(first, source="")
    assert first.source == "config.yml (NNI v1)"
    assert first.name == "a name"
    assert first.command == "python3 mnist.py --epochs 3"
    assert first.code_folder == str((tmp_path / "code").resolve())
    assert (first.concurrency, first.max_trials, first.max_seconds, first.max_trial_seconds) == (4, 10, 5400, 60)
    assert first.tuner == Tool(name="TPE", arguments={"optimize_mode": "maximize"})
    assert first.assessor == Tool(name="Medianstop", arguments={"optimize_mode": "maximize", "start_step": 5})
    assert first.goal.direction == "maximize"
    assert first.gpus == GpuWish(num_gpus=0, indices=(1, 2), trials_per_gpu=2)
    assert first.memory.use == "report"


def test_a_minimal_config_takes_the_defaults_of_nni(tmp_path: Path):
    settings = read(
        tmp_path,
        {
            "searchSpace": SPACE,
            "trialCommand": "python main.py",
            "trialConcurrency": 2,
            "tuner": {"name": "random"},
            "trainingService": {"platform": "local"},
        },
    )
    assert settings.tuner.name == "Random"
    assert settings.code_folder == str(tmp_path.resolve())
    assert settings.max_trials is None
    assert settings.gpus.num_gpus is None


@pytest.mark.parametrize(
    ("name", "direction"), [("TPE", "minimize"), ("Evolution", "maximize"), ("Hyperband", "maximize")]
)
def test_without_optimize_mode_the_direction_is_the_tuners_own(tmp_path: Path, name: str, direction: str):
    assert read(tmp_path, changed(V2, tuner={"name": name}, assessor=None)).goal.direction == direction


def test_an_assessor_without_a_direction_follows_the_tuner_and_says_so(tmp_path: Path):
    settings = read(tmp_path, changed(V2, tuner={"name": "TPE"}, assessor={"name": "Medianstop"}))
    assert settings.assessor is not None
    assert settings.assessor.arguments["optimize_mode"] == "minimize"
    assert any("assessor" in note for note in settings.notes)


def test_advisor_is_an_old_word_for_tuner(tmp_path: Path):
    advisor = {"builtinAdvisorName": "BOHB", "classArgs": {"max_budget": 27, "min_budget": 1, "eta": 3}}
    settings = read(tmp_path, changed(V1, tuner=None, assessor=None, advisor=advisor))
    assert settings.tuner.name == "BOHB"
    settings = read(tmp_path, changed(V2, tuner=None, assessor=None, advisor={"name": "Hyperband"}))
    assert settings.tuner.name == "Hyperband"


@pytest.mark.parametrize("written", ["TPE", "tpe", "GPTuner", "gp", "BatchTuner", "PBTTuner", "regularizedevolution"])
def test_names_of_tuners_are_read_in_any_case_and_by_their_aliases(tmp_path: Path, written: str):
    assert read(tmp_path, changed(V2, tuner={"name": written})).tuner.name.lower() in written.lower() + "tuner"


def test_fields_without_effect_become_notes(tmp_path: Path):
    settings = read(tmp_path, changed(V2, debug=True, nniManagerIp="1.2.3.4", tunerGpuIndices=[0]))
    assert {note.split()[0] for note in settings.notes} == {"debug", "nniManagerIp", "tunerGpuIndices"}
    settings = read(tmp_path, changed(V1, machineList=[{"ip": "1.2.3.4"}]))
    assert settings.notes == ("machineList has no effect",)


def test_a_custom_tuner_is_found_from_both_schemas(tmp_path: Path):
    own = {"codeDir": "code", "classFileName": "mine.py", "className": "Mine", "classArgs": {"a": 1}}
    first = read(tmp_path, changed(V1, tuner=own)).tuner
    own = {"className": "mine.Mine", "codeDirectory": "code", "classArgs": {"a": 1}}
    assert read(tmp_path, changed(V2, tuner=own)).tuner == first
    assert first == Tool(class_name="mine.Mine", code_folder=str((tmp_path / "code").resolve()), arguments={"a": 1})


WRONG: list[tuple[dict[str, Any], str]] = [
    (changed(V1, tuner=None), "config.yml: tuner: expected a tuner"),
    (changed(V2, tuner=None), "config.yml: tuner: expected a tuner"),
    (changed(V1, tuner={"wrongTunerKey": "abc"}), "config.yml: tuner: expected builtinTunerName"),
    (
        changed(
            V1,
            tuner={
                "codeDir": "./",
                "classFileName": "mytuner.py",
                "className": "MyTuner",
                "builtinTunerName": "Random",
            },
        ),
        "config.yml: tuner: expected either name (a built-in) or className (your own); found: both",
    ),
    (
        changed(V1, assessor={"builtinAssessorName": "Medianstop", "classArgs": {"optimize_mode": "aaaaaa"}}),
        "config.yml: assessor.classArgs.optimize_mode: expected minimize or maximize; found: 'aaaaaa'",
    ),
    (changed(V1, trainingServicePlatform="local222"), "config.yml: trainingServicePlatform: only the platform local"),
    (changed(V1, trainingServicePlatform="remote"), "config.yml: trainingServicePlatform: only the platform local"),
    (changed(V2, trainingService={"platform": "kubeflow"}), "config.yml: trainingService.platform: only the platform"),
    (changed(V1, multiPhase=True), "config.yml: multiPhase: several phases"),
    (changed(V2, useAnnotation=True), "config.yml: useAnnotation: annotations"),
    (changed(V2, experimentType="nas"), "config.yml: experimentType: architecture search"),
    (changed(V2, tuner={"name": "PPO"}), "config.yml: tuner.name: the tuner PPO searches architectures"),
    (
        changed(V1, tuner={"builtinTunerName": "NetworkMorphism"}),
        "config.yml: tuner.builtinTunerName: the tuner NetworkMorphism searches architectures",
    ),
    (changed(V2, tuner={"name": "TPEE"}), "config.yml: tuner.name: there is no such tuner; found: 'TPEE'; try: did"),
    (changed(V2, assessor={"name": "Median"}), "config.yml: assessor.name: there is no such assessor"),
    (
        changed(V2, tuner={"name": "TPE", "classArgs": {"optimise_mode": "maximize"}}),
        "config.yml: tuner.classArgs: TPE takes no argument of this name; found: optimise_mode; try: did you mean opti",
    ),
    (
        changed(V2, tuner={"name": "TPE", "classArgs": {"optimize_mode": "max"}}),
        "config.yml: tuner.classArgs.optimize_mode: expected minimize or maximize; found: 'max'",
    ),
    (changed(V2, trialConcurrency=None), "config.yml: trialConcurrency: expected how many"),
    (changed(V2, trialConcurrency=0), "config.yml: trialConcurrency: expected a whole number of at least 1; found: 0"),
    (changed(V2, trialConcurrency="two"), "config.yml: trialConcurrency: expected a whole number"),
    (changed(V2, trialCommand=None), "config.yml: trialCommand: expected the command"),
    (changed(V1, trial={"codeDir": "code"}), "config.yml: trial.command: expected the command"),
    (changed(V2, maxTrialNumber=-1), "config.yml: maxTrialNumber: expected a whole number of at least 1; found: -1"),
    (changed(V1, maxTrialNum=-1), "config.yml: maxTrialNum: expected a whole number of at least 1; found: -1"),
    (changed(V2, maxExperimentDuration="1 week"), "config.yml: maxExperimentDuration: expected a duration"),
    (changed(V1, maxExecDuration="0s"), "config.yml: maxExecDuration: expected a duration above zero"),
    (changed(V2, searchSpaceFile=None), "config.yml: expected searchSpace or searchSpaceFile"),
    (changed(V2, searchSpaceFile="none.json"), "none.json: there is no such file"),
    (changed(V2, trialConcurency=2), "config.yml: trialConcurency: there is no such field; try: did you mean trialCon"),
    (changed(V2, trial_command="x"), "config.yml: this field is given twice"),
    (changed(V2, logLevel="loud"), "config.yml: logLevel: expected one of fatal"),
    (changed(V2, tuner="TPE"), "config.yml: tuner: expected an object"),
    (
        changed(V2, trainingService={"platform": "local", "gpuIndices": [0, 0]}),
        "config.yml: trainingService.gpuIndices: expected different indices",
    ),
    (
        changed(V2, tuner={"className": "mine.Mine", "codeDirectory": "nowhere"}),
        "config.yml: tuner.codeDirectory: expected a folder",
    ),
    (changed(V2, sharedStorage={"storageType": "NFS"}), "config.yml: sharedStorage: shared storage"),
]


@pytest.mark.parametrize(("written", "message"), WRONG)
def test_a_wrong_config_is_refused_in_one_line_that_names_the_field(tmp_path: Path, written: Any, message: str):
    with pytest.raises(UsageError) as caught:
        read(tmp_path, written)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "config.yml: this is neither JSON nor YAML"),
        ("- 1", "config.yml: expected a study"),
        ("", "config.yml: expected a study"),
        ('{"x": {"_type": "choice", "_value": [1]}}', "config.yml: this is a search space, not a study"),
        ("colour: blue", "config.yml: expected either command or workload"),
    ],
)
def test_a_file_that_is_no_study_says_so(tmp_path: Path, text: str, message: str):
    (tmp_path / "config.yml").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_study_file(tmp_path / "config.yml")
    assert message in str(caught.value)


def test_bytes_that_are_no_text_say_so(tmp_path: Path):
    (tmp_path / "config.yml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="expected text in UTF-8"):
        read_study_file(tmp_path / "config.yml")


def test_a_yaml_file_cannot_run_code(tmp_path: Path):
    (tmp_path / "config.yml").write_text("a: !!python/object/apply:os.system ['echo no']")
    with pytest.raises(UsageError, match="neither JSON nor YAML"):
        read_study_file(tmp_path / "config.yml")


@pytest.mark.parametrize("name", ["TPE", "Random", "GridSearch", "Evolution", "Hyperband", "BOHB", "PBT", "Anneal"])
def test_what_was_read_can_be_asked(tmp_path: Path, name: str):
    engine = SearchEngine(read(tmp_path, changed(V2, tuner={"name": name}, assessor=None)))
    proposal = engine.ask()
    assert proposal is not None
    assert 0 <= proposal.parameters["lr"] <= 1
