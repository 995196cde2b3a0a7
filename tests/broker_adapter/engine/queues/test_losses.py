"""Deliveries that were lost with a connection, of which its client says later what it had seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.queues import losses
from broker_adapter.engine.queues.losses import Losses, Place
from broker_adapter.envelope import ENVELOPE_FORMAT, Envelope, Identity, pack
from broker_adapter.errors import InvalidDestinationException, MessageFormatException
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import WAIT, attach, connect, drained, send, settle

Q = queue("q")


def test_what_was_seen_is_taken_out_and_the_rest_is_taken_once() -> None:
    found = Losses()
    for position in range(5):
        found.note("token", Place(1, 5, position))
    found.note("token", Place(2, 4, 0))
    found.note("other", Place(1, 5, 0))
    assert found.seen("token", 1, [0, 3, 99]) == 2
    assert found.seen("nobody", 1, [0]) == 0
    assert found.take("token", 3) == [(1, 5, 1), (1, 5, 2), (1, 5, 4)]
    assert len(found) == 2
    assert found.take("token", 3) == [(2, 4, 0)]
    assert found.take("token", 3) == []
    assert len(found) == 1
    assert found.take("other", 1) == [(1, 5, 0)]
    assert len(found) == 0


def test_one_of_them_is_taken_once_by_the_token_of_its_connection() -> None:
    found = Losses()
    for token in ("a", "b"):
        found.note(token, Place(1, 5, 7))
    assert found.places_of("a", 1, [6, 7]) == [(1, 5, 7)]
    assert [found.take_one("a", *place) for place in ((1, 6), (2, 7), (1, 7), (1, 7))] == [False, False, True, False]
    assert (found.has("a", 1, 7), found.has("b", 1, 7), len(found)) == (False, True, 1)


def test_a_connection_of_which_all_was_seen_is_known_and_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "MAX_EMPTY", 2)
    found = Losses()
    for token in ("a", "b", "c"):
        for position in range(3):
            found.note(token, Place(1, 5, position))
    for token in ("a", "b", "c", "nobody", "c"):
        found.remove(token)
    assert (len(found), found.take("b", 9)) == (0, [])
    assert [found.knows(token) for token in ("a", "b", "c", "nobody")] == [False, True, True, False]


def test_what_is_lost_again_is_there_once() -> None:
    found = Losses()
    found.note("token", Place(1, 5, 1))
    found.note("token", Place(1, 5, 1))
    assert (len(found), found.take("token", 9)) == (1, [(1, 5, 1)])


def test_a_connection_of_which_nothing_is_left_is_known_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "MAX_EMPTY", 2)
    found = Losses()
    assert not found.knows("a")
    for token in ("a", "b", "c"):
        found.note(token, Place(1, 5, 1))
        assert found.knows(token)
        found.take(token, 9)
    assert [found.knows(token) for token in ("a", "b", "c")] == [False, True, True]
    found.note("b", Place(1, 5, 1))
    assert found.knows("b")


def test_the_connection_that_was_lost_first_is_forgotten_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "MAX_DELIVERIES", 10)
    found = Losses()
    for token in ("a", "b"):
        for position in range(5):
            found.note(token, Place(1, 5, position))
    found.note("c", Place(1, 5, 0))
    assert not found.knows("a")
    assert [len(found.take(token, 9)) for token in ("a", "b", "c")] == [0, 5, 1]
    for position in range(12):
        found.note("alone", Place(1, 5, position))
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
        assert broker.request("uncount_rest", {"token": "token"}, WAIT) == 4
        assert broker.request("uncount_rest", {"token": "token"}, WAIT) == 0
    assert counts(broker) == dict.fromkeys(range(1, 5), 0)
    assert not drained(broker, connect(broker), queue("DLQ"))


def test_what_was_seen_counts(broker: Broker) -> None:
    send(broker, connect(broker), Q, *range(4))
    for number in (1, 2):
        lose(broker, 4)
        assert broker.request("seen", {"destination": "q", "token": "token", "positions": [2, 3, 77]}, WAIT)
        assert broker.request("uncount_rest", {"token": "token"}, WAIT) == 2
        assert counts(broker) == {1: 0, 2: number, 3: number, 4: 0}
    lose(broker, 4)
    assert broker.request("uncount_rest", {"token": "token"}, WAIT) == 2
    assert len(drained(broker, connect(broker), queue("DLQ"))) == 2


def test_what_others_have_in_hand_by_now_is_uncounted_there(broker: Broker) -> None:
    send(broker, connect(broker), Q, *range(3))
    lose(broker, 3)
    client = connect(broker)
    consumer, inbox = attach(broker, client, Q, credit=2)
    first, second = inbox.wait_for(2)
    settle(broker, consumer, [first])
    assert broker.request("uncount_rest", {"token": "token"}, WAIT) == 2, "all but the one that is processed"
    assert second.delivery_count == 1
    broker.call(c.Disconnect(client, failed=False), WAIT)
    lose(broker, 1, token=None)
    assert broker.request("uncount_rest", {"token": "token"}, WAIT) == 0
    assert counts(broker) == {2: 1, 3: 0}


@pytest.mark.parametrize("durable", [True, False], ids=["persistent", "not persistent"])
@pytest.mark.parametrize("operation", ["uncount", "uncount_rest"])
def test_what_is_not_in_memory_any_more_is_uncounted_in_the_store(
    broker: Broker, operation: str, durable: bool, tmp_path: Path
) -> None:
    client = connect(broker)
    names = [Identity("producer", 1, number) for number in range(1, 5)]
    messages = [
        c.NewMessage(ENVELOPE_FORMAT, pack(Envelope(Q, identity=name)), durable, identity=name) for name in names
    ]
    broker.call(c.Enqueue(client, Q, messages), WAIT)
    for _ in range(2):
        lose(broker, 4)
        broker.call(c.Disconnect(connect(broker)), WAIT)
        waiting = broker._state.directory.by_destination[Q]
        with broker.reading() as reader:  # in the engine's turn
            reader.state.consumers.idle_windows.pop(waiting.id).drop_window()
        assert not waiting.ready
        if operation == "uncount_rest":
            assert broker.request("seen", {"destination": "q", "token": "token", "positions": [2]}, WAIT)
            assert broker.request("uncount_rest", {"token": "token"}, WAIT) == 3
        else:
            given = [(position, list(names[position - 1]), 0) for position in (1, 3, 4)]
            wanted = {"destination": "q", "token": "token", "given": given}
            assert [broker.request("uncount", wanted, WAIT) for _ in range(2)] == [3, 0]
            broker.request("seen", {"destination": "q", "token": "token", "positions": [2]}, WAIT)
        assert not waiting.ready, "they stay where they are"
    assert counts(broker) == {1: 0, 2: 2, 3: 0, 4: 0}


def test_an_unknown_token_uncounts_nothing_and_bad_arguments_are_refused(broker: Broker) -> None:
    send(broker, connect(broker), Q, "x")
    lose(broker, 1, token=None)
    assert broker.request("uncount_rest", {"token": "token"}, WAIT) == 0
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
    assert broker.request("uncount_rest", {"token": "token"}, WAIT) == 0


def test_a_client_that_held_more_than_a_cycle_gives_back_is_remembered_as_a_whole(broker: Broker) -> None:
    count = 12_000
    send(broker, connect(broker), Q, *range(count))
    lose(broker, count)
    assert broker.request("uncount_rest", {"token": "token"}, 60) == count
