"""The phantom GPU keeps the contract of engines."""

from __future__ import annotations

import pytest

from memfit.predict.phantom.engine import PhantomEngine
from memfit.predict.phantom.library.build import has_cuda_torch
from memfit.testing.contracts.engine import EngineContract

pytestmark = [
    pytest.mark.skipif(not has_cuda_torch(), reason="needs a CUDA build of torch (make test-gpu)"),
    pytest.mark.timeout(300),
]


class TestPhantomEngine(EngineContract):
    make_engine = PhantomEngine
