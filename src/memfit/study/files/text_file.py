"""Reads a settings file: JSON, JSON with comments and trailing commas, YAML or TOML.

JSON is tried first, then JSON with comments, then YAML, as NNI does for search spaces. Numbers such as 1e-7 are numbers
in YAML too (YAML 1.1 would make them text).
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

from memfit.errors import MemfitError, MissingExtra
from memfit.regular_file import describe_error, read_regular
from memfit.study.space.field_errors import FieldPlace

_TOKEN = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\\n])*")|(?P<comment>//[^\n]*|\#[^\n]*|/\*.*?\*/)|(?P<comma>,)(?=(?:\s|//[^\n]*|\#[^\n]*|/\*.*?\*/)*[}\]])""",
    re.DOTALL,
)
_EXPONENT = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+"


def read_text_file(path: Path, shown_name: str = "") -> object:
    """Read one file into plain lists, dicts and values."""
    place = FieldPlace(shown_name or str(path))
    try:
        text = read_regular(path).decode("utf-8-sig")
    except FileNotFoundError:
        place.refuse("there is no such file", hint="paths in a study's file are relative to that file's folder")
    except IsADirectoryError:
        place.refuse("expected a file", saw="a folder")
    except UnicodeDecodeError as error:
        place.refuse("expected text in UTF-8", saw=f"a byte that is not, at position {error.start}")
    except OSError as error:
        place.refuse("cannot be read", saw=describe_error(error))
    return parse_toml(text, place) if path.suffix == ".toml" else parse_text(text, place)


def parse_toml(text: str, place: FieldPlace) -> object:
    """Parse TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place.refuse("this is not TOML", saw=f"a mistake: {error}")


def parse_text(text: str, place: FieldPlace) -> object:
    """Parse JSON, JSON with comments, or YAML."""
    for candidate in (text, without_comments(text)):
        try:
            return json.loads(candidate)
        except (json.JSONDecodeError, RecursionError):
            continue
    return _parse_yaml(text, place)


def without_comments(text: str) -> str:
    """JSON without the comments and trailing commas that JSON does not have; texts in quotes are left alone."""

    def keep(match: re.Match[str]) -> str:
        # Lines stay where they are, so that the place of a later mistake is right.
        return match["text"] or "\n" * (match["comment"] or "").count("\n")

    return _TOKEN.sub(keep, text)


def _parse_yaml(text: str, place: FieldPlace) -> object:
    try:
        import yaml
    except ImportError:
        raise MissingExtra(
            f"{place} is not JSON, and reading YAML needs PyYAML", hint="pip install 'memfit[study]'"
        ) from None

    class Loader(yaml.SafeLoader):
        """YAML with the numbers of YAML 1.2."""

    # The dict is shared with the base class, so a changed copy takes its place.
    Loader.yaml_implicit_resolvers = {
        key: [(tag, pattern) for tag, pattern in pairs if tag != "tag:yaml.org,2002:timestamp"]
        for key, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(f"^{_EXPONENT}$"), list("-+.0123456789"))
    try:
        return yaml.load(text, Loader=Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).split("\n")[0]
        place.refuse("this is neither JSON nor YAML", saw=f"a mistake{where}: {problem}")


if __name__ == "__main__":  # for programs that have no YAML of their own: prints the file as JSON
    try:
        print(json.dumps(read_text_file(Path(sys.argv[1]))))
    except MemfitError as error:
        sys.exit(str(error))
