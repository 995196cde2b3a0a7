"""A handler of the application's log that sends each record through the SDK, with a lock around it.

The SDK logs as well: that the connection is lost, and what its engine finds.  Its threads must not wait for such a
handler, which may wait for them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from broker_adapter.engine.commands.callbacks import tell
from broker_adapter.own_threads import flush_log
from sdk import Connection, ConnectionFactory, IllegalStateException, JMSException
from tests.faults.conftest import Connect
from tests.faults.losses import in_background
from tests.faults.proxy import Proxy
from tests.faults.scenarios import WAIT, wait_for

pytestmark = pytest.mark.crash


class Sends(logging.Handler):
    """Sends each record, one at a time."""

    def __init__(self, connection: Connection, name: str) -> None:
        super().__init__(logging.WARNING)
        self.gate = threading.Lock()
        self.refused: list[JMSException] = []
        self.ahead: Callable[[], object] = lambda: None  #: called ahead of the next send, once
        session = connection.create_session()
        self._producer = session.create_producer(session.create_queue(name))

    def emit(self, record: logging.LogRecord) -> None:
        with self.gate:
            ahead, self.ahead = self.ahead, lambda: None
            ahead()
            try:
                self._producer.send(record.getMessage())
            except JMSException as error:
                self.refused.append(error)


def test_the_connection_is_restored_while_a_handler_waits_for_it(
    connect: Connect, proxy: Proxy, name: str, direct: Connection
) -> None:
    client = connect("send_timeout_seconds=120")
    handler = Sends(client.connection, name)
    logging.getLogger().addHandler(handler)
    try:
        for loss in range(1, 4):
            # A thread of the application has locked the handler as the network is lost, and then waits in it.
            handler.ahead = proxy.cut
            logging.getLogger("shop").warning("sold")
            client.wait_for_restore(loss)
    finally:
        logging.getLogger().removeHandler(handler)
    with direct.create_session() as session, session.create_browser(session.create_queue(name)) as browser:
        assert [str(each) for each in browser].count("sold") == 3


def test_a_send_of_a_handler_in_a_thread_of_the_sdk_is_refused_at_once_while_the_network_is_away(
    connect: Connect, proxy: Proxy, name: str
) -> None:
    client = connect("send_timeout_seconds=600")
    client.connection.exception_listener = None  # the loss is logged by the thread that would call it
    handler = Sends(client.connection, name)
    logging.getLogger().addHandler(handler)
    try:
        proxy.refuse()
        proxy.cut()
        client.wait_for_loss()
        assert wait_for(lambda: len(handler.refused) >= 1)
        proxy.refuse(False)
        client.wait_for_restore()
    finally:
        logging.getLogger().removeHandler(handler)
    assert all(isinstance(error, IllegalStateException) for error in handler.refused)
    assert "'holdfast-log', a thread of the SDK that others need" in str(handler.refused[0])
    assert "(QueueHandler and a filter: docs/faq.md)" in str(handler.refused[0])


def test_a_call_of_an_exception_listener_is_refused_at_once_while_the_network_is_away(
    connect: Connect, proxy: Proxy, name: str
) -> None:
    client = connect("send_timeout_seconds=600")
    session = client.connection.create_session()
    producer = session.create_producer(session.create_queue(name))
    told: list[JMSException] = []

    def report(error: JMSException) -> None:
        try:
            producer.send(f"it happened: {error}")
        except JMSException as refused:
            told.append(refused)

    client.connection.exception_listener = report
    proxy.refuse()
    proxy.cut()
    assert wait_for(lambda: bool(told))
    assert isinstance(told[0], IllegalStateException)
    proxy.refuse(False)
    client.wait_for_restore()


def test_an_embedded_engine_goes_on_while_a_handler_waits_for_it(tmp_path: object) -> None:
    """A cycle of the engine logs while another thread has locked the handler, and waits for the engine."""
    with ConnectionFactory(f"embedded:{tmp_path}").create_connection() as connection:
        handler = Sends(connection, "log")
        logging.getLogger().addHandler(handler)
        try:
            with handler.gate:  # as a thread that is about to send has it
                logged, _ = in_background(lambda: tell(_raises, None))
                logged.join(WAIT)
                assert not logged.is_alive()
            flush_log(WAIT)
        finally:
            logging.getLogger().removeHandler(handler)
        assert handler.refused == []
        session = connection.create_session()
        assert [str(each) for each in session.create_browser(session.create_queue("log"))] == [
            "! a callback of the engine raised; it must not"
        ]


def _raises(_: object) -> None:
    raise ValueError
