"""Server over a folder of records, for a browser on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from memfit.api.options import checked_options


@checked_options
def serve_folder(
    folder: str | Path = ".",
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    on_ready: Callable[[str], None] | None = None,
    until: Callable[[], bool] | None = None,
) -> None:
    """Serve the page over a folder (or one record) until interrupted, or until `until()` is true.

    It listens on the loopback address, and every request needs the token in the address that `on_ready` is called with.
    Port 0 takes a free one.

    >>> serve_folder("memfit-runs", on_ready=print)  # doctest: +SKIP
    """
    from memfit.errors import MissingExtra

    try:
        from memfit.serve.starlette_app import make_app, new_token
        from memfit.serve.uvicorn_server import listen, serve_app
    except ModuleNotFoundError as error:
        hint = 'pip install "memfit[serve]", or `memfit report` for a file that needs no server'
        raise MissingExtra("the server needs starlette and uvicorn", found=f"no {error.name}", hint=hint) from None
    from memfit.api.open_records import open_dropped, served_openers
    from memfit.serve.library import Library

    library = Library(Path(folder), served_openers())
    library.read_ahead()
    app = make_app(library, title=f"{Path(folder).resolve().name}", open_snapshot=open_dropped)
    listener = listen(host, port)
    serve_app(
        app, listener, host=host, token=token or new_token(), on_ready=on_ready or (lambda url: None), until=until
    )
