"""How many further nodes have what is confirmed: what a connection tells, and which sends it refuses."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.amqp.client import transport
from broker_adapter.server.announcements import Announcement
from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionFactory,
    DeliveryMode,
    Interrupted,
    RedundancyLost,
    RedundancyRestored,
    ResourceAllocationException,
    Restored,
    Session,
    aio,
)
from sdk.redundancy import Redundancy
from tests.broker_adapter.server.served import Served
from tests.contracts.transports import eventually

WAIT = 120.0
REQUIRED = "?redundancy=2&require_redundancy=true"


class Node(Served):
    """A server whose number of further nodes in sync a test says."""

    def has(self, redundancy: int) -> None:
        self.listener.announce_soon(Announcement(redundancy=redundancy))


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    with closing(node):
        yield node


class Client:
    """A connection, and what its event listener is told."""

    def __init__(self, url: str) -> None:
        self.connection = ConnectionFactory(url).create_connection()
        self._events: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.connection.event_listener = self._events.put
        self.connection.start()

    def told(self) -> object:
        return self._events.get(timeout=WAIT)

    def was_told_nothing(self) -> bool:
        return self._events.empty()


@pytest.fixture
def connect() -> Iterator[Callable[[str], Client]]:
    made: list[Connection] = []

    def connect(url: str) -> Client:
        client = Client(url)
        made.append(client.connection)
        return client

    yield connect
    for each in made:
        each.close()


def lost(has: int) -> RedundancyLost:
    return RedundancyLost(2, has)


def restored(has: int) -> RedundancyRestored:
    return RedundancyRestored(2, has)


# The rule.


def test_it_is_told_once_that_there_are_too_few_and_once_that_there_are_enough() -> None:
    redundancy = Redundancy(2, is_required=False)
    told = [redundancy.announced(each) for each in (2, 1, 0, 1, 2, 3, 0)]
    assert told == [None, lost(1), None, None, restored(2), None, lost(0)]
    assert list(redundancy.untold) == [lost(0)]
    redundancy.require()


def test_where_none_is_wanted_nothing_is_told_and_nothing_refused() -> None:
    redundancy = Redundancy(0, is_required=True)
    assert [redundancy.announced(each) for each in (0, 1, 0)] == [None] * 3
    redundancy.require()


def test_a_refusal_says_how_many_there_are_and_what_to_do() -> None:
    redundancy = Redundancy(2, is_required=True)
    redundancy.announced(1)
    with pytest.raises(ResourceAllocationException) as raised:
        redundancy.require()
    assert str(raised.value).startswith("1 of 2 further nodes have what is confirmed, and require_redundancy is set")
    assert "try again once the event listener has got RedundancyRestored" in str(raised.value)
    redundancy.announced(2)
    redundancy.require()


# A connection.


def test_a_connection_tells_each_loss_and_return_once_and_logs_it_once(
    node: Node, connect: Callable[[str], Client], caplog: pytest.LogCaptureFixture
) -> None:
    node.has(2)
    client = connect(f"{node.url}?redundancy=2")
    node.has(1)
    assert client.told() == lost(1)
    node.has(0)
    node.has(2)
    assert client.told() == restored(2)
    assert client.was_told_nothing()
    assert caplog.text.count("further nodes have what is confirmed") == 1
    assert "1 of 2 further nodes have what is confirmed" in caplog.text


@pytest.mark.parametrize("has", [None, 0, 1])
def test_a_connection_that_finds_too_few_says_so_at_once(
    node: Node, connect: Callable[[str], Client], has: int | None
) -> None:
    if has is not None:
        node.has(has)
    assert connect(f"{node.url}?redundancy=2").told() == lost(has or 0)


def test_an_embedded_engine_has_no_further_nodes(tmp_path: Path, connect: Callable[[str], Client]) -> None:
    client = connect(f"embedded:{tmp_path}{REQUIRED}")
    assert client.told() == lost(0)
    session = client.connection.create_session()
    with pytest.raises(ResourceAllocationException, match="0 of 2 further nodes"):
        session.create_producer(session.create_queue("q")).send("x")


def test_a_listener_that_comes_late_is_told_the_last_change_and_only_once(
    node: Node, connect: Callable[[str], Client]
) -> None:
    client = connect(f"{node.url}?redundancy=2")
    assert client.told() == lost(0)
    listener = client.connection.event_listener
    client.connection.event_listener = None
    untold = client.connection._redundancy.untold
    for has, event in ((2, restored(2)), (1, lost(1))):
        node.has(has)
        eventually(lambda event=event: list(untold) == [event])  # type: ignore[misc]
    client.connection.event_listener = listener
    client.connection.event_listener = listener
    node.has(2)
    assert [client.told(), client.told()] == [lost(1), restored(2)]


def test_a_connection_that_wants_none_is_told_nothing(node: Node, connect: Callable[[str], Client]) -> None:
    client = connect(node.url)
    node.has(2)
    node.has(0)
    client.connection.request("statistics", {})
    assert client.was_told_nothing()


def test_after_a_failover_the_number_is_that_of_the_new_server(node: Node, connect: Callable[[str], Client]) -> None:
    other = Node()
    with closing(other):
        node.has(2)
        other.has(1)
        client = connect(f"failover:({node.url},{other.url})?redundancy=2")
        node.listener.stop()
        assert isinstance(client.told(), Interrupted)
        assert isinstance(client.told(), Restored)
        assert client.told() == lost(1)
        other.has(2)
        assert client.told() == restored(2)


def test_a_server_that_tells_of_no_changes_has_the_number_of_its_open_frame(
    node: Node,
    connect: Callable[[str], Client],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "WATCH", "nothing_that_is_known")
    node.has(1)
    client = connect(f"{node.url}?redundancy=2")
    assert client.told() == lost(1)
    eventually(lambda: "does not tell what changes: unknown operation" in caplog.text)
    node.has(2)
    client.connection.request("statistics", {})
    assert client.was_told_nothing()


def test_asyncio_gives_the_events_as_well(node: Node) -> None:
    async def follow() -> list[object]:
        async with aio.connect(f"{node.url}?redundancy=2") as connection:
            events = connection.events()
            told: list[object] = [await anext(events)]
            node.has(2)
            return [*told, await anext(events)]

    assert asyncio.run(asyncio.wait_for(follow(), WAIT)) == [lost(0), restored(2)]


# What is refused.


def _asynchronously(session: Session) -> None:
    with session.create_producer(session.create_queue("q")) as producer:
        producer.send("x", on_completion=lambda _message, _error: None)


def _not_persistently(session: Session) -> None:
    with session.create_producer(session.create_queue("q")) as producer:
        producer.send("x", delivery_mode=DeliveryMode.NON_PERSISTENT)


def _together(session: Session) -> None:
    with session.create_producer(session.create_queue("q")) as producer:
        producer.send_all(["x", "y"])


SENDS: dict[str, Callable[[Session], Any]] = {
    "send": lambda session: session.create_producer(session.create_queue("q")).send("x"),
    "asynchronous send": _asynchronously,
    "non-persistent send": _not_persistently,
    "send_all": _together,
    "put": lambda session: session.create_region("r").put("k", "v"),
    "put of several": lambda session: session.create_region("r").put_all({"k": "v", "l": "w"}),
}


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_a_send_is_refused_while_there_are_too_few_and_nothing_else(
    node: Node, connect: Callable[[str], Client], send: Callable[[Session], Any]
) -> None:
    node.has(2)
    client = connect(node.url + REQUIRED)
    session = client.connection.create_session()
    orders = session.create_queue("orders")
    session.create_producer(orders).send("before")
    node.has(1)
    assert client.told() == lost(1)
    with pytest.raises(ResourceAllocationException, match="1 of 2 further nodes have what is confirmed"):
        send(session)
    message = session.create_consumer(orders).receive(WAIT)
    assert message is not None
    node.has(2)
    assert client.told() == restored(2)
    send(session)


def test_without_require_redundancy_sends_go_on(node: Node, connect: Callable[[str], Client]) -> None:
    client = connect(f"{node.url}?redundancy=2")
    assert client.told() == lost(0)
    SENDS["send"](client.connection.create_session())


@pytest.mark.parametrize("work", ["send", "put"])
def test_a_commit_with_sends_is_refused_and_its_transaction_stays(
    node: Node, connect: Callable[[str], Client], work: str
) -> None:
    node.has(2)
    client = connect(node.url + REQUIRED)
    session = client.connection.create_session(AcknowledgeMode.TRANSACTED)
    SENDS[work](session)
    node.has(1)
    assert client.told() == lost(1)
    with pytest.raises(ResourceAllocationException, match="1 of 2 further nodes have what is confirmed"):
        session.commit()
    node.has(2)
    assert client.told() == restored(2)
    session.commit()
    if work == "send":
        assert session.create_consumer(session.create_queue("q")).receive(WAIT) is not None
        session.rollback()
    else:
        assert session.create_region("r").get("k") == "v"


def test_a_commit_that_only_acknowledges_goes_on(node: Node, connect: Callable[[str], Client]) -> None:
    node.has(2)
    client = connect(node.url + REQUIRED)
    SENDS["send"](client.connection.create_session())
    node.has(0)
    assert client.told() == lost(0)
    session = client.connection.create_session(AcknowledgeMode.TRANSACTED)
    assert session.create_consumer(session.create_queue("q")).receive(WAIT) is not None
    session.commit()
    assert client.connection.statistics().queues[0].messages == 0


@pytest.mark.parametrize("operation", ["stage", "change_keys"])
def test_a_request_that_sends_is_refused(node: Node, connect: Callable[[str], Client], operation: str) -> None:
    client = connect(node.url + REQUIRED)
    assert client.told() == lost(0)
    with pytest.raises(ResourceAllocationException, match="0 of 2 further nodes"):
        client.connection.request(operation, {})
