"""Kind of a study file: memfit's own, or a config of NNI."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from memfit.records.study import SearchSpace, StudySettings
from memfit.study.files.native_file import read_native
from memfit.study.files.nni_config import looks_like_nni, read_nni_config
from memfit.study.files.text_file import read_text_file
from memfit.study.space.field_errors import FieldPlace, expect
from memfit.study.space.nni_space import read_space


def read_study_file(path: str | Path) -> StudySettings:
    """Read a study's settings; every mistake names the file and the field."""
    file = Path(path)
    place = FieldPlace(file.name)
    written = expect(read_text_file(file, str(path)), dict, "a study: an object with fields", place)
    if looks_like_nni(written):
        return read_nni_config(written, file)
    if _is_space(written):
        place.refuse("this is a search space, not a study", hint="name it in a study: space = 'search_space.json'")
    return read_native(written, file)


def read_space_file(path: str | Path) -> SearchSpace:
    """Read a search-space file of NNI."""
    file = Path(path)
    return read_space(read_text_file(file, str(path)), FieldPlace(file.name))


def _is_space(written: Mapping[str, object]) -> bool:
    return bool(written) and all(isinstance(spec, dict) and "_type" in spec for spec in written.values())
