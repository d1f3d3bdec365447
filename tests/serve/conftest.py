"""The fixture `serving` for every test of the server."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from served import serving  # noqa: F401  (a fixture)
