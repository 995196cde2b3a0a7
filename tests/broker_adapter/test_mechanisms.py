"""Which SASL mechanisms a client may use, and with which brokers: the table."""

from __future__ import annotations

import attrs
import pytest

from broker_adapter.errors import ConnectionLostException, JMSSecurityException
from broker_adapter.mechanisms import (
    ANONYMOUS,
    EXTERNAL,
    MECHANISMS,
    PLAIN,
    SCRAM_SHA_256,
    Strength,
    Trust,
    strength_of,
    usable_mechanisms,
)
from broker_adapter.urls.url import AmqpURL, FailoverURL, parse_url

BOTH = (SCRAM_SHA_256, PLAIN)
PROOF = (SCRAM_SHA_256,)


def addresses(text: str) -> tuple[AmqpURL, ...]:
    url = parse_url(text)
    assert isinstance(url, FailoverURL)
    return url.addresses


def elsewhere(address: AmqpURL, text: str) -> AmqpURL:
    """Where a broker at this address sends a client."""
    (target,) = addresses(text)
    return attrs.evolve(address, host=target.host, port=target.port, tls=target.tls)


@pytest.mark.parametrize(
    ("text", "named", "mechanisms"),
    [
        ("amqp://127.0.0.1", True, PROOF),
        ("amqp://localhost", True, PROOF),
        ("amqp://[::1]", True, PROOF),
        ("amqp://127.0.0.1?allow_plain_without_tls=true", True, BOTH),
        ("amqp://example", True, PROOF),
        ("amqps://example", True, BOTH),
        ("amqp://example?allow_plain_without_tls=true", True, BOTH),
        ("amqp://example", False, (ANONYMOUS,)),
        ("amqps://example?tls_certificate_file=x", False, (EXTERNAL, ANONYMOUS)),
        ("amqps://example?tls_certificate_file=x", True, (EXTERNAL, *BOTH)),
        ("amqps://127.0.0.1?sasl_mechanisms=plain", True, (PLAIN,)),
        ("amqp://example?sasl_mechanisms=ANONYMOUS", True, (ANONYMOUS,)),
        ("amqp://example?sasl_mechanisms=ANONYMOUS,PLAIN,SCRAM-SHA-256", True, (SCRAM_SHA_256, ANONYMOUS)),
    ],
)
def test_with_a_host_of_the_url_it_is_the_strongest_that_does_not_give_the_password_away(
    text: str, named: bool, mechanisms: tuple[str, ...]
) -> None:
    (address,) = addresses(text)
    found = usable_mechanisms(address, *(("me", "secret") if named else (None, None)))
    assert found.mechanisms == mechanisms
    assert not found.is_unverified


@pytest.mark.parametrize(
    ("text", "target", "mechanisms"),
    [
        # To a host that the URL names, whatever the port.
        ("amqps://a", "amqps://a:9999", BOTH),
        ("amqps://a", "amqps://A.:5671", BOTH),
        ("failover:(amqps://a,amqps://b)", "amqps://b:9999", BOTH),
        ("amqps://[2001:db8::1]", "amqps://[2001:DB8:0::1]:7", BOTH),
        ("amqp://a?allow_plain_without_tls=true", "amqp://a:9999", BOTH),
        # To another one.
        ("amqps://a", "amqps://b", PROOF),
        ("amqps://a", "amqps://a.b", PROOF),
        ("amqp://a", "amqps://b", PROOF),
        ("amqp://a?allow_plain_without_tls=true", "amqp://b", PROOF),
        ("amqp://127.0.0.1?allow_plain_without_tls=true", "amqp://localhost", PROOF),
        # To one that an option names.
        ("amqps://a?trusted_hosts=b", "amqps://b", BOTH),
        ("amqps://a?trusted_hosts=x,%20B.,y", "amqps://b", BOTH),
        ("amqps://a?trusted_hosts=.example.com", "amqps://b.example.com", BOTH),
        ("amqps://a?trusted_hosts=.example.com", "amqps://example.com", PROOF),
        ("amqps://a?trusted_hosts=.example.com", "amqps://b.anexample.com", PROOF),
        ("amqp://a?trusted_hosts=b", "amqp://b", PROOF),
        ("amqps://a?trusted_hosts=", "amqps://b", PROOF),
    ],
)
def test_a_password_as_it_is_goes_only_to_the_hosts_that_the_url_or_the_option_names(
    text: str, target: str, mechanisms: tuple[str, ...]
) -> None:
    url = parse_url(text)
    assert isinstance(url, FailoverURL)
    trust = Trust(url.addresses, url.failover.trusted_hosts)
    found = usable_mechanisms(elsewhere(url.addresses[0], target), "me", "secret", trust)
    assert found.mechanisms == mechanisms


def test_a_user_of_one_address_is_not_given_to_another_that_has_its_own() -> None:
    both = addresses("failover:(amqps://u1:p1@a,amqps://u2:p2@b)")
    trust = Trust(both)
    sent = elsewhere(both[0], "amqps://b")  # a's user, sent to b
    assert usable_mechanisms(sent, "u1", "p1", trust, of_url=True).mechanisms == PROOF
    assert usable_mechanisms(both[1], "u2", "p2", trust, of_url=True).mechanisms == BOTH
    assert usable_mechanisms(sent, "mine", "secret", trust, of_url=False).mechanisms == BOTH, "it is the application's"


@pytest.mark.parametrize(
    ("before", "before_tls", "tls", "mechanisms"),
    [
        (SCRAM_SHA_256, False, True, PROOF),
        (SCRAM_SHA_256, False, False, PROOF),
        (SCRAM_SHA_256, True, True, PROOF),
        (EXTERNAL, True, True, PROOF),
        (PLAIN, True, True, BOTH),
        (PLAIN, True, False, PROOF),
        (PLAIN, False, False, BOTH),
        (PLAIN, False, True, BOTH),
        (ANONYMOUS, True, False, (*BOTH, ANONYMOUS)),
    ],
)
def test_nothing_weaker_than_the_login_before_is_used(
    before: str, before_tls: bool, tls: bool, mechanisms: tuple[str, ...]
) -> None:
    options = "allow_plain_without_tls=true&sasl_mechanisms=ANONYMOUS,PLAIN,SCRAM-SHA-256,EXTERNAL"
    (address,) = addresses(f"{'amqps' if tls else 'amqp'}://a?{options}")
    trust = Trust((address,))
    trust.note(before, tls=before_tls)
    assert usable_mechanisms(address, "me", "secret", trust).mechanisms == mechanisms


def test_the_strongest_login_counts_not_the_last_one() -> None:
    (address,) = addresses("amqps://a")
    trust = Trust((address,))
    for mechanism in (PLAIN, SCRAM_SHA_256, PLAIN, ANONYMOUS):
        trust.note(mechanism, tls=True)
    assert trust.strongest is Strength.PROOF
    assert usable_mechanisms(address, "me", "secret", trust).mechanisms == PROOF
    assert repr(trust) == "<Trust in amqps://a:5671, logged in by PROOF>"


def test_the_mechanisms_are_listed_from_the_strongest_to_the_weakest() -> None:
    for tls in (False, True):
        strengths = [strength_of(mechanism, tls=tls) for mechanism in MECHANISMS]
        assert strengths == sorted(strengths, reverse=True)


@pytest.mark.parametrize(
    ("text", "named", "reason"),
    [
        ("amqp://example?sasl_mechanisms=PLAIN", True, "would send the password unencrypted to 'example'.*amqps://"),
        (
            "amqp://localhost?sasl_mechanisms=PLAIN",
            True,
            "allow_plain_without_tls=true .* this machine are trusted",
        ),
        ("amqp://example?sasl_mechanisms=PLAIN", False, "give a user name and a password"),
        ("amqp://example?sasl_mechanisms=EXTERNAL", True, "they need something that the URL does not give"),
        ("amqp://example?sasl_mechanisms=CRAM-MD5", True, "unknown SASL mechanism 'CRAM-MD5'; known are EXTERNAL"),
    ],
)
def test_where_none_can_be_used_the_error_says_why_and_what_to_do(text: str, named: bool, reason: str) -> None:
    (address,) = addresses(text)
    with pytest.raises(JMSSecurityException, match=reason):
        usable_mechanisms(address, *(("me", "secret") if named else (None, None)))


def test_with_an_unverified_broker_the_attempt_has_failed_and_not_the_login() -> None:
    (address,) = addresses("amqps://a?sasl_mechanisms=PLAIN")
    with pytest.raises(ConnectionLostException, match=r"'b', to which a broker has sent .* option trusted_hosts"):
        usable_mechanisms(elsewhere(address, "amqps://b"), "me", "secret", Trust((address,)))
    trust = Trust((address,))
    trust.note(SCRAM_SHA_256, tls=True)
    with pytest.raises(ConnectionLostException, match=r"PLAIN is weaker than the login of this connection before"):
        usable_mechanisms(address, "me", "secret", trust)
