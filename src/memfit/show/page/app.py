"""The page of `memfit serve` and `memfit report`: one frame, script and style, with records inside or asked for.

A report has its documents inside the file and works offline. A served page has none: it asks its own server for them.
Everything else is the same. A content security policy with the hashes of exactly these scripts and this style forbids
all others, so that names and command lines of a record stay text.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from string import Template

from memfit.show.as_json import to_json
from memfit.show.page.data import inside_script
from memfit.show.page.documents.document import Document, Listed

SCRIPTS = (
    "assets/numbers.js", "app/columns.js", "app/address.js", "app/source.js", "app/parts.js", "app/charts.js",
    "app/bars.js", "app/parallel.js", "app/findings.js", "app/study.js", "app/trial.js", "app/timeline.js",
    "app/traced.js", "app/run.js",
    "app/prediction.js", "app/plan.js", "app/pipeline.js", "app/grid.js", "app/snapshot.js", "app/list.js",
    "app/main.js",
)  # fmt: skip
LIBRARY = "vendor/charts.min.js"
STYLES = ("assets/page.css", "vendor/uPlot.min.css", "app/app.css")
FRAME = "app/app.html"
Extras = Mapping[str, object]
"""Answers to questions that a served page would ask its server, by their address."""


def app_html(
    listed: Iterable[Listed] = (),
    documents: Mapping[str, Document] | None = None,
    *,
    title: str = "memfit",
    extras: Extras | None = None,
    is_served: bool = False,
    num_left_out: int = 0,
) -> str:
    """The whole page as text; `documents` are those a report has inside, by the id under which they are listed."""
    parts = [f'"served":{"true" if is_served else "false"}', f'"title":{to_json(title).decode()}']
    parts.append(f'"left_out":{num_left_out}')
    parts.append(f'"items":{to_json([asdict(one) for one in listed]).decode()}')
    inner = [f"{to_json(name).decode()}:{one.to_json().decode()}" for name, one in (documents or {}).items()]
    parts.append(f'"documents":{{{",".join(inner)}}}')
    parts.append(f'"extras":{to_json(dict(extras or {})).decode()}')
    return Template(_asset(FRAME)).substitute(
        policy=policy(is_served=is_served),
        title=_escaped(title),
        style=_style(),
        library=_asset(LIBRARY),
        data=inside_script("{" + ",".join(parts) + "}"),
        script=_script(),
    )


def policy(*, is_served: bool) -> str:
    """The content security policy of the page."""
    ask = "connect-src 'self'" if is_served else "connect-src 'none'"
    scripts = f"script-src '{_hash(_asset(LIBRARY))}' '{_hash(_script())}'"
    return (
        f"default-src 'none'; {scripts}; style-src '{_hash(_style())}'; img-src data: blob:; {ask}; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _script() -> str:
    return "(() => {\n'use strict';\n" + "\n".join(_asset(name) for name in SCRIPTS) + "\n})();"


@cache
def _style() -> str:
    return "\n".join(_asset(name) for name in STYLES)


@cache
def _asset(name: str) -> str:
    text = files("memfit.show.page").joinpath(*name.split("/")).read_text(encoding="utf-8")
    if name.endswith(".js") and "</script" in text.lower():
        raise ValueError(f"{name} would end the script element that it stands in")
    return text


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _escaped(text: str) -> str:
    for letter, escape in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(letter, escape)
    return text
