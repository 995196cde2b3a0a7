"""Names and addresses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.amqp.addresses import Addresses
from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.envelope import Envelope

destinations = st.builds(Destination, st.text(min_size=1), st.sampled_from(DestinationKind))


@given(destinations, st.none() | destinations, st.text(max_size=3), st.text(max_size=3))
def test_what_goes_out_comes_in_as_it_was(
    destination: Destination, reply_to: Destination | None, queue_prefix: str, topic_prefix: str
) -> None:
    addresses = Addresses(queue_prefix, topic_prefix)
    envelope = Envelope(destination, reply_to=reply_to)
    sent = addresses.outward(envelope)
    assert sent.destination.name == addresses.of(destination)
    assert addresses.inward(sent) == envelope
    assert bool(addresses) is bool(queue_prefix or topic_prefix)


def test_temporary_destinations_have_no_prefix() -> None:
    addresses = Addresses("q/", "t/")
    assert addresses.of(Destination("x", DestinationKind.QUEUE)) == "q/x"
    assert addresses.of(Destination("x", DestinationKind.TOPIC)) == "t/x"
    assert addresses.of(Destination("x", DestinationKind.TEMPORARY_QUEUE)) == "x"
    assert addresses.of(Destination("x", DestinationKind.TEMPORARY_TOPIC)) == "x"


def test_an_address_without_the_prefix_is_taken_as_it_is() -> None:
    assert Addresses("q/").inward(Envelope(Destination("other"))).destination.name == "other"
