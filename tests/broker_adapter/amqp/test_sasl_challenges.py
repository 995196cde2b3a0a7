"""What a client answers to a broker that may not be the one it says it is."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from broker_adapter.amqp.messages.values import UByte
from broker_adapter.amqp.sasl import SCRAM_SHA_256, ClientLogin
from broker_adapter.errors import ConnectionLostException, JMSSecurityException, ProtocolException
from tests.broker_adapter.amqp.sasl_pair import PASSWORD, client, frame, offer, performatives, server


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
