"""Pools of processes under a prediction: they work in the predicted process, and say so."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import multiprocessing.pool
import threading
from multiprocessing.queues import Queue
from pathlib import Path

import pytest

from memfit.predict.sandbox.processes import guarded, question_words


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


def fill(queue: Queue[int], stop: threading.Event) -> None:
    """As samplers do: batches for ever, until the queue is full."""
    number = 0
    while not stop.is_set():
        queue.put(number)
        number += 1


@pytest.mark.timeout(60)
def test_a_daemon_that_fills_a_queue_for_ever_works_beside_the_script(tmp_path: Path):
    said: list[str] = []
    stop, queue = threading.Event(), multiprocessing.Queue(2)
    with guarded(str(tmp_path), lambda kind, text: said.append(text)):
        sampler = multiprocessing.Process(target=fill, args=(queue, stop), daemon=True)
        sampler.start()
        assert [queue.get() for _ in range(9)] == list(range(9))
        stop.set()
        queue.get()
        sampler.terminate()
        sampler.join()
    assert any("beside it" in text for text in said)


@pytest.mark.parametrize("name", ["uname", "/usr/bin/nvidia-smi", "touch"])
def test_a_program_that_is_named_by_a_path_object_is_the_program_of_that_name(name: str):
    assert question_words(Path(name), False) == question_words(name, False) == question_words([name], False)
    assert question_words(Path(name), True) is None  # Popen refuses it, and says why
