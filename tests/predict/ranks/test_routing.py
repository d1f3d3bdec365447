"""Do the scenarios of a mixture of experts send every token to as many experts as it is sent to, and where they say?"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import UsageError
from memfit.predict.ranks.environment import Ranks
from memfit.predict.ranks.expert_routing import Routing, read_routing


@given(st.integers(1, 30), st.integers(2, 9), st.data())
def test_every_token_goes_to_different_experts_and_none_is_lost(num_tokens: int, num_experts: int, data: st.DataObject):
    num_chosen = data.draw(st.integers(1, num_experts - 1))
    shares = tuple(data.draw(st.lists(st.floats(0.01, 9), min_size=num_experts, max_size=num_experts)))
    for name in ("even", "worst", "given"):
        routing = Routing(name=name, shares=shares, ranks=Ranks(rank=1, count=2))
        found = routing.experts_of(num_tokens, num_chosen, num_experts)
        assert [len(set(experts)) for experts in found] == [num_chosen] * num_tokens
        assert all(0 <= expert < num_experts for experts in found for expert in experts)


def test_even_is_even_worst_is_one_rank_and_shares_are_kept():
    even = Routing(name="even", ranks=Ranks(count=4)).experts_of(32, 2, 8)
    assert set(Counter(e for experts in even for e in experts).values()) == {8}
    worst = Routing(name="worst", ranks=Ranks(rank=3, count=4)).experts_of(32, 2, 8)
    assert worst == [[6, 7]] * 32
    given = Routing(name="f", shares=(3, 1, 0, 0), ranks=Ranks()).experts_of(8, 1, 4)
    assert Counter(experts[0] for experts in given) == {0: 6, 1: 2}


def test_shares_are_read_from_a_file_and_nonsense_is_refused(tmp_path: Path):
    path = tmp_path / "shares"
    for text in ("[0.5, 0.5]", "0.5\n0.5\n"):
        path.write_text(text)
        found = read_routing(str(path), Ranks())
        assert found is not None
        assert found.shares == (0.5, 0.5)
    assert read_routing(None, Ranks()) is None
    for text in ("", "-1 2", "a b", "nan 1"):
        path.write_text(text)
        with pytest.raises(UsageError):
            read_routing(str(path), Ranks())


def test_more_experts_for_a_token_than_there_are_is_refused_at_once():
    with pytest.raises(UsageError, match="cannot go to 3 of 2 experts"):
        Routing(name="f", shares=(1, 1), ranks=Ranks()).experts_of(8, 3, 2)
