"""A login that gets something else, malformed frames, or any bytes at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker_adapter.amqp.messages.values import Described, Symbol, UByte, ULong, encode
from broker_adapter.amqp.sasl import (
    AMQP_HEADER,
    ANONYMOUS,
    AUTH,
    MAX_FRAME_BYTES,
    MAX_FRAMES,
    PLAIN,
    SASL_HEADER,
    SCRAM_SHA_256,
)
from broker_adapter.errors import ConnectionLostException, JMSException, JMSSecurityException, ProtocolException
from tests.broker_adapter.amqp.sasl_pair import PASSWORD, USERS, client, frame, performatives, raw_frame, server

# What is not a login at all.


@pytest.mark.parametrize(
    ("data", "guess"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", r"b'HTTP/1\.1' \(that is HTTP\)"),
        (b"\x15\x03\x01\x00\x02\x02\x46", r"that is TLS; use amqps:// with this port"),
        (b"AMQP\x00\x00\x09\x01", r"that is AMQP 0-9-1"),
        (b"AMQP\x01\x01\x00\x0a", r"that is AMQP 0-10"),
        (b"AMQP\x03\x01\x00\x01", r"another version of AMQP"),
        (b"SSH-2.0-x", r"b'SSH-2\.0-'$"),
        (b"\x00", r"b'\\x00'$"),
    ],
)
def test_a_port_that_speaks_something_else_is_told(data: bytes, guess: str) -> None:
    here = client()
    here.receive(data)

    with pytest.raises(
        ConnectionLostException, match=rf"^the port does not speak AMQP 1\.0: it answered .*{guess}|{guess}"
    ):
        raise here.error or AssertionError


def test_a_broker_that_takes_no_login_is_told() -> None:
    here = client()
    for octet in AMQP_HEADER:
        assert here.error is None
        here.receive(bytes([octet]))

    assert isinstance(here.error, JMSSecurityException)
    assert "the broker takes no login" in str(here.error)


@pytest.mark.parametrize(
    ("data", "guess"),
    [
        (b"GET / HTTP/1.1\r\n", "that is HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "that is TLS; this port has no TLS"),
        (b"AMQP\x00\x00\x09\x01", "that is AMQP 0-9-1"),
        (b"AMQP\x02\x01\x00\x00", "another version"),
    ],
)
@pytest.mark.parametrize("users", [None, USERS])
def test_a_server_answers_something_else_with_the_header_that_it_wants(data: bytes, guess: str, users: Any) -> None:
    there = server(users=users)
    there.receive(data)

    assert isinstance(there.error, ProtocolException)
    assert guess in str(there.error)
    assert there.pending_output() == SASL_HEADER


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x00\x00\x00\x00\x02\x01\x00\x00", id="size 0"),
        pytest.param(b"\x00\x00\x00\x07\x02\x01\x00\x00", id="size 7"),
        pytest.param((MAX_FRAME_BYTES + 1).to_bytes(4, "big") + b"\x02\x01\x00\x00", id="size above the limit"),
        pytest.param(b"\xff\xff\xff\xff\x02\x01\x00\x00", id="size 4 GiB"),
        pytest.param(b"\x00\x00\x00\x08\x02\x01\x00\x00", id="empty"),
        pytest.param(b"\x00\x00\x00\x08\x01\x01\x00\x00", id="data offset within the frame's header"),
        pytest.param(b"\x00\x00\x00\x08\xff\x01\x00\x00", id="data offset beyond the frame"),
        pytest.param(b"\x00\x00\x00\x08\x02\x00\x00\x00", id="an AMQP frame"),
        pytest.param(raw_frame(b"\x40"), id="null"),
        pytest.param(raw_frame(encode([1, 2])), id="a list"),
        pytest.param(raw_frame(encode(Described(ULong(0x41), {}))), id="a map"),
        pytest.param(raw_frame(encode(Described(ULong(0x10), []))), id="an AMQP open"),
        pytest.param(raw_frame(encode(Described([1], [Symbol("PLAIN")]))), id="a descriptor that is a list"),
        pytest.param(raw_frame(encode(Described({}, [Symbol("PLAIN")]))), id="a descriptor that is a map"),
        pytest.param(raw_frame(encode(Described(65.0, [Symbol("PLAIN")]))), id="a descriptor that is a float"),
        pytest.param(raw_frame(b"\x00" * 200), id="descriptors of descriptors"),
        pytest.param(raw_frame(b"\x00\x53\x41\xd0\x00\x00\x10\x00\xff\xff\xff\xff"), id="a count beyond the data"),
        pytest.param(raw_frame(b"\x00\x53\x41" + encode([""] * 1001)), id="more values than the limit"),
        pytest.param(raw_frame(b"\x00\x53\x41\xc0\x04\x01\xa1\x01\xff"), id="not UTF-8"),
        pytest.param(frame(0x44, UByte(0)), id="an outcome out of turn"),
        pytest.param(frame(0x42, b"x"), id="a challenge out of turn"),
        pytest.param(frame(0x43, b"x"), id="a response out of turn"),
    ],
)
def test_a_malformed_frame_is_an_error_at_both_ends(data: bytes) -> None:
    for end in (client(), server(), server(users=None)):
        end.receive(SASL_HEADER + data)

        assert isinstance(end.error, ProtocolException)
        assert "login" in str(end.error)
        assert not end.done


def test_what_comes_after_an_error_is_dropped() -> None:
    there = server()
    there.receive(b"nonsense")
    kept = len(there.leftover())
    for _ in range(10):
        there.receive(bytes(100_000))

    assert kept == 8
    assert there.leftover() == b""


@pytest.mark.parametrize("response", [None, "text", 7, b"", b"alice", b"\0alice", b"\0a\0b\0c", b"\0\xff\0x"])
def test_a_malformed_plain_response_is_an_error(response: Any) -> None:
    there = server()
    there.receive(SASL_HEADER + frame(0x41, Symbol(PLAIN), response, None))

    assert isinstance(there.error, ProtocolException)


@pytest.mark.parametrize(
    "response", [None, b"", b"n,,", b"p=tls-unique,,n=alice,r=x", b"n,a=root,n=alice,r=x", b"\xff"]
)
def test_a_malformed_scram_response_is_an_error(response: Any) -> None:
    there = server()
    there.receive(SASL_HEADER + frame(0x41, Symbol(SCRAM_SHA_256), response, None))

    assert isinstance(there.error, ProtocolException)


@pytest.mark.parametrize("response", [b"", b"c=biws,r=x,p=AAAA", b"c=biws"])
def test_a_wrong_scram_proof_is_refused(response: bytes) -> None:
    there = server()
    there.receive(SASL_HEADER + frame(0x41, Symbol(SCRAM_SHA_256), b"n,,n=alice,r=x", None) + frame(0x43, response))

    assert isinstance(there.error, JMSSecurityException)
    assert performatives(there.pending_output())[-1].value[0] == AUTH


def test_a_second_init_is_out_of_turn() -> None:
    there = server()
    init = frame(0x41, Symbol(SCRAM_SHA_256), b"n,,n=alice,r=x", None)
    there.receive(SASL_HEADER + init + init)

    assert "amqp:sasl-init:list comes out of turn" in str(there.error)


@pytest.mark.parametrize("size", [MAX_FRAME_BYTES, MAX_FRAME_BYTES + 1])
def test_a_frame_at_the_limit_passes_and_a_byte_more_does_not(size: int) -> None:
    overhead = len(frame(0x41, Symbol(PLAIN), b"\0a\0" + b"x" * 300, None)) - 300
    data = frame(0x41, Symbol(PLAIN), b"\0a\0" + b"x" * (size - overhead), None)
    there = server(users=None)
    there.receive(SASL_HEADER + data)

    assert len(data) == size
    assert there.done is (size == MAX_FRAME_BYTES)
    assert (there.error is None) is (size == MAX_FRAME_BYTES)


def test_a_login_has_few_rounds() -> None:
    there = server()
    there.receive(SASL_HEADER)
    there._frames = MAX_FRAMES  # no exchange of ours gets so far: it is out of turn before
    there.receive(frame(0x41, Symbol(PLAIN), b"\0alice\0" + PASSWORD.encode(), None))

    assert isinstance(there.error, ProtocolException)
    assert "one too many" in str(there.error)


def test_a_frame_that_does_not_end_is_waited_for_within_the_limit() -> None:
    there = server()
    there.receive(SASL_HEADER + MAX_FRAME_BYTES.to_bytes(4, "big") + b"\x02\x01\x00\x00" + bytes(MAX_FRAME_BYTES - 9))
    assert there.error is None
    assert not there.done
    there.receive(b"\x00")

    assert isinstance(there.error, ProtocolException)


# Whatever comes.


def outcome_of(end: Any, data: bytes, chunks: Sequence[int]) -> bool:
    """Feed an end in pieces; it must not raise, and ends done, in error or waiting.  Returns whether it is done."""
    position = 0
    for size in (*chunks, len(data)):
        end.receive(data[position : position + size])
        position += size
        end.pending_output()
    assert end.error is None or isinstance(end.error, JMSException)
    assert not (end.done and end.error is not None)
    done: bool = end.done
    return done


any_value = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=40)
    | st.sampled_from([Symbol(PLAIN), Symbol(ANONYMOUS), Symbol(SCRAM_SHA_256)]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        | st.builds(Described, inner, inner)
    ),
    max_leaves=8,
)
scram_words = st.sampled_from(
    [b"n,,n=alice,r=x", b"c=biws,r=x,p=AAAA", b"r=x,s=c2FsdHNhbHRzYWx0,i=4096", b"v=AAAA", b"e=other-error", b"\0a\0b"]
)
any_frame = st.builds(
    lambda code, fields: frame(code, *fields),
    st.integers(0x3F, 0x46),
    st.lists(any_value | scram_words, max_size=4),
) | st.builds(raw_frame, st.builds(encode, st.builds(Described, any_value, any_value)))


def with_octet(data: bytes, position: int, octet: int) -> bytes:
    """The same with one octet changed."""
    changed = bytearray(data)
    changed[position % len(changed)] = octet
    return bytes(changed)


frames = st.builds(lambda some: SASL_HEADER + b"".join(some), st.lists(any_frame, max_size=4))
any_data = (
    st.binary(max_size=200)
    | st.builds(lambda tail: SASL_HEADER + tail, st.binary(max_size=200))
    | frames
    | st.builds(with_octet, frames, st.integers(0, 10_000), st.integers(0, 255))
)


@settings(max_examples=150, deadline=None)
@given(data=any_data, chunks=st.lists(st.integers(1, 50), max_size=5))
@example(data=SASL_HEADER + raw_frame(encode(Described([1], [None]))), chunks=[])
def test_no_bytes_make_a_login_raise_and_pieces_change_nothing(data: bytes, chunks: list[int]) -> None:
    for make in (client, server, lambda: server(users=None), lambda: client(ANONYMOUS, username=None)):
        assert outcome_of(make(), data, ()) is outcome_of(make(), data, chunks)


@settings(max_examples=60, deadline=None)
@given(position=st.integers(0, 400), octet=st.integers(0, 255), turn=st.integers(0, 5))
def test_a_changed_byte_never_logs_in_whoever_does_not_know_the_password(position: int, octet: int, turn: int) -> None:
    here, there = client(SCRAM_SHA_256, password="guess"), server(plain=False)
    for number in range(6):
        sender, receiver = (here, there) if number % 2 == 0 else (there, here)
        data = sender.pending_output()
        receiver.receive(with_octet(data, position, octet) if number == turn and data else data)

    assert not there.done
    assert not here.done
