"""What is kept of a link that a client receives messages on."""

from __future__ import annotations

from broker_adapter.destination import queue
from broker_adapter.server.links.consumer import Consumer


def consumer() -> Consumer:
    return Consumer(1, 1, 7, False, slice_bytes=100, max_message_bytes=1000, destination=queue("q"))


def test_a_delivery_that_is_taken_is_no_longer_the_clients_and_an_unknown_one_is_ignored() -> None:
    made = consumer()
    made.unsettled = {1: 11, 2: 12, 3: 13}
    assert made.take([3, 1, 9]) == [13, 11]
    assert made.unsettled == {2: 12}


def test_what_the_engine_was_granted_behind_the_last_delivery_is_on_its_way() -> None:
    made = consumer()
    made.handed, made.granted = 20, 3
    assert list(made.on_their_way()) == [21, 22, 23]
    made.unsettled = {1: 19, 2: 20}
    assert made.never_delivered([2]) == ({20}, range(21, 24))
    assert made.unsettled == {1: 19}


def test_a_slice_is_used_up_when_its_bytes_have_come() -> None:
    made = consumer()
    made.since_grant = 99
    assert not made.slice_is_used_up
    made.since_grant = 100
    assert made.slice_is_used_up
