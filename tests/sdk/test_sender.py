"""Senders: any number of threads send with one, each in its order, and none is in another's way."""

from __future__ import annotations

import gc
import inspect
import itertools
import threading
import warnings
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker_adapter import queue
from broker_adapter.settings import ServerSettings
from sdk import (
    Connection,
    ConnectionFactory,
    DeliveryMode,
    IllegalStateException,
    InvalidDestinationException,
    Message,
    MessageProducer,
    OperationTimedOutException,
    ResourceAllocationException,
    Sender,
    sender,
)
from tests.contracts.transports import eventually
from tests.sdk.interrupted_calls import with_handler
from tests.sdk.region_connections import Connect
from tests.sdk.test_forked import in_child
from tests.sdk.threads.calls import WAIT, in_thread

ORDERS = queue("orders")
FULL = "max_queue_messages=1"


@pytest.fixture
def connection() -> Iterator[Connection]:
    with ConnectionFactory("embedded:").create_connection() as connection:
        yield connection


def bodies(connection: Connection, name: str = "orders") -> list[str]:
    with connection.create_session() as session:
        return [str(message) for message in session.create_browser(queue(name))]


def take_one(connection: Connection) -> str:
    connection.start()
    with connection.create_session() as session:
        return str(session.create_consumer(ORDERS).receive(WAIT))


def sessions_of(sender: Sender) -> int:
    return len(sender._shared.members)


def test_what_each_thread_sends_arrives_once_and_in_its_order(connect: Connect) -> None:
    connection = connect()
    orders = connection.create_sender(ORDERS)

    def send(thread: int) -> None:
        for number in range(0, 30, 3):
            orders.send(f"{thread} {number}")
            orders.send(f"{thread} {number + 1}", delivery_mode=DeliveryMode.NON_PERSISTENT)
            orders.send_all([f"{thread} {number + 2}"])

    with ThreadPoolExecutor(50) as threads:
        list(threads.map(send, range(50)))
    seen = defaultdict(list)
    for body in bodies(connection):
        thread, number = body.split()
        seen[thread].append(int(number))
    assert len(seen) == 50
    assert {thread: numbers for thread, numbers in seen.items() if numbers != list(range(30))} == {}
    assert 1 <= sessions_of(orders) <= sender.MOST_SESSIONS


def test_a_thread_for_each_request_may_send(connect: Connect) -> None:
    connection = connect()
    orders = connection.create_sender(ORDERS)
    threads = [in_thread(lambda: orders.send("order")) for _ in range(300)]
    assert [results.get(timeout=WAIT) for _, results in threads] == [None] * 300
    assert bodies(connection) == ["order"] * 300


def test_the_sessions_are_far_fewer_than_our_server_allows() -> None:
    assert ServerSettings().max_sessions / sender.MOST_SESSIONS >= 8


def test_all_senders_of_a_connection_share_the_sessions(connection: Connection) -> None:
    senders = [connection.create_sender(queue(f"q{number}")) for number in range(20)]
    for number, each in enumerate(senders):
        each.send(str(number))
    assert [bodies(connection, f"q{number}") for number in range(20)] == [[str(number)] for number in range(20)]
    assert [sessions_of(each) for each in senders] == [1] * 20


def test_a_thread_waits_for_a_free_session(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "MOST_SESSIONS", 2)
    connection = connect(engine=FULL)
    orders = connection.create_sender(ORDERS)
    orders.send("0")
    threads = [in_thread(lambda: orders.send("x")) for _ in range(5)]  # two are blocked by the queue
    eventually(lambda: bool(orders._shared.freed))
    assert [take_one(connection) for _ in range(6)] == ["0", *"xxxxx"]
    assert [results.get(timeout=WAIT) for _, results in threads] == [None] * 5


def test_where_no_session_is_free_in_time_nothing_is_sent(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "MOST_SESSIONS", 1)
    orders = connection.create_sender()
    orders.send("0", ORDERS)
    orders._shared.seconds = 0.2
    is_owned, is_over = threading.Event(), threading.Event()
    state = orders._shared.members[0][0]._state

    def own() -> None:
        state.own()
        state.calling = True
        is_owned.set()
        is_over.wait(WAIT)
        state.calling = False
        state.disown()

    thread, _ = in_thread(own)
    assert is_owned.wait(WAIT)
    expected = r"not sent: for 0.2 s \(option send_timeout_seconds\) other threads used all sessions .* \(1\)"
    with pytest.raises(ResourceAllocationException, match=expected):
        orders.send("1", ORDERS)
    with pytest.raises(ResourceAllocationException, match=expected) as raised:
        orders.send_all(["1", "2"], ORDERS)
    assert list(raised.value.failures) == [0, 1]
    is_over.set()
    thread.join(WAIT)
    orders.send("3", ORDERS)
    assert bodies(connection) == ["0", "3"]


def test_it_takes_a_destination_where_it_has_none(connection: Connection) -> None:
    with connection.create_sender() as any_destination, connection.create_sender(ORDERS) as orders:
        any_destination.send("a", ORDERS)
        with pytest.raises(InvalidDestinationException, match="no destination; give one"):
            any_destination.send("b")
        with pytest.raises(IllegalStateException, match=r"sender to 'orders' takes no other destination"):
            orders.send("c", queue("other"))
        with pytest.raises(InvalidDestinationException):
            connection.create_sender("orders")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="takes several messages"):
            orders.send_all("d")
        assert (any_destination.destination, orders.destination) == (None, ORDERS)
    assert bodies(connection) == ["a"]


def test_a_message_has_what_the_send_says(connection: Connection) -> None:
    message = Message()
    for mode in DeliveryMode:
        connection.create_sender(ORDERS).send(message, delivery_mode=mode, priority=7, time_to_live=60)
        assert (message.delivery_mode, message.priority, message.expires_at_ms is None) == (mode, 7, False)
        assert message.destination == ORDERS


def test_the_error_of_a_non_persistent_message_is_raised(connection: Connection) -> None:
    with ConnectionFactory(
        "embedded:?memory=volatile&max_volatile_bytes=100000&blocked_send_timeout_seconds=0.1"
    ).create_connection() as small:
        orders = small.create_sender(ORDERS)
        with pytest.raises(ResourceAllocationException, match="max_volatile_bytes"):
            orders.send("x" * 200_000, delivery_mode=DeliveryMode.NON_PERSISTENT)


def test_with_the_last_sender_their_sessions_are_closed(connection: Connection) -> None:
    first, second = connection.create_sender(ORDERS), connection.create_sender(ORDERS)
    first.send("0")
    first.close()
    first.close()
    with pytest.raises(IllegalStateException, match="sender to 'orders' is CLOSED"):
        first.send("1")
    second.send("2")
    assert len(connection._sessions.values()) == 1
    second.close()
    assert connection._sessions.values() == []
    connection.create_sender(ORDERS).send("3")
    assert bodies(connection) == ["0", "2", "3"]


def test_after_its_connection_is_closed_it_raises(connection: Connection) -> None:
    used, unused = connection.create_sender(ORDERS), connection.create_sender(ORDERS)
    used.send("0")
    connection.close()
    for each in (used, unused):
        with pytest.raises(IllegalStateException, match="is CLOSED"):
            each.send("1")
        each.close()
    with pytest.raises(IllegalStateException, match="is CLOSED"):
        connection.create_sender()


def test_one_that_is_dropped_keeps_neither_sessions_nor_its_connection(connection: Connection) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        connection.create_sender(ORDERS).send("0")
        gc.collect()
        eventually(lambda: connection._sessions.values() == [])


def test_a_child_made_by_fork_is_refused_at_once_whatever_other_threads_send(connect: Connect) -> None:
    connection = connect(engine=FULL)
    orders = connection.create_sender(ORDERS)
    orders.send("0")
    _, results = in_thread(lambda: orders.send("1"))
    eventually(lambda: any(session._state.calling for session, _ in orders._shared.members))
    with orders._shared._gate:
        said = in_child(lambda: orders.send("2"))
    assert said.startswith("IllegalStateException: it was made by the parent of this process")
    assert in_child(orders.close) == "nothing"
    assert [take_one(connection), take_one(connection)] == ["0", "1"]
    assert results.get(timeout=WAIT) is None


class Interrupted:
    """Calls of senders in which the handler raises, and what other threads send meanwhile.

    Attributes:
        sent: what sends have returned for.
    """

    def __init__(self, connection: Connection, call: str, file: str | None) -> None:
        self.sent: list[str] = []
        self._connection = connection
        self._call = call
        self._file = file
        self._numbers = itertools.count(1)

    def run(self, at: int) -> int:
        """Have the handler raise at a place of a call; returns how many places it went through."""
        orders, other = self._connection.create_sender(ORDERS), self._connection.create_sender(ORDERS)
        if self._call != "first send":
            self._send(orders)
        call = {"send_all": lambda: self._send(orders, several=True), "close": orders.close}.get(
            self._call, lambda: self._send(orders)
        )
        places = with_handler(call, at, self._file)
        if self._call == "close":
            orders.close()
        thread, results = in_thread(lambda: self._send(other))
        assert results.get(timeout=WAIT) is None
        thread.join(WAIT)
        assert sessions_of(other) <= 2
        for lock in (orders._shared._gate, *(session._state.owner for session, _ in other._shared.members)):
            assert not lock._is_owned(), "a lock is still held"  # type: ignore[attr-defined]
        other.close()
        return places

    def _send(self, with_: Sender, *, several: bool = False) -> None:
        body = str(next(self._numbers))
        if several:
            with_.send_all([body])
        else:
            with_.send(body)
        self.sent.append(body)


@pytest.mark.parametrize("file", [sender.__file__, None], ids=["each place of the file", "some of all"])
@pytest.mark.parametrize("call", ["first send", "send", "send_all", "close"])
def test_a_handler_that_raises_ends_one_session_at_most_which_is_replaced(
    connect: Connect, call: str, file: str | None
) -> None:
    connection = connect()
    calls = Interrupted(connection, call, file)
    places = calls.run(0)
    for at in range(1, places + 1, 1 if file else max(1, places // 20)):
        try:
            calls.run(at)
        except BaseException as error:
            error.add_note(f"the handler raised at place {at} of {places}")
            raise
    there = bodies(connection)
    assert len(there) == len(set(there))
    assert [body for body in there if body in calls.sent] == calls.sent


@pytest.mark.parametrize("mode", DeliveryMode)
def test_a_sender_sends_what_a_producer_does(connection: Connection, mode: DeliveryMode) -> None:
    left_out = {"self", "on_completion"}
    for name in ("send", "send_all"):
        parameters = [inspect.signature(getattr(each, name)).parameters for each in (MessageProducer, Sender)]
        assert [{key: str(each[key]) for key in each if key not in left_out} for each in parameters[:1]] == [
            {key: str(each[key]) for key in each if key not in left_out} for each in parameters[1:]
        ]
    orders = connection.create_sender(ORDERS)
    orders.send("x", delivery_mode=mode, properties={"n": 1}, group_id="g", correlation_id=b"c")
    with connection.create_session() as session:
        (found,) = session.create_browser(ORDERS)
        assert (dict(found.properties), found.group_id, found.correlation_id) == ({"n": 1}, "g", b"c")


def test_a_send_without_an_answer_holds_up_none_to_another_queue(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "MOST_SESSIONS", 1)
    connection = connect(client="send_timeout_seconds=2", engine=FULL)
    anywhere = connection.create_sender()
    anywhere.send("0", ORDERS)
    for name, send in (
        ("first", lambda: anywhere.send("1", ORDERS)),
        ("second", lambda: anywhere.send_all(["2"], ORDERS)),
    ):
        with pytest.raises(OperationTimedOutException):
            send()
        anywhere.send("3", queue(name))
        assert bodies(connection, name) == ["3"]


def test_a_session_is_replaced_though_a_second_handler_has_interrupted_its_end(connection: Connection) -> None:
    orders = connection.create_sender(ORDERS)
    orders.send("0")
    session = orders._shared.members[0][0]
    session._state.calling, session._state.interruption = True, KeyboardInterrupt()
    orders.send("1")
    assert [each for each, _ in orders._shared.members] != [session]
    assert sessions_of(orders) == 1
    assert bodies(connection) == ["0", "1"]


def test_a_handler_may_send_in_the_middle_of_a_send(connection: Connection) -> None:
    """But in the middle of a call of the session, which Python's handlers must not enter again."""
    orders = connection.create_sender(ORDERS)
    orders.send("0")
    state = orders._shared.members[0][0]._state
    with state.owner:  # as where the handler runs ahead of the call
        orders.send("1")
    with state.owner:
        state.calling = True
        orders.send("2")  # with another session
        state.calling = False
    assert sessions_of(orders) == 2
    assert bodies(connection) == ["0", "1", "2"]
