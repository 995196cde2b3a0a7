"""A process made by fork, as a web server makes its workers, with the connection of its parent."""

from __future__ import annotations

import gc
import os
import queue
import select
from collections.abc import Callable

import pytest

from sdk import AcknowledgeMode, Connection, MessageConsumer, Session
from tests.sdk.region_connections import Connect
from tests.sdk.threads.calls import WAIT, send

ENDS: dict[str, Callable[[Connection, Session, MessageConsumer], object]] = {
    "consumer": lambda connection, session, consumer: consumer.close(),
    "session": lambda connection, session, consumer: session.close(),
    "connection": lambda connection, session, consumer: connection.close(),
    "with block": lambda connection, session, consumer: connection.__exit__(None, None, None),
}


def in_child(act: Callable[[], object]) -> str:
    """Fork, and do something in the child, which has to end; returns what it raises."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            act()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        in_time = bool(select.select([told], [], [], WAIT)[0])
        if not in_time:
            os.kill(child, 9)
        os.waitpid(child, 0)
        assert in_time, "the child hangs"
        return told.read()


@pytest.mark.parametrize("what", ENDS)
def test_a_child_closes_what_its_parent_made_at_once_and_the_parent_goes_on(connect: Connect, what: str) -> None:
    connection = connect(client="close_timeout_seconds=600")
    connection.start()
    session = connection.create_session(AcknowledgeMode.CLIENT)
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    consumer = session.create_consumer(session.create_queue("q"))
    consumer.listener = lambda message: (heard.put(str(message)), message.acknowledge())
    send(connection, "before")
    assert heard.get(timeout=WAIT) == "before"

    assert in_child(lambda: ENDS[what](connection, session, consumer)) == "nothing"

    send(connection, "after")
    assert heard.get(timeout=WAIT) == "after"


def test_a_child_that_drops_what_its_parent_made_leaves_it_to_the_parent(connect: Connect) -> None:
    made = [connect(client="close_timeout_seconds=600")]
    made[0].start()
    made += [made[0].create_session(AcknowledgeMode.CLIENT)]
    made += [made[1].create_consumer(made[1].create_queue("q"))]
    send(made[0], "1")
    connection, consumer = made[0], made[2]

    def drop() -> None:
        nonlocal connection, consumer
        made.clear()
        del connection, consumer
        gc.collect()

    assert in_child(drop) == "nothing"
    assert str(consumer.receive(timeout=WAIT)) == "1"


@pytest.mark.parametrize("mode", AcknowledgeMode)
def test_what_a_parent_has_made_raises_in_its_child_also_for_what_was_prefetched(
    connect: Connect, mode: AcknowledgeMode
) -> None:
    connection = connect()
    connection.start()
    send(connection, "1", "2")
    session = connection.create_session(mode)
    consumer = session.create_consumer(session.create_queue("q"))
    assert str(consumer.receive(timeout=WAIT)) == "1"
    calls: list[Callable[[], object]] = [
        lambda: consumer.receive(timeout=1),
        consumer.receive_nowait,
        connection.create_session,
        connection.start,
        connection.stop,
        session.recover if mode is not AcknowledgeMode.TRANSACTED else session.commit,
        lambda: session.create_consumer(session.create_queue("q")),
    ]
    for call in calls:
        said = in_child(call)
        assert said.startswith("IllegalStateException: "), said
        assert said.endswith("it was made by the parent of this process; make a connection after the fork"), said
    assert str(consumer.receive(timeout=WAIT)) == "2"
