"""The table of links: every state and what may happen to a link, and what the table knows of its links."""

from __future__ import annotations

from typing import Any, cast

import pytest

from broker_adapter.destination import Destination, queue
from broker_adapter.errors import JMSException
from broker_adapter.failover.inner import Inner
from broker_adapter.failover.links import MAX_CLOSED_EARLY, Link, LinkState, LinkTable
from broker_adapter.transport import ReceiverSpec, SenderSpec

Q = queue("q")
FIRST, SECOND = cast(Inner, "the first connection"), cast(Inner, "the second connection")
CLOSED = JMSException("idle for too long")
REFUSED = JMSException("busy")


def sender(table: LinkTable, number: int = 7, session: int = 1) -> Link:
    """A new link of a producer that is attached by the first connection."""
    spec = SenderSpec(session, Q)
    link = Link(table.new_number(), spec, None, LinkState.ATTACHED, (FIRST, number))
    table.add(link)
    return link


def receiver(table: LinkTable, number: int = 8, destination: Destination = Q, **fields: Any) -> Link:
    spec = ReceiverSpec(1, destination, **fields)
    link = Link(table.new_number(), spec, lambda _deliveries: None, LinkState.ATTACHED, (FIRST, number))
    table.add(link)
    return link


def in_state(state: LinkState) -> tuple[LinkTable, Link]:
    table = LinkTable()
    link = receiver(table, browse=True) if state is LinkState.ENDED else sender(table)
    if state is LinkState.INTERRUPTED:
        table.detach(link)
        table.interrupt(link, CLOSED)
    elif state is not LinkState.ATTACHED:
        table.detach_all()
        if state is LinkState.REATTACHED:
            assert table.register(link, (SECOND, 1))
    assert link.state is state
    return table, link


@pytest.mark.parametrize("state", LinkState, ids=lambda state: state.name)
def test_every_link_of_a_lost_connection_is_detached_except_those_of_browsers(state: LinkState) -> None:
    table, link = in_state(state)
    table.detach_all()
    assert link.state is (LinkState.ENDED if state is LinkState.ENDED else LinkState.DETACHED)
    assert (link.attachment, link.error, link.rules) == (None, None, None)
    assert table.detached() == ([] if state is LinkState.ENDED else [link])
    assert table.closed_by_broker(7, CLOSED) is None


@pytest.mark.parametrize("state", [LinkState.DETACHED, LinkState.INTERRUPTED], ids=lambda state: state.name)
def test_a_link_that_is_attached_again_takes_no_new_messages_until_the_older_ones_are_sent(state: LinkState) -> None:
    table, link = in_state(state)
    attachment = SECOND, 3
    assert table.register(link, attachment)
    assert link.state is LinkState.REATTACHED
    assert link.attachment is attachment
    assert table.closed_by_broker(3, CLOSED) is link
    table.attach(link)
    assert (link.state, link.error) == (LinkState.ATTACHED, None)


def test_a_restored_connection_attaches_its_links_and_tells_those_that_the_broker_refused_or_closed() -> None:
    table = LinkTable()
    held, refused, closed, browser = sender(table, 1), sender(table, 2), sender(table, 3), receiver(table, browse=True)
    table.detach_all()
    assert table.detached() == [held, refused, closed]
    table.register(held, (SECOND, 1))
    table.interrupt(refused, REFUSED)
    table.register(closed, (SECOND, 2))
    table.interrupt(closed, CLOSED)
    assert table.attach_restored() == [(refused, REFUSED), (closed, CLOSED)]
    assert [each.state for each in (held, refused, closed, browser)] == [
        LinkState.ATTACHED,
        LinkState.INTERRUPTED,
        LinkState.INTERRUPTED,
        LinkState.ENDED,
    ]


def test_a_link_that_was_closed_while_it_was_attached_again_is_not_registered() -> None:
    table, link = in_state(LinkState.DETACHED)
    table.remove([link])
    assert not table.register(link, (SECOND, 1))
    assert not table.is_registered(link)
    assert table.get(link.number) is None
    assert table.closed_by_broker(1, CLOSED) is None


def test_a_link_loses_its_attachment_once() -> None:
    table, link = in_state(LinkState.ATTACHED)
    assert table.detach(link) == 7
    assert table.detach(link) is None
    assert table.closed_by_broker(7, CLOSED) is None


def test_a_link_whose_close_was_interrupted_is_there_again() -> None:
    table, link = in_state(LinkState.ATTACHED)
    table.remove([link])
    assert table.closed_by_broker(7, CLOSED) is None
    table.add(link)
    assert table.is_registered(link)
    assert table.closed_by_broker(7, CLOSED) is link


def test_the_reason_is_remembered_where_the_broker_closes_a_link_before_it_is_known() -> None:
    table = LinkTable()
    assert table.closed_by_broker(5, CLOSED) is None
    assert table.take_closed_early(5) is CLOSED
    assert table.take_closed_early(5) is None
    table.closed_by_broker(5, CLOSED)
    table.clear_closed_early()
    assert table.take_closed_early(5) is None


def test_only_so_many_links_are_remembered_as_closed_before_they_are_known() -> None:
    table = LinkTable()
    for number in range(MAX_CLOSED_EARLY + 1):
        table.closed_by_broker(number, CLOSED)
    assert table.take_closed_early(MAX_CLOSED_EARLY - 1) is CLOSED
    assert table.take_closed_early(MAX_CLOSED_EARLY) is None


def test_the_table_knows_the_links_of_a_session_and_the_consumers_of_a_destination() -> None:
    table = LinkTable()
    first, _second, third = sender(table, 1, 1), sender(table, 2, 2), receiver(table, 3, queue("other"))
    assert len(table) == 3
    assert table.of_session(1) == [first, third]
    assert table.has_consumer(queue("other"))
    assert not table.has_consumer(Q), "a producer is none"
    assert [each.number for each in (first, _second, third)] == [1, 2, 3]
    assert table.new_number() == 4
