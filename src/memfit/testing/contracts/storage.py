"""Contract of a storage of studies: subclass it, give it `connect`, and pytest runs these laws on your storage.

    class TestMyStorage(StorageContract):
        @pytest.fixture
        def connect(self, tmp_path):
            return lambda: MyStorage(tmp_path / "facts")

Needs pytest and hypothesis. Every study has a random name, so a database that keeps other studies can be used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memfit.records.study import Proposal, SearchSpace, Span, StudySettings
from memfit.study.storage.interface import Fact, Proposed, Storage, fact, study_of

SETTINGS = StudySettings(space=SearchSpace(parameters=(Span(name="x", low=0, high=1),)), command="true")
NUM_WRITERS, NUM_FACTS = 4, 25
SHARED = (HealthCheck.function_scoped_fixture, HealthCheck.differing_executors)
"""All examples of a law share the fixtures of pytest, and all subclasses share the law."""
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
PARAMETERS = st.dictionaries(
    WORDS, st.one_of(WORDS, st.integers(-(2**53), 2**53), st.floats(allow_nan=False)), max_size=5
)


def proposed(place: int, number: int) -> Fact:
    """A fact at this place: trial `number` was proposed."""
    body = Proposed(proposal=Proposal(number=number, parameters={"x": number}), trial_id="abcde")
    return fact(place, f"p{number}", "proposed", body, number)


def new_study() -> str:
    """A name that no other study has."""
    return os.urandom(6).hex()


class StorageContract:
    """What every storage of studies does, whatever keeps its facts."""

    @pytest.fixture
    def connect(self) -> Callable[[], Storage]:
        """A function that opens one more connection to one and the same database."""
        raise NotImplementedError("give your storage in a fixture called `connect`")

    @pytest.fixture
    def storage(self, connect: Callable[[], Storage]) -> Iterator[Storage]:
        made = connect()
        yield made
        made.close()

    @pytest.fixture
    def other(self, connect: Callable[[], Storage]) -> Iterator[Storage]:
        made = connect()
        yield made
        made.close()

    def test_facts_come_back_in_their_order_whatever_order_they_were_stored_in(self, storage: Storage):
        study_id, facts = new_study(), [proposed(place, place) for place in range(5)]
        storage.append(study_id, facts[3:])
        storage.append(study_id, facts[:3])
        assert storage.read(study_id) == facts
        assert study_id in storage.study_ids()

    def test_storing_a_fact_twice_stores_it_once_and_as_it_was_first(self, storage: Storage):
        study_id, first, second = new_study(), proposed(0, 0), proposed(1, 1)
        storage.append(study_id, [first])
        storage.append(study_id, [msgspec.structs.replace(first, body='"another"'), second])
        assert storage.read(study_id) == [first, second]

    def test_facts_are_stored_together_or_not_at_all(self, storage: Storage):
        study_id = new_study()
        storage.append(study_id, [proposed(0, 0)])
        no_place = msgspec.structs.replace(proposed(2, 2), place=2**80)
        with pytest.raises(Exception):  # noqa: B017, PT011
            storage.append(study_id, [proposed(1, 1), no_place])
        storage.reopen()
        assert [each.fact_id for each in storage.read(study_id)] == ["p0"]

    def test_studies_in_one_database_do_not_mix(self, storage: Storage):
        first, second = new_study(), new_study()
        storage.append(first, [proposed(0, 0)])
        storage.append(second, [proposed(0, 7)])
        assert [each.number for each in storage.read(first)] == [0]
        assert [each.number for each in storage.read(second)] == [7]
        assert storage.read(new_study()) == []
        assert {first, second} <= set(storage.study_ids())

    def test_another_connection_sees_what_was_stored(self, storage: Storage, other: Storage):
        study_id = new_study()
        storage.append(study_id, [proposed(0, 0)])
        assert other.read(study_id) == storage.read(study_id) != []

    def test_what_was_stored_is_there_after_an_error_and_a_new_beginning(self, storage: Storage):
        study_id = new_study()
        storage.append(study_id, [proposed(0, 0)])
        storage.reopen()
        storage.append(study_id, [proposed(1, 1)])
        assert [each.number for each in storage.read(study_id)] == [0, 1]

    def test_several_writers_at_a_time_lose_nothing(self, connect: Callable[[], Storage]):
        study_id = new_study()

        def write(writer: int) -> None:
            mine = connect()
            for number in range(writer * NUM_FACTS, (writer + 1) * NUM_FACTS):
                mine.append(study_id, [proposed(number, number)])
            mine.close()

        with ThreadPoolExecutor(NUM_WRITERS) as writers:
            list(writers.map(write, range(NUM_WRITERS)))
        reader = connect()
        found = [each.number for each in reader.read(study_id)]
        reader.close()
        assert found == list(range(NUM_WRITERS * NUM_FACTS))

    def test_only_one_coordinator_holds_a_study_at_a_time(self, storage: Storage, other: Storage):
        study_id = new_study()
        storage.append(study_id, [proposed(0, 0)])
        assert storage.hold(study_id)
        assert not other.hold(study_id)
        storage.close()
        assert other.hold(study_id)

    @settings(max_examples=30, deadline=None, suppress_health_check=SHARED)
    @given(parameters=PARAMETERS)
    def test_any_parameters_survive_the_database(self, storage: Storage, parameters: dict[str, object]):
        study_id = new_study()
        body = Proposed(proposal=Proposal(number=0, parameters=parameters), trial_id="abcde")
        storage.append(study_id, [fact(0, "study", "study", SETTINGS), fact(1, "p0", "proposed", body, 0)])
        back = study_of(study_id, storage.read(study_id)).trials[0].parameters
        assert msgspec.json.encode(back) == msgspec.json.encode(parameters)
