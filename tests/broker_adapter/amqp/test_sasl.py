"""The login, both ends against each other: who is let in, who is refused, what waits for a check."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from broker_adapter.amqp.messages.values import Symbol, UByte
from broker_adapter.amqp.sasl import (
    AMQP_HEADER,
    ANONYMOUS,
    AUTH,
    MAX_AHEAD_BYTES,
    MAX_CLIENT_FIRST_BYTES,
    PLAIN,
    SASL_HEADER,
    SCRAM_SHA_256,
    Work,
    decoy,
)
from broker_adapter.errors import JMSSecurityException, ProtocolException
from tests.broker_adapter.amqp.sasl_pair import (
    PASSWORD,
    USERS,
    AnyName,
    client,
    frame,
    offer,
    performatives,
    server,
    talk,
)

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
