"""Pools of processes under a prediction: they work in the predicted process, and say so."""

from __future__ import annotations

import concurrent.futures
import multiprocessing.pool
from pathlib import Path

from memfit.predict.sandbox.processes import guarded


def test_classes_can_derive_from_pools_that_work_in_this_process(tmp_path: Path):
    said: list[str] = []
    with guarded(str(tmp_path), lambda _kind, text: said.append(text)):

        class Executor(concurrent.futures.ProcessPoolExecutor):
            pass

        class Pool(multiprocessing.pool.Pool):
            pass

        with Executor(2) as executor:
            assert list(executor.map(abs, [-1, 2])) == [1, 2]
        with Pool(2) as pool:
            assert pool.map(abs, [-3, 4]) == [3, 4]
    assert len(said) == 2
    assert "did its work in this one" in said[0]
