"""What is remembered of acknowledgements, and how long."""

from __future__ import annotations

import pytest

from ack_modes import Outcome, Settlement
from broker_adapter import (
    BodyKind,
    Delivery,
    Envelope,
    Identity,
    queue,
)
from sdk import acknowledgements
from sdk.acknowledgements import (
    MAX_ACK_RECORDS,
    Acknowledgements,
    LostAcknowledgements,
    Source,
    ack_record_for,
)
from tests.sdk.acknowledged import SOURCE, Told, accept, ignore, keys, record, tag

# What a message is known by.


def delivery(envelope: Envelope, position: int | None = 7) -> Delivery:
    return Delivery(tag(1), None, lambda _payload: envelope, position=position)


@pytest.mark.parametrize(
    ("envelope", "source", "expected"),
    [
        (Envelope(queue("q"), identity=Identity("p", 1, 2), message_id="ID:1"), SOURCE, Identity("p", 1, 2)),
        (Envelope(queue("q"), message_id="ID:1"), SOURCE, "ID:1"),
        (Envelope(queue("q"), message_id="ID:1"), None, None),
    ],
)
def test_a_message_is_known_by_its_identity_or_else_its_id(
    envelope: Envelope, source: Source | None, expected: object
) -> None:
    found = ack_record_for(source, envelope, delivery(envelope))
    assert found == (None if expected is None else (source, expected, 7, 0, "ID:1"))


def test_a_message_without_a_name_has_at_most_a_position() -> None:
    envelope = Envelope(queue("q"), BodyKind.TEXT, "no name")
    assert ack_record_for(SOURCE, envelope, delivery(envelope)) == (SOURCE, None, 7, 0, None)
    assert ack_record_for(SOURCE, envelope, delivery(envelope, None)) is None


# What is remembered.


def test_what_was_accepted_last_is_lost_with_the_connection() -> None:
    lost = LostAcknowledgements()
    session = Acknowledgements(lost, ignore)
    session.widen(10)
    accept(session, 1, 2)
    accept(session, 3, outcome=Outcome.MODIFIED)
    session.delivered(tag(4), record(4))  # held, and not acknowledged
    session.interrupted()
    assert keys(lost, 1, 2, 3, 4) == [True, True, False, False]
    assert keys(lost, 1) == [False], "once"


@pytest.mark.parametrize("windows", [(1,), (10,), (500, 20)])
def test_an_acknowledgement_is_remembered_for_two_windows_of_deliveries(windows: tuple[int, ...]) -> None:
    lost = LostAcknowledgements()
    session = Acknowledgements(lost, ignore)
    for window in windows:
        session.widen(window)
    reach = 2 * sum(windows) + 16
    accept(session, *range(reach + 5))
    assert len(session) == reach + 1
    session.interrupted()
    assert keys(lost, 3, 4) == [False, True]


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_consumer_that_leaves_shortens_the_reach_when_the_broker_has_said_so(confirmed: bool) -> None:
    lost = LostAcknowledgements()
    session = Acknowledgements(lost, ignore)
    session.widen(10)
    session.widen(100)
    accept(session, *range(236))
    session.narrow(100, confirmed=confirmed)
    accept(session, *range(236, 237))
    session.interrupted()
    assert len(lost) == (36 + 1 if confirmed else 236 + 1)
    accept(session, *range(1000, 1236))
    session.interrupted()
    assert keys(lost, 1000, 1198, 1199, 1235) == [False, False, True, True], "the reach of the one that is left"


def test_consumers_that_leave_without_the_brokers_word_lengthen_the_reach_within_a_limit() -> None:
    session = Acknowledgements(LostAcknowledgements(), ignore)
    session.widen(10)
    reach = session._reach
    for _ in range(300):
        session.widen(1000)
        session.narrow(1000, confirmed=False)
    assert session._reach == reach + MAX_ACK_RECORDS
    session.widen(1000)
    session.narrow(1000, confirmed=True)  # the broker takes what a client says in order
    assert session._reach == reach


def test_consumers_that_leave_unconfirmed_extend_the_reach_within_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acknowledgements, "MAX_ACK_RECORDS", 100)
    lost = LostAcknowledgements()
    session = Acknowledgements(lost, ignore)
    session.widen(10)
    for _ in range(1000):
        session.widen(20)
        session.narrow(20, confirmed=False)
    accept(session, *range(500))
    for number in range(500, 1000):
        session.accepted(tag(number), record(number))
    assert len(session) == 36 + 100 + 1
    session.interrupted()
    for number in range(1000, 1500):
        session.accepted(tag(number), record(number))
    assert len(session) == 36 + 1, "the reach of the one that is left"


def test_what_is_remembered_shrinks_as_soon_as_a_consumer_has_left() -> None:
    session = Acknowledgements(LostAcknowledgements(), ignore)
    session.widen(10)
    session.widen(5000)
    for number in range(20_000):
        session.accepted(tag(number), record(number))
    accept(session, *range(20_000, 20_100), outcome=Outcome.MODIFIED)
    assert (len(session), len(session._returned)) == (10_036 - 100 + 1, 100)
    session.narrow(5000, confirmed=True)
    assert (len(session), len(session._returned)) == (0, 37)


def test_what_is_delivered_and_accepted_in_one_step_is_remembered_as_long() -> None:
    lost = LostAcknowledgements()
    session = Acknowledgements(lost, ignore)
    session.widen(10)
    for number in range(50):
        session.accepted(tag(number), record(number))
    session.accepted(tag(50), None)
    session.interrupted()
    assert keys(lost, 12, 13, 49) == [False, True, True]


def test_what_was_seen_and_not_acknowledged_is_known_again_once() -> None:
    lost = LostAcknowledgements()
    session = Acknowledgements(lost, ignore)
    accept(session, 1)
    session.delivered(tag(2, link=1), record(2))
    session.delivered(tag(3, link=2), record(3))
    assert not lost.knows_any
    session.link_lost(2, for_good=False)
    session.interrupted()
    assert lost.knows_any
    assert [lost.was_seen(record(number)) for number in (1, 2, 3, 2)] == [False, True, True, False]


def test_many_that_are_acknowledged_together_are_all_remembered() -> None:
    lost = LostAcknowledgements()
    session = Acknowledgements(lost, ignore)
    session.widen(5)
    for number in range(1000):
        session.delivered(tag(number), record(number))
    session.settled([Settlement(tag(number), Outcome.ACCEPTED) for number in range(1000)])
    session.interrupted()
    assert len(lost) == 1000


def test_what_a_commit_settled_is_done_and_not_remembered() -> None:
    lost = LostAcknowledgements()
    session = Acknowledgements(lost, ignore)
    session.delivered(tag(1), record(1))
    session.committed([Settlement(tag(1), Outcome.ACCEPTED)])
    session.settled([Settlement(tag(1), Outcome.ACCEPTED)])
    session.interrupted()
    assert len(lost) == 0


def test_what_was_acknowledged_on_a_lost_link_is_acknowledged_again_and_what_was_held_is_known_again() -> None:
    lost = LostAcknowledgements()
    session = Acknowledgements(lost, ignore)
    session.widen(10)
    accept(session, 1)
    session.accepted(tag(2), record(2))
    accept(session, 3, outcome=Outcome.MODIFIED)
    session.delivered(tag(4), record(4))  # held
    session.accepted(tag(5, link=2), record(5))
    session.delivered(tag(6, link=2), record(6))
    session.link_lost(1, for_good=False)
    session.settled([Settlement(tag(4), Outcome.ACCEPTED), Settlement(tag(6, 2), Outcome.ACCEPTED)])
    assert len(session) == 2, "what came on the other link"
    assert keys(lost, 1, 2, 3, 4, 5, 6) == [True, True, False, False, False, False]
    assert [lost.was_seen(record(number)) for number in range(1, 7)] == [False, False, True, True, False, False]
    session.interrupted()
    assert keys(lost, 1, 2, 5, 6) == [False, False, True, True]


def test_what_was_acknowledged_on_a_lost_link_is_not_reported_as_lost_with_the_connection() -> None:
    """The connection lives, and what it has lost is not known yet."""
    lost = LostAcknowledgements()
    session = Acknowledgements(lost, ignore)
    session.accepted(tag(1), (SOURCE, None, 1, 0, None))  # redelivered as any other
    accept(session, 2, outcome=Outcome.MODIFIED)
    session.link_lost(1, for_good=False)
    broker = Told()
    lost.uncount_rest(broker.request, "token")
    assert broker.asked == [("uncount_rest", None)]


def test_what_was_acknowledged_on_a_link_that_is_gone_for_good_is_given_again_with_the_connection_only() -> None:
    """Its queue was deleted, say, and another one has its name: what comes from that may have the same position."""
    lost = LostAcknowledgements()
    session = Acknowledgements(lost, ignore)
    accept(session, 1)
    session.delivered(tag(2), record(2))
    session.link_lost(1, for_good=True)
    assert keys(lost, 1) == [False]
    assert lost.was_seen(record(2))
    session.interrupted()
    assert keys(lost, 1) == [True]


def test_another_message_with_the_id_of_one_that_was_lost_is_not_taken_for_it() -> None:
    """Producers of other makes may give one id twice."""
    lost = LostAcknowledgements()
    lost.add([record(1)], ignore)
    lost.add_seen([record(2)])
    assert not lost.take(record(1, position=77))
    assert not lost.was_seen(record(2, position=77))
    assert lost.take(record(1))
    assert lost.was_seen(record(2))
    lost.add([record(3)], ignore)
    assert lost.take(record(3, position=None)), "of a broker that says no positions"


def test_only_so_many_lost_acknowledgements_are_kept_the_newest() -> None:
    lost = LostAcknowledgements()
    lost.add_seen(record(number) for number in range(MAX_ACK_RECORDS + 3))
    assert [lost.was_seen(record(number)) for number in (2, 3)] == [False, True]
    lost.add([record(number) for number in range(MAX_ACK_RECORDS + 3)], ignore)
    assert len(lost) == MAX_ACK_RECORDS
    assert keys(lost, 2, 3) == [False, True]
