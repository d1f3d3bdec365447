"""The web application: the page, the list of records, one record, and what the page asks about it later."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from memfit.errors import MemfitError, UsageError
from memfit.records.study import TrialRecord
from memfit.serve.guard import METRICS_PATH
from memfit.serve.metrics import FolderMetrics
from memfit.serve.opened_records import Library, Opened
from memfit.show.as_json import to_json
from memfit.show.export.openmetrics import CONTENT_TYPE
from memfit.show.page.app import app_html
from memfit.show.page.documents.document import Body, Listed
from memfit.show.page.documents.run import window_body
from memfit.show.page.documents.study import trial_curves, trial_facts
from memfit.show.views.curve_pyramid import window_of
from memfit.units import GIB

MOST_CURVES = 500
MOST_ROWS = 8192
MOST_UPLOAD_BYTES = GIB
OpenSnapshot = Callable[[Path], Opened]


class Answers:
    """What each address answers."""

    def __init__(self, library: Library, metrics: FolderMetrics, *, title: str, open_snapshot: OpenSnapshot) -> None:
        self.library = library
        self.metrics = metrics
        self.title = title
        self.open_snapshot = open_snapshot
        self.page = app_html(title=title, is_served=True).encode()

    async def show_page(self, request: Request) -> Response:
        """The page, without any record in it."""
        return HTMLResponse(self.page)

    async def show_list(self, request: Request) -> Response:
        """Every record of the folder."""
        found = await run_in_threadpool(self.library.records)
        titles = await run_in_threadpool(self.library.titles, found.entries)
        items = [
            asdict(Listed(id=one.id, kind=one.kind, title=titles.get(one.id, one.id), changed_at=one.changed_at))
            for one in found.entries
        ]
        return _json({"title": self.title, "items": items, "is_whole": found.is_whole})

    async def show_metrics(self, request: Request) -> Response:
        """The numbers of all records, for Prometheus."""
        text = await run_in_threadpool(lambda: self.metrics.text(self.library.records()))
        return Response(text, headers={"content-type": CONTENT_TYPE})

    async def show_document(self, request: Request) -> Response:
        """One record; 304 where the page has it already."""
        name = request.query_params.get("id", "")
        if request.headers.get("if-none-match") == f'"{await run_in_threadpool(self.library.version, name)}"':
            return Response(status_code=304)
        content, version, seconds = await run_in_threadpool(self.library.content, name)
        headers = {"etag": f'"{version}"', "x-read-seconds": f"{seconds:.3f}"}
        return Response(content, media_type="application/json", headers=headers)

    async def show_window(self, request: Request) -> Response:
        """The curves of a run between two moments."""
        begin, end = _number(request, "from"), _number(request, "to")
        rows = int(min(max(_number(request, "rows"), 1), MOST_ROWS))
        opened = await run_in_threadpool(self.library.opened, request.query_params.get("id", ""))
        return _json(await run_in_threadpool(lambda: window_body(window_of(opened.curves, begin, end, rows))))

    async def show_trial(self, request: Request) -> Response:
        """One trial in full, and the run that it left."""
        name, number = request.query_params.get("id", ""), _number(request, "number")
        opened = await run_in_threadpool(self.library.opened, name)
        found = [trial for trial in _trials(opened) if trial.number == number]
        if not found:
            raise UsageError("there is no such trial", found=f"{number:g}", hint="choose one from the table")
        return _json(trial_facts(found[0]) | {"run": self._run_of(name, found[0])})

    def _run_of(self, name: str, trial: TrialRecord) -> str | None:
        """The name of a trial's run, where that is in the folder that is served."""
        if not trial.run_folder:
            return None
        run = trial.run_folder if name == "." else f"{name}/{trial.run_folder}"
        try:
            self.library.version(run)
        except MemfitError:
            return None
        return run

    async def show_curves(self, request: Request) -> Response:
        """Intermediate results of some trials."""
        opened = await run_in_threadpool(self.library.opened, request.query_params.get("id", ""))
        words = request.query_params.get("numbers", "").split(",")[:MOST_CURVES]
        wanted = {int(word) for word in words if word.isdecimal() and len(word) < 12}
        return _json(trial_curves([trial for trial in _trials(opened) if trial.number in wanted]))

    async def show_later(self, request: Request) -> Response:
        """What takes long to find out about a record."""
        opened = await run_in_threadpool(self.library.opened, request.query_params.get("id", ""))
        work = opened.later.get(request.query_params.get("name", ""))
        if work is None:
            raise UsageError("there is nothing more to find out", hint="the page itself asks by name")
        return _json(await run_in_threadpool(work))

    async def take_snapshot(self, request: Request) -> Response:
        """A snapshot file that was dropped on the page: read, answered, and removed."""
        descriptor, path = tempfile.mkstemp(prefix="memfit-snapshot-", suffix=".pickle")
        try:
            total = 0
            with os.fdopen(descriptor, "wb") as file:
                async for chunk in request.stream():
                    total += len(chunk)
                    if total > MOST_UPLOAD_BYTES:
                        raise UsageError("the snapshot is too large", found=f"more than {total} bytes")
                    file.write(chunk)
            opened = await run_in_threadpool(self.open_snapshot, Path(path))
            return Response(opened.document.to_json(), media_type="application/json")
        finally:
            os.unlink(path)


def make_app(library: Library, metrics: FolderMetrics, *, title: str, open_snapshot: OpenSnapshot) -> Starlette:
    """The application over a folder; it trusts whoever asks, so a `RequestGuard` has to stand in front of it."""
    answers = Answers(library, metrics, title=title, open_snapshot=open_snapshot)
    return Starlette(
        routes=[
            Route("/", answers.show_page),
            Route(METRICS_PATH, answers.show_metrics),
            Route("/api/list", answers.show_list),
            Route("/api/document", answers.show_document),
            Route("/api/window", answers.show_window),
            Route("/api/trial", answers.show_trial),
            Route("/api/curves", answers.show_curves),
            Route("/api/later", answers.show_later),
            Route("/api/snapshot", answers.take_snapshot, methods=["POST"]),
        ],
        exception_handlers={MemfitError: _refused, ClientDisconnect: _gone, Exception: _failed},
    )


def _trials(opened: Opened) -> tuple[TrialRecord, ...]:
    if opened.study is None:
        raise UsageError("this record has no trials", hint="choose a study")
    return opened.study.trials


def _number(request: Request, name: str) -> float:
    text = request.query_params.get(name, "")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{name} is no number", found=text[:80], hint="the page itself asks with numbers")
    return value


def _json(value: Body, status: int = 200) -> Response:
    return Response(to_json(value), status_code=status, media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    """An error of memfit in its three parts."""
    if not isinstance(error, MemfitError):
        return await _failed(request, error)
    return _json({"what": error.what, "found": error.found, "hint": error.hint}, 404)


async def _failed(request: Request, error: Exception) -> Response:
    """Anything else: a defect, without its inner state."""
    return _json({"what": "the record could not be shown", "found": type(error).__name__, "hint": ""}, 500)


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=400)
