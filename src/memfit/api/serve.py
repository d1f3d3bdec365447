"""Server over a folder of records, for a browser on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from memfit.api.shared.options import checked_options


@checked_options
def serve_folder(
    folder: str | Path = ".",
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    token_file: str | Path | None = None,
    on_ready: Callable[[str], None] | None = None,
    until: Callable[[], bool] | None = None,
) -> None:
    """Serve the page over a folder (or one record) until interrupted, or until `until()` is true.

    It listens on the loopback address, and every request needs the token in the address that `on_ready` is called with.
    Port 0 takes a free one. `token_file` keeps the token: the same at every start, made if the file is not there.

    >>> serve_folder("memfit-runs", on_ready=print)  # doctest: +SKIP
    """
    from memfit.errors import MissingExtra, UsageError

    if token is not None and token_file is not None:
        raise UsageError("a token and a file with one were given", hint="leave one of them out")
    try:
        from memfit.serve.starlette_app import make_app
        from memfit.serve.uvicorn_server import listen, serve_app
    except ModuleNotFoundError as error:
        hint = 'pip install "memfit[serve]", or `memfit report` for a file that needs no server'
        raise MissingExtra("the server needs starlette and uvicorn", found=f"no {error.name}", hint=hint) from None
    from memfit.api.shared.open_records import metric_readers, open_dropped, served_openers
    from memfit.serve.guard import kept_token, new_token
    from memfit.serve.metrics import FolderMetrics
    from memfit.serve.opened_records import Library

    secret = kept_token(token_file) if token_file is not None else token or new_token()
    root = Path(folder)
    library, metrics = Library(root, served_openers()), FolderMetrics(root, metric_readers())
    library.read_ahead()
    app = make_app(library, metrics, title=f"{root.resolve().name}", open_snapshot=open_dropped)
    listener = listen(host, port)
    serve_app(app, listener, host=host, token=secret, on_ready=on_ready or (lambda url: None), until=until)
