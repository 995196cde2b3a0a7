"""The envelope: packed and unpacked it is the same; other bytes are refused."""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.envelope import _PACKER_BYTES, MAX_BODY_DEPTH, BodyKind, Envelope, Identity, pack, unpack
from broker_adapter.errors import MessageFormatException
from broker_adapter.packing import MAX_CONTAINERS, MAX_MEMBERS

_scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), st.text(), st.binary()
)
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=10
)
_destinations = st.builds(Destination, st.text(min_size=1), st.sampled_from(list(DestinationKind)))
_optional_text = st.none() | st.text()
_instants = st.none() | st.integers(0, 2**63 - 1)

envelopes = st.builds(
    Envelope,
    destination=_destinations,
    body_kind=st.sampled_from(list(BodyKind)),
    body=_values,
    properties=st.none() | st.dictionaries(st.text(), _scalars, max_size=3),
    message_id=_optional_text,
    correlation_id=_optional_text | st.binary(),
    reply_to=st.none() | _destinations,
    type=_optional_text,
    sent_at_ms=_instants,
    expires_at_ms=_instants,
    deliver_at_ms=_instants,
    priority=st.integers(0, 9),
    persistent=st.booleans(),
    group_id=_optional_text,
    group_sequence=st.none() | st.integers(0, 2**32 - 1),
    user_id=_optional_text,
    identity=st.none() | st.builds(Identity, st.text(), st.integers(0, 2**31), st.integers(0, 2**63 - 1)),
)


@given(envelopes)
def test_an_envelope_survives_being_packed(envelope: Envelope) -> None:
    found = unpack(pack(envelope))
    assert found == envelope
    assert type(found.destination) is Destination
    assert type(found.body_kind) is BodyKind


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    with suppress(MessageFormatException):
        unpack(data)


@pytest.mark.parametrize("body", [object(), {1, 2}, 2**64, "\ud800"])
def test_what_has_no_form_is_refused(body: Any) -> None:
    with pytest.raises(MessageFormatException, match="cannot be encoded"):
        pack(Envelope(Destination("q"), body=body))


def test_a_body_that_nests_without_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(MessageFormatException):
        pack(Envelope(Destination("q"), body=endless))


def test_a_cut_off_envelope_is_refused() -> None:
    data = pack(Envelope(Destination("q"), BodyKind.TEXT, "hello"))
    for end in range(len(data)):
        with pytest.raises(MessageFormatException):
            unpack(data[:end])


def test_packing_one_message_in_the_middle_of_another_harms_neither() -> None:
    """The garbage collector runs where memory is asked for, and whatever Python code it runs lets other threads go on:
    a collector's callback stands for them."""
    one = Envelope(Destination("one"), BodyKind.STREAM, [[number] for number in range(1000)])
    other = Envelope(Destination("other"), BodyKind.TEXT, "other")
    expected = pack(one), pack(other)
    between = []

    def interrupt(phase: str, _: object) -> None:
        if phase == "stop":
            between.append(pack(other))

    threshold = gc.get_threshold()
    gc.callbacks.append(interrupt)
    gc.set_threshold(1)
    try:
        packed = [pack(one) for _ in range(20)]
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(interrupt)
    assert len(between) > 20
    assert set(packed) == {expected[0]}
    assert set(between) == {expected[1]}


@pytest.mark.parametrize(("excess", "used_again"), [(0, True), (1, False), (1_000_000, False)])
def test_a_large_message_leaves_no_large_buffer_behind(
    monkeypatch: pytest.MonkeyPatch, excess: int, used_again: bool
) -> None:
    def packed(size: int) -> bytes:
        return pack(Envelope(Destination("q"), BodyKind.TEXT, "x" * size))

    around = len(packed(100_000)) - 100_000
    monkeypatch.setattr("broker_adapter.envelope._packers", kept := [])
    size = _PACKER_BYTES - around + excess
    assert unpack(packed(size)).body == "x" * size
    assert bool(kept) is used_again


def test_a_body_of_more_lists_than_the_limit_is_neither_sent_nor_received() -> None:
    """An envelope has two of its own: itself and its destination."""
    largest = Envelope(Destination("q"), BodyKind.OBJECT, [[] for _ in range(MAX_CONTAINERS - 3)])
    assert unpack(pack(largest)).body == largest.body
    larger = largest._replace(body=[*largest.body, []])
    with pytest.raises(MessageFormatException, match="more lists and maps than the limit"):
        pack(larger)
    with pytest.raises(MessageFormatException, match="more lists and maps than the limit"):
        unpack(msgpack.packb(larger))


def test_a_body_of_more_members_than_the_limit_is_neither_sent_nor_received() -> None:
    largest = Envelope(Destination("q"), BodyKind.STREAM, [0] * (MAX_MEMBERS - len(Envelope._fields) - 2))
    assert unpack(pack(largest)).body == largest.body
    larger = largest._replace(body=[*largest.body, 0])
    with pytest.raises(MessageFormatException, match="more members"):
        pack(larger)
    with pytest.raises(MessageFormatException, match="more members"):
        unpack(msgpack.packb(larger))


def test_a_body_that_nests_deeper_than_the_limit_is_not_received() -> None:
    body: Any = []
    for _ in range(MAX_BODY_DEPTH - 1):
        body = [body]
    assert unpack(pack(Envelope(Destination("q"), BodyKind.OBJECT, body))).body == body
    for deeper in ([body], {"a": body}):
        with pytest.raises(MessageFormatException, match="nested deeper"):
            unpack(pack(Envelope(Destination("q"), BodyKind.OBJECT, deeper)))
