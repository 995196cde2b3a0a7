"""Addresses that ask for a link reliability."""

from __future__ import annotations

from pathlib import Path

import pytest

from ack_modes import LinkReliability
from sdk import AcknowledgeMode, ConnectionFactory, InvalidDestinationException
from sdk.address import split_address


@pytest.mark.parametrize(
    ("text", "name", "reliability"),
    [
        ("orders", "orders", None),
        ("orders; {link: {reliability: at-least-once}}", "orders", LinkReliability.AT_LEAST_ONCE),
        ("orders;{link:{reliability:'unreliable'}}", "orders", LinkReliability.UNRELIABLE),
        ('a;b ; { link : { reliability : "at-most-once" } } ', "a;b", LinkReliability.AT_MOST_ONCE),
        ("semi;colon", "semi;colon", None),
    ],
)
def test_an_address_is_a_name_with_or_without_a_reliability(
    text: str, name: str, reliability: LinkReliability | None
) -> None:
    assert split_address(text) == (name, reliability)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("orders; {link: {reliability: perhaps}}", "link reliability 'perhaps' is none of unreliable, at-most-once"),
        ("orders; {create: always}", "the one that is known is {link: {reliability: VALUE}}"),
        ("orders; {link: {reliability: 'unreliable}}", "are not understood"),
        ("orders; {}", "are not understood"),
    ],
)
def test_other_options_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidDestinationException) as raised:
        split_address(text)
    assert reason in raised.value.reason


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_what_contradicts_the_mode_of_the_session_is_refused(tmp_path: Path, kind: str) -> None:
    with ConnectionFactory(f"embedded:{tmp_path}").create_connection() as connection:
        with connection.create_session(AcknowledgeMode.NO_ACK) as unreliable:
            make = getattr(unreliable, f"create_{kind}")
            bad = make("orders; {link: {reliability: at-least-once}}")
            assert bad == make("orders")
            for create in (unreliable.create_consumer, unreliable.create_producer):
                with pytest.raises(InvalidDestinationException, match="contradicts the session's mode, NO_ACK"):
                    create(bad)
            unreliable.create_consumer(make("orders; {link: {reliability: unreliable}}")).close()
        with connection.create_session(AcknowledgeMode.CLIENT) as reliable:
            make = getattr(reliable, f"create_{kind}")
            with pytest.raises(InvalidDestinationException, match="contradicts the session's mode, CLIENT"):
                reliable.create_consumer(make("orders; {link: {reliability: unreliable}}"))
            with pytest.raises(InvalidDestinationException, match="exactly-once"):
                reliable.create_producer(make("orders; {link: {reliability: exactly-once}}"))
            reliable.create_consumer(make("orders; {link: {reliability: at-least-once}}")).close()
