"""Deliveries that were lost with a connection, of which its client says later what it had seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_adapter.destination import queue
from broker_adapter.engine import commands as c
from broker_adapter.engine import losses
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.losses import Losses
from broker_adapter.errors import InvalidDestinationException, MessageFormatException
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import WAIT, attach, connect, drained, send, settle

Q = queue("q")


def test_what_was_seen_is_taken_out_and_the_rest_is_taken_once() -> None:
    found = Losses()
    for position in range(5):
        found.note("token", 1, position, position * 10)
    found.note("token", 2, 0, 7)
    found.note("other", 1, 0, 9)
    assert found.seen("token", 1, [0, 3, 99]) == 2
    assert found.seen("nobody", 1, [0]) == 0
    assert found.take("token", 3) == [((1, 1), 10), ((1, 2), 20), ((1, 4), 40)]
    assert len(found) == 2
    assert found.take("token", 3) == [((2, 0), 7)]
    assert found.take("token", 3) == []
    assert len(found) == 1
    assert found.take("other", 1) == [((1, 0), 9)]
    assert len(found) == 0


def test_what_is_lost_again_has_the_later_count() -> None:
    found = Losses()
    found.note("token", 1, 1, 0)
    found.note("token", 1, 1, 1)
    assert (len(found), found.take("token", 9)) == (1, [((1, 1), 1)])


def test_the_connection_that_was_lost_first_is_forgotten_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "MAX_DELIVERIES", 10)
    found = Losses()
    for token in ("a", "b"):
        for position in range(5):
            found.note(token, 1, position, 0)
    found.note("c", 1, 0, 0)
    assert [len(found.take(token, 9)) for token in ("a", "b", "c")] == [0, 5, 1]
    for position in range(12):
        found.note("alone", 1, position, 0)
    assert len(found.take("alone", 9)) == 1, "what alone is more than the limit is forgotten, and noted from there on"
    assert len(found) == 0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(EngineSettings(max_deliveries=3), str(tmp_path))
    yield broker
    broker.close()


def lose(broker: Broker, messages: int, token: str | None = "token") -> None:
    """A client gets these, and vanishes."""
    client: int = broker.call(c.Connect(None, token=token), WAIT)
    _, inbox = attach(broker, client, Q, credit=messages)
    inbox.wait_for(messages)
    broker.call(c.Disconnect(client), WAIT)


def counts(broker: Broker) -> dict[int, int]:
    consumer, inbox = attach(broker, connect(broker), Q, credit=100)
    found = {each.position: each.delivery_count for each in inbox.handouts}
    broker.call(c.Detach(consumer, give_back=True, failed=False), WAIT)
    return found


def test_what_was_lost_on_its_way_never_becomes_a_dead_letter(broker: Broker) -> None:
    send(broker, connect(broker), Q, *range(4))
    for _ in range(10):
        lose(broker, 4)
        assert broker.request("forgive_rest", {"token": "token"}, WAIT) == 4
        assert broker.request("forgive_rest", {"token": "token"}, WAIT) == 0
    assert counts(broker) == dict.fromkeys(range(1, 5), 0)
    assert not drained(broker, connect(broker), queue("DLQ"))


def test_what_was_seen_counts(broker: Broker) -> None:
    send(broker, connect(broker), Q, *range(4))
    for number in (1, 2):
        lose(broker, 4)
        assert broker.request("seen", {"destination": "q", "token": "token", "positions": [2, 3, 77]}, WAIT)
        assert broker.request("forgive_rest", {"token": "token"}, WAIT) == 2
        assert counts(broker) == {1: 0, 2: number, 3: number, 4: 0}
    lose(broker, 4)
    assert broker.request("forgive_rest", {"token": "token"}, WAIT) == 2
    assert len(drained(broker, connect(broker), queue("DLQ"))) == 2


def test_what_others_have_by_now_or_failed_on_since_is_theirs(broker: Broker) -> None:
    send(broker, connect(broker), Q, *range(3))
    lose(broker, 3)
    consumer, inbox = attach(broker, connect(broker), Q, credit=2)
    first, second = inbox.wait_for(2)
    settle(broker, consumer, [first])
    assert broker.request("forgive_rest", {"token": "token"}, WAIT) == 1, "the second one is in the hands of another"
    assert second.delivery_count == 1
    lose(broker, 1, token=None)
    assert broker.request("forgive_rest", {"token": "token"}, WAIT) == 0


def test_an_unknown_token_uncounts_nothing_and_bad_arguments_are_refused(broker: Broker) -> None:
    send(broker, connect(broker), Q, "x")
    lose(broker, 1, token=None)
    assert broker.request("forgive_rest", {"token": "token"}, WAIT) == 0
    assert counts(broker) == {1: 1}
    for wrong in ({"token": 1}, {"positions": ["x"]}, {"positions": [1] * 10_001}, {"destination": None}):
        arguments = {"destination": "q", "token": "token", "positions": [1], **wrong}
        with pytest.raises(MessageFormatException):
            broker.request("seen", arguments, WAIT)
    with pytest.raises(InvalidDestinationException):
        broker.request("seen", {"destination": "nowhere", "token": "token", "positions": [1]}, WAIT)


def test_a_queue_that_is_deleted_meanwhile_is_no_error(broker: Broker) -> None:
    send(broker, connect(broker), Q, "x")
    lose(broker, 1)
    assert broker.request("delete", {"destination": "q"}, WAIT) == 1
    assert broker.request("forgive_rest", {"token": "token"}, WAIT) == 0


def test_a_client_that_held_more_than_a_cycle_gives_back_is_remembered_as_a_whole(broker: Broker) -> None:
    count = 12_000
    send(broker, connect(broker), Q, *range(count))
    lose(broker, count)
    assert broker.request("forgive_rest", {"token": "token"}, 60) == count
