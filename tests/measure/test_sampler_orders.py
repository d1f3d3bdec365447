"""The protocol of the sampler: decoding inverts encoding, and nothing else is accepted."""

from __future__ import annotations

import json
import os
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.measure.sampler.orders import (
    AttachOrder,
    BadMessage,
    JobWatched,
    LaunchOrder,
    SamplerOrders,
    StatusLine,
    StatusReader,
    decode_orders,
    decode_status,
    encode_orders,
    encode_status,
)

INTEGERS = st.integers(-(2**63), 2**63)
NUMBERS = st.floats(allow_nan=False)
ESCAPED_BYTES = st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF)
"""How Python spells the bytes of a path that is not UTF-8."""
TEXT = st.text(st.characters(exclude_categories=("Cs",)) | ESCAPED_BYTES)

LAUNCHES = st.builds(
    LaunchOrder,
    command=st.lists(TEXT, min_size=1).map(tuple),
    environment=st.dictionaries(TEXT, st.none() | TEXT),
    limit_bytes=st.none() | INTEGERS,
    grace_seconds=NUMBERS,
    terminal_fd=st.none() | INTEGERS,
    ignored_signals=st.lists(INTEGERS).map(tuple),
    ends_with_pid=st.none() | INTEGERS,
)
ATTACHMENTS = st.builds(AttachOrder, pid=INTEGERS, control_fd=INTEGERS)
COMMON = {
    "folder": TEXT,
    "clock_start_ns": INTEGERS,
    "interval_seconds": NUMBERS,
    "eased_interval_seconds": st.none() | NUMBERS,
    "ledger": st.booleans(),
    "assume_watts": st.none() | NUMBERS,
    "status_fd": INTEGERS,
    "live": st.booleans(),
}
ORDERS = st.builds(SamplerOrders, **COMMON, launch=LAUNCHES, attach=st.none()) | st.builds(
    SamplerOrders, **COMMON, launch=st.none(), attach=ATTACHMENTS
)
BY_HINT = {
    "int": INTEGERS,
    "float": NUMBERS,
    "str": TEXT,
    "int | None": st.none() | INTEGERS,
    "float | None": st.none() | NUMBERS,
    "str | None": st.none() | TEXT,
}
LINES = st.one_of(
    [
        st.builds(kind, **{name: BY_HINT[hint.__forward_arg__] for name, hint in kind.__annotations__.items()})
        for kind in get_args(StatusLine)
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(ORDERS)
def test_decoding_orders_inverts_encoding_them(orders: SamplerOrders):
    assert decode_orders(encode_orders(orders)) == orders


@given(LINES)
def test_decoding_a_status_line_inverts_encoding_it(line: StatusLine):
    decoded = decode_status(encode_status(line))
    assert (type(decoded), decoded) == (type(line), line)


@given(LINES)
def test_a_status_line_is_one_line(line: StatusLine):
    assert encode_status(line).count(b"\n") == 1


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_a_line_of_anybody_else_is_refused(data: bytes):
    for decode in (decode_orders, decode_status):
        with pytest.raises(BadMessage):
            decode(data)


@given(LINES, st.data())
def test_a_status_line_with_a_field_of_another_type_is_refused(line: StatusLine, data: st.DataObject):
    name = data.draw(st.sampled_from(line._fields))
    fields = line._asdict() | {name: data.draw(st.sampled_from([True, [1], {"a": 1}]))}
    with pytest.raises(BadMessage, match=name):
        decode_status(json.dumps({type(line).__name__: fields}).encode())


@given(LINES, st.data())
def test_a_status_line_with_a_field_too_few_or_too_many_is_refused(line: StatusLine, data: st.DataObject):
    fields = line._asdict()
    left_out = data.draw(st.sampled_from(line._fields))
    fewer = {name: value for name, value in fields.items() if name != left_out}
    for wrong in (fewer, fields | {"more": 1}):
        with pytest.raises(BadMessage, match="has the fields"):
            decode_status(json.dumps({type(line).__name__: wrong}).encode())


@given(LAUNCHES, ATTACHMENTS, ORDERS)
def test_orders_for_two_jobs_or_for_none_are_refused(launch: LaunchOrder, attach: AttachOrder, orders: SamplerOrders):
    for wrong in (orders._replace(launch=launch, attach=attach), orders._replace(launch=None, attach=None)):
        with pytest.raises(BadMessage, match="either launch a job or attach"):
            decode_orders(encode_orders(wrong))


def test_a_line_nested_beyond_reason_is_refused():
    with pytest.raises(BadMessage):
        decode_status(b'{"JobWatched":' * 100_000)


@given(st.lists(LINES, max_size=5), st.integers(1, 40))
def test_lines_arrive_whole_and_in_order_however_the_pipe_cuts_them(lines: list[StatusLine], size: int):
    stream = b"".join(encode_status(line) for line in lines)
    heard: list[StatusLine] = []
    read_end, write_end = os.pipe()
    reader = StatusReader(read_end)
    for start in range(0, len(stream), size):
        os.write(write_end, stream[start : start + size])
        heard += reader.read() or []
    os.close(write_end)
    assert reader.read() is None
    os.close(read_end)
    assert heard == lines


def test_a_line_that_a_dying_sampler_cut_off_is_not_heard():
    read_end, write_end = os.pipe()
    reader = StatusReader(read_end)
    os.write(write_end, encode_status(JobWatched(7)) + encode_status(JobWatched(8))[:-3])
    assert reader.read() == [JobWatched(7)]
    os.close(write_end)
    assert reader.read() is None
    os.close(read_end)
