"""Commits at their edges: repeated, stale, held back or refused."""

from __future__ import annotations

from typing import Any

import pytest

from ack_modes import Outcome, Settlement
from broker_adapter.destination import queue
from broker_adapter.envelope import Identity
from broker_adapter.errors import ResourceAllocationException, TransactionRolledBackException
from tests.contracts.calls import TEMPORARY, Caller, Q, depth, texts
from tests.contracts.conftest import MakeEngine
from tests.contracts.transports import WAIT, Client, Engine, eventually, message


def accepted(deliveries: Any, outcome: Outcome = Outcome.ACCEPTED) -> list[Settlement]:
    return [Settlement(each.tag, outcome) for each in deliveries]


def test_a_repeated_commit_changes_nothing(client: Client) -> None:
    client.send("in", "a")
    held = client.drained("in")
    link = client.sender(queue("out"))
    for _ in range(3):
        client.transport.commit(1, 1, [(link, message(queue("out")))], accepted(held), WAIT)
    client.transport.commit(1, 2, [(link, message(queue("out")))], [], WAIT)
    client.transport.commit(2, 1, [(link, message(queue("out")))], [], WAIT)  # of another session

    assert len(client.bodies("out")) == 3
    assert client.bodies("in") == []


def test_a_commit_repeated_by_the_connection_that_takes_its_place_changes_nothing(engine: Engine) -> None:
    first = engine.open(commit_prefix="me")
    first.transport.commit(1, 1, [(first.sender(Q), message(Q))], [], WAIT)
    first.close()
    second = engine.open(commit_prefix="me", epoch=1)
    link = second.sender(Q)
    second.transport.commit(1, 1, [(link, message(Q))], [], WAIT)
    assert len(second.bodies("q")) == 1
    second.transport.commit(1, 2, [(link, message(Q))], [], WAIT)
    other = engine.open(commit_prefix="other")
    other.transport.commit(1, 1, [(other.sender(Q), message(Q))], [], WAIT)

    assert len(second.bodies("q")) == 3


def test_deliveries_carry_the_epoch_of_their_connection(engine: Engine) -> None:
    client = engine.open(epoch=7)
    client.send("q", "a")
    (held,) = client.drained("q")
    stale = held.tag._replace(epoch=6)
    with pytest.raises(TransactionRolledBackException):
        client.transport.commit(1, 1, [(client.sender(Q), message(Q))], [Settlement(stale, Outcome.ACCEPTED)], WAIT)
    client.transport.settle([Settlement(stale, Outcome.ACCEPTED)])
    assert held.tag.epoch == 7
    client.settle([held], Outcome.RELEASED)

    assert [each.envelope.body for each in client.receiver(Q, 5).wait_for(1)] == ["a"]


def test_a_commit_ends_deliveries_in_every_way(client: Client) -> None:
    client.send("q", *texts(4))
    receiver = client.receiver(Q, 4)
    held = receiver.wait_for(4)
    endings = (Outcome.ACCEPTED, Outcome.REJECTED, Outcome.RELEASED, Outcome.MODIFIED)
    client.transport.commit(
        1, 1, [], [Settlement(each.tag, ending) for each, ending in zip(held, endings, strict=True)], WAIT
    )

    assert [(each.envelope.body, each.delivery_count) for each in client.drained("q")] == [("2", 0), ("3", 1)]
    assert client.bodies("DLQ") == ["1"]


def test_a_commit_that_settles_a_delivery_twice_does_nothing_or_settles_it_once(client: Client) -> None:
    client.send("q", "a")
    held = client.drained("q")
    try:
        client.transport.commit(1, 1, [], accepted(held * 2), WAIT)
    except TransactionRolledBackException:
        assert [each.delivery_count for each in client.drained("q")] == [1]
    else:
        assert client.bodies("q") == []


def test_a_commit_through_a_closed_link_does_nothing(client: Client) -> None:
    client.send("q", "a")
    held = client.drained("q")
    good, closed = client.sender(queue("out")), client.sender(queue("out"))
    client.transport.detach(closed, WAIT)
    with pytest.raises(TransactionRolledBackException, match="closed"):
        client.transport.commit(
            1, 1, [(good, message(queue("out"))), (closed, message(queue("out")))], accepted(held), WAIT
        )
    assert client.bodies("out") == []
    again = client.drained("q")
    assert [each.delivery_count for each in again] == [1]
    client.transport.commit(1, 2, [(good, message(queue("out")))], accepted(again), WAIT)
    assert (client.bodies("q"), len(client.bodies("out"))) == ([], 1)


def test_a_commit_to_what_does_not_exist_any_more_does_nothing(engine: Engine) -> None:
    owner, client = engine.open(), engine.open()
    temporary = owner.transport.declare_temporary(TEMPORARY, WAIT)
    good, bad = client.sender(Q), client.sender(temporary)
    owner.close()
    client.send("in", "a")
    held = client.drained("in")
    with pytest.raises(TransactionRolledBackException, match="does not exist any more"):
        client.transport.commit(1, 1, [(good, message(Q)), (bad, message(temporary))], accepted(held), WAIT)
    assert client.bodies("q") == []
    client.transport.commit(1, 2, [(good, message(Q))], [], WAIT)
    assert len(client.bodies("q")) == 1


def test_a_commit_goes_wherever_its_anonymous_messages_say(client: Client) -> None:
    link = client.sender(None)
    client.transport.commit(1, 1, [(link, message(queue(name), name)) for name in ("a", "b", "a")], [], WAIT)

    assert (client.bodies("a"), client.bodies("b")) == (["a", "a"], ["b"])


def test_a_commit_that_finds_no_room_is_rolled_back_and_may_be_done_again(make_engine: MakeEngine) -> None:
    client = make_engine("max_queue_messages=2").open()
    client.send("q", "a", "b")
    link = client.sender(Q)
    sends = [(link, message(Q, "c")), (link, message(Q, "d"))]
    with pytest.raises(TransactionRolledBackException, match="do the transaction again later") as refused:
        client.transport.commit(1, 1, sends, [], WAIT)
    assert isinstance(refused.value.__cause__, ResourceAllocationException)
    client.settle(client.receiver(Q, 2).wait_for(2))
    eventually(lambda: depth(client, "q") == 0)
    client.transport.commit(1, 2, sends, [], WAIT)
    assert client.bodies("q") == ["c", "d"]


def test_what_a_rolled_back_commit_was_to_settle_is_redelivered(make_engine: MakeEngine) -> None:
    client = make_engine("max_queue_messages=2&blocked_send_timeout_seconds=0.1").open()
    client.send("in", "a")
    receiver = client.receiver(queue("in"), 5)
    held = receiver.wait_for(1)
    link = client.sender(Q)
    with pytest.raises(TransactionRolledBackException):
        client.transport.commit(1, 1, [(link, message(Q))] * 3, accepted(held), WAIT)
    client.settle(held, Outcome.MODIFIED)  # as a session does that rolls back; it changes nothing
    again = receiver.wait_for(2)[1]
    client.transport.drain(receiver.link, WAIT)

    assert (again.envelope.body, again.delivery_count, len(receiver.deliveries)) == ("a", 1, 2)


def test_a_commit_with_a_stale_delivery_releases_the_others(client: Client) -> None:
    client.send("q", "stale", "good")
    receiver = client.receiver(Q, 2)
    held = receiver.wait_for(2)
    client.settle(held[:1])
    with pytest.raises(TransactionRolledBackException):
        client.transport.commit(1, 1, [], accepted(held), WAIT)

    assert [(each.envelope.body, each.delivery_count) for each in client.drained("q")] == [("good", 1)]


def test_a_repeated_identity_in_a_commit_is_not_a_second_message(client: Client) -> None:
    link = client.sender(Q)
    client.send("q", "1", identity=Identity("p", 1, 1))
    sends = [(link, message(Q, str(number), identity=Identity("p", 1, number))) for number in (1, 2, 2, 3)]
    client.transport.commit(1, 1, sends, [], WAIT)

    assert client.bodies("q") == ["1", "2", "3"]


def test_sessions_commit_side_by_side(client: Client) -> None:
    def work(session: int) -> None:
        link = client.sender(Q, session=session)
        for number in range(1, 11):
            sends = [(link, message(Q, f"{session}/{number}/{index}")) for index in range(3)]
            client.transport.commit(session, number, sends, [], WAIT)

    callers = [Caller(lambda session=session: work(session)) for session in range(1, 5)]  # type: ignore[misc]
    assert [each.ended().error for each in callers] == [None] * 4
    bodies = client.bodies("q")
    assert len(bodies) == 120
    assert [body[-1] for body in bodies] == ["0", "1", "2"] * 40  # each commit in one piece
