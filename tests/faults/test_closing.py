"""``close()`` where the server says nothing any more, and where two threads close at once."""

from __future__ import annotations

import threading
import time
from uuid import uuid4

import pytest

from sdk import AcknowledgeMode, Connection, IllegalStateException, JMSException, Message
from sdk.lifecycle import State
from tests.faults.conftest import Connect
from tests.faults.proxy import Direction, Proxy
from tests.faults.scenarios import WAIT, wait_for

pytestmark = pytest.mark.crash

SESSIONS = 60
LIMIT = 1.0  #: seconds, option close_timeout_seconds
MOST = 10 * LIMIT + 1  #: seconds of a close; far below a time-out for each session, and what a request may take


def test_closing_in_a_black_hole_takes_one_time_out_for_all_sessions(proxy: Proxy, connect: Connect) -> None:
    connection = connect(f"&close_timeout_seconds={LIMIT}").connection
    modes = [mode for mode in AcknowledgeMode if mode is not AcknowledgeMode.NO_ACK]
    for number in range(SESSIONS):
        session = connection.create_session(modes[number % len(modes)])
        queue = session.create_queue(f"queue {uuid4()}")
        session.create_producer(queue).send("x")
        if session.transacted:
            session.commit()
        assert session.create_consumer(queue).receive(timeout=WAIT) is not None
        next(iter(session.create_browser(queue)), None)
    proxy.hold(Direction.TO_SERVER, Direction.TO_CLIENT)
    before = time.monotonic()
    connection.close()
    assert time.monotonic() - before < MOST


def test_a_second_close_waits_for_the_first(proxy: Proxy, connect: Connect) -> None:
    connection = connect(f"&close_timeout_seconds={LIMIT}").connection
    session = connection.create_session()
    session.create_consumer(session.create_queue(f"queue {uuid4()}"))
    proxy.hold(Direction.TO_SERVER, Direction.TO_CLIENT)
    first = threading.Thread(target=connection.close)
    first.start()
    while connection._lifecycle.state is not State.CLOSING:
        time.sleep(0.001)
    connection.close()
    assert connection._lifecycle.state is State.CLOSED
    first.join(WAIT)
    connection.close()


# Closing while a synchronous acknowledgement waits for its confirmation.

CONFIRMED = f"&synchronous_acknowledge=true&close_timeout_seconds={LIMIT}"


def filled(direct: Connection) -> str:
    name = f"queue {uuid4()}"
    with direct.create_session() as session:
        session.create_producer(session.create_queue(name)).send("x")
    return name


@pytest.mark.parametrize("listens", [False, True], ids=["receive", "listener"])
def test_a_consumer_that_closes_in_a_black_hole_ends_its_wait_for_a_confirmation(
    proxy: Proxy, direct: Connection, connect: Connect, monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    client = connect(CONFIRMED)
    session = client.connection.create_session()
    consumer = session.create_consumer(session.create_queue(filled(direct)))
    transport = client.connection._transport
    confirm, waits, got = transport.confirm, threading.Event(), list[Message | None]()
    receiver = threading.Thread(target=lambda: got.append(consumer.receive(WAIT)))

    def confirm_in_a_black_hole(*arguments: object, **options: object) -> None:
        proxy.hold(Direction.TO_SERVER, Direction.TO_CLIENT)
        waits.set()
        confirm(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(transport, "confirm", confirm_in_a_black_hole)
    if listens:
        consumer.listener = got.append
    else:
        receiver.start()
    assert waits.wait(WAIT)
    before = time.monotonic()
    consumer.close()
    assert time.monotonic() - before < MOST
    if listens:
        assert wait_for(lambda: session._state.dispatching is None)
    else:
        receiver.join(WAIT)
    assert time.monotonic() - before < MOST
    assert [str(each) for each in got] == ["x"]
    (error,) = client.told
    assert isinstance(error, IllegalStateException)
    assert "the consumer was closed meanwhile" in str(error)


def test_a_listener_that_outlasts_its_consumer_does_not_wait_for_a_confirmation(
    proxy: Proxy, direct: Connection, connect: Connect
) -> None:
    client = connect("&synchronous_acknowledge=true&close_timeout_seconds=0.2")
    session = client.connection.create_session()
    consumer = session.create_consumer(session.create_queue(filled(direct)))
    runs, closed = threading.Event(), threading.Event()

    def listen(_message: Message) -> None:
        runs.set()
        closed.wait(WAIT)

    consumer.listener = listen
    assert runs.wait(WAIT)
    proxy.hold(Direction.TO_SERVER, Direction.TO_CLIENT)
    consumer.close()
    before = time.monotonic()
    closed.set()
    assert wait_for(lambda: session._state.dispatching is None)
    assert time.monotonic() - before < MOST, "request_timeout_seconds are far beyond that"
    (error,) = client.told
    assert "the consumer was closed meanwhile" in str(error)


def test_acknowledge_waits_on_when_a_consumer_closes_and_ends_with_its_session(
    proxy: Proxy, direct: Connection, connect: Connect
) -> None:
    """What a closed consumer has received can still be acknowledged."""
    client = connect(CONFIRMED)
    session = client.connection.create_session(AcknowledgeMode.CLIENT)
    consumer = session.create_consumer(session.create_queue(filled(direct)))
    message = consumer.receive(WAIT)
    assert message is not None
    proxy.hold(Direction.TO_SERVER, Direction.TO_CLIENT)
    raised: list[JMSException] = []

    def acknowledge() -> None:
        try:
            message.acknowledge()
        except JMSException as error:
            raised.append(error)

    thread = threading.Thread(target=acknowledge)
    thread.start()
    assert wait_for(lambda: session._state.calling)
    before = time.monotonic()
    consumer.close()
    assert time.monotonic() - before < MOST
    assert thread.is_alive()
    session.close()
    thread.join(WAIT)
    assert time.monotonic() - before < 2 * MOST
    assert [type(each) for each in raised] == [IllegalStateException]
    assert "the session was closed meanwhile" in str(raised[0])
