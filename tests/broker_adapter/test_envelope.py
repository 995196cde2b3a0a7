"""The envelope: packed and unpacked it is the same; other bytes are refused."""

from __future__ import annotations

import struct
from collections.abc import ItemsView
from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.envelope import (
    _HEAD_BYTES,
    _PACKER_BYTES,
    ENVELOPE_FORMAT,
    ENVELOPE_VERSION,
    MAX_BODY_DEPTH,
    MAX_PROPERTIES,
    RESERVED,
    BodyKind,
    Envelope,
    Head,
    Identity,
    pack,
    read_head,
    unpack,
    unpack_headers,
)
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

_bodies = st.one_of(
    st.tuples(st.sampled_from([BodyKind.NONE, BodyKind.OBJECT]), _values),
    st.tuples(st.just(BodyKind.MAP), st.none() | st.dictionaries(st.text(), _values, max_size=3)),
    st.tuples(st.just(BodyKind.BYTES), st.none() | st.binary()),
    st.tuples(st.just(BodyKind.STREAM), st.none() | st.lists(_values, max_size=3)),
    st.tuples(st.just(BodyKind.TEXT), st.none() | st.text()),
)


def _envelope(kind_and_body: tuple[BodyKind, Any], **fields: Any) -> Envelope:
    return Envelope(body_kind=kind_and_body[0], body=kind_and_body[1], **fields)


envelopes = st.builds(
    _envelope,
    _bodies,
    destination=_destinations,
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


@given(envelopes)
def test_the_head_has_what_routes_a_message(envelope: Envelope) -> None:
    head = read_head(pack(envelope))
    assert head.format == ENVELOPE_FORMAT
    assert type(head) is Head
    assert all(getattr(head, name) == getattr(envelope, name) for name in Head._fields[1:-1])


@given(envelopes)
def test_a_selector_reads_all_but_the_body(envelope: Envelope) -> None:
    assert unpack_headers(pack(envelope))._replace(body=envelope.body) == envelope


PLAIN = Envelope(Destination("q"), BodyKind.TEXT, "hello", {"colour": "red"}, "id", type="t")
HEADERS = msgpack.packb({"type": "t"})


def test_a_header_that_is_not_known_is_ignored() -> None:
    data = pack(PLAIN)
    further = msgpack.packb({"tenant": ["of", {"later": 1}], "type": "t"})
    sizes = struct.pack(">I", len(HEADERS)), struct.pack(">I", len(further))
    changed = data[:_HEAD_BYTES].replace(sizes[0], sizes[1], 1) + data[_HEAD_BYTES:].replace(HEADERS, further)
    assert unpack(changed) == PLAIN
    assert read_head(changed) == read_head(data)


@pytest.mark.parametrize("read", [unpack, unpack_headers, read_head])
def test_a_newer_version_is_refused_with_both_numbers(read: Any) -> None:
    data = bytearray(pack(PLAIN))
    data[1] = ENVELOPE_VERSION + 1
    both = rf"has version {ENVELOPE_VERSION + 1} .* knows versions up to {ENVELOPE_VERSION}: upgrade"
    with pytest.raises(MessageFormatException, match=both):
        read(bytes(data))


def test_routing_a_message_reads_neither_its_headers_nor_its_body() -> None:
    envelope = Envelope(Destination("q"), BodyKind.MAP, {"a": 1}, {"b": 2}, correlation_id="c")
    data = pack(envelope)
    start = _HEAD_BYTES + len("q")
    broken = data[:start] + b"\xc1" * (len(data) - start)
    assert read_head(broken) == read_head(data)
    with pytest.raises(MessageFormatException):
        unpack(broken)


@given(envelopes, st.data())
def test_changed_bytes_are_another_envelope_or_refused(envelope: Envelope, data: st.DataObject) -> None:
    packed = bytearray(pack(envelope))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    for read in (unpack, unpack_headers, read_head):
        try:
            found = read(bytes(packed))
        except MessageFormatException:
            continue
        assert 0 <= found.priority <= 9
        if found.identity is not None:
            assert min(found.identity[1:]) >= 0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"reply_to": "not a list"}, "header 'reply' is a str"),
        ({"type": 5}, "header 'type' is a int"),
        ({"correlation_id": 5}, "header 'corr' is a int"),
        ({"user_id": b"me"}, "header 'user' is a bytes"),
        ({"properties": [1]}, "properties are a list"),
        ({"properties": {b"a": 1}}, "expected str instance, bytes found"),
        ({"identity": Identity("p", -1, 1)}, "below 0"),
        ({"identity": Identity("p", 1, -1)}, "below 0"),
        ({"body_kind": 6}, "not a packed envelope: the kind 6 of its body"),
    ],
)
def test_fields_of_a_wrong_type_are_refused_when_they_are_read(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(MessageFormatException, match=why):
        unpack(pack(PLAIN._replace(**changes)))


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        *((BodyKind.TEXT, body) for body in (b"text", ["text"], {"a": 1}, 5)),
        *((BodyKind.BYTES, body) for body in ("text", ["text"], {"a": 1}, 5)),
        *((BodyKind.MAP, body) for body in ("text", b"text", ["text"], 5)),
        *((BodyKind.STREAM, body) for body in ("text", b"text", {"a": 1}, 5)),
    ],
)
def test_a_body_of_another_type_than_its_kind_is_refused(kind: BodyKind, body: Any) -> None:
    packed = pack(Envelope(Destination("q"), kind, body))
    with pytest.raises(MessageFormatException, match=kind.name):
        unpack(packed)


def test_what_routes_a_message_refuses_a_form_that_its_kind_of_body_never_has() -> None:
    for kind, body in ((BodyKind.TEXT, b"text"), (BodyKind.BYTES, "text"), (BodyKind.MAP, "text")):
        with pytest.raises(MessageFormatException, match=f"kind {kind.name} does not have the form"):
            read_head(pack(Envelope(Destination("q"), kind, body)))


@pytest.mark.parametrize("read", [unpack, unpack_headers, read_head])
def test_what_begins_with_another_octet_is_refused(read: Any) -> None:
    """What clients take for a message and what the server takes for one is the same."""
    with pytest.raises(MessageFormatException, match="octet 0xdd"):
        read(b"\xdd" + pack(PLAIN)[1:])


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    with suppress(MessageFormatException):
        unpack(data)


@pytest.mark.parametrize("body", [object(), {1, 2}, 2**64, "\ud800"])
def test_what_has_no_form_is_refused(body: Any) -> None:
    with pytest.raises(MessageFormatException, match="cannot be encoded"):
        pack(Envelope(Destination("q"), body=body))


@pytest.mark.parametrize(
    "changes",
    [
        {"destination": Destination("\ud800")},
        {"group_id": "\ud800"},
        {"group_id": 5},
        {"message_id": 5},
        {"expires_at_ms": 1 << 63},
        {"sent_at_ms": 1.5},
        {"identity": Identity("p", 1 << 63, 1)},
        {"identity": ("p", 1)},
        {"priority": None},
    ],
)
def test_a_header_that_has_no_form_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(MessageFormatException, match="cannot be encoded"):
        pack(PLAIN._replace(**changes))


@pytest.mark.parametrize(("given", "packed"), [(-1, 0), (10, 9), (1000, 9)])
def test_a_priority_beyond_the_range_is_the_nearest_one(given: int, packed: int) -> None:
    assert unpack(pack(PLAIN._replace(priority=given))).priority == packed


def test_a_body_that_nests_without_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(MessageFormatException):
        pack(Envelope(Destination("q"), body=endless))


def test_an_envelope_that_is_cut_off_or_too_long_is_refused() -> None:
    data = pack(PLAIN)
    for read in (unpack, read_head):
        for end in range(len(data)):
            with pytest.raises(MessageFormatException):
                read(data[:end])
        with pytest.raises(MessageFormatException):
            read(data + b"\0")


def test_packing_one_message_in_the_middle_of_another_harms_neither() -> None:
    """The garbage collector runs where memory is asked for, and whatever Python code it runs lets other threads go on:
    a map that runs code as it is packed stands for them."""
    other = Envelope(Destination("other"), BodyKind.MAP, {"a": "other"}, {"colour": "red"})
    between = []

    class Interrupting(dict[str, int]):
        def items(self) -> ItemsView[str, int]:
            between.append(pack(other))
            return super().items()

    one = Envelope(Destination("one"), BodyKind.STREAM, [[number] for number in range(1000)])
    interrupted = one._replace(body=[*one.body, Interrupting(a=1)])
    assert {pack(interrupted) for _ in range(20)} == {pack(one._replace(body=[*one.body, {"a": 1}]))}
    assert len(between) == 20
    assert set(between) == {pack(other)}


@pytest.mark.parametrize(("excess", "used_again"), [(0, True), (1, False), (1_000_000, False)])
def test_a_large_message_leaves_no_large_buffer_behind(
    monkeypatch: pytest.MonkeyPatch, excess: int, used_again: bool
) -> None:
    around = len(msgpack.packb(["x" * 100_000])) - 100_000
    monkeypatch.setattr("broker_adapter.envelope._packers", kept := [])
    body = ["x" * (_PACKER_BYTES - around + excess)]
    assert unpack(pack(Envelope(Destination("q"), BodyKind.STREAM, body))).body == body
    assert bool(kept) is used_again


def _forged(body: Any) -> bytes:
    """A packed envelope with this body, whatever it is."""
    content = bytes(msgpack.packb(body))
    data = bytearray(pack(Envelope(Destination("q"), BodyKind.OBJECT, [])))[:-1] + content
    struct.pack_into(">I", data, 8 + 6 * 4, len(content))
    return bytes(data)


def test_a_body_of_more_lists_than_the_limit_is_neither_sent_nor_received() -> None:
    largest = Envelope(Destination("q"), BodyKind.OBJECT, [[] for _ in range(MAX_CONTAINERS - 1)])
    assert unpack(pack(largest)).body == largest.body
    larger = largest._replace(body=[*largest.body, []])
    with pytest.raises(MessageFormatException, match="more lists and maps than the limit"):
        pack(larger)
    with pytest.raises(MessageFormatException, match="more lists and maps than the limit"):
        unpack(_forged(larger.body))


def test_a_body_of_more_members_than_the_limit_is_neither_sent_nor_received() -> None:
    largest = Envelope(Destination("q"), BodyKind.STREAM, [0] * MAX_MEMBERS)
    assert unpack(pack(largest)).body == largest.body
    larger = largest._replace(body=[*largest.body, 0])
    with pytest.raises(MessageFormatException, match="more members"):
        pack(larger)
    with pytest.raises(MessageFormatException, match="more members"):
        unpack(_forged(larger.body))


def test_a_body_that_nests_deeper_than_the_limit_is_not_received() -> None:
    body: Any = []
    for _ in range(MAX_BODY_DEPTH - 1):
        body = [body]
    assert unpack(pack(Envelope(Destination("q"), BodyKind.OBJECT, body))).body == body
    for deeper in ([body], {"a": body}):
        with pytest.raises(MessageFormatException, match="nested deeper"):
            unpack(pack(Envelope(Destination("q"), BodyKind.OBJECT, deeper)))


def test_properties_up_to_the_limit_are_sent_and_received_and_one_more_is_not() -> None:
    properties = {f"p{number}": number for number in range(MAX_PROPERTIES)}
    assert unpack(pack(PLAIN._replace(properties=properties))).properties == properties
    more = {**properties, "one more": 1}
    with pytest.raises(MessageFormatException, match="10001 properties, more than the limit of 10000"):
        pack(PLAIN._replace(properties=more))
    few = pack(PLAIN._replace(properties=properties, body=None))
    old, new = msgpack.packb(properties), msgpack.packb(more)
    head = bytearray(few[: few.index(old)])
    head[28:32] = len(new).to_bytes(4)
    data = bytes(head) + new
    for read in (unpack, unpack_headers):
        with pytest.raises(MessageFormatException, match="more than the limit of 10000"):
            read(data)


@pytest.mark.parametrize("field", ["properties", "body"])
def test_keys_whose_hashes_a_sender_can_choose_are_refused(field: str) -> None:
    keys = {msgpack.Timestamp(number, 0): 0 for number in range(20)}
    with pytest.raises(MessageFormatException, match="is not allowed for map key"):
        unpack(pack(Envelope(Destination("q"), BodyKind.MAP, **{"body": {}, field: keys})))


@pytest.mark.parametrize("read", [unpack, unpack_headers, read_head])
def test_a_kind_that_is_unknown_is_named(read: Any) -> None:
    for octet in (4, 6):  # of the body, and of the destination
        damaged = bytearray(pack(Envelope(Destination("q"))))
        damaged[octet] = 77
        with pytest.raises(MessageFormatException, match="the kind 77 of its body or of a destination is unknown"):
            read(bytes(damaged))


@given(envelopes, st.dictionaries(st.sampled_from(sorted(RESERVED)), _scalars, max_size=3))
def test_a_message_that_comes_in_loses_what_only_the_engine_says_and_nothing_else(
    envelope: Envelope, reserved: dict[str, Any]
) -> None:
    own = {name: value for name, value in (envelope.properties or {}).items() if name not in RESERVED}
    try:
        packed, wanted = (
            pack(envelope._replace(properties=each)) for each in ({**own, **reserved} or None, own or None)
        )
    except MessageFormatException:
        return
    head = read_head(packed)
    assert (head.allowed is None) is (not reserved)
    assert unpack(packed if head.allowed is None else head.allowed) == unpack(wanted)
    assert head._replace(allowed=None) == read_head(wanted)


def test_a_message_that_names_what_is_reserved_elsewhere_stays_as_it_came() -> None:
    properties = {"JMS_HOLDFAST_x": "JMS_Holdfast_Key", "x": "JMS_Holdfast_", "JMS_Holdfast_Other": 1}
    made = Envelope(
        Destination("q"), BodyKind.TEXT, "JMS_Holdfast_Key", properties, "JMS_Holdfast_1", group_id="JMS_Holdfast_"
    )
    assert read_head(pack(made)).allowed is None


def test_what_a_newer_sender_has_added_to_the_headers_stays_where_properties_are_taken_out() -> None:
    made = Envelope(Destination("q"), BodyKind.TEXT, "body", {"JMS_Holdfast_Key": 1}, correlation_id="c")
    plain = pack(made)
    before, after = msgpack.packb({"corr": "c"}), msgpack.packb({"corr": "c", "new": 1})
    place = plain.index(before)
    further = _HEAD_BYTES - 5 * 8 - 3 * 4
    longer = plain[:further] + struct.pack(">I", len(after)) + plain[further + 4 :]
    newer = longer.replace(before, after)
    allowed = read_head(newer).allowed
    assert allowed is not None
    assert allowed[place : place + len(after)] == after
    assert unpack(allowed) == made._replace(properties=None)
