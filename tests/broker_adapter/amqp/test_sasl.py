"""The login, both ends: against each other, against what is wrong, against anything."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker_adapter.amqp.sasl import (
    AMQP_HEADER,
    ANONYMOUS,
    AUTH,
    MAX_AHEAD_BYTES,
    MAX_CLIENT_FIRST_BYTES,
    MAX_FRAME_BYTES,
    MAX_FRAMES,
    PLAIN,
    SASL_HEADER,
    SCRAM_SHA_256,
    ClientLogin,
    Work,
    decoy,
)
from broker_adapter.amqp.values import Described, Reader, Symbol, UByte, ULong, encode
from broker_adapter.errors import ConnectionLostException, JMSException, JMSSecurityException, ProtocolException
from tests.broker_adapter.amqp.sasl_pair import PASSWORD, USERS, AnyName, frame, offer, raw_frame, server, talk


def client(*mechanisms: str, username: str | None = "alice", password: str | None = PASSWORD) -> ClientLogin:
    return ClientLogin(mechanisms or (SCRAM_SHA_256, PLAIN), username, password, "host")


def performatives(data: bytes) -> list[Any]:
    """What is in these frames; a header ahead of them is passed over."""
    found = []
    position = 8 if data.startswith(SASL_HEADER) else 0
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        found.append(Reader(data, position + 8, position + size).value())
        position += size
    return found


# Both ends against each other.


@pytest.mark.parametrize("chunk_bytes", [1, 3, None])
@pytest.mark.parametrize(
    ("mechanisms", "users", "username", "known_as"),
    [
        ((ANONYMOUS,), None, None, None),
        ((SCRAM_SHA_256, PLAIN, ANONYMOUS), None, "bob", "bob"),  # without verification
        ((PLAIN,), USERS, "alice", "alice"),
        ((SCRAM_SHA_256,), USERS, "alice", "alice"),
        ((SCRAM_SHA_256, PLAIN), USERS, "alice", "alice"),
    ],
)
def test_a_client_logs_in_and_amqp_follows(
    mechanisms: tuple[str, ...], users: Any, username: str | None, known_as: str | None, chunk_bytes: int | None
) -> None:
    here = client(*mechanisms, username=username)
    there = server(users=users)
    talk(here, there, chunk_bytes=chunk_bytes)

    assert (here.done, here.error, there.done, there.error) == (True, None, True, None)
    assert there.username == known_as
    assert (here.leftover(), there.leftover()) == (b"", b"")


def test_the_strongest_mechanism_that_both_can_do_is_used() -> None:
    for mine, plain, used in (
        ((SCRAM_SHA_256, PLAIN), True, SCRAM_SHA_256),
        ((PLAIN,), True, PLAIN),
        ((SCRAM_SHA_256,), False, SCRAM_SHA_256),
    ):
        here = client(*mine)
        talk(here, server(plain=plain))
        assert here.done
        assert here.mechanism == used


def test_a_password_is_not_in_what_scram_sends() -> None:
    here, there = client(SCRAM_SHA_256), server()
    sent = b""
    for _ in range(4):
        data = here.pending_output()
        sent += data
        there.receive(data)
        here.receive(there.pending_output())

    assert here.done
    assert PASSWORD.encode() not in sent
    assert base64.b64encode(PASSWORD.encode()) not in sent


def test_what_follows_the_login_in_the_same_piece_is_left_over() -> None:
    here, there = client(PLAIN), server()
    there.receive(here.pending_output())
    here.receive(there.pending_output())
    there.receive(here.pending_output() + AMQP_HEADER + b"open")
    here.receive(there.pending_output() + AMQP_HEADER)

    assert there.done
    assert there.leftover() == AMQP_HEADER + b"open"
    assert here.done
    assert here.leftover() == AMQP_HEADER


@pytest.mark.parametrize(
    ("name", "password"),
    [("j\u00fcrgen,=", "\u00e4\u00f6\u00fc \u20ac"), ("\u540d\u524d", "\u5bc6\u7801"), ("a" * 255, "p" * 1024)],
)
def test_names_and_passwords_beyond_the_usual_pass(name: str, password: str) -> None:
    here, there = client(SCRAM_SHA_256, username=name, password=password), server(users=AnyName(password))
    talk(here, there)

    assert here.done
    assert there.username == name


def test_a_client_tells_the_host_that_it_means() -> None:
    here = client(PLAIN)
    here.receive(offer(PLAIN))
    (init,) = performatives(here.pending_output())

    assert init.value[2] == "host"


def test_a_single_mechanism_may_be_offered_without_an_array() -> None:
    here = client(PLAIN)
    here.receive(SASL_HEADER + frame(0x40, Symbol(PLAIN)))

    assert here.mechanism == PLAIN


# Refusals.


@pytest.mark.parametrize("mechanism", [PLAIN, SCRAM_SHA_256])
@pytest.mark.parametrize(("username", "password"), [("alice", "wrong"), ("mallory", PASSWORD), ("alice", "")])
def test_wrong_credentials_are_refused_at_both_ends(mechanism: str, username: str, password: str) -> None:
    here, there = client(mechanism, username=username, password=password), server()
    talk(here, there)

    assert (here.done, there.done, there.username) == (False, False, None)
    assert isinstance(here.error, JMSSecurityException)
    assert isinstance(there.error, JMSSecurityException)
    assert f"refused the login of user {username!r} ({mechanism}): check the user name and the password" in str(
        here.error
    )
    assert f"wrong user name or password of {username!r}" in str(there.error)


@pytest.mark.parametrize("mechanism", [PLAIN, SCRAM_SHA_256])
def test_a_server_answers_an_unknown_user_as_it_answers_a_wrong_password(mechanism: str) -> None:
    answers = []
    for username in ("alice", "nobody"):
        here, there = client(mechanism, username=username, password="wrong"), server()
        sizes = []
        for _ in range(4):
            there.receive(here.pending_output())
            data = there.pending_output()
            sizes.append(len(data))
            here.receive(data)
        answers.append((sizes, str(here.error).replace(username, "?"), str(there.error).replace(username, "?")))

    assert answers[0] == answers[1]


def test_a_decoy_is_the_same_each_time_and_shaped_like_a_user() -> None:
    fake = decoy("nobody")

    assert fake == decoy("nobody")
    assert fake != decoy("somebody")
    assert [len(part) for part in fake[:3]] == [len(part) for part in USERS.alice[:3]]
    assert fake[3] == USERS.alice[3]


def test_a_refused_client_is_answered_before_the_end() -> None:
    here, there = client(PLAIN, password="wrong"), server()
    there.receive(here.pending_output())
    here.receive(there.pending_output())
    there.receive(here.pending_output())

    assert there.error is not None
    assert performatives(there.pending_output())[0].value[0] == AUTH


@pytest.mark.parametrize("mechanism", [ANONYMOUS, "CRAM-MD5", PLAIN])
def test_a_server_with_users_refuses_what_it_did_not_offer(mechanism: str) -> None:
    there = server(plain=False)
    there.receive(SASL_HEADER + frame(0x41, Symbol(mechanism), b"\0alice\0" + PASSWORD.encode(), None))

    assert isinstance(there.error, JMSSecurityException)
    assert f"mechanism {mechanism!r} is not offered" in str(there.error)


@pytest.mark.parametrize(("asked", "refusal"), [(b"root", "'alice' may not act as 'root'"), (b"alice", None)])
def test_no_user_may_act_as_another_one(asked: bytes, refusal: str | None) -> None:
    there = server()
    there.receive(SASL_HEADER + frame(0x41, Symbol(PLAIN), asked + b"\0alice\0" + PASSWORD.encode(), None))

    assert there.done is (refusal is None)
    assert refusal is None or refusal in str(there.error)


def test_a_client_that_skips_the_login_is_refused_only_where_there_are_users() -> None:
    there = server()
    there.receive(AMQP_HEADER)
    assert isinstance(there.error, JMSSecurityException)
    assert there.pending_output() == SASL_HEADER

    there = server(users=None)
    there.receive(AMQP_HEADER + b"more")
    assert there.done
    assert there.pending_output() == b""
    assert there.leftover() == AMQP_HEADER + b"more"


@pytest.mark.parametrize(
    ("mechanisms", "username", "offered", "advice"),
    [
        ((ANONYMOUS,), None, (PLAIN, SCRAM_SHA_256), "'PLAIN, SCRAM-SHA-256'.*give a user name and a password"),
        ((SCRAM_SHA_256,), "alice", (PLAIN,), "the option sasl_mechanisms excludes PLAIN"),
        ((SCRAM_SHA_256,), "alice", (ANONYMOUS, PLAIN), "excludes PLAIN"),
        ((SCRAM_SHA_256, PLAIN), "alice", (ANONYMOUS,), "leave the user name out, or set sasl_mechanisms=ANONYMOUS"),
        ((SCRAM_SHA_256, PLAIN), "alice", ("GSSAPI",), "can use SCRAM-SHA-256, PLAIN here; switch one of these on"),
        ((SCRAM_SHA_256, PLAIN), None, (PLAIN,), "can use none here; give a user name"),
    ],
)
def test_a_client_that_shares_no_mechanism_is_told_what_to_do(
    mechanisms: tuple[str, ...], username: str | None, offered: tuple[str, ...], advice: str
) -> None:
    here = client(*mechanisms, username=username)
    here.pending_output()
    here.receive(offer(*offered))

    assert here.pending_output() == b""
    with pytest.raises(JMSSecurityException, match=advice):
        raise here.error or AssertionError


@pytest.mark.parametrize(
    ("mechanism", "username", "password"),
    [
        (PLAIN, "al\0ice", "x"),
        (PLAIN, "alice", "x\0y"),
        (PLAIN, "\ud800", "x"),
        (SCRAM_SHA_256, "al\0ice", "x"),
        (SCRAM_SHA_256, "", "x"),
        (SCRAM_SHA_256, "alice", "\ud800"),
    ],
)
def test_a_name_or_password_that_no_mechanism_can_carry_is_refused_before_it_is_sent(
    mechanism: str, username: str, password: str
) -> None:
    here = client(mechanism, username=username, password=password)
    here.pending_output()
    here.receive(offer(mechanism))

    assert isinstance(here.error, JMSSecurityException)
    assert "the user name or password cannot be used" in str(here.error)
    assert here.pending_output() == b""


@pytest.mark.parametrize("code", [2, 3, 4, 77, None, "x"])
def test_a_broker_that_cannot_log_in_any_user_is_believed(code: Any) -> None:
    here = client(PLAIN)
    here.receive(offer(PLAIN) + frame(0x44, UByte(code) if isinstance(code, int) else code))

    assert isinstance(here.error, JMSSecurityException)
    assert "could not carry out the login" in str(here.error)


# A broker that is not the one it says it is.


def begun_scram(**arguments: Any) -> ClientLogin:
    here = ClientLogin((SCRAM_SHA_256,), "alice", PASSWORD, "host", **arguments)
    here.receive(offer(SCRAM_SHA_256))
    return here


def challenge_to(
    here: ClientLogin, *, iterations: int | str = 4096, nonce: str = "server", salt: bytes = b"s" * 16
) -> bytes:
    """A first challenge that fits what a client has begun."""
    (init,) = performatives(here.pending_output())
    mine = init.value[1].decode().rpartition("r=")[2]
    return frame(0x42, f"r={mine}{nonce},s={base64.b64encode(salt).decode()},i={iterations}".encode())


@pytest.mark.parametrize("proof", [None, b"", b"v=AAAA", b"e=other-error", b"\xff", 7])
def test_a_broker_that_does_not_prove_that_it_knows_the_password_is_not_trusted(proof: Any) -> None:
    here = begun_scram()
    here.receive(challenge_to(here))
    assert here.error is None
    here.receive(frame(0x44, UByte(0), proof))

    assert not here.done
    assert isinstance(here.error, JMSSecurityException)
    assert "did not prove that it knows the password of 'alice'" in str(here.error)


def test_a_wrong_proof_in_a_challenge_is_not_trusted_either() -> None:
    here = begun_scram()
    here.receive(challenge_to(here) + frame(0x42, b"v=AAAA"))

    assert "did not prove" in str(here.error)


def test_a_proof_may_come_in_a_challenge_ahead_of_the_outcome() -> None:
    here, there = client(SCRAM_SHA_256), server()
    for _ in range(2):
        there.receive(here.pending_output())
        here.receive(there.pending_output())
    there.receive(here.pending_output())
    (outcome,) = performatives(there.pending_output())
    here.receive(frame(0x42, outcome.value[1]))
    assert not here.done
    assert performatives(here.pending_output())[0].value[0] == b""
    here.receive(frame(0x44, UByte(0)))

    assert here.done


def test_a_third_challenge_is_out_of_turn() -> None:
    here, there = client(SCRAM_SHA_256), server()
    for _ in range(2):
        there.receive(here.pending_output())
        here.receive(there.pending_output())
    there.receive(here.pending_output())
    (outcome,) = performatives(there.pending_output())
    here.receive(frame(0x42, outcome.value[1]) + frame(0x42, b""))

    assert not here.done
    assert isinstance(here.error, ProtocolException)


def test_a_broker_may_not_welcome_a_client_in_the_middle_of_scram() -> None:
    here = begun_scram()
    here.receive(frame(0x44, UByte(0)))

    assert not here.done
    assert isinstance(here.error, ProtocolException)


@pytest.mark.parametrize("unverified", [False, True])
@pytest.mark.parametrize("iterations", ["0", "1", "4095", "1000001", "10000000", "10000001", "2147483648", "9" * 5000])
def test_iterations_beyond_the_limits_are_refused_in_one_way(iterations: str, unverified: bool) -> None:
    here = begun_scram(is_unverified=unverified)
    here.receive(challenge_to(here, iterations=iterations))

    assert type(here.error) is (ConnectionLostException if unverified else JMSSecurityException)
    assert str(here.error).startswith(f"the broker asks for {iterations[:20]}")
    assert str(here.error).endswith(
        " iterations of the hash of user 'alice', and this client does 4096 to 1000000; set the password at the broker"
        " again, with a number in between"
    )
    assert here.pending_output() == b""


@pytest.mark.parametrize("iterations", [4096, 1_000_000])
def test_iterations_at_the_limits_are_done(iterations: int) -> None:
    here = begun_scram()
    here.carry_out = lambda _work: None  # which takes long
    here.receive(challenge_to(here, iterations=iterations))

    assert here.error is None
    assert here.is_suspended


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"nonce": ""}, "nonce must be longer"),
        ({"salt": b"s"}, "at least 12 bytes"),
    ],
)
def test_a_challenge_that_would_weaken_or_stop_the_client_is_refused(changes: dict[str, Any], reason: str) -> None:
    here = begun_scram()
    here.receive(challenge_to(here, **changes))

    assert here.error is not None
    assert reason in str(here.error)
    assert here.pending_output() == b""


@pytest.mark.parametrize("challenge", [b"", b"nonsense", b"e=unknown-user", b"r=other,s=c2FsdHNhbHRzYWx0,i=4096"])
def test_a_challenge_that_cannot_be_answered_ends_the_login(challenge: bytes) -> None:
    here = begun_scram()
    here.receive(frame(0x42, challenge))

    assert isinstance(here.error, JMSSecurityException)
    assert "the login of user 'alice' cannot go on" in str(here.error)


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


# Work that is done elsewhere.


def plain_init(password: str = PASSWORD) -> bytes:
    return SASL_HEADER + frame(0x41, Symbol(PLAIN), f"\0alice\0{password}".encode())


def test_a_login_is_suspended_while_a_password_is_checked_and_then_goes_on() -> None:
    works: list[Work] = []
    there = server()
    there.carry_out = works.append
    there.receive(plain_init() + AMQP_HEADER)
    assert (there.is_suspended, there.done, there.error) == (True, False, None)
    assert [each.descriptor for each in performatives(there.pending_output())] == [0x40]
    (work,) = works
    assert (work.username, work.is_costly) == ("alice", True)
    work.resume(work.compute())
    there.receive(b"")
    assert (there.is_suspended, there.done, there.username) == (False, True, "alice")
    assert there.leftover() == AMQP_HEADER


def test_the_proof_of_scram_waits_for_its_turn_but_is_not_costly() -> None:
    works: list[Work] = []
    here, there = client(SCRAM_SHA_256), server()
    there.carry_out = works.append
    talk(here, there)
    assert not here.done
    (work,) = works
    assert (work.username, work.is_costly) == ("alice", False)
    work.resume(work.compute())
    talk(here, there)
    assert here.done
    assert there.done


def test_a_client_is_suspended_while_its_hash_is_computed() -> None:
    works: list[Work] = []
    here, there = client(SCRAM_SHA_256), server()
    here.carry_out = works.append
    talk(here, there)
    assert here.is_suspended
    (work,) = works
    assert work.is_costly
    work.resume(work.compute())
    talk(here, there)
    assert here.done


def test_what_comes_ahead_of_the_outcome_is_limited() -> None:
    for more, fits in ((MAX_AHEAD_BYTES, True), (MAX_AHEAD_BYTES + 1, False)):
        works: list[Work] = []
        there = server()
        there.carry_out = works.append
        there.receive(plain_init() + b"x" * 10)
        for start in range(10, more, 1000):
            there.receive(b"x" * min(1000, more - start))
        assert (there.error is None) is fits
        (work,) = works
        work.resume(work.compute())
        assert there.done is fits


def test_nothing_follows_when_the_login_has_failed_meanwhile() -> None:
    works: list[Work] = []
    there = server()
    there.carry_out = works.append
    there.receive(plain_init())
    there.receive(b"x" * (MAX_AHEAD_BYTES + 1))
    assert isinstance(there.error, ProtocolException)
    there.pending_output()
    works[0].resume(True)
    assert (there.done, there.pending_output()) == (False, b"")


def test_the_first_message_of_scram_is_limited() -> None:
    for size, fits in ((MAX_CLIENT_FIRST_BYTES, True), (MAX_CLIENT_FIRST_BYTES + 1, False)):
        there = server()
        response = b"n,,n=alice,r="
        there.receive(SASL_HEADER + frame(0x41, Symbol(SCRAM_SHA_256), response + b"x" * (size - len(response))))
        assert (there.error is None) is fits
