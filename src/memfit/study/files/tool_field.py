"""How are a tuner, an assessor and a path taken from a study's file, whichever schema it has?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from memfit.errors import UsageError
from memfit.records.study import Tool
from memfit.study.space.complaint import Place
from memfit.study.tuners.registry import assessor_name, check_arguments, tuner_name


def resolve(path: str, folder: Path) -> str:
    """A path of the file, from the file's own folder."""
    return os.path.realpath(os.path.join(folder, os.path.expanduser(path)))


def built_in_tool(kind: str, name: str, arguments: dict[str, Any], name_at: Place, arguments_at: Place) -> Tool:
    """A built-in, looked up now, so that a mistake in its name or arguments is told with its place."""
    is_assessor = kind == "assessor"
    place = name_at
    try:
        tool = Tool(name=assessor_name(name) if is_assessor else tuner_name(name), arguments=dict(arguments))
        place = arguments_at
        check_arguments(tool, is_assessor=is_assessor)
    except UsageError as error:
        raise UsageError(f"{place}: {error.what}", found=error.found, hint=error.hint) from None
    return tool


def custom_tool(class_name: str, code: str, arguments: dict[str, Any], folder: Path, code_at: Place) -> Tool:
    """A class of the user's own."""
    path = resolve(code, folder)
    if not os.path.isdir(path):
        code_at.refuse("expected a folder", found=code)
    return Tool(class_name=class_name, code_folder=path, arguments=dict(arguments))
