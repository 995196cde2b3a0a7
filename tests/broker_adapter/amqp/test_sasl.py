"""The login, both halves against each other and against strangers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scramp import ScramMechanism

from broker_adapter.amqp.sasl import MAX_FRAME_BYTES, ClientLogin, ServerLogin, Verifier
from broker_adapter.amqp.values import Described, Symbols, UByte, ULong, encode
from broker_adapter.errors import ConnectionLostException, JMSException, JMSSecurityException, ProtocolException

HEADER = b"AMQP\x03\x01\x00\x00"
AMQP = b"AMQP\x00\x01\x00\x00"


class OneUser:
    """alice, whose password is secret."""

    def __init__(self) -> None:
        self._verifier: Verifier = ScramMechanism("SCRAM-SHA-256").make_auth_info("secret")

    def verifier(self, username: str) -> Verifier | None:
        return self._verifier if username == "alice" else None

    def check(self, username: str, password: str) -> bool:
        return (username, password) == ("alice", "secret")


USERS = OneUser()


def run(client: ClientLogin, server: ServerLogin, piece: int = 1 << 20) -> None:
    """Let them talk, in pieces of so many bytes, until both have nothing more to say."""
    for _ in range(20):
        to_server, to_client = client.pending_output(), b""
        for start in range(0, len(to_server), piece):
            server.receive(to_server[start : start + piece])
        to_client = server.pending_output()
        for start in range(0, len(to_client), piece):
            client.receive(to_client[start : start + piece])
        if not to_server and not to_client:
            return


def frame(code: int, *fields: Any, kind: int = 1) -> bytes:
    body = encode(Described(ULong(code), list(fields)))
    return (len(body) + 8).to_bytes(4) + bytes([2, kind, 0, 0]) + body


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
def test_a_user_logs_in(mechanism: str, piece: int) -> None:
    client, server = ClientLogin([mechanism], "alice", "secret", "host"), ServerLogin(USERS, plain=True)
    run(client, server, piece)
    assert (client.done, server.done, server.username) == (True, True, "alice")
    assert (client.error, server.error, client.mechanism) == (None, None, mechanism)


def test_a_client_takes_the_strongest_that_both_can_do() -> None:
    client = ClientLogin(["SCRAM-SHA-256", "PLAIN"], "alice", "secret")
    run(client, ServerLogin(USERS, plain=True))
    assert client.mechanism == "SCRAM-SHA-256"


@pytest.mark.parametrize(("username", "password"), [("alice", "wrong"), ("bob", "secret")])
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
def test_wrong_credentials_are_refused_alike(mechanism: str, username: str, password: str) -> None:
    client, server = ClientLogin([mechanism], username, password), ServerLogin(USERS, plain=True)
    run(client, server)
    assert isinstance(client.error, JMSSecurityException)
    assert f"refused the login of user {username!r}" in client.error.reason
    assert isinstance(server.error, JMSSecurityException)
    assert not client.done
    assert not server.done


def test_asking_for_an_unknown_user_twice_gives_the_same_salt() -> None:
    def challenge() -> bytes:
        server = ServerLogin(USERS, plain=True)
        server.receive(HEADER + frame(0x41, "SCRAM-SHA-256", b"n,,n=nobody,r=abc", None))
        said = server.pending_output()
        return said[said.index(b"s=") :]

    assert challenge() == challenge()


def test_nobody_has_to_log_in_where_there_are_no_users() -> None:
    for client in (ClientLogin(["ANONYMOUS"], None, None), ClientLogin(["PLAIN"], "anybody", "x")):
        server = ServerLogin(None, plain=True)
        run(client, server)
        assert client.done
        assert server.done
    server = ServerLogin(None, plain=True)
    server.receive(AMQP + b"more")
    assert server.done
    assert server.leftover() == AMQP + b"more"


def test_who_does_not_log_in_is_refused_where_there_are_users() -> None:
    server = ServerLogin(USERS, plain=True)
    server.receive(AMQP)
    assert isinstance(server.error, JMSSecurityException)
    assert server.pending_output() == HEADER
    client, server = ClientLogin(["ANONYMOUS"], None, None), ServerLogin(USERS, plain=True)
    run(client, server)
    assert client.error is not None
    assert "give a user name and a password" in client.error.reason


def test_passwords_do_not_come_as_they_are_where_others_could_read_them() -> None:
    server = ServerLogin(USERS, plain=False)
    server.receive(HEADER + frame(0x41, "PLAIN", b"\0alice\0secret", None))
    assert isinstance(server.error, JMSSecurityException)
    assert "'PLAIN' is not offered" in server.error.reason


def test_what_follows_the_login_is_left_over() -> None:
    client, server = ClientLogin(["ANONYMOUS"], None, None), ServerLogin(None, plain=True)
    client.receive(HEADER + frame(0x40, Symbols(["ANONYMOUS"])) + frame(0x44, UByte(0)) + AMQP)
    assert client.done
    assert client.leftover() == AMQP
    server.receive(client.pending_output() + AMQP)
    assert server.leftover() == AMQP


@pytest.mark.parametrize(
    ("said", "kind", "reason"),
    [
        (b"HTTP/1.1", ConnectionLostException, "does not speak AMQP"),
        (AMQP, JMSSecurityException, "SASL"),
        (HEADER + frame(0x40, Symbols(["GSSAPI"])), JMSSecurityException, "GSSAPI"),
        (HEADER + frame(0x42, b"x"), ProtocolException, "out of turn"),
        (HEADER + frame(0x44, UByte(0)), ProtocolException, "out of turn"),
        (HEADER + frame(0x40, Symbols(["PLAIN"]), kind=0), ProtocolException, "no frame of a login"),
        (HEADER + b"\x00\x00\xff\xff\x02\x01\x00\x00", ProtocolException, "65535 bytes"),
        (HEADER + b"\x00\x00\x00\x09\x02\x01\x00\x00\xff", ProtocolException, "cannot be understood"),
        (HEADER + frame(0x40, Symbols(["PLAIN"])) + frame(0x44, UByte(4)), JMSSecurityException, "outcome 4"),
    ],
)
def test_a_server_that_makes_no_sense_is_a_clear_error(said: bytes, kind: type[JMSException], reason: str) -> None:
    client = ClientLogin(["SCRAM-SHA-256", "PLAIN"], "alice", "secret")
    client.receive(said)
    assert isinstance(client.error, kind)
    assert reason in client.error.reason


def test_a_server_must_prove_that_it_knows_the_password() -> None:
    client = ClientLogin(["SCRAM-SHA-256"], "alice", "secret")
    client.receive(HEADER + frame(0x40, Symbols(["SCRAM-SHA-256"])) + frame(0x44, UByte(0)))
    assert isinstance(client.error, ProtocolException)


def test_frames_are_limited_in_size_and_number() -> None:
    server = ServerLogin(USERS, plain=True)
    server.receive(HEADER + (MAX_FRAME_BYTES + 1).to_bytes(4) + b"\x02\x01\x00\x00")
    assert isinstance(server.error, ProtocolException)
    client = ClientLogin(["ANONYMOUS"], None, None)
    for _ in range(20):
        client.receive(b"")
    assert client.error is None


@given(data=st.binary(max_size=300), header=st.booleans())
def test_random_bytes_end_in_an_error_or_wait_and_never_raise(data: bytes, header: bool) -> None:
    for login in (ServerLogin(USERS, plain=True), ClientLogin(["SCRAM-SHA-256", "PLAIN"], "alice", "secret")):
        login.receive((HEADER if header else b"") + data)
        login.pending_output()
        assert not login.done


@given(
    code=st.sampled_from([0x40, 0x41, 0x42, 0x43, 0x44]),
    fields=st.lists(st.one_of(st.none(), st.binary(max_size=40), st.text(max_size=40), st.integers(0, 255))),
)
def test_random_frames_end_in_an_error_or_wait_and_never_raise(code: int, fields: list[Any]) -> None:
    for login in (ServerLogin(USERS, plain=True), ClientLogin(["SCRAM-SHA-256"], "alice", "secret")):
        login.receive(HEADER + frame(0x41, "SCRAM-SHA-256", b"n,,n=a,r=b", None) + frame(code, *fields))
        login.pending_output()
        assert not login.done
